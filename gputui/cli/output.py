"""Prints objects of `--json`, which `domain/as_json.py` makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gputui.cli import terminal
from gputui.domain.as_json import array_parts, json_text


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object over several lines, an array with one element a line; ASCII, so that no terminal acts on it."""
    terminal.write(json_text(value) + "\n")


def print_array(values: Iterable[Mapping[str, Any]]) -> None:
    """Print an array like `print_json`, each element as soon as it is known: all of them may not fit into memory."""
    terminal.write_lines(array_parts(values))
    terminal.write("\n")
