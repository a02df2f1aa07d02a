"""The console, whose screen fails where the first argument says: for tests, in a process of its own."""

from __future__ import annotations

import sys

from gputui.cli.main import run
from gputui.tui.app import Gputui
from gputui.tui.screens.main import Main

WORDS = "no \x1b[31msuch thing"


def fail(*_: object) -> None:
    """What a mistake in the program does."""
    raise KeyError(WORDS)


def main(where: str, *arguments: str) -> int:
    """Have it fail there, and run it."""
    if where == "key":
        Gputui.action_help = fail  # type: ignore[method-assign, assignment]
    elif where == "opening":
        Main.on_mount = fail  # type: ignore[method-assign, assignment]
    elif where == "making":
        Gputui.dress = fail  # type: ignore[method-assign, assignment]
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
