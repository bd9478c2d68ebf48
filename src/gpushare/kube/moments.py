"""Waiting for an event, but not for ever."""

import asyncio


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
