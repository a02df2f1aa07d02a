"""The console, whose screen fails where the first argument says: for tests, in a process of its own."""

from __future__ import annotations

import sys

from gputui.cli.main import run
from gputui.domain.snapshot import Snapshot
from gputui.tui.app import Gputui
from gputui.tui.screens.main import Main
from gputui.tui.textual_internals import NonblockingDriver

WORDS = "no \x1b[31msuch thing"


def fail(*_: object) -> None:
    """Raise an error, as a bug would."""
    raise KeyError(WORDS)


show = Gputui.watch_snapshot


def fail_while_away(app: Gputui, snapshot: Snapshot) -> None:
    """Raise an error at the next snapshot, while the terminal is lent to a shell."""
    if app.terminal.is_away:
        fail()
    show(app, snapshot)


def main(where: str, *arguments: str) -> int:
    """Run the console with that failure."""
    if where == "key":
        Gputui.action_help = fail  # type: ignore[method-assign, assignment]
    elif where == "opening":
        Main.on_mount = fail  # type: ignore[method-assign, assignment]
    elif where == "making":
        Gputui.get_css_variables = fail  # type: ignore[method-assign, assignment]
    elif where == "starting":  # the terminal is half taken over by then
        NonblockingDriver._request_terminal_sync_mode_support = fail  # type: ignore[method-assign, assignment]  # noqa: SLF001 - Textual has no public step there
    elif where == "reading":  # on a thread
        NonblockingDriver.run_input_thread = fail  # type: ignore[method-assign, assignment]
    elif where == "away":
        Gputui.watch_snapshot = fail_while_away  # type: ignore[method-assign, assignment]
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
