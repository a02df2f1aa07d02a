"""Elements of arrays, found in documents without decoding jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.domain.job import JobId


def elements_of(table: Mapping[str, Any]) -> dict[JobId, dict[int, JobId]]:
    """Return by array the ids of its elements by index; documents that cannot be read as an element are left out."""
    found: dict[JobId, dict[int, JobId]] = {}
    for key, document in table.items():
        array = document.get("array") if isinstance(document, dict) else None
        if not isinstance(array, dict):
            continue
        array_id, index = array.get("id"), array.get("index")
        if isinstance(array_id, int) and isinstance(index, int) and key.isascii() and key.isdigit():
            found.setdefault(array_id, {})[index] = int(key)
    return found
