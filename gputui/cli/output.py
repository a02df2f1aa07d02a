"""Prints objects of `--json`, which `domain/as_json.py` makes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gputui.domain.as_json import array_parts, json_text


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object over several lines, an array with one element a line; ASCII, so that no terminal acts on it."""
    sys.stdout.write(json_text(value) + "\n")


def print_array(values: Iterable[Mapping[str, Any]]) -> None:
    """Print an array like `print_json`, each element as soon as it is known: all of them may not fit into memory."""
    sys.stdout.writelines(array_parts(values))
    sys.stdout.write("\n")
