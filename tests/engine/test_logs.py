"""Sources of an attempt's output: containers and saved files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import Cause, CauseCode, NotFoundError, RuntimeFault, RuntimeUnavailableError
from gputui.engine.saved_logs import FileLog, Logs
from gputui.ports import LogStream
from gputui.ports.backend import LogRequest
from tests.engine.world import World


def missing(container_id: str, **_: object) -> LogStream:
    raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, f"No such container: {container_id}"))


def ended(world: World) -> int:
    """Return a job that has ended, and whose output is saved."""
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    world.tick(3)
    return job_id


@pytest.fixture
def logs(world: World) -> Logs:
    return Logs(world.store.get, world.directory, lambda spec: world.docker)


def test_a_log_removed_by_hand_is_reported(world: World, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = ended(world)
    (world.directory / f"logs/{job_id}/1.log").unlink()
    monkeypatch.setattr(world.docker, "logs", missing)
    with pytest.raises(NotFoundError, match=r"output of attempt 1 of job 1 is no longer kept .store.logs_max_age"):
        logs.open(job_id)


def test_a_log_saved_while_it_is_opened_is_read_from_the_file(
    world: World, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ended(world)
    log = world.directory / f"logs/{job_id}/1.log"
    aside = log.rename(log.with_suffix(".aside"))

    def saved_just_now(container_id: str, **_: object) -> LogStream:
        aside.rename(log)
        return missing(container_id)

    monkeypatch.setattr(world.docker, "logs", saved_just_now)
    assert [line.decode() for line in logs.open(job_id)] == [log.read_text()]


def test_an_engine_that_is_down_is_not_taken_for_lost_output(
    world: World, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ended(world)
    (world.directory / f"logs/{job_id}/1.log").unlink()

    def down(container_id: str, **_: object) -> LogStream:
        raise RuntimeUnavailableError("docker does not answer")

    monkeypatch.setattr(world.docker, "logs", down)
    with pytest.raises(RuntimeUnavailableError):
        logs.open(job_id)


def test_what_never_was_is_named(world: World, logs: Logs) -> None:
    world.docker.up = False
    waiting = world.submit()
    with pytest.raises(NotFoundError, match="job 1 has not started yet, so it has no output"):
        logs.open(waiting)
    world.docker.up = True
    world.tick(2)
    with pytest.raises(NotFoundError, match="job 1 has no attempt 2: it had 1"):
        logs.open(waiting, LogRequest(2))
    with pytest.raises(NotFoundError, match="attempt 1 of job 1 has no output"):
        Logs(world.store.get, world.directory, lambda spec: None).open(waiting)


def test_a_fault_of_a_running_attempt_is_not_taken_for_lost_output(
    world: World, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    world.tick(2)
    monkeypatch.setattr(world.docker, "logs", missing)
    with pytest.raises(RuntimeFault, match="No such container"):
        logs.open(job_id)


def test_a_closed_log_gives_no_more_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntwo\nthree\n")
    log = FileLog(tmp_path / "log", None)
    assert log.size == 14
    lines = iter(log)
    assert next(lines) == b"one"
    log.close()
    assert list(lines) == []


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(0, 45))
def test_the_tail_of_a_saved_log_is_its_last_lines(lines: list[bytes], tail: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for end in (b"", b"\n"):
            path = Path(folder) / "log"
            path.write_bytes(b"\n".join(lines) + end)
            whole = list(FileLog(path, None))
            assert list(FileLog(path, tail)) == (whole[-tail:] if tail else [])


def test_the_tail_of_a_large_log_is_found_without_reading_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(20 * 1024**3)  # a hole: reading it whole would take half a minute
        file.seek(0, 2)
        file.write(b"\n" + b"line\n" * 1000)
    assert list(FileLog(path, 1000)) == [b"line"] * 1000
