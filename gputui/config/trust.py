"""Refuses settings files whose commands would be somebody else's: whoever may write them would run as this user."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from pathlib import Path

from gputui.domain.errors import InputError


def check_trusted(path: Path, opened: os.stat_result) -> None:
    """Raise InputError unless only root and this user may change the file; `opened` is its state when it was read.

    The same holds for the directory it is in, where others could replace it; for a link, for both directories.
    """
    _check(path, opened, "file")
    for directory in dict.fromkeys((path.parent, path.resolve().parent)):
        _check(directory, directory.stat(), "directory")


def _check(path: Path, status: os.stat_result, noun: str) -> None:
    quoted = shlex.quote(str(path))
    why = "so others could run commands as this user through its [hooks]"
    if status.st_uid not in {0, os.geteuid()}:
        what = f"this {noun} belongs to {_user_name(status.st_uid)}, {why}"
        raise InputError(what, where=str(path), hint=f"chown {_user_name(os.geteuid())} {quoted}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not (noun == "directory" and mode & stat.S_ISVTX):
        what = f"this {noun} has mode {mode:04o} and can be changed by others, {why}"
        raise InputError(what, where=str(path), hint=f"chmod go-w {quoted}")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
