"""`gputui doctor`: each check judges facts; the exit code is 1 when one fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputui import bootstrap
from gputui.cli import doctor
from gputui.cli.checks import Level, driver, engine, state
from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import StoreAccessError
from gputui.domain.gpu import Health, HealthCode, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.snapshot import Leader, Snapshot
from tests.cli.conftest import KeptStore, Run
from tests.factories import NOW, gpu, sample, uuid

GOOD = ProbeReading(ProbeStatus(ProbeCode.OK, "reads 1 GPU"), (gpu(),), {uuid(0): sample()}, NOW, "570.1")


def levels(found: object) -> list[Level]:
    return [check.level for check in found]  # type: ignore[attr-defined]


def test_the_driver() -> None:
    [good] = driver.of_probe(GOOD)
    assert (good.level, good.text) == (Level.OK, "1 GPU, driver 570.1")
    [bad] = driver.of_probe(ProbeReading(ProbeStatus(ProbeCode.DRIVER_MISMATCH, "reboot")))
    assert (bad.level, bad.text) == (Level.FAIL, "reboot")
    assert levels(driver.of_probe(ProbeReading(ProbeStatus(ProbeCode.OK, "")))) == [Level.FAIL]


@pytest.mark.parametrize(("code", "level"), [(HealthCode.REMAP_PENDING, Level.WARN), (HealthCode.XID, Level.FAIL)])
def test_a_sick_gpu(code: HealthCode, level: Level) -> None:
    sick = sample(health=Health(code, "it is sick"))
    reading = ProbeReading(GOOD.status, GOOD.gpus, {uuid(0): sick}, NOW, "570.1", ("persistence mode is off",))
    assert levels(driver.of_probe(reading)) == [Level.OK, Level.WARN, level]


def test_damage() -> None:
    assert list(state.of_damage(())) == []
    [told] = state.of_damage(["a line is damaged"])
    assert (told.level, told.text, "remove" in told.hint) == (Level.WARN, "a line is damaged", True)


def test_a_runtime() -> None:
    up = RuntimeStatus("docker", True, "Docker 28", warnings=("live-restore is off",))
    assert levels(engine.of_runtime(up)) == [Level.OK, Level.WARN]
    assert levels(engine.of_runtime(RuntimeStatus("docker", False, "does not answer"))) == [Level.FAIL]


@pytest.mark.parametrize(
    ("mode", "is_owner", "is_writable", "group", "level"),
    [
        (0o700, True, True, None, Level.OK),
        (0o755, True, True, None, Level.WARN),
        (0o770, True, True, None, Level.WARN),
        (0o2770, False, True, "gpu", Level.OK),
        (0o777, True, True, "gpu", Level.WARN),
        (0o700, False, True, None, Level.WARN),
        (0o700, False, False, None, Level.FAIL),
    ],
)
def test_permissions(mode: int, is_owner: bool, is_writable: bool, group: str | None, level: Level) -> None:
    assert state.of_directory("/state", mode, is_owner, is_writable, group).level is level


@pytest.mark.parametrize(
    ("size", "inodes", "level"),
    [
        (10 * 1024**3, None, Level.OK),
        (10 * 1024**3, 10**6, Level.OK),
        (500 * 1024**2, 10**6, Level.WARN),
        (10 * 1024**3, 500, Level.WARN),
        (1024**2, 10**6, Level.FAIL),
        (10 * 1024**3, 5, Level.FAIL),
    ],
)
def test_space(size: int, inodes: int | None, level: Level) -> None:
    assert state.of_space(size, inodes).level is level


def test_the_clock() -> None:
    assert state.of_clock(NOW, None).level is Level.OK
    assert state.of_clock(NOW, NOW + timedelta(seconds=1)).level is Level.OK
    assert state.of_clock(NOW, NOW + timedelta(minutes=1)).level is Level.WARN
    assert state.of_clock(NOW.replace(year=1970), None).level is Level.FAIL


def test_the_scheduler_and_the_toolkit() -> None:
    assert state.of_leader(None).level is Level.WARN
    assert "pid 7" in state.of_leader(Leader(7, "gpu1", "alice", "serve", NOW)).text
    assert engine.of_toolkit("/usr/bin/nvidia-ctk").level is Level.OK
    assert engine.of_toolkit(None).hint


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, store: KeptStore, tmp_path: Path) -> Callable[..., None]:
    """A machine on which all is well but for what is said."""

    def make(reading: ProbeReading = GOOD, up: bool = True, mode: int = 0o700) -> None:
        tmp_path.chmod(mode)
        runtime = SimpleNamespace(check=lambda: RuntimeStatus("docker", up, "Docker"), close=lambda: None)
        monkeypatch.setattr(bootstrap, "read_gpus", lambda options, patience: reading)
        monkeypatch.setattr(bootstrap, "make_runtimes", lambda options, store_id: (runtime,))
        leader = Leader(7, "gpu1", "alice", "serve", NOW)
        monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: Snapshot(leader=leader))
        monkeypatch.setattr(doctor, "_toolkit", lambda: "/usr/bin/nvidia-ctk")
        monkeypatch.setenv("GPUTUI_STATE", str(tmp_path))

    return make


def test_all_is_well(run: Run, machine: Callable[..., None]) -> None:
    machine()
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[1] for line in result.out.splitlines()] == [
        "state",
        "disk",
        "clock",
        "scheduler",
        "driver",
        "docker",
        "toolkit",
    ]


def test_a_warning_is_not_a_failure(run: Run, machine: Callable[..., None]) -> None:
    machine(mode=0o755)
    result = run("doctor")
    assert result.code == 0
    assert result.out.startswith("warn  state")
    assert "chmod 0700" in result.out


@pytest.mark.parametrize("broken", [{"up": False}, {"reading": ProbeReading(ProbeStatus(ProbeCode.WEDGED, "wedged"))}])
def test_a_failure_is_1(run: Run, machine: Callable[..., None], broken: dict[str, object]) -> None:
    machine(**broken)
    result = run("doctor", "--json")
    found = json.loads(result.out)
    assert result.code == 1
    assert [check["level"] for check in found].count("fail") == 1
    assert all(check.keys() == {"name", "level", "text", "hint", "why"} for check in found)


def test_a_state_directory_that_cannot_be_had_keeps_no_other_check_from_being_made(
    run: Run, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(options: object) -> None:
        raise StoreAccessError("it is on nfs", where="/state", hint="choose a local disk")

    machine()
    monkeypatch.setattr(bootstrap, "open_store", refuse)
    result = run("doctor")
    assert result.code == 1
    assert "fail  state       /state: it is on nfs\n" in result.out
    assert "choose a local disk" in result.out
    assert "ok    driver" in result.out
    assert "ok    docker" in result.out


def test_it_runs_for_real_on_simulated_gpus_and_processes(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    state = str(tmp_path / "state")
    result = run("--state", state, "--probe", "sim:2", "--runtime", "process", "doctor", "--json")
    found = {check["name"]: check for check in json.loads(result.out)}
    assert found.keys() >= {"state", "disk", "clock", "scheduler", "driver", "process"}
    assert (found["state"]["level"], found["driver"]["level"]) == ("ok", "ok")
    assert found["scheduler"]["level"] == "warn"
    assert result.err == ""


def test_the_store_is_asked_for_damage(
    machine: Callable[..., None], run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    monkeypatch.setattr(store, "damage", lambda: ("line 7 is damaged",))
    assert "warn  queue       line 7 is damaged" in run("doctor").out
