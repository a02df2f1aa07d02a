"""YAML for people: mappings and lists in lines of their own, texts quoted wherever YAML could read something else.

A quoted text is written as JSON, which every reader of YAML understands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "~"})
"""Words that a reader may take for something else than a text."""
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]")


def document(value: Mapping[str, Any]) -> str:
    """Return a document with these values: texts, numbers, booleans, lists and mappings."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _field(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _field(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
