"""Accounts with unusual names that tests create on this machine and remove."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def accounts() -> Iterator[None]:
    """Lock the accounts against changes by other processes."""
    with Path("/run/lock/gputui-tests-accounts").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
