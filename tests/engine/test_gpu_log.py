"""Recorded readings of GPUs, which later consoles show, even if lines are torn or from another clock."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.gpu_history import KEPT, STEP, GpuHistory, Step, TakenStep
from gputui.domain.snapshot import Snapshot
from gputui.engine import telemetry_files
from gputui.engine.telemetry_files import GPU_LOG, GpuLog, read_gpu_log
from tests.cases import cases
from tests.engine.test_host import Seat, real
from tests.engine.world import World
from tests.factories import NOW, uuid
from tests.tui import sample

SECOND = timedelta(seconds=1)


def at(when: datetime) -> Snapshot:
    """Return a snapshot of eight GPUs at that time."""
    return sample.with_node(gpus=sample.gpus(), taken_at=when)


def kept(log: GpuLog, begun: datetime, steps: int) -> datetime:
    """Record `steps` steps; return the end of the last one."""
    for number in range(steps + 1):
        log.add(at(begun + number * STEP))
    return begun + steps * STEP


def steps(*values: float | None, begun: datetime = NOW) -> list[TakenStep]:
    """Return a step of GPU 0 every ten seconds; None where there was no reading."""
    return [
        TakenStep(begun + place * STEP, {uuid(0): Step(value)})
        for place, value in enumerate(values)
        if value is not None
    ]


def load(history: GpuHistory, gpu: int = 0) -> list[float | None]:
    return history.past_of(uuid(gpu)).values("utilization")


def test_written_readings_are_read_again(tmp_path: Path) -> None:
    kept(GpuLog(tmp_path), NOW, 3)
    found = read_gpu_log(tmp_path)
    assert [each.at for each in found] == [NOW, NOW + STEP, NOW + 2 * STEP]
    here = GpuHistory()
    for number in range(4):
        here.add(at(NOW + number * STEP))
    [first, *_] = here.past_of(uuid(0)).steps
    assert found[0].gpus[uuid(0)] == pytest.approx(first, rel=1e-3)
    assert (tmp_path / GPU_LOG).stat().st_mode & 0o777 == 0o600


def test_readings_are_written_only_at_the_end_of_a_step(tmp_path: Path) -> None:
    log = GpuLog(tmp_path)
    for second in range(10):
        log.add(at(NOW + second * SECOND))
    assert not (tmp_path / GPU_LOG).exists()
    log.add(at(NOW + STEP))
    assert len(read_gpu_log(tmp_path)) == 1


@cases("cut", range(1, 200, 13))
def test_a_torn_line_loses_only_itself(tmp_path: Path, cut: int) -> None:
    end = kept(GpuLog(tmp_path), NOW, 2)
    path = tmp_path / GPU_LOG
    path.write_bytes(path.read_bytes()[:-cut])
    kept(GpuLog(tmp_path), end, 2)
    assert [each.at for each in read_gpu_log(tmp_path)] == [NOW, end, end + STEP]


def test_the_log_keeps_two_hours_and_another_process_continues_it(tmp_path: Path) -> None:
    end = kept(GpuLog(tmp_path), NOW, 2 * KEPT)
    assert len(read_gpu_log(tmp_path)) == 2 * KEPT
    kept(GpuLog(tmp_path), end, 1)
    found = read_gpu_log(tmp_path)
    assert len(found) == KEPT + 1
    assert found[-1].at == end
    assert list(tmp_path.iterdir()) == [tmp_path / GPU_LOG]


def test_a_failed_write_is_ignored(tmp_path: Path) -> None:
    kept(GpuLog(tmp_path / "gone"), NOW, 2)
    (tmp_path / GPU_LOG).mkdir()
    kept(GpuLog(tmp_path), NOW, 2)
    assert read_gpu_log(tmp_path) == []


def test_lines_of_another_version_are_skipped(tmp_path: Path) -> None:
    kept(GpuLog(tmp_path), NOW, 1)
    with (tmp_path / GPU_LOG).open("ab") as file:
        file.write(b'\n{"at": "then", "gpus": 3}\n{"at":"2026-01-01T00:00:00Z","gpus":{"a":[' + b"1," * 40 + b"1]}}")
    assert len(read_gpu_log(tmp_path)) == 1


def test_histories_of_earlier_readings() -> None:
    # a history begins with earlier readings
    history = GpuHistory()
    began = NOW + 3 * STEP
    for number in range(3):
        history.add(at(began + number * STEP))
    own = load(history)
    history.begin_with(steps(0.1, 0.2, 0.3), began)
    assert load(history) == [0.1, 0.2, 0.3, *own]
    assert history.past_of(uuid(0)).number == 5
    # time without a scheduler is empty
    history = GpuHistory()
    history.begin_with(steps(0.1, 0.2, None, None, None, 0.3), NOW + 10 * STEP)
    assert load(history) == [0.1, 0.2, None, None, None, 0.3, None, None, None, None]
    # steps that begin a little late are not torn apart
    history = GpuHistory()
    late = [TakenStep(NOW + number * (STEP + SECOND), {uuid(0): Step(number / 100)}) for number in range(30)]
    history.begin_with(late, NOW + 30 * (STEP + SECOND))
    assert load(history) == [number / 100 for number in range(30)]
    # steps of a GPU added later have the right times
    history = GpuHistory()
    both = TakenStep(NOW + STEP, {uuid(0): Step(0.2), uuid(1): Step(0.9)})
    history.begin_with([*steps(0.1), both, *steps(0.3, begun=NOW + 2 * STEP)], NOW + 3 * STEP)
    assert load(history, 0) == [0.1, 0.2, 0.3]
    assert load(history, 1) == [None, 0.9, None]
    # readings older than an hour or in the future are left out
    history = GpuHistory()
    old = TakenStep(NOW - (KEPT + 1) * STEP, {uuid(0): Step(0.5)})
    ahead = TakenStep(NOW + STEP, {uuid(0): Step(0.6)})
    history.begin_with([old, ahead], NOW)
    assert load(history) == []
    history.begin_with(steps(*[0.1] * KEPT, begun=NOW - KEPT * STEP), NOW)
    assert len(load(history)) == KEPT


async def test_only_the_leader_records_readings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.domain.gpu_history.STEP", 10 * SECOND / 100)
    writers, add = set[GpuLog](), GpuLog.add

    def noted(log: GpuLog, snapshot: Snapshot) -> None:
        writers.add(log)
        add(log, snapshot)

    monkeypatch.setattr(GpuLog, "add", noted)
    leader, other = (Seat(real(world), SystemClock(), "console", may_lead=leads) for leads in (True, False))
    tasks = [asyncio.create_task(seat.host.run()) for seat in (leader, other)]
    await leader.until(lambda: len(read_gpu_log(world.directory)) >= 2)
    assert len(writers) == 1
    for seat, task in zip((leader, other), tasks, strict=True):
        seat.host.stop()
        await asyncio.wait_for(task, 60)
    assert telemetry_files.GPU_LOG in {path.name for path in world.directory.iterdir()}
