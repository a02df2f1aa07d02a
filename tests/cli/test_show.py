"""`gputui show`."""

from __future__ import annotations

import json
from datetime import timedelta

from gputui.cli import show
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container_options import ContainerOptions, PublishedPort
from gputui.domain.job import ArrayRef
from gputui.domain.state import JobState
from tests.cli.conftest import KeptStore, Run, put
from tests.factories import GIB, NOW, job, running, snapshot, uuid


def lines(out: str) -> dict[str, str]:
    """First words of lines, and what follows."""
    pairs = (line.strip().split("  ", 1) for line in out.splitlines() if "  " in line.strip())
    return {name: value.strip() for name, value in pairs}


def test_everything_about_a_job(run: Run, store: KeptStore) -> None:
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


def test_a_published_port_is_told_with_the_way_there(run: Run, store: KeptStore) -> None:
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
    assert told.endswith("element 7 of array 1, of which at most 2 run at once; GPUTUI_ARRAY_INDEX is 7")
