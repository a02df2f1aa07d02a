"""A console requires a terminal, and restores it."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gputui.console import startup
from gputui.console.startup import check_terminal
from gputui.domain.errors import GputuiError
from tests.cases import cases
from tests.cli.conftest import Run


@cases("missing", [{0}, {1, 2}])
def test_a_missing_terminal_is_refused(monkeypatch: pytest.MonkeyPatch, missing: set[int]) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: file not in missing)
    monkeypatch.setattr(startup, "_TERMINAL", "/nowhere/tty")
    with pytest.raises(GputuiError, match="the console needs a terminal"):
        check_terminal({"TERM": "xterm"})
    check_terminal({"TEXTUAL_DRIVER": "a browser's"})


def test_a_dumb_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: True)
    check_terminal({"TERM": "xterm"})
    with pytest.raises(GputuiError, match="TERM=dumb"):
        check_terminal({"TERM": "dumb"})


@cases("words", [(), ("demo",), ("--read-only",)])
def test_commands_that_need_a_terminal_fail_without_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: False)
    result = run(*words)
    assert (result.code, result.out) == (1, "")
    assert "the console needs a terminal" in result.err
    assert "gputui top" in result.err


PROGRAM = """
import os, sys
from gputui.console.startup import terminal
with terminal({"TERM": "xterm"}):
    assert os.isatty(2)
    os.write(2, b"drawn")
    print("said", file=sys.stderr)
print("said later", file=sys.stderr)
"""


@cases("elsewhere", [(), (1,)])
def test_the_console_draws_on_the_terminal_while_stderr_is_a_file(tmp_path: Path, elsewhere: tuple[int, ...]) -> None:
    errors = tmp_path / "errors"
    pid, fd = pty.fork()
    if pid == 0:
        for file in (2, *elsewhere):
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), file)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    drawn = b""
    with suppress(OSError):  # its end
        while data := os.read(fd, 4096):
            drawn += data
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert (os.waitstatus_to_exitcode(status), drawn) == (0, b"drawn")
    assert errors.read_text() == "said\nsaid later\n"
