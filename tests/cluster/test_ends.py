"""Ends of jobs that Slurm has forgotten, over programs that answer as Slurm's do."""

from __future__ import annotations

import os
import pwd
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gputui.cluster.journal import Submissions
from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.poll import RunNote, parse_note
from gputui.domain.action import Cancel, Requeue
from gputui.domain.cluster import element_id
from gputui.domain.errors import Cause, CauseCode, ClusterRefusedError, ClusterUnavailableError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from tests.cases import cases
from tests.factories import spec

ME = pwd.getpwuid(os.getuid()).pw_name
_SQUEUE = """[ ! -e {here}/away ] || {{ echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; }}
for word; do case $word in *%A*) mark=${{word%%\\%A*}};; esac; done
sed "s/MARK/$mark/g" {here}/jobs
"""
_SCONTROL = """case "$*" in
  "show config") cat {here}/config;;
  *) awk '/^show job / {{ file = "{here}/detail." $3; while ((getline line < file) > 0) print line }}
          /^show hostnames/ {{ print $3 }}';;
esac
"""


class Controller:
    """Slurm whose answers a test writes; jobs that it lists with details are `show`n, all others are forgotten."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.begun = int(time.time()) - 600
        (here / "config").write_text("ClusterName = lab\nSLURM_VERSION = 22.05.8\n")
        programs = {"squeue": _SQUEUE, "scontrol": _SCONTROL, "sbatch": "cat >{here}/script; echo 7", "scancel": "true"}
        (here / "bin").mkdir()
        for name, text in programs.items():
            (here / "bin" / name).write_text(f"#!/bin/sh\n{text.format(here=here)}")
            (here / "bin" / name).chmod(0o755)
        self.lists()

    @property
    def cluster(self) -> SlurmCluster:
        """The cluster as another process sees it, which asks at each call."""
        environ = {**os.environ, "PATH": f"{self.here}/bin:{os.environ['PATH']}", "HOME": str(self.here)}
        site = ClusterSettings(poll_interval=timedelta(), log_directory=str(self.here / "logs"))
        return SlurmCluster(SlurmCommands(None, 60, environ), Settings(cluster=site), self.here / "state")

    def submits(self, *indices: int, limit: timedelta | None = None) -> tuple[JobId, ...]:
        """Submit job 7, or its elements, for two GPUs."""
        job = spec(image=None, command=("true",), time_limit=limit)
        return self.cluster.submit([Submission(job, array=indices)], "k", is_new=True)

    def loses_the_answer(self) -> None:
        """Submit a job whose number nobody learns."""
        (self.here / "logs").mkdir()
        self.cluster.snapshot()
        job = Submission(spec(image=None, command=("true",)))
        Submissions(self.here / "state").intend("k", job, output=f"{self.here}/logs/%j.out")

    def lists(self, *rows: tuple[str, str], shows: str = "") -> None:
        """List jobs of states, index or nothing first; `shows` is the answer about job 7, `FAILED 3:0`."""
        self.here.joinpath("jobs").write_text("".join(self._row(*row) for row in rows))
        detail = self.here / "detail.7"
        detail.unlink(missing_ok=True)
        if shows:
            state, code = shows.split()
            words = f"JobId=7 JobName=train UserId={ME}(0) JobState={state} Restarts=0 ExitCode={code} NodeList=gpu1"
            detail.write_text(f"{words} TresPerNode=gres:gpu:2 Command=(null) WorkDir=/\n")

    def _row(self, index: str, state: str) -> str:
        node, start = ("", "N/A") if state == "PENDING" else ("gpu1", str(self.begun))
        plain = (
            f"7|7|{index or 'N/A'}|{state}|None|{self.begun - 9}|{start}|{self.begun + 90}|1:00:00|0|1|{ME}|{ME}|gpu"
        )
        return f"MARK{plain}|{node}|1|gres:gpu:2|(null)MARKtrainMARKgputui:kMARK(null)\n"

    def notes(self, *lines: str, job: str = "7") -> None:
        """Write what the batch script of a job noted."""
        begin = f"start {self.begun + 1} 0 gpu1 0,1 k"
        (self.here / "logs" / f".{job}.run").write_text("\n".join((begin, *lines)) + "\n")


@pytest.fixture
def slurm(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def told(job: Job) -> tuple[JobState, int | None, tuple[str, ...]]:
    return job.state, job.exit_code, job.attempts[-1].gpus


def test_an_end_is_recorded_that_scontrol_told_before_squeue_did(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "COMPLETING"), shows="FAILED 3:0")
    slurm.cluster.snapshot()
    slurm.lists(("", "FAILED"), shows="FAILED 3:0")
    slurm.cluster.snapshot()
    slurm.lists()
    assert told(slurm.cluster.job(7)) == (JobState.FAILED, 3, ())


def test_an_end_without_a_known_moment_is_no_reason_to_fail(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "FAILED"), shows="FAILED 3:0")
    jobs = slurm.here / "jobs"
    jobs.write_text(jobs.read_text().replace(str(slurm.begun + 90), "Unknown"))
    slurm.cluster.snapshot()
    slurm.lists()
    assert slurm.cluster.job(7).state is JobState.FAILED


def test_an_end_of_which_squeue_alone_told_has_the_exit_code_that_was_noted(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "FAILED"))
    slurm.cluster.snapshot()
    slurm.notes(f"end {slurm.begun + 80} 4")
    slurm.lists()
    slurm.cluster.snapshot()
    job = slurm.cluster.job(7)
    assert told(job) == (JobState.FAILED, 4, ("gpu1:0", "gpu1:1"))
    assert job.ended_at == datetime.fromtimestamp(slurm.begun + 90, UTC)


@cases(("code", "state"), [(0, JobState.COMPLETED), (137, JobState.FAILED)])
def test_a_job_that_nobody_watched_has_what_its_script_noted(tmp_path: Path, code: int, state: JobState) -> None:
    slurm = Controller(tmp_path)
    slurm.submits()
    slurm.notes(f"end {slurm.begun + 5} {code}")
    (job,) = slurm.cluster.history()
    assert told(job) == (state, code, ("gpu1:0", "gpu1:1"))
    assert told(slurm.cluster.job(7)) == told(job)
    assert (job.started_at, job.ended_at) == tuple(datetime.fromtimestamp(slurm.begun + at, UTC) for at in (1, 5))
    assert (job.spec.command, job.submitted_by) == (("true",), ME)


@cases(
    ("lasted", "code", "state"),
    [
        (3600, 143, JobState.TIMEOUT),
        (3605, 137, JobState.TIMEOUT),
        (3600, 1, JobState.FAILED),
        (3600, 0, JobState.COMPLETED),
        (1800, 143, JobState.FAILED),
    ],
)
def test_a_job_that_a_signal_ended_at_its_time_limit_ran_into_it(
    tmp_path: Path, lasted: int, code: int, state: JobState
) -> None:
    slurm = Controller(tmp_path)
    slurm.begun -= 4000
    slurm.submits(limit=timedelta(hours=1))
    slurm.notes(f"end {slurm.begun + 1 + lasted} {code}")
    assert told(slurm.cluster.job(7))[:2] == (state, code)


@cases("is_watched", [True, False])
def test_what_the_script_knew_of_a_failure_is_its_cause(tmp_path: Path, is_watched: bool) -> None:
    slurm = Controller(tmp_path)
    slurm.submits()
    slurm.notes(f"end {slurm.begun + 80} 137 OutOfMemory over its limit: 64 MiB")
    if is_watched:
        slurm.lists(("", "FAILED"), shows="FAILED 0:9")
        [shown] = slurm.cluster.snapshot().jobs
        assert (shown.state, shown.exit_code) == (JobState.OUT_OF_MEMORY, 137)
        slurm.lists()
    for found in (slurm.cluster.job(7), *slurm.cluster.history()):
        assert (found.state, found.exit_code) == (JobState.OUT_OF_MEMORY, 137)
        assert found.cause == found.attempts[-1].cause == Cause(CauseCode.OUT_OF_MEMORY, "over its limit: 64 MiB")


def test_each_element_has_its_own_end(slurm: Controller) -> None:
    ids = slurm.submits(3, 5, 8)
    slurm.notes(f"end {slurm.begun + 5} 0", job="7_3")
    slurm.notes(f"end {slurm.begun + 5} 2", job="7_5")
    slurm.lists(("8", "RUNNING"))
    assert {job.id: job.exit_code for job in slurm.cluster.history()} == {ids[0]: 0, ids[1]: 2}
    slurm.lists()
    assert slurm.cluster.job(7).id == ids[0]
    unknown = slurm.cluster.job(element_id(7, 8))
    assert unknown.cause is not None
    assert unknown.cause.code is CauseCode.END_UNKNOWN


def test_an_end_that_nobody_noted_has_its_window(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "RUNNING"), shows="RUNNING 0:0")
    slurm.cluster.snapshot()
    slurm.lists()
    slurm.cluster.snapshot()
    (job,) = slurm.cluster.history()
    assert (job.state, job.exit_code) == (JobState.FAILED, None)
    assert job.cause is not None
    assert job.cause.code is CauseCode.END_UNKNOWN
    assert job.cause.text.startswith("ended between ")
    (slurm.here / "logs" / "7.out").write_text("hello\n")
    assert list(EngineBackend(EngineQueue(slurm.cluster), Settings()).log(7)) == [b"hello"]
    slurm.notes(f"end {int(time.time())} 0")  # the file system of the nodes was away
    assert told(slurm.cluster.job(7)) == (JobState.COMPLETED, 0, ("gpu1:0", "gpu1:1"))


def test_an_earlier_run_of_a_requeued_job_is_not_its_end(slurm: Controller) -> None:
    slurm.submits()
    slurm.notes(f"end {slurm.begun - 300} 143")
    slurm.lists(("", "PENDING"))
    slurm.cluster.snapshot()
    slurm.lists()
    slurm.cluster.snapshot()
    cause = slurm.cluster.job(7).cause
    assert cause is not None
    assert cause.code is CauseCode.END_UNKNOWN


def test_a_job_that_was_requeued_from_here_has_the_end_of_its_last_run(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "FAILED"), shows="FAILED 3:0")
    assert slurm.cluster.act(Requeue((7,))) == (7,)
    slurm.notes(f"end {slurm.begun + 90} 3", f"start {int(time.time())} 1 gpu2 0 k", f"end {int(time.time())} 0")
    slurm.lists()
    assert told(slurm.cluster.job(7)) == (JobState.COMPLETED, 0, ("gpu2:0",))


@cases(("state", "code"), [("PENDING", None), ("RUNNING", 143)])
def test_a_job_that_was_cancelled_from_here_is_cancelled(tmp_path: Path, state: str, code: int | None) -> None:
    slurm = Controller(tmp_path)
    slurm.submits()
    slurm.lists(("", state), shows=f"{state} 0:0")
    assert slurm.cluster.act(Cancel((7,))) == (7,)
    if code is not None:
        slurm.notes(f"end {int(time.time())} {code}")
    slurm.lists()
    job = slurm.cluster.job(7)
    assert (job.state, job.exit_code) == (JobState.CANCELLED, code)
    assert [each.state for each in slurm.cluster.history()] == [JobState.CANCELLED]


def test_a_note_of_another_job_of_that_number_is_not_taken(slurm: Controller) -> None:
    slurm.submits()
    slurm.notes(f"start {slurm.begun} 0 gpu1 - other", f"end {slurm.begun} 0")
    assert slurm.cluster.job(7).exit_code is None


def test_a_job_that_slurm_lists_has_not_ended(slurm: Controller) -> None:
    slurm.submits()
    slurm.lists(("", "RUNNING"), shows="RUNNING 0:0")
    assert list(slurm.cluster.history()) == []
    assert slurm.cluster.job(7).state is JobState.RUNNING
    with pytest.raises(NotFoundError, match="Slurm knows no job 8"):
        slurm.cluster.job(8)


def test_a_submission_whose_answer_was_lost_is_found_after_slurm_forgot_its_job(slurm: Controller) -> None:
    slurm.loses_the_answer()
    slurm.notes(f"end {slurm.begun + 5} 0", job="9")
    assert [(job.id, job.exit_code) for job in slurm.cluster.history()] == [(9, 0)]


def test_a_repeated_submission_is_the_job_that_slurm_forgot(slurm: Controller) -> None:
    slurm.loses_the_answer()
    slurm.notes(job="9")
    assert slurm.submits() == (9,)


def test_a_submission_that_slurm_refused_is_not_looked_for_and_may_be_repeated(slurm: Controller) -> None:
    sbatch = slurm.here / "bin" / "sbatch"
    accepts = sbatch.read_text()
    sbatch.write_text("#!/bin/sh\ncat >/dev/null; echo 'sbatch: error: Invalid account' >&2; exit 1\n")
    with pytest.raises(ClusterRefusedError, match="Invalid account"):
        slurm.submits()
    slurm.notes(f"end {slurm.begun + 5} 0", job="9")
    assert list(slurm.cluster.history()) == []
    (slurm.here / "logs" / ".9.run").unlink()
    sbatch.write_text(accepts)
    assert slurm.submits() == (7,)


def test_output_is_read_while_slurm_does_not_answer(slurm: Controller) -> None:
    slurm.submits()
    slurm.notes()
    (slurm.here / "logs" / "7.out").write_text("one\ntwo\n")
    (slurm.here / "away").touch()
    backend = EngineBackend(EngineQueue(slurm.cluster), Settings())
    assert list(backend.log(7)) == [b"one", b"two"]
    with pytest.raises(ClusterUnavailableError, match="Unable to contact"):
        backend.log(8)


def test_the_last_run_in_a_note_counts_and_torn_lines_do_not() -> None:
    lines = ["start 10 0 gpu1 0 k", "end 12 143", "start 20 1 gpu2 - k", "sta", "end x 0", ""]
    assert parse_note(lines) == RunNote(20, 1, "gpu2", key="k")
    assert parse_note([*lines, "end 30 1 Why it  was"]) == RunNote(20, 1, "gpu2", (), "k", 30, 1, "Why it was")
    assert parse_note([*lines, "end 30 0"]) == RunNote(20, 1, "gpu2", (), "k", 30, 0)
    assert parse_note(["end 30 0"]) is None
