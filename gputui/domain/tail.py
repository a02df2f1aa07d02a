"""Start of the last lines of a text that is too long to be read whole."""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 65536


def tail_start(size: int, lines: int, read: Callable[[int, int], bytes], block: int = BLOCK) -> int:
    """The byte at which the last so many lines begin, of `size` bytes of which `read(at, count)` gives any part.

    It is read from its end, `block` bytes at a time, and no further than need be. A newline at the very end begins no
    other line. With fewer lines than wanted it is 0.
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
            return start + _newline_from_end(part, wanted) + 1
        wanted -= found
        at = start
    return 0


def _newline_from_end(part: bytes, number: int) -> int:
    at = len(part)
    for _ in range(number):
        at = part.rindex(b"\n", 0, at)
    return at
