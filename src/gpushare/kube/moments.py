"""Waiting for an event, but not for ever; and for the end of a process's life."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

log = logging.getLogger(__name__)


async def set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until `event` is set; False if it was not within `timeout_s` (None: wait for ever).

    Unlike `asyncio.wait_for` it never swallows a cancellation that comes as the event is set
    (Python 3.11), after which a task that was told to end would go on for ever.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def until_stopped(stop: asyncio.Event, tasks: Sequence["asyncio.Task[Any]"]) -> bool:
    """Wait for a signal, or for a part to fail; True in the second case."""
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping
    for task in done - {stopping}:
        log.critical("%s failed; ending", task.get_name(), exc_info=task.exception())
    return bool(done - {stopping})
