"""Sixty jobs on the GPUs of another machine, by each way, while its connection is cut three times."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from tests.cases import cases
from tests.e2e.terminal import Terminal
from tests.remote.bed import WAYS, Bed
from tests.remote.conftest import Far, Laptop, states
from tests.remote.far_jobs import FarJobs
from tests.runtime.dockerd import IMAGE
from tests.waiting import until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.ssh,
    pytest.mark.nvml,
    pytest.mark.tmux,
    pytest.mark.long,
    pytest.mark.xdist_group("remote"),
]

JOBS = 60
CUTS = (8, 24, 40)
"""Numbers of jobs that have ended when the connection is cut."""
PATIENCE = 400.0


@pytest.mark.parametrize("way", WAYS)
def test_sixty_jobs_share_no_gpu_though_the_connection_is_cut(bed: Bed, laptop: Laptop, way: str) -> None:
    before = bed.processes(), bed.containers()
    chance = random.Random(way)
    site = laptop(way)
    jobs, begun = FarJobs(bed, site), time.monotonic()
    serving = site.serve()
    wanted = [chance.randint(1, 2) for _ in range(JOBS)]
    for gpus in wanted:
        jobs.submit(gpus, seconds=chance.randint(1, 3))
    for number in CUTS:
        site.until(lambda number=number: _ended(site) >= number, PATIENCE)  # type: ignore[misc]
        _cut(bed, site, quietly=way == "tls" or number == CUTS[1])
    site.until(lambda: _ended(site) == JOBS, PATIENCE)
    told = site.jobs()
    assert [(told[job]["state"], len(site.queue.get(job).attempts)) for job in jobs.ids] == [("COMPLETED", 1)] * JOBS
    inside = jobs.gpus_inside()
    assert [[len(gpus) for gpus in times] for times in inside] == [[gpus] for gpus in wanted]
    assert {uuid for times in inside for gpus in times for uuid in gpus} == set(bed.uuids)
    given = [[str(gpu) for gpu in site.queue.get(job).attempts[-1].gpus] for job in jobs.ids]
    assert [sorted(times[0]) for times in inside] == [sorted(uuids) for uuids in given]
    assert not jobs.overlaps()
    print(f"{way}: {JOBS} jobs in {time.monotonic() - begun:.0f} s, {len(CUTS)} cuts")
    until(lambda: set(bed.containers()) <= {*before[1], *bed.probe_containers()}, site.evidence)
    serving.terminate()
    serving.wait()
    until(lambda: (bed.processes(), bed.containers()) == before, lambda: f"{bed.processes()} {bed.containers()}")
    assert bed.written() == []


def _ended(site: Far) -> int:
    return sum(job.state.is_terminal for job in site.queue.jobs().values())


def _cut(bed: Bed, site: Far, *, quietly: bool) -> None:
    """Cut the connection until no GPU is known any more; quietly: packets vanish, and nobody is told."""
    bed.pull_cable() if quietly else bed.stop_sshd()
    site.until(lambda: {gpu["health"]["code"] for gpu in site.json("gpus")} == {"Unknown"})
    ended = _ended(site)
    assert "FREE" not in {gpu["state"] for gpu in site.json("gpus")}
    assert _ended(site) == ended
    bed.reach()


def test_two_queues_at_once_give_no_gpu_twice(bed: Bed, laptop: Laptop) -> None:
    """Both are guests: each leaves alone what the other has, also where both want the same GPU at the same moment."""
    sites = [laptop("ssh"), laptop("tls")]
    jobs = [FarJobs(bed, site, "shared") for site in sites]
    for site in sites:
        site.serve()
    for number in range(16):
        for each in jobs:
            each.submit(1 + number % 2)
    for site in sites:
        site.until(lambda site=site: _ended(site) == 16, PATIENCE)  # type: ignore[misc]
        assert [job.state.value for job in site.queue.jobs().values()] == ["COMPLETED"] * 16
    assert not jobs[0].overlaps()


@cases("way", WAYS)
def test_a_killed_gputui_leaves_nothing_there(bed: Bed, laptop: Laptop, way: str) -> None:
    before = bed.processes(), bed.containers()
    site = laptop(way)
    serving = site.serve()
    site.until(lambda: "FREE" in site.run("gpus", check=False).stdout)
    assert (bed.processes(), bed.containers()) != before
    site.kill(serving)
    until(lambda: (bed.processes(), bed.containers()) == before, bed.processes)


@cases("way", WAYS)
def test_the_first_gpu_is_on_the_screen_within_two_seconds(laptop: Laptop, way: str) -> None:
    """The limit holds for a machine with a processor for it; others have more time, as more else wants one."""

    def seconds(*options: str) -> float:
        site = laptop(way)
        words = [*site.into, "env", "-C", str(Path.cwd()), sys.executable, "-m", "gputui", *options]
        begun = time.monotonic()
        with Terminal(words, site.environ, 120, 30) as terminal:
            terminal.until("H100")
            return time.monotonic() - begun

    measured = [(seconds(), seconds("--probe", "sim:4")) for _ in range(3)]
    busy = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    there, simulated = map(min, zip(*measured, strict=True))
    print(
        f"{way}: first GPU after {there:.2f} s, a simulated one after {simulated:.2f} s, at {busy:.1f} times the work"
    )
    assert there < 2.0 * busy


@cases("way", WAYS)
def test_foreign_use_keeps_jobs_away_until_it_ends(bed: Bed, laptop: Laptop, way: str) -> None:
    site = laptop(way)
    site.serve()
    theirs, free = bed.uuids[:3], bed.uuids[3]
    pid = bed.start_on_far("sleep", "1000")
    bed.idle(*(f"gpu {index} process {pid} 1073741824 C" for index in (1, 2)))
    gpus = f'"device={theirs[0]}"'
    container = bed.docker("run", "--detach", "--network", "host", "--gpus", gpus, IMAGE, "sleep", "1000")
    expected = dict.fromkeys(theirs, "FOREIGN") | {free: "FREE"}
    site.until(lambda: states(site) == expected)
    jobs = FarJobs(bed, site)
    for _ in range(3):
        jobs.submit(1)
    two = jobs.submit(2)
    site.until(lambda: _ended(site) == 3)
    assert jobs.gpus_inside() == [[[free]]] * 3 + [[]]
    bed.on_far("kill", str(pid))
    bed.docker("rm", "--force", container)
    bed.idle()
    assert site.until_state(two, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    for process in site.serving:
        process.terminate()
