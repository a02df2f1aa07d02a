"""Directories of generated files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def settle(place: Path, files: Mapping[str, str], pattern: str, *, is_check: bool) -> int:
    """Write exactly these files into the directory; with `check`, write nothing and return 1 for a difference."""
    found = {path.name: path.read_text(encoding="utf-8") for path in place.glob(pattern)} if place.exists() else {}
    stale = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
    if is_check:
        for name in stale:
            print(f"{place / name} is not up to date: nox -s docs")
        return 1 if stale else 0
    place.mkdir(exist_ok=True)
    for name in stale:
        if name in files:
            (place / name).write_text(files[name], encoding="utf-8")
        else:
            (place / name).unlink()
    return 0
