"""The terminal of the user: lent to other programs, such as an editor or a shell in a job, and its clipboard."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from msgspec import Struct, field
from textual.app import App, SuspendNotSupported

from gputui.domain.container import Shell
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.ports.backend import Backend
from gputui.tui.actions import ActionFailed
from gputui.tui.present.job import job_title

_PARTING = 1.0
"""Seconds that a program on the terminal has to restore it when the console ends."""
_FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
_NOT_RUN = (126, 127)
"""Exit codes of shells and docker exec for a command that could not be run."""
_ENDED_WITH_JOB = (128 + signal.SIGHUP, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of a shell that was ended from outside, as by the end of its job."""
_NO_CONNECTION = 255
"""Exit code of ssh that could not connect, or lost its connection."""
_ERRORS = (1, 2)
"""Exit codes of gputui for errors."""
_REFUSED_WITHIN = 10.0
"""Seconds within which a shell on another machine that ends with such a code counts as refused."""
_LONGEST_LINE = 4096
"""Bytes of a line that a terminal delivers at once."""


class ProgramEnd(Struct, frozen=True):
    code: int
    seconds: float
    has_told: bool
    """True if it wrote to its standard error, which a shell on a terminal does not: only the command that opens it."""


class TerminalLoan(Struct, eq=False):
    """Runs other programs on an app's terminal, one at a time; the app writes nothing to it meanwhile."""

    app: App[Any]
    is_away: bool = False
    _is_back: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(
        self, arguments: Sequence[str], words: str, question: Callable[[ProgramEnd], str] | None = None
    ) -> int:
        """Run a program to its end, with exclusive use of the terminal; return its exit code.

        `words` are shown above it. `question` is called with its end; the text, if any, is shown below, and the console
        waits for Enter: keys that are meant for the program must not become commands of the console, and its last words
        are to be read.
        Raises SuspendNotSupported, or OSError. The event loop keeps running, so that SIGTERM and SIGHUP are handled:
        when the console ends, the program is hung up. Screen updates are batched meanwhile, and the screen is redrawn
        afterwards.
        """
        app = self.app
        try:
            with app.batch_update(), app.suspend(), self._away():
                print(f"\n{words}\n", file=sys.__stdout__, flush=True)
                if question is None:
                    return await _wait_or_hang_up(await asyncio.create_subprocess_exec(*arguments))
                end = await _ended(arguments)
                if asked := question(end):
                    print(f"\n{asked}", file=sys.__stdout__, flush=True)
                    await _enter_pressed()
                return end.code
        finally:
            app.refresh(layout=True)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Leave Ctrl-C to the program on the terminal. Uses a handler, since an ignored signal would be inherited."""
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
        if self.is_away:
            await self._is_back.wait()

    def end(self) -> None:
        self._is_back.set()


async def _ended(arguments: Sequence[str]) -> ProgramEnd:
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
    errors = process.stderr
    assert errors is not None

    async def pass_on() -> bool:
        has_errors = False
        while text := await errors.read(_LONGEST_LINE):
            has_errors = True
            if sys.__stderr__ is not None:
                os.write(sys.__stderr__.fileno(), text)
        return has_errors

    passing = asyncio.create_task(pass_on())
    code = await _wait_or_hang_up(process)
    with suppress(TimeoutError):  # a child of it may have its stderr for ever
        await asyncio.wait_for(passing, _PARTING)
    return ProgramEnd(code, time.monotonic() - begun, passing.done() and not passing.cancelled() and passing.result())


async def _wait_or_hang_up(process: asyncio.subprocess.Process) -> int:
    """Return the program's exit code; hang it up if it is no longer waited for.

    An editor then saves the input, which it could not do if it were killed.
    """
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGHUP)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PARTING)
        raise


async def _enter_pressed() -> None:
    if sys.__stdin__ is None:
        return
    loop, file, is_pressed = asyncio.get_running_loop(), sys.__stdin__.fileno(), asyncio.Event()
    loop.add_reader(file, is_pressed.set)
    try:
        await is_pressed.wait()
        with suppress(OSError):  # the terminal may be gone
            os.read(file, _LONGEST_LINE)
    finally:
        loop.remove_reader(file)


def loan_of(app: App[Any]) -> TerminalLoan | None:
    found = getattr(app, "terminal", None)
    return found if isinstance(found, TerminalLoan) else None


def _of_ended_shell(shell: Shell, end: ProgramEnd) -> str:
    """Return the question below a shell that was refused, or ended from outside; empty below others."""
    code = end.code
    if code in _ENDED_WITH_JOB:
        return f"the shell was ended (exit code {code}), as happens when the job ends; Enter brings the console back"
    is_error = code in _ERRORS and end.seconds < _REFUSED_WITHIN if shell.is_remote else code and end.has_told
    if code == _NO_CONNECTION or is_error:
        return f"the shell ended with exit code {code}; Enter brings the console back"
    return ""


async def open_shell(app: App[Any], backend: Backend, job: Job) -> None:
    if (terminal := loan_of(app)) is None:
        return
    where = f"a shell in job {job.shown_id}"
    try:
        shell = await asyncio.to_thread(backend.shell, job.id)
        words = f"job {job_title(job)}: {plain(shell.where, 200)}; exit or Ctrl-D brings the console back"
        code = await terminal.run(shell.arguments, words, partial(_of_ended_shell, shell))
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


def has_terminal(fileno: int) -> bool:
    try:
        termios.tcgetattr(fileno)
    except termios.error:
        return False
    return True


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


_PATIENCE = 2.0
"""Seconds that tmux or screen may take."""
_PIECE = 76
"""Characters of a sequence that screen passes on at once."""
SENT = "sent to the terminal's clipboard (OSC 52)"
BETWEEN = f"{SENT}, if tmux or screen between passes it on"
IN_TMUX, IN_SCREEN = "copied to tmux's buffer", "copied to screen's buffer"
NOT_TAKEN = "not copied: this terminal takes no copies, select with Shift and the mouse"


def copy(app: App[Any], text: str, what: str) -> None:
    """Copy text, and tell where it is; `what` names it."""
    if os.environ.get("TMUX"):
        app.run_worker(_copy_in_tmux(app, text, what), group="copy")
    elif session := os.environ.get("STY"):
        app.run_worker(_copy_in_screen(app, text, what, session), group="copy")
    else:
        app.notify(f"{_send(app, text, os.environ)}: {what}")


async def _copy_in_tmux(app: App[Any], text: str, what: str) -> None:
    """Use tmux's own buffer: by default tmux drops OSC 52 of programs, but sends its own to the terminal."""
    for option in (["-w"], []):  # before 3.2 it has no -w
        if await _output("tmux", "load-buffer", *option, "-", text=text) is not None:
            app.copy_to_clipboard(text)  # for fields of the console, and where tmux passes it on
            passes_on = option and await _output("tmux", "show-options", "-sv", "set-clipboard") != "off"
            app.notify(f"{IN_TMUX}, {SENT}: {what}" if passes_on else f"{IN_TMUX}: {what}")
            return
    app.notify(f"{_send(app, text, os.environ)}: {what}")


async def _copy_in_screen(app: App[Any], text: str, what: str, session: str) -> None:
    """Use screen's own buffer as well as the terminal's clipboard."""
    app.write_sequence(through_screen(text))  # type: ignore[attr-defined]  # of our own app
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        await _output("screen", "-S", session, "-X", "readbuf", "-e", "UTF-8", file.name)
        told = await _output("screen", "-S", session, "-Q", "lastmsg")  # it is answered once the file is read
    place = f"{IN_SCREEN}, {SENT}" if told and told.startswith("Slurped") else BETWEEN
    app.notify(f"{place}: {what}")


async def _output(*command: str, text: str = "") -> str | None:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=nothing)
    except OSError:
        return None
    try:
        printed, _ = await asyncio.wait_for(process.communicate(text.encode(errors="replace")), _PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return printed.decode(errors="replace").strip() if process.returncode == 0 else None


def _send(app: App[Any], text: str, environ: Mapping[str, str]) -> str:
    """Send the text to the terminal by OSC 52; return what is known of it then."""
    term = environ.get("TERM", "")
    if environ.get("TERM_PROGRAM") == "Apple_Terminal" or term == "linux":
        return NOT_TAKEN
    app.copy_to_clipboard(text)
    return BETWEEN if term.startswith(("screen", "tmux")) else SENT


def through_screen(text: str) -> str:
    """Return OSC 52 as GNU screen passes it on: in short pieces, each in a string of its own."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    pieces = (sequence[start : start + _PIECE] for start in range(0, len(sequence), _PIECE))
    return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
