"""Waiting for the first full lists without the garbage collector in the way.

While 10,000 pods are decoded and entered into the books, the collector walks over all that has
arrived so far, again and again, and finds nothing. Off meanwhile, it costs nothing; and what has
come to stay is moved out of its sight afterwards (`gc.freeze`), so that each later full collection
does not stop everything for 100 ms (10,000 pods kept whole). Only a process knows whether that
suits it, so the process calls this.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Protocol


class Syncing(Protocol):
    """A Reflector, as far as needed here."""

    synced: asyncio.Event


async def synced_without_gc(*reflectors: Syncing, gc_off_at_most_s: float = 60.0) -> None:
    """Wait until all have told their first full list; the collector is off until then.

    With the API server away that may take for ever, so that the collector is on again after
    `gc_off_at_most_s` all the same; the wait goes on.
    """
    synced = asyncio.ensure_future(asyncio.gather(*(r.synced.wait() for r in reflectors)))
    try:
        gc.disable()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(synced), gc_off_at_most_s)
        finally:
            gc.enable()
        await synced
    finally:
        synced.cancel()
    gc.collect()
    gc.freeze()
