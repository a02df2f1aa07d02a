"""Answers as JSON: in the form of `--json`, or of the structs that gputui's own clients share with the owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gputui.api.http import Response
from gputui.domain.as_json import json_text


def encoded(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a value as an answer: dicts and lists of them as `--json` prints them, all else in one line."""
    if isinstance(value, dict) or (isinstance(value, list) and (not value or isinstance(value[0], dict))):
        return Response(status, (json_text(value) + "\n").encode(), headers=headers)
    return Response(status, own_json(value) + b"\n", headers=headers)


def own_json(value: Any) -> bytes:
    """Return a value of our own types as JSON in one line."""
    return _ENCODER.encode(value)


def _plain(value: Any) -> dict[Any, Any] | list[Any]:
    """Return a read-only mapping as a dict, and what yields values as a list; raises TypeError for others."""
    return dict(value) if isinstance(value, Mapping) else list(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
