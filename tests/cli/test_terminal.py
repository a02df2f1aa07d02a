"""A console wants a terminal, and leaves it as it was."""

from __future__ import annotations

import os

import pytest

from gputui.cli.terminal import check_terminal
from gputui.domain.errors import GputuiError
from tests.cli.conftest import Run


@pytest.mark.parametrize("missing", [0, 2])
def test_there_is_none(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: file != missing)
    with pytest.raises(GputuiError, match="the console needs a terminal"):
        check_terminal({"TERM": "xterm"})
    check_terminal({"TEXTUAL_DRIVER": "a browser's"})


def test_there_is_one_that_cannot_be_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: True)
    check_terminal({"TERM": "xterm"})
    with pytest.raises(GputuiError, match="TERM=dumb"):
        check_terminal({"TERM": "dumb"})


@pytest.mark.parametrize("words", [(), ("demo",), ("--read-only",)])
def test_nothing_is_painted_where_there_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda file: False)
    result = run(*words)
    assert (result.code, result.out) == (1, "")
    assert "the console needs a terminal" in result.err
    assert "gputui top" in result.err
