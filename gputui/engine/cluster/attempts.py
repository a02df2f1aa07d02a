"""Submissions to a cluster that have no answer yet, so that one that was killed or cut off is repeated only once.

Each is a file, named by its key, which the process that waits for the answer keeps locked. A file that is left unlocked
tells of an answer that nobody got: whoever submits the same again takes the key over, for which engines know a job.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.job_spec import Submission

DIRECTORY = "submitting"
"""Directory of these files."""
_LASTS = 3600.0
"""Seconds after which the same submission is a new one."""


@contextmanager
def attempt(directory: Path, submissions: Sequence[Submission]) -> Iterator[tuple[str, bool]]:
    """Yield the key to submit these with, and whether they are a repetition. Nothing is kept without the directory.

    They stay known until an answer has come: also after ClusterUnavailableError, or what is no Exception.
    """
    if directory == Path() or not directory.is_dir():
        yield uuid4().hex, False
        return
    content, place = msgspec.json.encode(submissions), directory / DIRECTORY
    place.mkdir(mode=0o700, exist_ok=True)
    taken = _taken_over(place, content)
    path = taken[0] if taken else place / uuid4().hex
    descriptor = taken[1] if taken else os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if not taken:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, content)
        yield path.name, taken is not None
        path.unlink(missing_ok=True)
    except ClusterUnavailableError:
        raise
    except Exception:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _taken_over(place: Path, content: bytes) -> tuple[Path, int] | None:
    """Return the file of the same submission whose process waits no longer, locked; remove those that are too old."""
    for path in place.iterdir():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if _is_left(path, descriptor) and path.read_bytes() == content:
                return path, descriptor
            os.close(descriptor)
    return None


def _is_left(path: Path, descriptor: int) -> bool:
    """Return whether nobody waits for the answer, and it has not come; the file is locked then."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_nlink and time.time() - status.st_mtime < _LASTS:
            return True
        path.unlink(missing_ok=True)
    return False
