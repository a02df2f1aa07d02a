"""`gputui gpus`, with its own reading when no scheduler runs."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.cli import gpus
from gputui.config import resolve
from gputui.domain.as_json import gpu_json
from gputui.domain.gpu import Drain, GpuState, Health, HealthCode, Holder, ProbeCode, ProbeReading, ProbeStatus, Sharer
from gputui.domain.policy.availability import UNANSWERED
from gputui.domain.settings import Window
from gputui.domain.snapshot import Node, Snapshot, WindowState, WindowView
from gputui.domain.text import minute
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import GIB, NOW, gpu, running, sample, snapshot, uuid, view
from tests.runtime.standin_engine import StandInEngine


def test_a_gpu_tells_its_story() -> None:
    holders = (Holder("job", "train", "bob"), Holder("job", "train", "bob"), Holder("process", "python", "eve"))
    shared = view(0, GpuState.ALLOCATED, job_id=4, job_ids=(4, 9), sharers=(Sharer(4, 1), Sharer(9, 1)))
    jobs = "job 4 train (bob); job 9 train (bob)"
    assert gpus.story(replace(shared, holders=holders[:2])) == jobs
    told = gpus.story(replace(shared, holders=holders, closed="process 7 (python) of eve"))
    assert told == f"{jobs}; process python (eve); no job may join: process 7 (python) of eve"
    since = NOW - timedelta(hours=3)
    strangers = (Holder("process", "python", "eve", since=since), Holder("process", "pid 7"))
    seen = view(0, GpuState.FOREIGN, holders=strangers, sample=sample(0))
    assert gpus.story(seen) == "process python (eve) for 3h00m; process pid 7"
    listed = gpu_json(seen)["holders"]
    assert isinstance(listed, list)
    assert [each["since"] for each in listed] == [since.isoformat().replace("+00:00", "Z"), None]
    why = "its last reading is 10s old"
    unread = view(0, GpuState.UNKNOWN, health=Health(HealthCode.UNKNOWN, "no reading"), why=why)
    assert gpus.story(replace(unread, stale=True, age=timedelta(seconds=10))) == why
    assert gpus.row(view(gpu=gpu(mig_profile="1g.10gb")), "MIG-1")[2].endswith(" 1g.10gb")


def test_a_row_names_user_and_problem(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [
        view(0, sample=sample(utilization=0.5, memory_used=16 * GIB)),
        view(1, GpuState.FOREIGN, holders=(Holder("container", "jupyter", "bob"),), why="in use"),
        view(2, GpuState.UNKNOWN, sample=None, why="its last reading is too old", stale=True, age=timedelta(minutes=2)),
        view(3, GpuState.DRAINED, health=Health(HealthCode.XID, "Xid 79"), why="drained by alice"),
    ]
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=views)))
    result = run("gpus")
    header, *rows = result.out.splitlines()
    assert (result.code, header.split()[:3]) == (0, ["GPU", "STATE", "MODEL"])
    assert [row.split()[:2] for row in rows] == [["0", "FREE"], ["1", "FOREIGN"], ["2", "UNKNOWN"], ["3", "DRAINED"]]
    assert "50%  16G/80G" in rows[0]
    assert rows[1].endswith("container jupyter (bob)")
    assert rows[2].endswith("its last reading is too old; read 2m00s ago")
    assert "0%" not in rows[2]
    assert rows[3].endswith("drained by alice; Xid: Xid 79")
    assert [each["uuid"] for each in json.loads(run("gpus", "--json").out)] == [uuid(i) for i in range(4)]


@cases(
    ("variable", "words"),
    [
        ({"DOCKER_CONTEXT": "nosuch"}, "there is no docker context 'nosuch' (`docker context ls` lists the contexts)"),
        ({"DOCKER_HOST": "foo://x"}, "DOCKER_HOST is 'foo://x', which is not an address of an engine"),
    ],
)
def test_an_engine_that_is_named_wrongly_is_the_reason(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str], words: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "")
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    seen = ProbeReading(status=ProbeStatus(ProbeCode.NO_LIBRARY, "no NVIDIA driver here"))
    for reading in (seen, replace(seen, gpus=(gpu(0),))):
        monkeypatch.setattr(adapters, "read_gpus", lambda options, patience, probe, it=reading: it)
        result = run("gpus")
        assert words in result.err
        assert result.code == (0 if reading.gpus else 1)


def test_a_drain_is_shown_beside_the_job_and_a_lost_gpu_as_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Health(HealthCode.LOST, "Xid 79: it fell off the bus")
    drain = Drain("fan noise", "alice", NOW)
    held = view(0, GpuState.ALLOCATED, job_id=7, job_ids=(7,), why="job 7", holders=(Holder("job", "train", "bob"),))
    views = [
        replace(held, drain=drain),
        replace(held, gpu=gpu(1), health=lost),
        view(2, GpuState.DRAINED, health=lost, why=lost.text, drain=drain),
        view(3, GpuState.DRAINED, why="drained by alice: fan noise", drain=drain),
    ]
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=views)))
    rows = run("gpus").out.splitlines()[1:]
    assert rows[0].split()[1:3] == ["ALLOCATED,", "draining"]
    assert rows[0].endswith("job 7 train (bob); drained by alice: fan noise")
    assert rows[1].split()[1:3] == ["ALLOCATED,", "lost"]
    assert rows[1].endswith("job 7 train (bob); Lost: Xid 79: it fell off the bus")
    assert rows[2].split()[1] == "LOST"
    assert rows[2].endswith("Xid 79: it fell off the bus; drained by alice: fan noise")
    assert rows[3].split()[1] == "DRAINED"
    assert rows[3].count("drained by alice") == 1
    shown = json.loads(run("gpus", "--json").out)
    assert [each["state"] for each in shown] == ["ALLOCATED", "ALLOCATED", "DRAINED", "DRAINED"]
    assert shown[0]["drain"]["by"] == "alice"


def test_gpus_that_no_waiting_job_can_use_are_noted_below_the_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, last in ((2, "2 GPUs free that no waiting job can use"), (1, "1 GPU free that no waiting job can use")):
        monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=2, fragmentation=count)))
        assert run("gpus").out.splitlines()[3:] == [last]
        assert len(json.loads(run("gpus", "--json").out)) == 2
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=2)))
    assert len(run("gpus").out.splitlines()) == 3


def test_a_reserved_gpu_says_for_whom_and_until_when(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Window("course", start=NOW - timedelta(hours=1), end=NOW + timedelta(hours=1), count=1, tenant="bob")
    reserved = (WindowView(course, WindowState.ACTIVE, gpus=(uuid(1),)),)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=2, windows=reserved)))
    _, free, kept = run("gpus").out.splitlines()
    assert "reserved" not in free
    assert kept.endswith(f"reserved for bob until {minute(course.end, NOW)}")


def test_output_contains_no_control_sequences(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = view(0, GpuState.FOREIGN, holders=(Holder("process", "\x1b[2J\x07evil", "\x9bm"),))
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=[hostile])))
    for arguments in (["gpus"], ["gpus", "--json"]):
        assert not any(character in run(*arguments).out for character in "\x1b\x07\x9b")


def test_without_gpus_the_probe_s_sentence_is_the_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Snapshot(nodes=(Node("here", probe=ProbeStatus(ProbeCode.NO_LIBRARY, "no NVIDIA driver here")),))
    monkeypatch.setattr(adapters, "measured_snapshot", lambda options, store, probe: nothing)
    for arguments in (["gpus"], ["gpus", "--json"], ["drain", "0"]):
        result = run(*arguments)
        assert (result.code, result.out) == (1, "")
        assert "no NVIDIA driver here" in result.err


def test_the_first_reading_of_a_scheduler_that_has_just_begun_is_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = Snapshot(nodes=(Node("here", probe=ProbeStatus()),))
    told = iter((starting, starting, snapshot(gpus=2)))
    monkeypatch.setattr(adapters, "measured_snapshot", lambda options, store, probe: next(told))
    result = run("gpus", "--json")
    assert (result.code, len(json.loads(result.out))) == (0, 2)


def test_without_a_scheduler_gpus_are_read_directly(run: Run, store: KeptStore, tmp_path: Path) -> None:
    result = run("--probe", "sim:3:L40S", "gpus", "--json")
    shown = json.loads(result.out)
    assert (result.code, result.err, len(shown)) == (0, "", 3)
    assert {each["state"] for each in shown} == {"FREE"}
    assert all("L40S" in each["model"] for each in shown)
    put(store, running(on=[shown[1]["uuid"]]))
    again = json.loads(run("--probe", "sim:3:L40S", "gpus", "--json").out)
    assert [(each["state"], each["job_id"]) for each in again] == [("FREE", None), ("ALLOCATED", 1), ("FREE", None)]


class Still:
    """Probe with one reading, which never comes anew."""

    def __init__(self, reading: ProbeReading) -> None:
        self.reading, self.closed = reading, False

    def subscribe(self, on_reading: object) -> None:
        pass

    def start(self) -> None:
        pass

    def latest(self) -> ProbeReading:
        return self.reading

    def close(self) -> None:
        self.closed = True


def test_while_the_engine_hangs_containers_are_not_known(
    run: Run, hung_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object, **__: object) -> Still:
        now = bootstrap.clock().now()
        return Still(ProbeReading(ProbeStatus(ProbeCode.OK, ""), (gpu(),), {uuid(0): sample(at=now)}, now))

    monkeypatch.setattr(adapters, "make_probe", made)
    result = run("--runtime", "docker", "gpus")
    assert "  UNKNOWN  " in result.out
    assert result.out.endswith(f"  {UNANSWERED}\n")
    assert result.err.startswith(f"containers are not known: Docker at {hung_engine} did not answer in time (")


def test_what_an_engine_answers_with_an_error_is_not_known(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = bootstrap.clock().now()
    reading = ProbeReading(ProbeStatus(ProbeCode.OK, ""), (gpu(),), {uuid(0): sample(at=now)}, now)
    monkeypatch.setattr(adapters, "make_probe", lambda *_, **__: Still(reading))
    with closing(StandInEngine()) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        assert "  FREE  " in run("--runtime", "docker", "gpus").out
        engine.special["/containers/json"] = lambda handler, query: handler.reply({"message": "no room"}, 500)
        result = run("--runtime", "docker", "gpus")
    assert "  UNKNOWN  " in result.out
    assert result.err == "containers are not known: no room\n"


def test_a_probe_that_never_answers_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    there_is = ProbeReading()
    silent = Still(there_is)
    monkeypatch.setattr(adapters, "make_probe", lambda options, once: silent)
    told = adapters.read_gpus(resolve(environ={}), 0.01)
    told = adapters.read_gpus(resolve(environ={}), 0.01)
    assert (told.status.code, told.gpus) == (ProbeCode.WEDGED_AT_START, there_is.gpus)
    assert (told.status.code, told.gpus) == (ProbeCode.WEDGED_AT_START, there_is.gpus)
    assert silent.closed
    assert silent.closed
