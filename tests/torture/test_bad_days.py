"""Failures while jobs run: engine, probe, disk and terminal. Nothing is lost, and scheduling continues."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.state import JobState
from tests.e2e import witness
from tests.e2e.site import Site, fresh_site
from tests.gpus import standin
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.torture]


@pytest.fixture
def fragile(tmp_path: Path, own_engine: Dockerd) -> Iterator[Site]:
    """Yield a server with its own engine, which the test may kill."""
    found = fresh_site(tmp_path / "site", own_engine)
    yield found
    found.close()


@pytest.fixture
def live(tmp_path: Path, live_engine: Dockerd) -> Iterator[Site]:
    """Yield a server with its own engine, which the test may kill, and whose containers survive it."""
    found = fresh_site(tmp_path / "site", live_engine)
    yield found
    found.close()


def running(site: Site, job_id: int) -> bool:
    return site.queue.get(job_id).state is JobState.RUNNING


def probes_of(scheduler: subprocess.Popen[bytes]) -> list[int]:
    """Return the pids of the probes of a scheduler; none while it starts one."""
    words = ["pgrep", "-P", str(scheduler.pid), "-f", "gputui.gpus.probe"]
    return [int(pid) for pid in subprocess.run(words, capture_output=True, check=False).stdout.split()]


def test_an_engine_killed_with_live_restore_loses_nothing(live: Site) -> None:
    live.serve()
    short, long = (live.shell(witness.until_let_go(gate), "--gpus", "1") for gate in ("first", "second"))
    live.until(lambda: running(live, short) and running(live, long))
    live.engine.kill()
    live.until(lambda: live.json("gpus")[7]["state"] == "UNKNOWN")  # it was noticed
    waits = live.shell(witness.script(0.1), "--gpus", "1")
    live.until(lambda: "Docker" in str(live.json("show", str(waits))["reason"]))
    assert live.json("show", str(waits))["reason"]["code"] == "NodeUnknown"
    live.let_go("first")
    live.until(lambda: bool(witness.ended(live.runs())))  # while nobody watches
    live.engine.start(live_restore=True)
    live.let_go("second")
    for job_id in (short, long, waits):
        assert live.until_state(job_id, "COMPLETED", seconds=45)["exit_code"] == 0
    assert set(witness.begun(live.runs()).values()) == {1}
    assert len(witness.begun(live.runs())) == 3


def test_jobs_lost_by_an_engine_restart_run_again(fragile: Site) -> None:
    fragile.serve()
    job_id = fragile.shell(witness.until_let_go(), "--gpus", "1")
    fragile.until(lambda: running(fragile, job_id))
    fragile.engine.restart()
    fragile.let_go()
    job = fragile.until_state(job_id, "COMPLETED", seconds=90)
    assert job["exit_code"] == 0
    assert set(witness.begun(fragile.runs()).values()) == {1}
    assert len(job["attempts"]) == 2


def test_a_killed_probe_is_replaced_and_starts_continue(site: Site) -> None:
    scheduler = site.serve()
    site.until_state(site.shell("true", "--gpus", "8"), "COMPLETED")  # and so its probe reads
    site.until(lambda: len(probes_of(scheduler)) == 1)
    [probe] = probes_of(scheduler)
    os.kill(probe, signal.SIGKILL)
    site.until(lambda: len(found := probes_of(scheduler)) == 1 and found != [probe])
    site.until_state(site.shell("true", "--gpus", "8"), "COMPLETED")


def test_a_hung_driver_stops_starts_with_a_reason_until_it_answers(site: Site) -> None:
    site.serve()
    site.until(lambda: site.json("gpus")[0]["state"] == "FREE")
    runs_on = site.shell(witness.until_let_go(), "--gpus", "1")
    site.until(lambda: running(site, runs_on))
    site.gpus.change("hang *")
    site.until(lambda: {gpu["state"] for gpu in site.json("gpus")} <= {"UNKNOWN", "ALLOCATED"})
    waits = site.shell("true", "--gpus", "1")
    site.let_go()
    site.until_state(runs_on, "COMPLETED")
    assert site.json("show", str(waits))["state"] == "PENDING"
    assert site.json("show", str(waits))["reason"]["code"] in {"NodeUnknown", "Resources"}
    site.gpus.change(without=["hang"])
    site.until_state(waits, "COMPLETED", seconds=60)


def test_a_gpu_that_falls_off_the_bus_is_drained_and_its_job_runs_elsewhere(site: Site) -> None:
    site.serve()
    job_id = site.shell("sleep 60", "--gpus", "1")
    site.until(lambda: running(site, job_id))
    site.gpus.change("gpu 0 lost 1")
    site.until(lambda: len(site.queue.get(job_id).attempts) == 2, 60)
    job = site.until_state(job_id, "RUNNING")
    assert job["attempts"][0]["gpus"] == [standin.uuid(0)]
    assert job["attempts"][1]["gpus"] == [standin.uuid(1)]
    assert site.json("gpus")[0]["state"] == "DRAINED"


@pytest.fixture
def cramped(tmp_path: Path, engine: Dockerd) -> Iterator[Site]:
    """Yield a server whose state directory is a file system of 2 MiB."""
    found = fresh_site(tmp_path / "site", engine)
    found.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(found.state)], check=True)
    try:
        yield found
        found.close()
    finally:
        subprocess.run(["umount", "-l", str(found.state)], check=True)


def fill(directory: Path) -> Path:
    """Fill the disk."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 256, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_is_reported_and_loses_nothing(cramped: Site) -> None:
    cramped.serve()
    ran = cramped.shell(witness.until_let_go(), "--gpus", "1")
    cramped.until(lambda: running(cramped, ran))
    waits = cramped.shell(witness.script(0.1), "--gpus", "8")
    ballast = fill(cramped.state)
    acknowledged = set()
    for _ in range(40):  # the last page of the journal may have room for a few
        answer = cramped.run("submit", "--hold", IMAGE, "true", check=False)
        if answer.returncode:
            break
        acknowledged.add(int(answer.stdout))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "space" in answer.stderr
    cramped.let_go()
    cramped.until(lambda: bool(witness.ended(cramped.runs())))
    time.sleep(2)  # the scheduler looks, and cannot tell the store
    assert cramped.jobs().keys() == {ran, waits, *acknowledged}
    ballast.unlink()
    assert cramped.until_state(ran, "COMPLETED")["exit_code"] == 0
    assert cramped.until_state(waits, "COMPLETED")["exit_code"] == 0
    assert set(witness.begun(cramped.runs()).values()) == {1}
    assert cramped.run("logs", str(ran)).stdout.startswith("on GPU-")
    assert cramped.submit(IMAGE, "true") == max({waits, *acknowledged}) + 1
    assert acknowledged < cramped.jobs().keys()
