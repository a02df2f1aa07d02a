"""Wakes one asyncio task from any thread, without ever losing a wake-up or piling them up."""

from __future__ import annotations

import asyncio


class Waker:
    """An event that any thread may set; any number of sets before a wait count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Wake tasks of the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Have the task go round once more. Never blocks; does nothing once the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # closed since the line above
                return

    async def wait(self) -> None:
        """Return at the next wake-up, at once if there was one since the last."""
        await self._event.wait()
        self._event.clear()
