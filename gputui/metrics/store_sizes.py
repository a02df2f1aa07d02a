"""Sizes of the store's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PATTERNS: Mapping[str, str] = {
    "queue": "queue.json",
    "journal": "queue.json.wal.*",
    "history": "history-*",
    "audit": "audit-*",
    "log": "gputui.log*",
}
"""Names of the files by kind."""


def measure(state: Path) -> dict[str, int]:
    """Return the bytes of the files of each kind. Blocks on the disk."""
    return {kind: sum(_size(path) for path in state.glob(pattern)) for kind, pattern in PATTERNS.items()}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone since it was listed
        return 0
