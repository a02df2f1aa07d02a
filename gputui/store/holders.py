"""The process that holds a file's lock, for messages: the kernel lists locks in /proc/locks."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
_LONGEST = 60


def holder_of(fd: int) -> str:
    """Return words for the process that has locked the open file: `process 4711 (rsync …)`."""
    pid = _pid(os.fstat(fd))
    if pid is None:
        return "another process"
    notes = [_command(pid)] + (["stopped"] if _is_stopped(pid) else [])
    told = ", ".join(filter(None, notes))
    return f"process {pid} ({told})" if told else f"process {pid}"


def _pid(status: os.stat_result) -> int | None:
    """Return the holder's id; None where the kernel does not tell."""
    try:
        lines = (PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        # "7: FLOCK ADVISORY WRITE 4711 08:01:131 0 EOF"; those who wait have "->" behind the number
        if len(words) > 5 and words[1] == "FLOCK" and words[5].split(":")[-1] == str(status.st_ino):
            return int(words[4]) if words[4].isdigit() and int(words[4]) > 0 else None
    return None


def _command(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = " ".join(word.decode(errors="replace") for word in words if word)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _is_stopped(pid: int) -> bool:
    try:
        status = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] in (["T"], ["t"])
