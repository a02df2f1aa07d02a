"""Templates of jobs: job files in a directory of the user's own. Reads and writes disk, so no event loop calls it."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from gputui.domain.errors import GputuiError, InputError
from gputui.request import toml
from gputui.request.draft import Draft, without_secrets
from gputui.request.submitter import Submitter

MOST = 500
_NAME = re.compile(r"\w[\w .+-]{0,79}")


def names(directory: Path) -> tuple[str, ...]:
    """Those that there are, in order; none where there is no such directory."""
    try:
        found = sorted(path.stem for path in directory.glob("*.toml") if path.stem.isprintable())
    except OSError:
        return ()
    return tuple(found[:MOST])


def load(directory: Path, name: str, by: Submitter) -> dict[str, str]:
    """The draft of one; raises InputError that says what is wrong with the file."""
    return toml.read(directory / f"{name}.toml", by)


def save(directory: Path, name: str, draft: Draft) -> Path:
    """Write it, in place of one of that name; what looks like a secret is named, and not written."""
    if not _NAME.fullmatch(name):
        raise InputError("is no name for a template", where=name, hint="letters, digits, blanks, and . + - _")
    path = directory / f"{name}.toml"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, toml.written(without_secrets(draft)))
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return path


def _write(path: Path, text: str) -> None:
    """Replace the file whole, or leave it as it was."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner alone
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(partial).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise
