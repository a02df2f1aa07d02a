"""Saves a whole log to a file, byte for byte; nothing that is there is overwritten without being asked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from gputui.domain.job import JobId
from gputui.tui.log.follower import LogFollower


def suggested_name(job_id: JobId, attempt: int | None) -> str:
    """What the file is called unless somebody says otherwise."""
    return f"job-{job_id}.log" if attempt is None else f"job-{job_id}-attempt-{attempt}.log"


def save_log(
    follower: LogFollower,
    path: Path,
    *,
    overwrite: bool,
    is_wanted: Callable[[], bool],
    step: Callable[[int], object] = lambda count: None,
) -> int:
    """Write everything the attempt printed so far; how many lines. Blocks; raises OSError and GputuiError.

    Without `overwrite` a file that is there is left alone: FileExistsError. `step` hears how many lines are written by
    now; where it raises, no file is left.
    """
    if not overwrite and path.exists():
        raise FileExistsError(17, "the file is there already", str(path))
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=None, follow=False)
    try:
        count = _write(aside, stream, is_wanted, step)
        if overwrite:
            aside.replace(path)
        else:
            os.link(aside, path)  # fails where something came to be there meanwhile
        return count
    finally:
        stream.close()
        aside.unlink(missing_ok=True)


def _write(path: Path, lines: Iterable[bytes], is_wanted: Callable[[], bool], step: Callable[[int], object]) -> int:
    count = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
            if count % 1000 == 0:
                step(count)
                if not is_wanted():
                    raise InterruptedError(4, "the console was left")
    return count
