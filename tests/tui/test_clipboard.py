"""Copies: where the text goes, and what is said of it."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.tui.clipboard import through_screen
from tests.tui.console import Console
from tests.tui.foresight import until

SENT = "sent to the terminal's clipboard: 101"


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Start a tmux with default settings; return the command that asks it."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    socket = tmp_path / "tmux"
    ask = ["tmux", "-S", str(socket)]
    subprocess.run([*ask, "-f", "/dev/null", "new-session", "-d", "sleep 600"], check=True)
    monkeypatch.setenv("TMUX", f"{socket},1,0")
    yield ask
    subprocess.run([*ask, "kill-server"], check=True)


async def copied_id(console: Console) -> str:
    """Copy the id of the first job, and return what was said."""
    async with console.app.run_test(size=(120, 36)) as pilot:
        await console.begin(pilot)
        await console.press(pilot, "y", "i")
        await until(pilot, lambda: bool(console.told))
        return console.told[-1]


async def test_in_tmux_its_own_buffer_has_the_text(tmux: list[str]) -> None:
    assert await copied_id(Console()) == "copied to tmux's buffer: 101"
    assert await asyncio.to_thread(subprocess.check_output, [*tmux, "show-buffer"]) == b"101"


async def test_a_tmux_that_is_gone_leaves_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMUX", f"{tmp_path}/gone,1,0")
    assert await copied_id(Console()) == SENT


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, SENT),
        ({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, SENT),
        ({"TERM": "tmux-256color"}, "sent to the terminal, if tmux or screen between passes it on: 101"),
        ({"TERM": "screen", "STY": "1.pts"}, "sent to the terminal, if tmux or screen between passes it on: 101"),
        ({"TERM": "linux"}, "not copied: this terminal takes no copies, select with Shift and the mouse: 101"),
    ],
)
async def test_it_is_said_only_what_is_known(
    environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert await copied_id(Console()) == told


def test_screen_passes_long_text_on_in_pieces() -> None:
    text = "größer " * 100
    pieces = re.findall("\x1bP(.*?)\x1b\\\\", through_screen(text), re.DOTALL)
    assert max(map(len, pieces)) <= 76
    whole = "".join(pieces)
    assert whole.startswith("\x1b]52;c;")
    assert base64.b64decode(whole[7:-1]).decode() == text
