"""Commands write to the terminal of their user, which may be that of a caller elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gputui import cli
from tests.cases import cases

ROOM = Path(cli.__file__).parent
OF_A_PROCESS = {"terminal.py", "trainer.py", "demo.py"}
"""Modules that are about this process itself, or are a program of their own."""
PARTS = {
    "main.py": {"sys.stdout", "sys.stderr"},
    "owned.py": {"os.environ"},
    "conversation.py": {"sys.stdin", "sys.stdout", "sys.stderr", "os.get_terminal_size"},
}
"""Names that a module may touch besides: before any command begins, or of a terminal that it makes raw."""
BANNED = {
    *("sys.stdout", "sys.stderr", "click.echo", "click.secho", "print"),
    *("os.environ", "os.getenv", "os.getcwd", "Path.cwd", "os.umask", "os.get_terminal_size"),
}


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the names that the code uses, `click.echo` and `print` alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name):
            yield node.id


@cases("module", sorted(ROOM.rglob("*.py")))
def test_a_command_touches_nothing_of_its_process_that_a_caller_has_too(module: Path) -> None:
    if module.name in OF_A_PROCESS:
        return
    found = BANNED.intersection(named(ast.parse(module.read_text())))
    allowed = PARTS.get(module.name, set())
    assert found <= allowed, f"use gputui.cli.terminal in place of {sorted(found - allowed)}"
