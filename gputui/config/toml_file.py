"""Reads TOML files that were written by hand."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

from gputui.domain.errors import InputError

MAX_FILE = 1024**2
"""Maximum size in bytes: settings and job files are written by hand, so a larger file is something else."""


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """Return the tables of a TOML file; raise InputError that names it where it cannot be read or parsed."""
    return read_with_status(path, where)[0]


def read_with_status(path: Path, where: str) -> tuple[dict[str, Any], os.stat_result]:
    """Return the tables, and owner and mode of the same opened file."""
    import tomllib

    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InputError("is larger than 1 MiB", where=where, hint="split it")
        return tomllib.loads(content.decode()), status
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=where, hint="save it as UTF-8") from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=where) from error
    except ValueError as error:  # tomllib's own, and numbers too long for Python's int
        raise InputError(f"is not TOML: {error}", where=where) from error


def check_trusted(path: Path, opened: os.stat_result) -> None:
    """Raise InputError unless only root and this user can change the file; `opened` is its status when it was read.

    The same holds for its directory, where others could replace it, and for a link for both directories.
    """
    _check(path, opened, "file")
    for directory in dict.fromkeys((path.parent, path.resolve().parent)):
        _check(directory, directory.stat(), "directory")


def _check(path: Path, status: os.stat_result, noun: str) -> None:
    import shlex

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
