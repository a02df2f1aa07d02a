"""Keeps a user's preferences between runs: a small JSON file owned by that user, in named sections.

A section is a dictionary, and belongs to one part of the console, such as `layout` to the panes. The file is never in
the state directory, which users may share; an unreadable file counts as missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

_REST = 0.5
"""Seconds from a change until it is written, so that repeating keys cost one write."""
_PATIENCE = 1.0
"""Seconds that the last write may take when the console is closed."""
_MOST = 1 << 20
"""Maximum bytes of the file; a larger one was not written by gputui."""


class Preferences:
    """Sections by name. Without a path nothing is read or written: they last as long as the console."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._sections = _read(path)
        self._changed: set[str] = set()
        self._timer: threading.Timer | None = None

    def get(self, section: str) -> dict[str, object]:
        """Return a section; empty where there is none. Never touches the disk."""
        with self._lock:
            return dict(self._sections.get(section, {}))

    def put(self, section: str, values: Mapping[str, object]) -> None:
        """Replace a section; a thread writes it soon. Values must be JSON values."""
        with self._lock:
            self._sections[section] = dict(values)
            self._changed.add(section)
            if self._path is not None and self._timer is None:
                self._timer = threading.Timer(_REST, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Write changes, unless the disk takes longer than a quitting user wants to wait."""
        if self._path is not None and self._changed:
            writer = threading.Thread(target=self.flush, daemon=True)
            writer.start()
            writer.join(_PATIENCE)

    def flush(self) -> None:
        """Write changes. Sections that another console changed meanwhile keep its values."""
        with self._writing:
            with self._lock:
                self._timer = None
                changed = {name: self._sections[name] for name in self._changed}
                self._changed.clear()
            if self._path is not None and changed:
                with contextlib.suppress(OSError):  # preferences are lost if the home directory is not writable
                    sections = {**_read(self._path), **changed}
                    replace_text(self._path, json.dumps(sections, indent=1, sort_keys=True))


def _read(path: Path | None) -> dict[str, dict[str, object]]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    whole = found if isinstance(found, dict) else {}
    return {name: values for name, values in whole.items() if isinstance(values, dict)}


def replace_text(path: Path, text: str) -> None:
    """Replace the file atomically, or leave it unchanged; its directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # only readable by its owner
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # or its error would hide the one that is told
            Path(name).unlink()
        raise
