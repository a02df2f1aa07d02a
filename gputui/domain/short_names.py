"""Short forms of UUIDs that still tell them apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

LEAST = 12
"""Characters of a short form: `GPU-` and the first group of the rest."""


def short_names(uuids: Iterable[str], least: int = LEAST) -> Mapping[str, str]:
    """Return the beginning of each UUID, all of one length: `least` characters, or as many as make them differ."""
    known = list(dict.fromkeys(uuids))
    length = next((size for size in range(least, _longest(known)) if _differ(known, size)), _longest(known))
    return {uuid: uuid[:length] for uuid in known}


def _differ(uuids: Collection[str], size: int) -> bool:
    return len({uuid[:size] for uuid in uuids}) == len(uuids)


def _longest(uuids: Iterable[str]) -> int:
    return max(map(len, uuids), default=0)
