"""Ends of many short jobs that Slurm forgets within seconds, with somebody watching and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.domain.accounting import Period, account
from gputui.domain.job_spec import GpuRequest, JobId, JobSpec, LimitWarning, Submission
from gputui.domain.state import JobState
from gputui.engine.cluster.queue import EngineQueue
from tests.cluster.test_batch_end import COUNTS
from tests.slurm.accounts import lacking
from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.test_cluster import cluster_of

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm"),
]

LONG = 8 * PATIENCE
CODES = (0, 1, 3, 0, 42, 130, 143, 255)
NO_ACCOUNTS = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")


@pytest.fixture(params=[False, pytest.param(True, marks=NO_ACCOUNTS)], ids=["alone", "slurmdbd"])
def forgetful(request: pytest.FixtureRequest) -> Iterator[Bed]:
    """Yield a cluster that forgets jobs after five seconds."""
    bed = Bed(min_job_age=5, accounts=request.param)
    try:
        yield bed.start()
    finally:
        bed.destroy()


def submit(cluster: SlurmCluster, singles: int, elements: int) -> dict[JobId, int]:
    """Submit jobs, and arrays of 25 elements each; return their exit codes."""
    expected = {}
    for code in islice(cycle(CODES), singles):
        gpus = GpuRequest(code % 2, code % 2)
        (job_id,) = cluster.submit([Submission(JobSpec(command=("sh", "-c", f"exit {code}"), gpus=gpus))], str(uuid4()))
        expected[job_id] = code
    script = f"set -- {' '.join(map(str, CODES))}; shift $(( GPUTUI_ARRAY_INDEX % {len(CODES)} )); exit $1"
    for _ in range(elements // 25):
        array = Submission(JobSpec(command=("sh", "-c", script)), array=tuple(range(25)))
        ids = cluster.submit([array], str(uuid4()), is_new=True)
        expected |= {job_id: CODES[index % len(CODES)] for index, job_id in enumerate(ids)}
    return expected


def test_none_of_five_hundred_jobs_is_lost(forgetful: Bed, tmp_path: Path) -> None:
    bed, cluster, begun = forgetful, cluster_of(forgetful, tmp_path), datetime.now(UTC)
    expected = submit(cluster, 150, 100)
    watched = set(expected)
    bed.wait(lambda: not watched & {each for job in cluster.snapshot().jobs for each in job.ids}, "all are gone", LONG)
    expected |= submit(cluster, 150, 100)
    bed.wait(lambda: not bed.jobs(), "Slurm has forgotten the others too, at which nobody looked", LONG)
    queue = EngineQueue(cluster_of(bed, tmp_path))
    found = {job.id: job for job in queue.past()}
    assert len(expected) == 500
    assert {job_id: found[job_id].exit_code if job_id in found else "lost" for job_id in expected} == expected
    assert all(found[job_id].attempts[-1].node for job_id in expected)
    counted = [len(found[job_id].attempts[-1].gpus) for job_id, code in expected.items() if found[job_id].array is None]
    assert counted == [code % 2 for job_id, code in expected.items() if found[job_id].array is None]
    now = datetime.now(UTC) + timedelta(seconds=1)
    ended = account(queue.records(), Period(begun, now), "user", now).total.ended
    succeeded = list(expected.values()).count(0)
    assert ended == {"completed": succeeded, "failed": 500 - succeeded}


def test_each_signal_of_slurm_reaches_a_command_once(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    spec = JobSpec(command=COUNTS, warning=LimitWarning(15, timedelta(seconds=50)), time_limit=timedelta(minutes=1))
    (job_id,) = cluster.submit([Submission(spec)], str(uuid4()))
    log, told = bed.home("alice") / "logs" / f"{job_id}.out", ["ready"]

    def wait(what: str) -> None:
        bed.wait(
            lambda: log.exists() and re.findall(r"^(?:ready|SIG\w+)$", log.read_text(), re.MULTILINE) == told,
            what,
            2 * PATIENCE,
        )

    wait("the command runs")
    for to in ("--batch", "--full", "--batch", "--full"):
        bed.run("scancel", "--signal=USR1", to, str(job_id))
        told.append("SIGUSR1")
        wait(f"the signal came by {to}")
    told.append("SIGTERM")  # to the script alone
    wait("the warning came")
    told += ["SIGCONT", "SIGTERM"]  # to all processes
    wait("Slurm ended the job")
    bed.wait(lambda: cluster.job(job_id).state is JobState.TIMEOUT, "it has ended", 2 * PATIENCE)
