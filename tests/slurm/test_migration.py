"""Migration of a real queue to a real Slurm, killed between submission and note."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.cluster.migration import Migration
from gputui.store import TinyJobStore
from tests.cluster.test_migration import DyingStore, Killed
from tests.factories import ACTOR, FakeClock
from tests.slurm.bed import Bed
from tests.slurm.test_cluster import cluster_of

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

SPEC = JobSpec(command=("true",), name="a")


def test_a_killed_migration_goes_on_and_submits_nothing_twice(bed: Bed, tmp_path: Path) -> None:
    first = DyingStore(tmp_path / "queue", StoreSettings())
    clock = FakeClock()
    actions = Actions(first, clock, ACTOR)
    actions.act(SubmitJobs((Submission(SPEC, held=True), Submission(SPEC, held=True, array=(0, 1, 2), array_limit=2))))
    actions.act(SubmitJobs((Submission(JobSpec(command=("true",), name="last", after=(1,), after_any=(2,))),)))
    actions.act(SubmitJobs((Submission(JobSpec(command=("true",), name="refused", retries=2)),)))
    first.dies_at = first.count + 2
    with pytest.raises(Killed):
        Migration(first, cluster_of(bed, tmp_path), "slurm", clock, ACTOR).run(None)
    first.close()
    store = TinyJobStore(tmp_path / "queue", StoreSettings())
    forgetful = cluster_of(bed, tmp_path / "other")
    moves = Migration(store, forgetful, "slurm", clock, ACTOR).run(None)
    assert [move.why for move in moves if not move.new_ids] == ["--retries: Slurm does not repeat a failed job"]
    rows = bed.run("squeue", "--noheader", "--format=%F %j %E").stdout.split("\n")
    a, b, last = (move.new_word for move in moves if move.new_ids)
    assert sorted({row.split()[0] for row in rows if row}) == sorted((a, b, last))
    [waits] = [row.split()[2] for row in rows if row.startswith(f"{last} ")]
    assert f"afterok:{a}" in waits
    assert f"afterany:{b}" in waits
    kept = [job for job in store.jobs().values() if job.state is JobState.PENDING]
    assert [(job.spec.name, job.held) for job in kept] == [("refused", False)]
    assert {_note(store.get(number)) for number in (1, 2, 3, 4, 5)} == {
        f"migrated to Slurm job {number}" for number in (a, b, last)
    }
    store.close()


def _note(job: Job) -> str:
    return job.cause.text if job.cause else ""
