"""Fixtures of all tests of the console: one time zone, no blinking, no colours taken away by the environment."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.tui import input_queue
from gputui.tui.screens import logs
from tests.tui.console import steady
from tests.tui.idle import draw_at_once, draw_each_wait, use_exact_waits

Step: TypeAlias = Callable[[Pilot[Any]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    for name in ("NO_COLOR", "FORCE_COLOR", "TEXTUAL_COLOR_SYSTEM", "TMUX", "STY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    time.tzset()
    monkeypatch.setattr(Input, "cursor_blink", False)
    monkeypatch.setattr(input_queue, "LONGEST", 60.0)  # on a loaded machine keys would overtake one another
    use_exact_waits(monkeypatch.setattr)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each change separately instead of once per wait, for tests of how often and how much is drawn."""
    draw_at_once(monkeypatch.setattr)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw all that has changed whenever a test waits."""
    draw_each_wait(monkeypatch.setattr)


@pytest.fixture
def snap_compare(snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Compare a picture with the stored one when the screen has stopped changing."""
    draw_each_wait(monkeypatch.setattr)
    monkeypatch.setattr(logs, "REST", 0.001)  # or whether the log has followed depends on the time taken

    def compare(app: App[Any], *, run_before: Step | None = None, terminal_size: tuple[int, int] = (80, 24)) -> bool:
        async def before(pilot: Pilot[Any]) -> None:
            if run_before is not None:
                await run_before(pilot)
            await steady(pilot)

        return snap_compare(app, run_before=before, terminal_size=terminal_size)

    return compare
