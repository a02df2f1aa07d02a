"""Copies: where the text goes, and what is said of it."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.tui.terminal import through_screen
from tests.cases import cases
from tests.needs import need
from tests.tui.console import Console, until

SENT = "sent to the terminal's clipboard (OSC 52): 101"
MORE = ", sent to the terminal's clipboard (OSC 52)"
BETWEEN = "sent to the terminal's clipboard (OSC 52), if tmux or screen between passes it on: 101"


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Start a tmux with default settings; return the command that asks it."""
    need("tmux")
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


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Start a screen with default settings, on a terminal of its own; return the command that asks it."""
    need("screen", "script")
    (tmp_path / "screen").mkdir(mode=0o700)
    monkeypatch.setenv("SCREENDIR", str(tmp_path / "screen"))
    monkeypatch.setenv("TERM", "screen")
    monkeypatch.delenv("TMUX", raising=False)
    os.mkfifo(begun := tmp_path / "begun")
    command = f"screen -c /dev/null -S copies sh -c 'echo $STY > {begun}; exec sleep 600'"
    shown = subprocess.DEVNULL
    with subprocess.Popen(["script", "-qc", command, "/dev/null"], stdin=subprocess.PIPE, stdout=shown) as terminal:
        session = begun.read_text().strip()
        monkeypatch.setenv("STY", session)
        yield ["screen", "-S", session]
        subprocess.run(["screen", "-S", session, "-X", "quit"], check=True)
        terminal.communicate()


@cases(("setting", "more"), [("external", MORE), ("off", "")])
async def test_in_tmux_its_own_buffer_has_the_text(tmux: list[str], setting: str, more: str) -> None:
    for words in (["set-option", "-s", "set-clipboard", setting], ["set-buffer", "another text"]):
        await asyncio.to_thread(subprocess.check_call, [*tmux, *words])
    assert await copied_id(Console()) == f"copied to tmux's buffer{more}: 101"
    assert await asyncio.to_thread(subprocess.check_output, [*tmux, "show-buffer"]) == b"101"


async def test_in_screen_its_own_buffer_has_the_text(screen: list[str], tmp_path: Path) -> None:
    assert await copied_id(Console()) == f"copied to screen's buffer{MORE}: 101"
    out = tmp_path / "buffer"
    for command in (["-X", "writebuf", str(out)], ["-Q", "lastmsg"]):  # the second is answered after the first
        await asyncio.to_thread(subprocess.check_call, [*screen, *command], stdout=subprocess.DEVNULL)
    assert out.read_text() == "101"


async def test_a_tmux_that_is_gone_leaves_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMUX", f"{tmp_path}/gone,1,0")
    assert await copied_id(Console()) == SENT


@cases(
    ("environ", "told"),
    [
        ({}, SENT),
        ({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, SENT),
        ({"TERM": "tmux-256color"}, BETWEEN),
        ({"TERM": "screen", "STY": "1.gone"}, BETWEEN),
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
