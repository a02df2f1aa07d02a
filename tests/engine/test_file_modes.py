"""Modes of the files the engine makes, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.engine.files import folder_in, open_file
from gputui.engine.leadership import LOCK_FILE, Leadership
from tests.engine.test_leadership import ME
from tests.engine.world import World

needs_root = pytest.mark.needs("root")


@pytest.fixture(params=[0o000, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path


def test_saved_logs_are_closed_to_others(state: Path) -> None:
    world = World(state)
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    world.tick(3)
    log = state / f"logs/{job_id}/1.log"
    assert [mode(each) for each in (log.parent.parent, log.parent, log)] == [0o700, 0o700, 0o600]


def test_the_lock_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch(0o666)
    leadership = Leadership(tmp_path)
    leadership.acquire(ME)
    leadership.release()
    assert mode(tmp_path / LOCK_FILE) == 0o600


def test_existing_directories_keep_their_mode(state: Path) -> None:
    (state / "logs").mkdir()
    (state / "logs").chmod(0o750)
    with folder_in(state, "logs/7") as folder:
        (folder / "1.log").write_text("x")
    assert mode(state / "logs") == 0o750
    assert mode(state / "logs" / "7") == 0o700
    assert (state / "logs" / "7" / "1.log").read_text() == "x"


def test_logs_may_be_on_another_disk(state: Path) -> None:
    """A link of root's own, or of the user who schedules, is followed."""
    (state / "elsewhere").mkdir()
    (state / "logs").symlink_to("elsewhere")
    with folder_in(state, "logs/7") as folder:
        (folder / "1.log").write_text("x")
    assert (state / "elsewhere" / "7" / "1.log").read_text() == "x"


@needs_root
@pytest.mark.parametrize("place", ["logs", "logs/7"])
def test_a_link_that_another_user_planted_is_not_followed(state: Path, place: str) -> None:
    (state / "victim").mkdir()
    (state / place).parent.mkdir(exist_ok=True)
    (state / place).symlink_to(state / "victim")
    os.chown(state / place, 54321, 54321, follow_symlinks=False)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"), folder_in(state, "logs/7"):
        raise AssertionError
    assert list((state / "victim").iterdir()) == []


@needs_root
def test_planted_files_are_not_written(state: Path) -> None:
    victim = state / "shadow"
    victim.write_text("secret")
    for name in ("gpus.jsonl", LOCK_FILE, "gputui.log"):
        (state / name).symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        open_file(state / "gputui.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with pytest.raises(OSError, match="link"):
        Leadership(state).acquire(ME)
    assert victim.read_text() == "secret"
    (state / "gputui.log").unlink()
    os.mkfifo(state / "gputui.log")
    with pytest.raises(OSError, match=r"regular|No such device"):
        open_file(state / "gputui.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@needs_root
def test_a_planted_link_in_the_place_of_a_log_is_replaced(state: Path) -> None:
    world = World(state)
    (state / "logs" / "1").mkdir(parents=True)
    (state / "logs/1/1.log").symlink_to(state / "victim")
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    world.tick(3)
    assert not (state / "victim").exists()
    assert not (state / "logs/1/1.log").is_symlink()
