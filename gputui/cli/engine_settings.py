"""Registers the runtime `nvidia` in a Docker engine's settings file, as `nvidia-ctk runtime configure` does."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gputui.domain.errors import GputuiError

RUNTIME = "nvidia-container-runtime"
_MAX_FILE = 1024**2
_BY_HAND = "correct it by hand; nothing was changed"


@dataclass(frozen=True)
class Change:
    """A change of a settings file that was not made yet."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> list[str]:
        """The lines of the change, as a unified diff."""
        name = str(self.path)
        sides = (self.before.splitlines(), self.after.splitlines())
        return list(difflib.unified_diff(*sides, name, f"{name} (new)", lineterm=""))


def registration(path: Path, program: str = RUNTIME) -> Change | None:
    """Return the change that registers the runtime, with all other keys kept; None when it is registered so.

    Raises GputuiError for a file that cannot be read or is not what dockerd would accept.
    """
    before = _read(path)
    settings = _parsed(path, before)
    runtimes = settings.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise GputuiError('"runtimes" is not an object', where=str(path), hint=_BY_HAND)
    known = runtimes.get("nvidia")
    if isinstance(known, dict) and known.get("path") == program:
        return None
    kept = known if isinstance(known, dict) else {"args": []}
    runtimes["nvidia"] = {**kept, "path": program}
    return Change(path, before, json.dumps(settings, indent=_indent(before), ensure_ascii=False) + "\n")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise GputuiError("is larger than 1 MiB", where=str(path), hint="nothing was changed")
        return content.decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise GputuiError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text at byte {error.start}"
        raise GputuiError(what, where=str(path), hint=_BY_HAND) from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text, object_pairs_hook=_without_twins) if text.strip() else {}
    except json.JSONDecodeError as error:
        what = f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        raise GputuiError(what, where=str(path), hint=_BY_HAND) from error
    except (ValueError, RecursionError) as error:
        raise GputuiError(f"is not JSON that can be changed: {error}", where=str(path), hint=_BY_HAND) from error
    if not isinstance(settings, dict):
        raise GputuiError("is not a JSON object", where=str(path), hint=_BY_HAND)
    return settings


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object; refuse a key given twice, of which one would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twin!r} is there twice")
    return found


def _indent(text: str) -> int | str:
    """Return the indentation that the file uses, so that the change stays small."""
    match = re.search(r"\n([ \t]+)\S", text)
    return 4 if match is None else match[1]


def write(change: Change, now: datetime) -> Path | None:
    """Make the change, whole or not at all; return the backup, None where there was no file before."""
    target = change.path.resolve()
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        backup = _back_up(target, now)
        _replace(target, change.after)
    except OSError as error:
        hint = "run it as root: sudo gputui doctor --fix" if isinstance(error, PermissionError) else None
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(target), hint=hint) from error
    return backup


def _back_up(target: Path, now: datetime) -> Path | None:
    if not target.exists():
        return None
    backup = target.with_name(f"{target.name}.{now:%Y%m%d-%H%M%S}.bak")
    shutil.copy2(target, backup)
    return backup


def _replace(target: Path, text: str) -> None:
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    fd, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        Path(partial).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(partial).unlink()
        raise
