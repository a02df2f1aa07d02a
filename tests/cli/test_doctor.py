"""`gputui doctor`: each check judges facts; the exit code is 1 when one fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.cli import checks
from gputui.cli import engine_checks as engine
from gputui.cli.checks import CheckLevel
from gputui.cli.engine_checks import EngineHost
from gputui.config import Options
from gputui.domain.container import EngineGpus, RuntimeStatus
from gputui.domain.errors import StoreAccessError
from gputui.domain.gpu import Health, HealthCode, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.kept_data import BackupRecord, KeepLimits, KeptData
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Leader, Snapshot
from gputui.ports import Runtime
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import ACTOR, GIB, NOW, gpu, job, sample, uuid

GOOD = ProbeReading(ProbeStatus(ProbeCode.OK, "reads 1 GPU"), (gpu(),), {uuid(0): sample()}, NOW, "570.1")

REGISTERED = EngineGpus(runtimes=(("nvidia", "nvidia-container-runtime"),), is_local=True)
UNREGISTERED = EngineGpus(runtimes=(("runc", "runc"),), is_local=True)
TOOLKIT = ("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-container-runtime")
HOST = EngineHost(TOOLKIT)


def levels(found: object) -> list[CheckLevel]:
    return [check.level for check in found]  # type: ignore[attr-defined]


def test_the_driver_is_judged() -> None:
    [good] = checks.of_probe(GOOD)
    assert (good.level, good.text) == (CheckLevel.OK, "1 GPU, driver 570.1")
    [bad] = checks.of_probe(ProbeReading(ProbeStatus(ProbeCode.DRIVER_MISMATCH, "reboot")))
    assert (bad.level, bad.text) == (CheckLevel.FAIL, "reboot")
    assert levels(checks.of_probe(ProbeReading(ProbeStatus(ProbeCode.OK, "")))) == [CheckLevel.FAIL]
    [check] = checks.of_probe(replace(GOOD, cuda_version="12.8"))
    assert check.text == "1 GPU, driver 570.1, CUDA 12.8"
    lost = sample(health=Health(HealthCode.LOST, "lost: the driver no longer lists it"))
    check = list(checks.of_probe(replace(GOOD, samples={uuid(0): lost})))[1]
    assert check.text == "Lost: the driver no longer lists it"
    sick = sample(health=Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus"))
    found = list(checks.of_probe(replace(GOOD, samples={uuid(0): sick})))
    assert found[1].hint.startswith("gputui drain 0 --reason 'Xid 79: the GPU has fallen off the bus'")
    sick = sample(
        health=Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus of this machine: reboot the host")
    )
    found = list(checks.of_probe(replace(GOOD, samples={uuid(0): sick})))
    assert "of this machine: …'" in found[1].hint.splitlines()[0]


def test_what_is_known_is_told_before_the_engine_answers(
    run: Run, hung_engine: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    found = adapters.make_runtimes

    def made(options: Options, store_id: str) -> tuple[Runtime, ...]:
        told.append(capfd.readouterr().out)
        return found(options, store_id)

    monkeypatch.setattr(adapters, "make_runtimes", made)
    result = run("--runtime", "docker", "--probe", "sim:1", "doctor")
    assert [line.split()[:2] for line in told[0].splitlines()[:2]] == [["ok", "settings"], ["ok", "state"]]
    assert f"fail  docker      Docker at {hung_engine} did not answer in time\n" in result.out


@cases(("code", "level"), [(HealthCode.REMAP_PENDING, CheckLevel.WARN), (HealthCode.XID, CheckLevel.FAIL)])
def test_a_sick_gpu(code: HealthCode, level: CheckLevel) -> None:
    sick = sample(health=Health(code, "it is sick"))
    reading = ProbeReading(GOOD.status, GOOD.gpus, {uuid(0): sick}, NOW, "570.1", ("persistence mode is off",))
    assert levels(checks.of_probe(reading)) == [CheckLevel.OK, CheckLevel.WARN, level]


def test_damage_and_the_scheduler() -> None:
    assert list(checks.of_damage(())) == []
    [told] = checks.of_damage(["a line is damaged"])
    assert (told.level, told.text, "remove" in told.hint) == (CheckLevel.WARN, "a line is damaged", True)
    assert checks.of_leader(None).level is CheckLevel.WARN
    assert "pid 7" in checks.of_leader(Leader(7, "gpu1", "alice", "serve", NOW)).text


def test_an_engine_is_judged_in_the_words_of_its_address() -> None:
    up = RuntimeStatus("docker", True, "Docker 28", warnings=("live-restore is off",))
    assert levels(engine.of_runtime(up)) == [CheckLevel.OK, CheckLevel.WARN]
    assert levels(engine.of_runtime(RuntimeStatus("docker", False, "does not answer"))) == [CheckLevel.FAIL]
    hint = "`ssh lab` once, and compare its key"
    down = RuntimeStatus("docker", False, f"ssh: lab is no known host ({hint})", hint=hint)
    [check] = engine.of_runtime(down)
    assert (check.level, check.text) == (CheckLevel.FAIL, "ssh: lab is no known host")
    assert check.hint.startswith(hint)
    assert "systemctl" not in check.hint
    guest = engine.of_gpus(EngineGpus("nvidia", machine="gpu1", owner="its queue ab runs jobs on them"), ())
    assert guest is not None
    assert (guest.level, "gpu1 has a gputui queue of its own" in guest.text) == (CheckLevel.FAIL, True)
    assert engine.of_gpus(EngineGpus("nvidia", is_local=True), ()) is None
    down = RuntimeStatus("docker", False, "Docker does not run")
    assert "--runtime process" in next(engine.of_runtime(down, has_gpus=True)).hint
    assert "--runtime process" not in next(engine.of_runtime(down)).hint


@cases(
    ("mode", "is_writable", "level"),
    [
        (0o700, True, CheckLevel.OK),
        (0o755, True, CheckLevel.WARN),
        (0o770, True, CheckLevel.FAIL),
        (0o2770, True, CheckLevel.FAIL),
        (0o1777, True, CheckLevel.FAIL),
        (0o700, False, CheckLevel.FAIL),
    ],
)
def test_permissions(mode: int, is_writable: bool, level: CheckLevel) -> None:
    assert checks.of_directory("/state", mode, is_writable).level is level


def test_daily_backups_that_are_not_made_are_missed() -> None:
    day = timedelta(days=1)
    assert checks.of_backup(None, NOW) is None
    assert checks.of_backup(None, NOW, NOW - day) is None
    record = BackupRecord(NOW - 3 * day, "/backups", good_at=NOW - 3 * day)
    levels = [checks.of_backup(*case) for case in ((None, NOW, NOW - 3 * day), (record, NOW, NOW - 5 * day))]
    assert [told and told.level for told in levels] == [CheckLevel.WARN] * 2
    kept = [checks.of_backup(*case) for case in ((record, NOW), (record, NOW, NOW - day))]
    assert [told and told.level for told in kept] == [CheckLevel.OK] * 2


@cases(
    ("size", "inodes", "level"),
    [
        (10 * 1024**3, None, CheckLevel.OK),
        (10 * 1024**3, 10**6, CheckLevel.OK),
        (500 * 1024**2, 10**6, CheckLevel.WARN),
        (10 * 1024**3, 500, CheckLevel.WARN),
        (1024**2, 10**6, CheckLevel.FAIL),
        (10 * 1024**3, 5, CheckLevel.FAIL),
    ],
)
def test_space(size: int, inodes: int | None, level: CheckLevel) -> None:
    assert checks.of_space(size, inodes).level is level


def test_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.of_clock(NOW, None).level is CheckLevel.OK
    assert checks.of_clock(NOW, NOW + timedelta(seconds=1)).level is CheckLevel.OK
    assert checks.of_clock(NOW, NOW + timedelta(minutes=1)).level is CheckLevel.WARN
    assert checks.of_clock(NOW.replace(year=1970), None).level is CheckLevel.FAIL
    monkeypatch.setenv("TZ", "Foo/Bar")
    found = checks.of_clock(NOW, None)
    assert (found.level, found.text) == (CheckLevel.WARN, "TZ is 'Foo/Bar', which is not a time zone on this host")


@cases(
    ("gpus", "host", "level", "word"),
    [
        (REGISTERED, HOST, CheckLevel.OK, "is registered"),
        (REGISTERED, replace(HOST, path_exists=False), CheckLevel.FAIL, "does not exist"),
        (REGISTERED, replace(HOST, toolkit=TOOLKIT[1:]), CheckLevel.FAIL, "not on the engine's PATH"),
        (REGISTERED, replace(HOST, hook_is_new=True), CheckLevel.FAIL, "installed after the engine"),
        (UNREGISTERED, EngineHost(), CheckLevel.FAIL, "is not installed"),
        (UNREGISTERED, replace(HOST, toolkit=TOOLKIT[1:]), CheckLevel.FAIL, "is missing"),
        (UNREGISTERED, replace(HOST, hook_is_new=True), CheckLevel.FAIL, "installed after the engine"),
        (UNREGISTERED, HOST, CheckLevel.WARN, "not registered"),
        (UNREGISTERED, None, CheckLevel.WARN, "not registered"),
        (REGISTERED, None, CheckLevel.OK, "not looked at"),
        (EngineGpus("cdi", cdi_devices=("nvidia.com/gpu=0",)), HOST, CheckLevel.OK, "nvidia.com/gpu=0"),
    ],
)
def test_support_for_gpus_in_containers_is_checked(
    gpus: EngineGpus, host: EngineHost | None, level: CheckLevel, word: str
) -> None:
    check = engine.of_gpu_access(gpus, host)
    assert (check.level, word in check.text) == (level, True)
    assert level is CheckLevel.OK or (check.why and check.hint)


def test_a_toolkit_that_is_not_registered_gets_the_lines_and_the_restart() -> None:
    hint = engine.of_gpu_access(UNREGISTERED, HOST).hint
    assert '"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}' in hint
    assert "sudo systemctl reload docker    # ends no container" in hint
    assert "restart" not in hint
    new = engine.of_gpu_access(UNREGISTERED, replace(HOST, hook_is_new=True)).hint
    assert "sudo systemctl restart docker" in new  # dockerd looks for the hook only when it starts
    written = engine.of_gpu_access(UNREGISTERED, replace(HOST, is_written=True)).hint
    assert "registers it already" in written
    assert "doctor --fix" not in written


def test_fixes_are_for_the_machine_that_has_the_gpus() -> None:
    there = replace(GOOD, machine="gpu1", notes=("the GPUs of gpu1 are read by its python3, over ssh",))
    driver, way = checks.of_probe(there)
    assert driver.text == "1 GPU on gpu1, driver 570.1"
    assert (way.name, way.level, way.text) == ("readings", CheckLevel.OK, there.notes[0])
    blind = "GPU processes of gpu1 cannot be told apart: its engine allows no --pid=host"
    warned = list(checks.of_probe(replace(there, notes=(blind,))))[1]
    assert (warned.level, warned.text, warned.hint[:29]) == (CheckLevel.WARN, blind, "export DOCKER_HOST=ssh://gpu1")
    [hung] = checks.of_probe(replace(there, status=ProbeStatus(ProbeCode.WEDGED, "the driver does not answer")))
    assert hung.hint.startswith("on gpu1:\nsudo dmesg")
    lost = sample(health=Health(HealthCode.LOST, "lost: the driver no longer lists it"))
    hint = list(checks.of_probe(replace(there, samples={uuid(0): lost})))[-1].hint.splitlines()
    assert [line.partition(" -")[0].partition("    #")[0] for line in hint] == [
        "gputui drain 0",
        "on gpu1:",
        "sudo reboot",
    ]
    cut = ProbeStatus(ProbeCode.UNREACHABLE, "ssh: it was cut (try `ssh gpu1`)", hint="try `ssh gpu1`")
    [silent] = checks.of_probe(ProbeReading(cut, machine="gpu1"))
    assert (silent.text, silent.hint) == ("ssh: it was cut", "try `ssh gpu1`")


@cases("code", [code for code in ProbeCode if code is not ProbeCode.OK])
def test_each_fault_of_the_driver_has_a_reason_and_a_fix(code: ProbeCode) -> None:
    [check] = checks.of_probe(ProbeReading(ProbeStatus(code, "it is so")))
    assert check.level is CheckLevel.FAIL
    assert check.why
    assert check.hint


@cases(("at", "word"), [(NOW, "refuses to list"), (None, "has not listed")])
def test_unlisted_processes_are_reported(at: datetime | None, word: str) -> None:
    unread = replace(sample(), processes=None, processes_at=at)
    found = list(checks.of_probe(replace(GOOD, samples={uuid(0): unread})))
    assert (found[1].level, word in found[1].text) == (CheckLevel.FAIL, True)
    two = replace(GOOD, gpus=(gpu(), gpu(1)), samples={uuid(0): unread, uuid(1): sample(1)})
    assert list(checks.of_probe(two))[1].level is CheckLevel.WARN


def test_a_driver_without_process_lists_fails_until_the_site_accepts_it() -> None:
    reading = replace(GOOD, samples={uuid(0): replace(sample(), processes=None, lists_processes=False)})
    check = list(checks.of_probe(reading))[1]
    assert (check.level, "need_process_lists = false" in check.hint) == (CheckLevel.FAIL, True)
    check = list(checks.of_probe(reading, SchedulerSettings(need_process_lists=False)))[1]
    assert (check.level, "GPU 0" in check.text, "memory and containers alone" in check.why) == (
        CheckLevel.WARN,
        True,
        True,
    )


def test_memory_and_instances_of_gpus_are_judged() -> None:
    unread = replace(GOOD, samples={uuid(0): sample(memory_used=None)})
    assert levels(checks.of_probe(unread)) == [CheckLevel.OK, CheckLevel.FAIL]
    unified = list(checks.of_probe(replace(unread, gpus=(gpu(unified=True, memory_total=120 * GIB),))))
    assert levels(unified) == [CheckLevel.OK, CheckLevel.OK]
    assert "GPU 0 uses the machine's memory (120G), which --gpu-memory compares with" in unified[1].text
    check = list(checks.of_probe(replace(GOOD, gpus=(gpu(mig_enabled=True),))))[1]
    assert (check.level, "nvidia-smi -i 0 -mig 0" in check.hint) == (CheckLevel.FAIL, True)
    instance = gpu(1, mig_parent=uuid(0))
    cut = replace(GOOD, gpus=(gpu(mig_enabled=True), instance), samples={uuid(1): sample(1)})
    assert levels(checks.of_probe(cut)) == [CheckLevel.OK]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, store: KeptStore, tmp_path: Path) -> Callable[..., None]:
    """Return a machine without problems except the given ones."""

    def make(reading: ProbeReading = GOOD, up: bool = True, mode: int = 0o700) -> None:
        tmp_path.chmod(mode)
        runtime = SimpleNamespace(
            check=lambda: RuntimeStatus("docker", up, "Docker", gpus=REGISTERED if up else None), close=lambda: None
        )
        monkeypatch.setattr(adapters, "read_gpus", lambda options, patience: reading)
        monkeypatch.setattr(adapters, "make_runtimes", lambda options, store_id: (runtime,))
        leader = Leader(7, "gpu1", "alice", "serve", NOW)
        monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: Snapshot(leader=leader))
        monkeypatch.setattr(engine, "look", lambda gpus: HOST)
        monkeypatch.setenv("GPUTUI_STATE", str(tmp_path))

    return make


def test_all_is_well(run: Run, machine: Callable[..., None]) -> None:
    machine()
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[1] for line in result.out.splitlines()] == [
        "settings", "state", "disk", "logs", "telemetry", "history", "audit", "clock", "scheduler", "driver",
        "docker", "GPU",
    ]  # fmt: skip


def test_kept_files_are_shown_with_their_limits() -> None:
    limits = KeepLimits(timedelta(days=30), 10 * GIB)
    data = KeptData("logs", 2 * GIB, 40, NOW - timedelta(days=12), limits)
    check = checks.of_kept(data, NOW)
    assert (check.level, check.text) == (CheckLevel.OK, "2G in 40 files, limit 10G; oldest 12d00h, limit 30d")
    for over in (replace(data, size=11 * GIB), replace(data, oldest_at=NOW - timedelta(days=33))):
        assert checks.of_kept(over, NOW).level is CheckLevel.WARN
    part = checks.of_kept(replace(data, counted=(40, 100_000)), NOW)
    assert part.text.startswith("at least 2G in 40 files, ")
    assert part.text.endswith("; counted for 40 of 100,000 jobs")
    free = checks.of_kept(replace(data, limits=KeepLimits()), NOW)
    assert (free.level, free.text.partition("; ")[2]) == (
        CheckLevel.OK,
        "oldest 12d00h; no limit set (store.logs_max_age, store.logs_max_size)",
    )
    data = KeptData("logs", 0, 1, None, KeepLimits())
    assert checks.of_kept(data, NOW).text.startswith("0 bytes in 1 file; ")
    assert checks.of_kept(replace(data, size=999), NOW).text.startswith("999 bytes in 1 file; ")
    assert checks.of_kept(replace(data, size=1023), NOW).text.startswith("1023 bytes in 1 file; ")


@cases(
    "name", ["last-backup.json", "live.json", "queue.json", "queue.json.wal.1", "history-2026-02.json", "config.json"]
)
def test_a_huge_file_that_somebody_planted_is_not_read(tmp_path: Path, name: str) -> None:
    """Three gigabytes of nothing; the process may use one."""
    folder = tmp_path / "state"
    environ = {**os.environ, "DOCKER_CONFIG": str(tmp_path)}
    command = [sys.executable, "-m", "gputui", "--state", str(folder), "--probe", "sim:1"]
    store = TinyJobStore(folder)
    store.submit([job(held=True)], actor=ACTOR)
    store.close()
    planted = (tmp_path if name == "config.json" else folder) / name
    planted.touch(mode=0o600)
    os.truncate(planted, 3 * GIB)
    limited = ["prlimit", f"--as={2 * GIB}", *command, "doctor"]
    done = subprocess.run(limited, env=environ, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode in {0, 1}
    assert "no more memory" not in done.stdout + done.stderr
    assert "\nok    disk " in done.stdout or "\nfail  " in done.stdout


def test_a_warning_is_not_a_failure(run: Run, machine: Callable[..., None]) -> None:
    machine(mode=0o755)
    result = run("doctor")
    assert result.code == 0
    assert "\nwarn  state" in result.out
    assert "chmod 0700" in result.out


@cases("broken", [{"up": False}, {"reading": ProbeReading(ProbeStatus(ProbeCode.WEDGED, "wedged"))}])
def test_a_failed_check_exits_with_1(run: Run, machine: Callable[..., None], broken: dict[str, object]) -> None:
    machine(**broken)
    result = run("doctor", "--json")
    found = json.loads(result.out)
    assert result.code == 1
    assert [check["level"] for check in found].count("fail") == 1
    assert all(check.keys() == {"name", "level", "text", "hint", "why"} for check in found)


def test_an_unusable_state_directory_prevents_no_other_check(
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


def test_doctor_runs_on_simulated_gpus_and_host_processes(
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


def test_the_store_is_checked_for_damage(
    machine: Callable[..., None], run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    monkeypatch.setattr(store, "damage", lambda: ("line 7 is damaged",))
    assert "warn  queue       line 7 is damaged" in run("doctor").out


def test_doctor_creates_no_files(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    simulated = ("--probe", "sim:2", "--runtime", "process", "doctor")
    result = run("--state", str(tmp_path / "a" / "state"), *simulated)
    assert (result.code, "does not exist yet" in result.out) == (0, True)
    assert list(tmp_path.iterdir()) == []
    assert run("--state", str(tmp_path), *simulated).code == 0
    assert list(tmp_path.iterdir()) == []


def test_every_failed_check_gives_reason_and_remedy(run: Run, machine: Callable[..., None]) -> None:
    machine(up=False, mode=0o755, reading=ProbeReading(ProbeStatus(ProbeCode.UNKNOWN_ERROR, "NVML error 999")))
    found = json.loads(run("doctor", "--json").out)
    assert [check["name"] for check in found if check["level"] != "ok" and not (check["why"] and check["hint"])] == []
