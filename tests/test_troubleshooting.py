"""docs/troubleshooting.md quotes real messages: each is found in a string of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
GAP = "…"


def strings() -> Iterator[str]:
    """Return all strings of the source, with a gap for each value that is put in."""
    for path in (ROOT / "gputui").rglob("*.py"):
        yield from strings_of(ast.parse(path.read_text()))


def strings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{\w+\}", GAP, node.value)


def pattern(message: str) -> re.Pattern[str]:
    pieces = [re.escape(piece) for piece in message.split(GAP) if piece.strip()]
    assert pieces, message
    return re.compile(".*".join(pieces), re.DOTALL)


def test_every_quoted_message_exists_in_the_code() -> None:
    printed = set(strings())
    assert [message for message in QUOTED if not any(map(pattern(message).search, printed))] == []


def test_every_entry_has_a_remedy() -> None:
    entries = re.split(r"^> ", PAGE, flags=re.MULTILINE)[1:]
    assert len(entries) == len(QUOTED) > 15
    assert [entry.partition("\n")[0] for entry in entries if "\nDo: " not in entry] == []


def test_every_named_command_exists() -> None:
    from gputui.cli.main import COMMANDS

    named = set(re.findall(r"`(?:sudo )?gputui ([a-z]+)", PAGE))
    assert named <= set(COMMANDS), named - set(COMMANDS)
