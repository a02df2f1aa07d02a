"""Finds the start of the last lines of a text that is too long to be read completely."""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 65536


def tail_start(size: int, lines: int, read: Callable[[int, int], bytes], block: int = BLOCK) -> int:
    """Return the offset at which the last `lines` lines begin, of `size` bytes that `read(at, count)` returns in parts.

    Reads from the end, `block` bytes at a time, and no further than necessary. A newline at the very end does not begin
    another line. With fewer lines than wanted it is 0.
    """
    if lines <= 0:
        return size
    wanted = lines + (size > 0 and read(size - 1, 1) == b"\n")
    at = size
    while at > 0:
        start = max(0, at - block)
        part = read(start, at - start)
        found = part.count(b"\n")
        if found >= wanted:
            end = len(part)
            for _ in range(wanted):
                end = part.rindex(b"\n", 0, end)
            return start + end + 1
        wanted -= found
        at = start
    return 0
