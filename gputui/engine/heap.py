"""Keeps the C heap of a long-lived process small: what was needed for a moment goes back to the system.

A queue of ten thousand jobs makes lists of a hundred kilobytes many times a second, in several threads. glibc would
keep a heap for each thread, and once such lists came and went put the next ones among small things that stay: after ten
minutes of that, 44 of 74 MB were holes.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of mallopt(3); to set a threshold ends its growing by itself."""
LARGE = 64 * 1024
"""Bytes from which on memory is the system's own, given back at once when it is freed."""
SPARE = 1024 * 1024
"""Bytes that may stay free at the heap's end."""


def settle() -> None:
    """Have one heap for all threads of the process, which Python lets run by turns anyway. Only glibc has several."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library, which has other habits
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_MMAP_THRESHOLD, LARGE)
        libc.mallopt(_TRIM_THRESHOLD, SPARE)
