"""`gputui show`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from gputui.cli import show
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import ContainerOptions, PublishedPort
from gputui.domain.state import JobState
from gputui.domain.telemetry import AttemptTelemetry, Efficiency, Spread
from gputui.domain.telemetry_series import Tally, TallyRecord
from gputui.engine import telemetry_files
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import GIB, NOW, job, running, sample, snapshot, uuid


def lines(out: str) -> dict[str, str]:
    """Return the text of each line by its first word."""
    pairs = (line.strip().split("  ", 1) for line in out.splitlines() if "  " in line.strip())
    return {name: value.strip() for name, value in pairs}


def test_show_prints_every_field_of_a_job(run: Run, store: KeptStore) -> None:
    options = ContainerOptions(
        env=(("TOKEN", "hunter2"),), volumes=("/a:/b",), memory=16 * GIB, labels=(("team", "vision"),)
    )
    failed = Cause(CauseCode.NON_ZERO_EXIT, "exit code 3")
    ended = running(
        on=[uuid(0)], options=options, command=("sh", "-c", "exit 3"), time_limit=timedelta(hours=1), retries=2
    )
    put(store, ended.with_attempt(ended_at=NOW, exit_code=3, cause=failed, log_path="logs/1/1.log"))
    assert run("hold", "1").code == 1
    assert run("cancel", "1").code == 0
    result = run("show", "1")
    shown = lines(result.out)
    assert (result.code, result.err) == (0, "")
    assert (shown["job"], shown["tenant"], shown["image"]) == ("1", "alice", "busybox")
    assert shown["state"] == "RUNNING (cancel requested)"
    assert shown["command"] == "sh -c 'exit 3'"
    assert (shown["memory"], shown["volumes"], shown["labels"]) == ("16G", "/a:/b", "team=vision")
    assert shown["environment"] == "TOKEN=***"
    assert "hunter2" not in result.out
    assert (shown["cause"], shown["exit code"]) == ("NonZeroExit: exit code 3", "3")
    assert (shown["log"], shown["retries"]) == ("logs/1/1.log", "2, after 5s")
    assert "alice  cancel: RUNNING: priority 50 -> RUNNING: priority 50, cancel requested" in result.out


def test_json_is_an_object(run: Run, store: KeptStore) -> None:
    put(store, job())
    assert run("pause").code == 0
    made = json.loads(run("show", "--json", "1").out)
    assert (made["id"], made["state"], made["audit"]) == (1, "PENDING", [])


def test_a_job_of_history_is_shown(run: Run, store: KeptStore) -> None:
    put(store, running().evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(days=30)))
    store.maintain(NOW)
    assert not store.jobs()
    assert lines(run("show", "1").out)["state"] == "COMPLETED"


def test_gpus_are_named_by_index_where_it_is_known() -> None:
    told = "\n".join(show.story(running(on=[uuid(1)]), snapshot(gpus=2), ()))
    assert f"{uuid(1)} (GPU 1)" in told


def test_more_than_one_id_is_refused(run: Run, store: KeptStore) -> None:
    put(store, job(), job())
    for ids in (["1", "2"], ["1,2"], ["1-2"]):
        assert run("show", *ids).code == 2


def test_a_published_port_is_shown_with_its_address(run: Run, store: KeptStore) -> None:
    options = ContainerOptions(publish=("auto:8888",), cap_add=("IPC_LOCK",), read_only=True)
    serving = running(on=[uuid(0)], options=options).with_attempt(ports=(PublishedPort(8888, 49153),))
    put(store, serving)
    shown = lines(run("show", "1").out)
    assert (shown["publish"], shown["cap add"], shown["read only"]) == ("auto:8888", "IPC_LOCK", "yes")
    assert shown["port"] == "0.0.0.0:49153 -> 8888/tcp"
    assert shown["from elsewhere"].startswith("ssh -N -L 8888:localhost:49153 ")
    told = json.loads(run("show", "--json", "1").out)
    [port] = told["attempts"][0]["ports"]
    assert port["ssh"] == shown["from elsewhere"]
    assert (port["container_port"], port["host_port"], port["protocol"], port["host_ip"]) == (
        8888,
        49153,
        "tcp",
        "0.0.0.0",
    )
    assert set(ContainerOptions.__struct_fields__) <= told["spec"].keys()


def test_an_element_of_an_array_is_named_as_in_the_queue(run: Run, store: KeptStore) -> None:
    put(store, job(array=ArrayRef(1, 3, 2)), job(array=ArrayRef(1, 7, 2)))
    lines = run("show", "1_7").out.splitlines()
    assert lines[0].split(maxsplit=1) == ["job", "1_7 (id 2)"]
    told = next(line for line in lines if line.startswith("array"))
    assert told.endswith("element 7 of array 1, of which at most 2 run at a time; GPUTUI_ARRAY_INDEX is 7")


MEASURED = AttemptTelemetry(
    seconds=60.0,
    allocated=7200.0,
    known=7000.0,
    busy=3600.0,
    idle=0.25,
    utilization=Spread(0.5, 0.99, 1.0),
    gpu_memory=Spread(60.0 * GIB, 71.0 * GIB, 71.0 * GIB),
    gpu_memory_total=80 * GIB,
    power=Spread(400.0, 690.0, 701.5),
    energy=2_880_000.0,
    throttled=0.125,
    throttle=("power cap",),
    cpu=3700.0,
    cpus=Spread(1.5, 3.0, 4.0),
    io_read=5 * GIB,
)


def test_the_telemetry_of_an_attempt_that_ended(run: Run, store: KeptStore) -> None:
    ended = running(on=[uuid(0)], state=JobState.RUNNING).with_attempt(ended_at=NOW, telemetry=MEASURED)
    put(store, ended.evolve(state=JobState.COMPLETED, ended_at=NOW))
    shown = lines(run("show", "1").out)
    assert shown["GPU time"] == "2 GPU-hours allocated, busy 1 of 1.94 measured"
    assert shown["GPU use"] == "mean 50%, p95 99%, peak 100%; idle 25% of the time"
    assert shown["GPU mem"] == "mean 60G, p95 71G, peak 71G of 80G per GPU"
    assert shown["power"] == "mean 400W, p95 690W, peak 702W per GPU; 0.8 kWh in all"
    assert shown["slowed"] == "12% of the time: power cap"
    assert shown["CPU"] == "1h01m of CPU time; mean 1.5, p95 3, peak 4 CPUs"
    assert shown["disks"] == "read 5G"
    assert not {"SMs", "bandwidth", "heat", "memory", "efficiency"} & shown.keys()
    [attempt] = json.loads(run("show", "--json", "1").out)["attempts"]
    assert attempt["telemetry"]["power"] == {"mean": 400.0, "p95": 690.0, "peak": 701.5}
    assert (attempt["telemetry"]["sm_activity"], attempt["series"]) == (None, None)
    [listed] = json.loads(run("queue", "--all", "--json").out)
    assert listed["attempts"][0]["telemetry"] == attempt["telemetry"]


def test_the_telemetry_of_a_running_attempt_is_read_from_its_file(run: Run, store: KeptStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    put(store, running(on=[uuid(0)]))
    tally = Tally(TallyRecord(1, NOW.timestamp() - 60))
    tally.add(sample(0, at=NOW - timedelta(seconds=40), utilization=0.5, power=300.0))
    telemetry_files.write(state, 1, 1, telemetry_files.Measurement(tally, "c1", 0.0).encoded(), durably=False)
    assert (
        lines(run("--state", str(state), "show", "1").out)["GPU use"]
        == "mean 50%, p95 50%, peak 50%; idle 0% of the time"
    )
    [attempt] = json.loads(run("--state", str(state), "show", "--json", "1").out)["attempts"]
    assert attempt["telemetry"]["energy"] == 6000.0
    series = attempt["series"]
    assert (series["begin"], series["width"], series["end"]) == (NOW.timestamp() - 60, 1.0, NOW.timestamp() - 40)
    assert series["readings"]["utilization"] == [0.5] * 20
    telemetry_files.write(state, 1, 1, telemetry_files.Measurement(tally, "other", 0.0).encoded(), durably=False)
    assert "GPU use" not in lines(run("--state", str(state), "show", "1").out)


def test_a_completed_job_shows_a_result_but_no_cause(run: Run, store: KeptStore) -> None:
    measured = Efficiency(seconds=60.0, utilization=0.5, idle=0.0, memory_peak=8 * GIB, memory_total=80 * GIB)
    ended = running(on=[uuid(0)], state=JobState.RUNNING).with_attempt(ended_at=NOW, efficiency=measured)
    put(store, ended.evolve(state=JobState.COMPLETED, ended_at=NOW))
    shown = lines(run("show", "1").out)
    assert shown["result"].startswith("util 50%")
    assert "ended by" not in shown
