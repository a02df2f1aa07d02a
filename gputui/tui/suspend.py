"""Lends the terminal to another program, such as an editor or a job's shell; the console hears signals meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from textual.app import App, SuspendNotSupported

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.tui.messages import ActionFailed
from gputui.tui.present.detail import job_title
from gputui.tui.services import JobAccess

_PARTING = 1.0
"""Seconds that a program on the terminal has to put it back in order when the console ends."""
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_NOT_RUN = (126, 127)
"""Exit codes of shells and docker exec for a command that could not be run."""


class TerminalLoan:
    """Runs other programs on an app's terminal, one at a time; the app writes nothing to it meanwhile."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self.is_away = False
        """True if another program has the terminal."""
        self._is_back = asyncio.Event()

    async def run(self, arguments: Sequence[str], words: str) -> int:
        """Run a program to its end with the terminal to itself; return its exit code.

        `words` stand above it. Raises SuspendNotSupported, or OSError.
        The event loop goes on, so that SIGTERM and SIGHUP are heard: when the console ends, the program is hung up.
        The screen is kept back by a batch, and drawn whole afterwards.
        """
        app = self._app
        try:
            with app.batch_update(), app.suspend(), self._away():
                print(f"\n{words}\n", file=sys.__stdout__, flush=True)
                process = await asyncio.create_subprocess_exec(*arguments)
                return await _wait_or_hang_up(process)
        finally:
            app.refresh(layout=True)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Leave Ctrl-C to the program on the terminal. A handler, since it would inherit an ignored signal."""
        before = {number: signal.signal(number, lambda *_: None) for number in _FROM_KEYS}
        self._is_back.clear()
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False
            self._is_back.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    async def wait_until_back(self) -> None:
        """Wait until the app has the terminal again, or is to end without it."""
        if self.is_away:
            await self._is_back.wait()

    def end(self) -> None:
        """End the app, wherever the terminal is."""
        self._is_back.set()


async def _wait_or_hang_up(process: asyncio.subprocess.Process) -> int:
    """Return the program's exit code; hang it up where nobody waits for it any more.

    An editor then keeps what was typed, which it would not when it is killed.
    """
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGHUP)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PARTING)
        raise


def loan_of(app: App[Any]) -> TerminalLoan | None:
    """Return what lends an app's terminal; None for an app that lends none."""
    found = getattr(app, "terminal", None)
    return found if isinstance(found, TerminalLoan) else None


async def open_shell(app: App[Any], job_access: JobAccess, job: Job) -> None:
    """Open a shell in a running job and wait for its end; an error is shown as a message."""
    if (terminal := loan_of(app)) is None:
        return
    where = f"a shell in job {job.shown_id}"
    try:
        shell = await asyncio.to_thread(job_access.shell, job)
        words = f"job {job_title(job)}: {plain(shell.where, 200)}; exit or Ctrl-D brings the console back"
        code = await terminal.run(shell.arguments, words)
    except GputuiError as error:
        app.post_message(ActionFailed(GputuiError(error.what, where=where, hint=error.hint)))
    except SuspendNotSupported:
        hint = "open the console in a terminal"
        app.post_message(ActionFailed(GputuiError("this screen cannot be lent to a shell", where=where, hint=hint)))
    except OSError as error:
        app.post_message(ActionFailed(GputuiError(f"{error.filename}: {error.strerror}", where=where)))
    else:
        if code in _NOT_RUN:
            app.post_message(ActionFailed(GputuiError(f"it could not be opened (exit code {code})", where=where)))
