"""Keeps Python's garbage collections rare and short: each stops every thread of the process, the console's too."""

from __future__ import annotations

import gc

YOUNG = 5000
"""New objects that set off a collection, instead of Python's 700.

A plan for thousands of jobs makes and drops more than that every second. What outlives two collections counts as old,
and a quarter more of old objects sets off a collection of them all: a tenth of a second and more each time, nearly
every second, for next to no garbage.
"""


def settle() -> None:
    """Pass over from now on what is here, which is mostly the queue: it stays, and has no cycles. To be called once."""
    gc.set_threshold(YOUNG, 10, 10)
    gc.freeze()
