"""Submissions to a cluster that have no answer yet, so that one that was killed or cut off is repeated only once.

Each is a file, named by its key, which the process that waits for the answer keeps locked. A file that is left unlocked
tells of an answer that nobody got: whoever submits the same again takes the key over, for which engines know a job.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from gputui.domain.errors import ClusterUnavailableError, LostAnswerError
from gputui.domain.job_spec import Submission

DIRECTORY = "submitting"
"""Directory of these files."""
_AGAIN = "submit the same again within an hour: the job is looked for first, and there is no second one"
_TOLD_WITHIN = 5.0
"""Seconds in which an answer is shown to the user."""
_LASTS = 3600.0
"""Seconds after which the same submission is a new one."""


class UnansweredSubmissions:
    """Such submissions of this process and of earlier ones; without the directory nothing is kept."""

    def __init__(self, directory: Path) -> None:
        self._parent = directory
        self._answered: list[tuple[Path, int]] = []

    @contextmanager
    def begun(self, submissions: Sequence[Submission]) -> Iterator[tuple[str, bool]]:
        """Yield the key to submit these with, and whether they are a repetition.

        They stay known until `told`, or some seconds after their answer: also after ClusterUnavailableError, or what
        is no Exception. KeyboardInterrupt gets words for the user.
        """
        self.told()
        if self._parent == Path() or not self._parent.is_dir():
            yield uuid4().hex, False
            return
        content, place = msgspec.json.encode(submissions), self._parent / DIRECTORY
        place.mkdir(mode=0o700, exist_ok=True)
        taken = _taken_over(place, content)
        path, descriptor = taken or _made(place / uuid4().hex, content)
        try:
            yield path.name, taken is not None
        except ClusterUnavailableError as error:
            os.close(descriptor)
            hint = _AGAIN if isinstance(error, LostAnswerError) else error.hint
            raise type(error)(error.what, where=error.where, hint=hint) from error
        except KeyboardInterrupt as stop:
            stop.args = (f"interrupted: whether a job was submitted is not known ({_AGAIN})",)
            raise
        except Exception:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._answered.append((path, descriptor))
        later = threading.Timer(_TOLD_WITHIN, self.told)
        later.daemon = True
        later.start()

    def told(self) -> None:
        """Forget those whose answers the user has got by now."""
        while self._answered:
            with suppress(IndexError, OSError):
                path, descriptor = self._answered.pop()
                path.unlink(missing_ok=True)
                os.close(descriptor)


def _made(path: Path, content: bytes) -> tuple[Path, int]:
    """Make the file of a new submission, and lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        os.write(descriptor, content)
    except OSError as error:
        path.unlink()
        os.close(descriptor)
        raise OSError(error.errno, f"{error.strerror}, so nothing is submitted", str(path.parent)) from error
    return path, descriptor


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
