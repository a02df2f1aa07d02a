"""The console's first picture is on the screen before it is imported, and gives the terminal back as it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench._measure import Terminal
from bench.console import QUIET
from gputui.tui import opening as module
from gputui.tui.opening import Opening

BEFORE = """
import json, sys
from gputui.cli.main import run
from gputui.tui.opening import Opening
Opening.__enter__ = lambda self: sys.exit(print(json.dumps(sorted(sys.modules))))
run(sys.argv[1:])
"""
NOT_YET = frozenset(
    {"textual", "rich", "asyncio", "docker", "apscheduler", "msgspec", "tinydb", "pynvml", "logging", "subprocess"}
)
PICTURE = "\x1b[1;1Hgputui \0 here"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    there = {name: value for name, value in os.environ.items() if not name.startswith(("TEXTUAL", "COLUMNS", "LINES"))}
    return {**there, **QUIET, "XDG_STATE_HOME": str(tmp_path / "home")}


@pytest.fixture
def console(tmp_path: Path) -> list[str]:
    state = str(tmp_path / "state")
    return [sys.executable, "-m", "gputui", "--state", state, "--probe", "sim:2", "--runtime", "process"]


@pytest.fixture
def kept(console: list[str], environ: dict[str, str], tmp_path: Path) -> Path:
    """The picture that a first run has kept."""
    path = tmp_path / "home" / "gputui-console" / "opening" / "200x50"
    with Terminal(console, environ) as terminal:
        terminal.until_shown("H100")
        wait_for(path.exists, terminal)
        quit_it(terminal)
    return path


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")


def wait_for(is_so: Callable[[], bool], terminal: Terminal) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, terminal.output[-500:]
        terminal.read(0.02)


def quit_it(terminal: Terminal) -> None:
    os.write(terminal._master, b"q")
    wait_for(terminal._is_over, terminal)


def test_nothing_heavy_is_imported_before_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEFORE, "--state", str(tmp_path / "state")]
    environ = {**os.environ, "TEXTUAL_DRIVER": "a terminal"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    loaded = {name.strip('[] "\n') for name in done.stdout.split(",")}
    assert "gputui.tui.opening" in loaded
    assert not loaded & NOT_YET
    ours = {name for name in loaded if name.startswith("gputui.")}
    assert not {name for name in ours if name.startswith(("gputui.engine", "gputui.store", "gputui.bootstrap"))}


def test_it_is_what_the_console_draws_and_keys_typed_meanwhile_count(
    console: list[str], environ: dict[str, str], kept: Path
) -> None:
    body = kept.read_bytes().partition(b"\n")[2].replace(b"\n", b"\r\n")
    drawn = re.escape(body).replace(re.escape(b"\0"), rb"\d\d:\d\d:\d\d")
    with Terminal(console, environ) as terminal:
        before = termios.tcgetattr(terminal._master)
        wait_for(lambda: body[:40] in terminal.output, terminal)
        os.write(terminal._master, b"?")
        terminal.until_shown("Keys")
        assert terminal.output.count(b"\x1b[?1049h") == 1
        assert re.match(b"%s.*?%s" % (re.escape(b"\x1b[?1049h"), drawn + re.escape(b"\x1b[?1000h")), terminal.output)
        os.write(terminal._master, b"\x1b[27u")
        terminal.pump(0.3)
        quit_it(terminal)
        assert termios.tcgetattr(terminal._master)[3] == before[3]
        assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")


def test_another_start_draws_the_same(console: list[str], environ: dict[str, str], kept: Path) -> None:
    picture, written = kept.read_text(), kept.stat().st_mtime_ns
    with Terminal(console, environ) as terminal:
        terminal.until_shown("H100")
        terminal.pump(0.5)
        quit_it(terminal)
    assert kept.read_text() == picture
    assert kept.stat().st_mtime_ns == written


def test_a_start_that_fails_leaves_the_terminal_as_it_was(
    console: list[str], environ: dict[str, str], kept: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    command = [str(tmp_path / "file") if word == str(tmp_path / "state") else word for word in console]
    with Terminal(command, environ) as terminal:
        before = termios.tcgetattr(terminal._master)
        wait_for(terminal._is_over, terminal)
        shown = bytes(terminal.output)
        assert shown.startswith(b"\x1b[?1049h")
        assert b"gputui: error: " in shown.partition(b"\x1b[?1049l")[2]
        assert termios.tcgetattr(terminal._master) == before


def test_a_picture_is_kept_with_its_time_left_open(tmp_path: Path) -> None:
    opening = Opening(tmp_path / "there", "dark")
    assert opening.kept() is None
    opening.keep(PICTURE, "%Y")
    assert opening.kept() == PICTURE.replace("\0", time.strftime("%Y"))
    assert (tmp_path / "there" / "40x10").stat().st_mode & 0o777 == 0o600
    assert Opening(tmp_path / "there", "light").kept() is None
    assert Opening(None, "dark").kept() is None
    Opening(None, "dark").keep(PICTURE, "%Y")


def test_another_terminal_has_another_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Opening(tmp_path).keep(PICTURE, "%Y")
    for name, value in (("TERM", "vt100"), ("NO_COLOR", "1"), ("COLUMNS", "41"), ("LANG", "C")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert Opening(tmp_path).kept() is None
    assert Opening(tmp_path).kept() is not None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"00000000 %Y\nx"])
def test_a_damaged_picture_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "40x10").write_bytes(content)
    assert Opening(tmp_path).kept() is None


def test_only_so_many_sizes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    for columns in range(40, 46):
        monkeypatch.setenv("COLUMNS", str(columns))
        Opening(tmp_path).keep(PICTURE, "%Y")
        os.utime(tmp_path / f"{columns}x10", (columns, columns))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["43x10", "44x10", "45x10"]


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Opening(tmp_path / "file").keep(PICTURE, "%Y")
