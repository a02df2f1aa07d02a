"""Modes of the files the engine makes, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.engine import published
from gputui.engine.leader import LOCK_FILE, Leadership
from gputui.engine.published import LIVE_FILE, Published
from gputui.engine.sharing import make_directories, settle_path
from tests.engine.test_leader import ME
from tests.engine.world import World
from tests.factories import NOW


@pytest.fixture(params=[0o000, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o700, 0o2770], ids=["alone", "group"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tmp_path.chmod(request.param)
    return tmp_path


def modes_in(state: Path) -> tuple[int, int]:
    """Of directories and of files."""
    return (0o2770, 0o660) if mode(state) == 0o2770 else (0o700, 0o600)


def test_saved_logs_are_for_whom_the_state_directory_is(state: Path) -> None:
    world = World(state)
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    world.tick(3)
    log = state / f"logs/{job_id}/1.log"
    assert (mode(log.parent), mode(log)) == modes_in(state)
    assert mode(log.parent.parent) == modes_in(state)[0]


@pytest.mark.parametrize("wanted", [0o600, 0o660])
def test_the_lock_and_the_picture(tmp_path: Path, wanted: int) -> None:
    leadership = Leadership(tmp_path, wanted)
    leadership.acquire(ME)
    leadership.release()
    published.write(tmp_path, Published(NOW, ME), wanted)
    assert (mode(tmp_path / LOCK_FILE), mode(tmp_path / LIVE_FILE)) == (wanted, wanted)


def test_directories_that_are_there_keep_their_mode(state: Path) -> None:
    (state / "logs").mkdir()
    (state / "logs").chmod(0o750)
    make_directories(state / "logs" / "7", state)
    assert mode(state / "logs") == 0o750
    assert mode(state / "logs" / "7") == modes_in(state)[0]


def test_the_file_of_another_user_is_left_alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    (state / "1.log").write_text("x")
    before = mode(state / "1.log")
    monkeypatch.setattr(os, "open", refused)
    settle_path(state / "1.log", state)
    assert mode(state / "1.log") == before
