"""Contract of every Cluster, as tests that each implementation runs: subclass ClusterContract with a `harness`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

import pytest
from msgspec.structs import replace

from gputui.domain.action import (
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    Release,
    Requeue,
    ResumeGpus,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.container import ExecRequest
from gputui.domain.errors import CapabilityError, CauseCode, ClusterRefusedError, InputError, NotFoundError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId, JobSpec, Submission
from gputui.domain.state import JobState, PendingReason
from gputui.ports import Cluster, StampedLogStream
from gputui.ports.backend import Attach
from tests.cluster.talk import Talk
from tests.needs import need

PATIENCE = 60.0
"""Seconds to wait for what the engine does."""


class Harness(Protocol):
    """Cluster under test: three nodes with two GPUs each, whose user is an operator."""

    cluster: Cluster

    def spec(self, gpus: int = 0) -> JobSpec:
        """Return a job that prints `ready` and runs until `finish`."""
        ...

    def contained(self, script: str) -> JobSpec:
        """Return a job in a container that runs this script of sh."""
        ...

    def finish(self, job: Job, exit_code: int = 0) -> None:
        """Let a running job end with that exit code."""
        ...

    def submit_as_another(self, spec: JobSpec) -> JobId:
        """Submit a job of another user."""
        ...

    def without_rights(self) -> Cluster:
        """Return the cluster for a user who is no operator."""
        ...

    def signals(self, job: Job) -> Sequence[int]:
        """Return the signals that a job got."""
        ...


class ClusterContract:
    """Behaviour of every Cluster. What an engine lacks it refuses, with the sentence of its capabilities."""

    waiting_codes = frozenset({PendingReason.RESOURCES, PendingReason.PRIORITY})
    """Reasons of two jobs that wait for GPUs."""
    array_limit: int | None = 3
    """Limit of elements that run at a time; None: the engine has none."""
    attach_tells_exit_code = True
    """Whether the end of a job reaches those who are attached with its exit code."""
    input_needs_terminal = False
    """Whether only jobs with a terminal have input."""
    refuses_impossible = True
    """Whether the engine refuses a job that no node can run; else the job waits."""

    @pytest.fixture
    def cluster(self, harness: Harness) -> Cluster:
        return harness.cluster

    def until(self, cluster: Cluster, job_id: JobId, fits: Callable[[Job], bool], what: str) -> Job:
        """Return the job as soon as it fits."""
        deadline = time.monotonic() + PATIENCE
        while True:
            job = cluster.job(job_id)
            if fits(job):
                return job
            assert time.monotonic() < deadline, f"gave up waiting until {what}: {job}"
            time.sleep(0.1)

    def until_state(self, cluster: Cluster, job_id: JobId, state: JobState) -> Job:
        return self.until(cluster, job_id, lambda job: job.state is state, f"the job is {state}")

    def submit(self, cluster: Cluster, *specs: JobSpec, held: bool = False) -> tuple[JobId, ...]:
        return cluster.submit([Submission(spec, held=held) for spec in specs], str(uuid4()))

    def lacks(self, cluster: Cluster, capability: Capability, call: Callable[[], object]) -> bool:
        """Return whether the engine lacks this; then it has to refuse the call."""
        if cluster.caps.has(capability):
            return False
        with pytest.raises(CapabilityError) as refused:
            call()
        assert refused.value.what == cluster.caps.why_not(capability)
        return True

    def full(self, harness: Harness) -> tuple[JobId, ...]:
        """Fill the cluster with jobs, and return them."""
        ids = self.submit(harness.cluster, *[harness.spec(gpus=2)] * 3)
        for job_id in ids:
            self.until_state(harness.cluster, job_id, JobState.RUNNING)
        return ids

    def test_a_job_runs_on_gpus_of_a_node_and_ends(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec(gpus=2))
        has_ids = cluster.caps.has(Capability.GPU_IDS)
        job = self.until(cluster, job_id, lambda job: bool(job.gpus) or not has_ids, "it has GPUs")
        job = self.until_state(cluster, job_id, JobState.RUNNING) if not has_ids else job
        assert job.attempt is not None
        assert job.started_at is not None
        held = {view.gpu.uuid: (view.state, view.job_id) for view in cluster.snapshot().gpus if view.job_ids}
        node = next(node for node in cluster.snapshot().nodes if node.name == job.attempt.node)
        assert held == {view.gpu.uuid: (GpuState.ALLOCATED, job_id) for view in node.gpus}
        assert not has_ids or set(held) == set(job.gpus)
        harness.finish(job)
        ended = self.until_state(cluster, job_id, JobState.COMPLETED)
        assert (ended.exit_code, ended.cause) == (0, None)
        assert ended.attempt is not None
        assert ended.attempt.gpus == job.attempt.gpus  # kept after the end
        assert ended.ended_at is not None
        assert job_id in [each.id for each in cluster.history()]

    def test_an_exit_code_is_the_cause_of_a_failure(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec())
        harness.finish(self.until_state(cluster, job_id, JobState.RUNNING), 3)
        job = self.until_state(cluster, job_id, JobState.FAILED)
        assert (job.exit_code, job.cause and job.cause.code) == (3, CauseCode.NON_ZERO_EXIT)

    def test_a_key_submits_once(self, harness: Harness, cluster: Cluster) -> None:
        key, submissions = str(uuid4()), [Submission(harness.spec(), held=True)] * 2
        ids = cluster.submit(submissions, key)
        assert len(set(ids)) == 2
        assert cluster.submit(submissions, key) == ids
        assert {job.id for job in cluster.snapshot().jobs if job.state is JobState.PENDING} == set(ids)

    def test_the_spec_of_a_job_stays_known(self, harness: Harness, cluster: Cluster) -> None:
        spec = replace(harness.spec(gpus=1), name="a name | with 'quotes' and $blanks", time_limit=timedelta(hours=2))
        (job_id,) = self.submit(cluster, spec, held=True)
        job = cluster.job(job_id)
        assert (job.name, job.spec.command, job.spec.gpus, job.spec.time_limit) == (
            *(spec.name, spec.command, spec.gpus),
            timedelta(hours=2),
        )

    def test_a_held_job_waits_until_it_is_released(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec(), held=True)
        assert cluster.job(job_id).held
        assert cluster.snapshot().reasons[job_id].code is PendingReason.JOB_HELD_USER
        assert cluster.act(Release((job_id,))) == (job_id,)
        self.until_state(cluster, job_id, JobState.RUNNING)

    def test_a_waiting_job_can_be_held(self, harness: Harness, cluster: Cluster) -> None:
        self.full(harness)
        (job_id,) = self.submit(cluster, harness.spec(gpus=1))
        assert not cluster.job(job_id).held
        assert cluster.act(Hold((job_id,))) == (job_id,)
        assert cluster.job(job_id).held
        assert cluster.act(Release((job_id,))) == (job_id,)
        assert not cluster.job(job_id).held

    def test_jobs_without_free_gpus_wait_with_reasons(self, harness: Harness, cluster: Cluster) -> None:
        self.full(harness)
        first, second = self.submit(cluster, harness.spec(gpus=2), harness.spec(gpus=1))

        def codes() -> set[PendingReason]:
            reasons = cluster.snapshot().reasons
            return {reasons[each].code for each in (first, second)}

        self.until(cluster, first, lambda job: codes() == self.waiting_codes, "the engine has looked at them")
        assert cluster.snapshot().order == (first, second)
        assert all(reason.text for reason in cluster.snapshot().reasons.values())

    def test_a_priority_changes_the_order(self, harness: Harness, cluster: Cluster) -> None:
        self.full(harness)
        first, second = self.submit(cluster, harness.spec(gpus=1), replace(harness.spec(gpus=1), priority=80))
        self.until(cluster, second, lambda job: cluster.snapshot().order == (second, first), "it is first")
        assert cluster.job(second).priority == 80
        if self.lacks(cluster, Capability.LOWER_PRIORITY, lambda: cluster.act(SetPriority((second,), 30))):
            assert self.lacks(cluster, Capability.TOP, lambda: cluster.act(Top((first,))))
            return
        assert cluster.act(SetPriority((second,), 30)) == (second,)
        assert cluster.job(second).priority == 30
        assert cluster.snapshot().order == (first, second)
        assert cluster.act(Top((second,))) == (second,)
        assert cluster.snapshot().order == (second, first)

    def test_cancel_ends_waiting_and_running_jobs(self, harness: Harness, cluster: Cluster) -> None:
        running, waiting = self.submit(cluster, harness.spec()), self.submit(cluster, harness.spec(), held=True)
        self.until_state(cluster, running[0], JobState.RUNNING)
        assert set(cluster.act(Cancel((*running, *waiting)))) == {*running, *waiting}
        for job_id in (*running, *waiting):
            job = self.until_state(cluster, job_id, JobState.CANCELLED)
            assert job.cause is not None
            assert job.cause.code is CauseCode.CANCELLED
        assert cluster.act(Cancel(running)) == ()

    def test_a_job_that_is_not_known(self, harness: Harness, cluster: Cluster) -> None:
        unknown = 12_345_678
        with pytest.raises(NotFoundError):
            cluster.act(Cancel((unknown,)))
        with pytest.raises(NotFoundError):
            cluster.job(unknown)

    def test_an_array_is_one_entry_while_it_waits(self, harness: Harness, cluster: Cluster) -> None:
        submission = Submission(harness.spec(), held=True, array=tuple(range(10)), array_limit=self.array_limit)
        ids = cluster.submit([submission], str(uuid4()))
        entries = [job for job in cluster.snapshot().jobs if job.has(ids[0])]
        assert [entry.count for entry in entries] == [10]
        assert list(entries[0].ids) == list(ids)
        assert entries[0].array is not None
        assert entries[0].array.limit == self.array_limit
        limit = f"%{self.array_limit}" if self.array_limit else ""
        assert entries[0].shown_id == f"{entries[0].array.id}_[0-9{limit}]"

    def test_elements_of_an_array_are_changed_one_by_one(self, harness: Harness, cluster: Cluster) -> None:
        ids = cluster.submit([Submission(harness.spec(), held=True, array=(1, 2, 3, 5))], str(uuid4()))
        assert set(cluster.act(Cancel((ids[1],)))) == {ids[1]}
        self.until_state(cluster, ids[1], JobState.CANCELLED)
        assert cluster.act(Release((ids[2],))) == (ids[2],)
        job = self.until_state(cluster, ids[2], JobState.RUNNING)
        assert (job.array and job.array.index, job.shown_id.endswith("_3")) == (3, True)
        assert [cluster.job(each).held for each in (ids[0], ids[3])] == [True, True]
        harness.finish(job, 4)
        assert self.until_state(cluster, ids[2], JobState.FAILED).exit_code == 4

    def test_a_job_waits_for_another(self, harness: Harness, cluster: Cluster) -> None:
        (first,) = self.submit(cluster, harness.spec())
        dependent = replace(harness.spec(), after=(first,))
        if self.lacks(cluster, Capability.DEPENDENCIES, lambda: self.submit(cluster, dependent)):
            return
        then, after_any = self.submit(
            cluster, replace(harness.spec(), after=(first,)), replace(harness.spec(), after_any=(first,))
        )
        reasons = cluster.snapshot().reasons
        assert {reasons[each].code for each in (then, after_any)} == {PendingReason.DEPENDENCY}
        harness.finish(self.until_state(cluster, first, JobState.RUNNING), 1)
        self.until_state(cluster, after_any, JobState.RUNNING)
        assert cluster.job(then).state is JobState.PENDING
        assert cluster.snapshot().reasons[then].code is PendingReason.DEPENDENCY

    def test_a_job_is_run_again(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec())
        self.until_state(cluster, job_id, JobState.RUNNING)
        if self.lacks(cluster, Capability.REQUEUE, lambda: cluster.act(Requeue((job_id,)))):
            return
        assert cluster.act(Requeue((job_id,))) == (job_id,)

        def is_again(job: Job) -> bool:
            return not job.state.is_active or (job.attempt is not None and job.attempt.number > 1)

        self.until(cluster, job_id, is_again, "it waits again, or runs once more")

    def test_a_time_limit_is_changed(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, replace(harness.spec(), time_limit=timedelta(hours=2)))
        self.until_state(cluster, job_id, JobState.RUNNING)
        edited = EditJobs((job_id,), Edit({"time_limit": timedelta(minutes=90)}))
        if self.lacks(cluster, Capability.EXTEND, lambda: cluster.act(edited)):
            return
        assert cluster.act(edited) == (job_id,)
        assert cluster.job(job_id).spec.time_limit == timedelta(minutes=90)

    def test_a_signal_reaches_the_job(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec())
        self.until(
            cluster,
            job_id,
            lambda job: job.state is JobState.RUNNING and b"ready" in self.lines(cluster, job),
            "it is ready, and the latest view shows it as running",
        )
        if self.lacks(cluster, Capability.SIGNAL, lambda: cluster.act(Signal((job_id,), 10))):
            return
        assert cluster.act(Signal((job_id,), 10)) == (job_id,)
        self.until(cluster, job_id, lambda job: 10 in harness.signals(job), "it got the signal")

    def lines(self, cluster: Cluster, job: Job) -> list[bytes]:
        """Return the output so far; nothing if there is none yet."""
        try:
            stream = cluster.log(job, tail=None, follow=False)
            return [self.text(line, stream) for line in stream]
        except NotFoundError:
            return []

    def text(self, line: bytes, stream: StampedLogStream) -> bytes:
        """Return a line as the job wrote it."""
        return line.partition(b" ")[2] if stream.is_stamped else line

    def test_a_running_job_is_suspended_and_continued(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec(gpus=1))
        if self.lacks(cluster, Capability.SUSPEND, lambda: cluster.act(Suspend((job_id,)))):
            return
        self.until(cluster, job_id, lambda job: bool(job.gpus), "it runs")
        assert cluster.act(Suspend((job_id,))) == (job_id,)
        suspended = self.until(cluster, job_id, lambda job: job.suspended, "it is suspended")
        assert suspended.gpus
        assert cluster.act(Unsuspend((job_id,))) == (job_id,)
        self.until(cluster, job_id, lambda job: not job.suspended, "it is continued")

    def test_a_drained_node_takes_no_jobs(self, harness: Harness, cluster: Cluster) -> None:
        cluster.act(DrainGpus(("gpu1", "gpu2"), "fan noise, ticket 812"))
        try:
            views = {view.gpu.uuid: view for view in cluster.snapshot().gpus}
            drained = [uuid for uuid, view in views.items() if view.state is GpuState.DRAINED]
            assert len(drained) == 4
            reasons = {view.drain.reason for view in views.values() if view.drain is not None}
            assert reasons == {"fan noise, ticket 812"}
            ids = self.submit(cluster, *[harness.spec(gpus=2)] * 2)
            job = self.until_state(cluster, ids[0], JobState.RUNNING)
            assert job.attempt is not None
            assert job.attempt.node == "gpu3"
        finally:
            cluster.act(ResumeGpus(("gpu1", "gpu2")))
        assert not any(view.drain for view in cluster.snapshot().gpus)
        self.until_state(cluster, ids[1], JobState.RUNNING)

    def test_a_node_that_does_not_exist_is_not_drained(self, cluster: Cluster) -> None:
        with pytest.raises(ClusterRefusedError, match="nvalid node name"):
            cluster.act(DrainGpus(("gpu99",), "why not"))

    def test_the_output_of_a_job_is_read_while_it_runs(self, harness: Harness, cluster: Cluster) -> None:
        (job_id,) = self.submit(cluster, harness.spec())
        job = self.until(cluster, job_id, lambda job: self.lines(cluster, job) == [b"ready"], "it has written")
        stream = cluster.log(job, tail=1, follow=True)
        followed = iter(stream)
        assert self.text(next(followed), stream) == b"ready"
        harness.finish(job)
        assert list(followed) == []
        assert self.lines(cluster, job) == [b"ready"]

    def ready(self, harness: Harness, cluster: Cluster) -> Job:
        """Return a running job that has printed `ready`."""
        (job_id,) = self.submit(cluster, harness.spec())

        def is_ready(job: Job) -> bool:
            return job.state is JobState.RUNNING and b"ready" in self.lines(cluster, job)

        return self.until(cluster, job_id, is_ready, "it is ready")

    def test_a_command_runs_in_a_job(self, harness: Harness, cluster: Cluster) -> None:
        job = self.ready(harness, cluster)
        if self.lacks(cluster, Capability.INSIDE, lambda: cluster.place(job)):
            return
        request = ExecRequest(("sh", "-c", "cat; echo warned >&2; exit 5"), stdin=True)
        talk = Talk(cluster.enter(job, request))
        talk.channel.send(b"hello\n")
        talk.until(b"hello\n")
        talk.channel.end_input()
        assert (talk.end(), talk.out, talk.err) == (5, b"hello\n", b"warned\n")
        talk = Talk(cluster.enter(job, ExecRequest(("sh", "-c", "wc -c; echo $1", "sh", "a b'c"))))
        assert (talk.end(), talk.out.split(b"\n")[-2], talk.err) == (0, b"a b'c", b"")

    def test_a_command_has_a_terminal(self, harness: Harness, cluster: Cluster) -> None:
        job = self.ready(harness, cluster)
        if self.lacks(cluster, Capability.INSIDE, lambda: cluster.place(job)):
            return
        script = 'until [ "$(stty size)" = "$1" ]; do sleep 0.05; done; tty >&2; read word; echo "got $word"; exit 3'
        request = ExecRequest(("sh", "-c", script, "sh", "44 155"), stdin=True, tty=True, rows=33, columns=101)
        talk = Talk(cluster.enter(job, request))
        assert talk.channel.is_tty
        talk.channel.resize(33, 101)
        talk.channel.resize(44, 155)
        talk.until(b"/dev/pts/")
        talk.channel.send(b"it\n")
        assert (talk.end(), talk.err) == (3, b"")
        assert b"got it\r\n" in talk.out

    def test_a_command_that_is_left(self, harness: Harness, cluster: Cluster) -> None:
        job = self.ready(harness, cluster)
        if self.lacks(cluster, Capability.INSIDE, lambda: cluster.place(job)):
            return
        request = ExecRequest(("sh", "-c", "echo begun; read word"), stdin=True, tty=True)
        talk = Talk(cluster.enter(job, request))
        talk.until(b"begun")
        talk.channel.close()
        assert cluster.job(job.id).state is JobState.RUNNING

    def attached(self, harness: Harness, cluster: Cluster, interactive: Interactive) -> tuple[Job, Talk] | None:
        """Return a job with these streams and its first output; None if the engine has no such jobs."""
        spec = replace(harness.contained("echo begun; read word; echo got $word; exit 3"), interactive=interactive)
        if self.lacks(cluster, Capability.STREAMS, lambda: self.submit(cluster, spec)):
            return None
        (job_id,) = self.submit(cluster, spec)
        job = self.until_state(cluster, job_id, JobState.RUNNING)
        talk = Talk(cluster.enter(job, Attach()))
        talk.until(b"begun")
        return job, talk

    def failed(self, harness: Harness, cluster: Cluster, job: Job) -> int | None:
        """Return the exit code of the job once it has failed."""
        harness.finish(job, 3)
        return self.until_state(cluster, job.id, JobState.FAILED).exit_code

    def test_a_job_with_a_terminal_is_left_and_attached_to_again(self, harness: Harness, cluster: Cluster) -> None:
        found = self.attached(harness, cluster, Interactive(stdin=True, tty=True))
        if found is not None:
            job, talk = found
            assert talk.channel.is_tty
            talk.channel.close()
            assert cluster.job(job.id).state is JobState.RUNNING
            talk = Talk(cluster.enter(job, Attach()))
            talk.channel.send(b"it\n")
            talk.until(b"got it\r\n")
            assert talk.end() == (3 if self.attach_tells_exit_code else 0)
            assert self.failed(harness, cluster, job) == 3

    def test_a_job_with_input_shows_all_its_output_to_each_who_attaches(
        self, harness: Harness, cluster: Cluster
    ) -> None:
        if self.input_needs_terminal:
            with pytest.raises(InputError, match="give it both, by -it"):
                self.attached(harness, cluster, Interactive(stdin=True))
            return
        found = self.attached(harness, cluster, Interactive(stdin=True))
        if found is not None:
            job, talk = found
            talk.channel.send(b"it\n")
            talk.channel.end_input()
            assert (talk.end(), talk.out, talk.err) == (3, b"begun\ngot it\n", b"")
            assert self.failed(harness, cluster, job) == 3

    def test_the_processes_of_a_job(self, harness: Harness, cluster: Cluster) -> None:
        job = self.ready(harness, cluster)
        if self.lacks(cluster, Capability.INSIDE, lambda: cluster.processes(job)):
            return
        need("ps")
        rows = cluster.processes(job)
        assert rows
        assert all(row.pid > 0 and row.command for row in rows)

    def test_another_users_jobs_are_seen_but_not_touched(self, harness: Harness) -> None:
        theirs = harness.submit_as_another(harness.spec())
        cluster = harness.without_rights()
        assert cluster.job(theirs).submitted_by not in {"", "root"}
        for action in (Cancel((theirs,)), Hold((theirs,))):
            with pytest.raises(ClusterRefusedError, match="denied"):
                cluster.act(action)
        with pytest.raises((CapabilityError, ClusterRefusedError), match=r"job of bob|denied|no pod"):
            cluster.enter(cluster.job(theirs), ExecRequest(("true",)))
        drain = DrainGpus(("gpu1",), "x")
        assert not cluster.caps.has(Capability.DRAIN_NODE) or self.is_refused(lambda: cluster.act(drain))

    def is_refused(self, change: Callable[[], object]) -> bool:
        with pytest.raises(ClusterRefusedError):
            change()
        return True

    def test_the_start_of_a_job_is_forecast(self, harness: Harness, cluster: Cluster) -> None:
        submission = Submission(harness.spec(gpus=1))
        if self.lacks(cluster, Capability.TEST_ONLY, lambda: cluster.expected_start(submission)):
            return
        soon = cluster.expected_start(submission)
        assert soon is not None
        self.full(harness)
        later = cluster.expected_start(submission)
        assert later is None or later > soon

    def test_a_job_that_no_node_can_run_is_refused(self, harness: Harness, cluster: Cluster) -> None:
        if self.refuses_impossible:
            with pytest.raises(ClusterRefusedError, match="not available"):
                self.submit(cluster, harness.spec(gpus=9))
            return
        (job_id,) = self.submit(cluster, harness.spec(gpus=9))
        assert cluster.snapshot().reasons[job_id].code is PendingReason.RESOURCES
