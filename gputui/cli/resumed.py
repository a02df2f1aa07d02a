"""A command whose owner did not answer: it is asked again, with the same key, by a client that has patience."""

from __future__ import annotations

import time

from gputui import thin
from gputui.cli import main, terminal
from gputui.config import resolve
from gputui.domain.errors import GputuiError, ParseLocallyError
from gputui.domain.keys import stored_key
from gputui.domain.text import plain


def run(asked: thin.Unanswered) -> int | None:
    """Return the exit code; None if nothing was done, and the command is for this process."""
    from gputui.bootstrap.owner import ask_again

    try:
        options, waited = resolve(state=asked.state), time.monotonic() - asked.at
        answer = ask_again(asked.path, asked.body, asked.key, options, _tell, waited)
    except ParseLocallyError:
        return None
    except GputuiError as error:
        return main.complain(str(error), error.exit_code)
    if answer is None:  # the owner may have done it before it ended: its jobs have the key
        main.main(stored_key(asked.key, "POST", "/v1/cli", {}, asked.body))
    return None if answer is None else thin.printed(answer)


def _tell(sentence: str) -> None:
    terminal.echo(f"gputui: {plain(sentence)}", err=True)
