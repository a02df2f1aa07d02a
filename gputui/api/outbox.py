"""What a stream still has to send to its client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

PIECE = 256 << 10
"""Bytes that are passed to the kernel at a time."""


class Buffer:
    """Parts of an answer without an end: any thread puts them, the server's loop takes them."""

    def __init__(self, most: int) -> None:
        """A part is taken as long as no more than `most` bytes wait before it; its own size does not count."""
        self._most = most
        self._lock = threading.Lock()
        self._parts: deque[memoryview] = deque()
        self._unsent = 0
        self._is_over = False
        self._is_told = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._cut = asyncio.Event()

    @property
    def waiting(self) -> int:
        return self._unsent

    def send(self, data: bytes) -> bool:
        with self._lock:
            if self._is_over:
                return False
            if self._unsent > self._most:
                self._is_over = True
                self._parts.clear()
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._cut.set)
            elif data:
                self._parts.append(memoryview(data))
                self._unsent += len(data)
        self._tell()
        return not self._is_over

    def close(self) -> None:
        with self._lock:
            self._is_over = True
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            is_told, self._is_told = self._is_told, True
        if not is_told:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def take(self) -> memoryview | None:
        """Return the next piece to send, when there is one; None at the end. Call `sent` once it is sent."""
        while True:
            with self._lock:
                if self._parts:
                    part = self._parts.popleft()
                    if len(part) > PIECE:
                        self._parts.appendleft(part[PIECE:])
                    return part[:PIECE]
                if self._is_over:
                    return None
                self._is_told = False
                self._wake.clear()
            await self._wake.wait()

    async def until_cut(self) -> None:
        """Return once the client was too slow."""
        await self._cut.wait()

    def sent(self, size: int) -> None:
        with self._lock:
            self._unsent -= size
