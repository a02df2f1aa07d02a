"""The console, whose screen fails where the first argument says: for tests, in a process of its own."""

from __future__ import annotations

import sys

from gputui.cli.main import run
from gputui.domain.snapshot import Snapshot
from gputui.tui.app import Gputui
from gputui.tui.screens.main import Main
from gputui.tui.steady import SteadyDriver

WORDS = "no \x1b[31msuch thing"


def fail(*_: object) -> None:
    """What a mistake in the program does."""
    raise KeyError(WORDS)


show = Gputui.watch_snapshot


def fail_while_away(app: Gputui, snapshot: Snapshot) -> None:
    """The same, at the next picture, while the terminal is lent to a shell."""
    if app.is_away:
        fail()
    show(app, snapshot)


def main(where: str, *arguments: str) -> int:
    """Have it fail there, and run it."""
    if where == "key":
        Gputui.action_help = fail  # type: ignore[method-assign, assignment]
    elif where == "opening":
        Main.on_mount = fail  # type: ignore[method-assign, assignment]
    elif where == "making":
        Gputui.dress = fail  # type: ignore[method-assign, assignment]
    elif where == "starting":  # the terminal is half taken over by then
        SteadyDriver._request_terminal_sync_mode_support = fail  # type: ignore[method-assign, assignment]
    elif where == "reading":  # on a thread
        SteadyDriver.run_input_thread = fail  # type: ignore[method-assign, assignment]
    elif where == "away":
        Gputui.watch_snapshot = fail_while_away  # type: ignore[method-assign, assignment]
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
