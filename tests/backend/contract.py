"""Contract of every Backend, as tests that each implementation runs: subclass BackendContract with a `harness`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Protocol

import pytest
from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    Pause,
    PauseRecurring,
    Release,
    RemoveRecurring,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unreserve,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.container import ExecRequest
from gputui.domain.errors import CapabilityError, GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId, JobSpec, Submission, own_id, without_server
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids, SubmitJobs
from gputui.ports.backend import Attach, Backend, DirectBackend, LogRequest
from tests.cases import cases
from tests.cluster.talk import Talk
from tests.needs import need
from tests.waiting import until

PATIENCE = 60.0
"""Seconds to wait for what a scheduler or an engine does."""
SOON = 3.0
"""Seconds within which a snapshot shows what the same backend has changed, and the load of this machine besides."""
HOUR = timedelta(hours=1)
LINES = [b"one", b"two", b"three"]


class Harness(Protocol):
    """Backend under test, whose user is an operator. Its jobs are those of the tests before, too."""

    @property
    def backend(self) -> Backend:
        """Backend under test."""
        ...

    @property
    def missing(self) -> JobId:
        """Id that no job has."""
        ...

    @property
    def has_processes(self) -> bool:
        """Return whether it lists processes of jobs."""
        ...

    @property
    def has_drafts(self) -> bool:
        """Return whether a new job is foreseen as what it would be in the engine's own language."""
        ...

    @property
    def entering(self) -> Capability:
        """Capability without which no command runs in a job."""
        ...

    @property
    def drainable(self) -> tuple[str, ...]:
        """Names of GPUs or nodes, as DrainGpus takes them."""
        ...

    def spec(self) -> JobSpec:
        """Return a job that writes LINES and runs until `end`."""
        ...

    def impossible(self) -> Submission:
        """Return a job that is refused."""
        ...

    def end(self, job: Job) -> None:
        """Let a running job end with exit code 0."""
        ...

    def past(self, *ended_at: datetime) -> tuple[JobId, ...]:
        """Return jobs that ended then, and that the queue has forgotten."""
        ...

    def now(self) -> datetime:
        """Return the time of the queue."""
        ...

    def close(self) -> None:
        """Close the backend, and end what is behind it."""
        ...


class Case(Protocol):
    """An action on jobs."""

    def __call__(self, ids: Ids) -> Action:
        """Return it for these jobs."""
        ...


JOB_ACTIONS: Mapping[str, tuple[Capability | None, Case]] = {
    "hold": (Capability.HOLD, Hold),
    "release": (Capability.HOLD, Release),
    "cancel": (None, Cancel),
    "requeue": (Capability.REQUEUE, Requeue),
    "suspend": (Capability.SUSPEND, Suspend),
    "unsuspend": (Capability.SUSPEND, Unsuspend),
    "signal": (Capability.SIGNAL, lambda ids: Signal(ids, 10)),
    "raise": (Capability.RAISE_PRIORITY, lambda ids: SetPriority(ids, 5, relative=True)),
    "lower": (Capability.LOWER_PRIORITY, lambda ids: SetPriority(ids, 40)),
    "top": (Capability.TOP, Top),
    "edit": (Capability.EXTEND, lambda ids: EditJobs(ids, Edit({"time_limit": 3 * HOUR}))),
}
"""Actions on jobs, each with the capability that it needs."""
EFFECTS: Mapping[str, Callable[[Job], object]] = {
    "hold": lambda job: job.held,
    "raise": lambda job: job.priority == 55,
    "lower": lambda job: job.priority == 40,
    "top": lambda job: job.topped_at is not None,
    "edit": lambda job: job.spec.time_limit == 3 * HOUR,
    "cancel": lambda job: job.cancel_requested or job.state is JobState.CANCELLED,
}
"""Check of a waiting job after each action."""
UNDONE: Mapping[str, Callable[[Job], object]] = {
    "hold": lambda job: not job.held,
    "raise": lambda job: job.priority == 50,
    "lower": lambda job: job.priority == 50,
    "top": lambda job: job.topped_at is None,
    "edit": lambda job: job.spec.time_limit == 2 * HOUR,
}
"""Check of the job once the action is undone."""
NOT_YET = {"suspend": Suspend, "signal": JOB_ACTIONS["signal"][1], "requeue": Requeue}
"""Actions that a waiting job does not suit."""


@contextmanager
def ended(backend: Backend) -> Iterator[list[JobId]]:
    """Cancel jobs at the end of a test."""
    ids: list[JobId] = []
    yield ids
    backend.act(Cancel(tuple(ids)))


class BackendContract:
    """Behaviour of every Backend. What one lacks it refuses, with the sentence of its capabilities."""

    differences: ClassVar[Mapping[str, str]] = {}
    """Tests, by name and case, that an implementation fails as yet, with the reason; one that passes is an error."""

    @pytest.fixture(autouse=True)
    def _expect_differences(self, request: pytest.FixtureRequest) -> None:
        name = request.node.name
        if why := self.differences.get(name) or self.differences.get(name.partition("[")[0]):
            request.applymarker(pytest.mark.xfail(reason=why, strict=True))

    @pytest.fixture
    def backend(self, harness: Harness) -> Backend:
        return harness.backend

    @pytest.fixture
    def jobs(self, backend: Backend, harness: Harness) -> Iterator[Callable[..., Ids]]:
        """Submit jobs that wait; they are cancelled at the end of the test."""
        with ended(backend) as ids:

            def submit(count: int = 1, *, held: bool = False, **changes: Any) -> Ids:
                submission = replace(self.waiting(harness, **changes), held=held)
                made = backend.act(SubmitJobs((submission,) * count)).ids
                ids.extend(made)
                return made

            yield submit

    @staticmethod
    def waiting(harness: Harness, **changes: Any) -> Submission:
        """Return a job that waits for an hour."""
        begin_at = harness.now() + HOUR
        return Submission(replace(harness.spec(), time_limit=2 * HOUR, begin_at=begin_at, **changes))

    @pytest.fixture
    def running(self, backend: Backend, harness: Harness) -> Iterator[Job]:
        """Return a job that runs."""
        with ended(backend) as ids:
            [job_id] = backend.act(SubmitJobs((Submission(harness.spec()),))).ids
            ids.append(job_id)
            yield self.until_job(backend, job_id, lambda job: job.state is JobState.RUNNING)

    @staticmethod
    def until(true: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        until(true, what, seconds=patience)

    def until_job(self, backend: Backend, job_id: JobId, true: Callable[[Job], object]) -> Job:
        self.until(lambda: true(backend.job(job_id)), f"job {job_id} is so: {backend.job(job_id)}")
        return backend.job(job_id)

    def shown(self, backend: Backend, true: Callable[[Snapshot], object], what: str = "the snapshot is so") -> Snapshot:
        """Return the snapshot, which soon has to be so."""
        self.until(lambda: true(backend.snapshots().read()), what, SOON * 5)
        return backend.snapshots().read()

    @staticmethod
    def refusal(call: Callable[[], object], kind: type[GputuiError] = GputuiError) -> str:
        """Return the sentence of an error that the call has to raise."""
        with pytest.raises(kind) as raised:
            call()
        return raised.value.what

    def lacks(self, backend: Backend, capability: Capability | None, *calls: Callable[[], object]) -> bool:
        """Return whether the backend lacks this; then it has to refuse the calls with its sentence."""
        caps = backend.about().caps
        if capability is None or caps.has(capability):
            return False
        for call in calls:
            assert self.refusal(call, CapabilityError) == caps.why_not(capability)
        return True

    # About, and new jobs

    def test_it_says_where_and_as_whom_it_acts(self, backend: Backend) -> None:
        about = backend.about()
        assert about.host
        assert about.user
        assert all(about.caps.lacking.values())

    def test_new_ids_are_in_order_and_shown(self, backend: Backend, harness: Harness) -> None:
        wanted = tuple(self.waiting(harness, name=name) for name in ("a", "b", "c"))
        with ended(backend) as ids:
            done = backend.act(SubmitJobs(wanted))
            ids.extend(done.ids)
            assert done.changes == ()
            assert len(set(done.ids)) == 3
            assert [backend.job(job_id).spec.name for job_id in done.ids] == ["a", "b", "c"]
            self.shown(backend, lambda snapshot: all(map(snapshot.job, ids)))

    def test_an_array_has_an_id_for_each_element(self, backend: Backend, harness: Harness) -> None:
        submission = replace(self.waiting(harness), array=(3, 4, 7))
        if self.lacks(backend, Capability.ARRAYS, lambda: backend.act(SubmitJobs((submission,)))):
            return
        with ended(backend) as ids:
            ids.extend(backend.act(SubmitJobs((submission,))).ids)
            assert [job.array and job.array.index for job in map(backend.job, ids)] == [3, 4, 7]
            if backend.about().caps.has(Capability.LOWER_PRIORITY):
                assert backend.act(SetPriority(tuple(ids[:2]), 40)).ids == tuple(ids[:2])
                assert [backend.job(job_id).priority for job_id in ids] == [40, 40, 50]

    def test_jobs_are_submitted_all_or_none(self, backend: Backend, harness: Harness) -> None:
        wanted = SubmitJobs((self.waiting(harness, name="good"), harness.impossible()))
        assert self.refusal(lambda: backend.act(wanted))
        [marker] = backend.act(SubmitJobs((self.waiting(harness),))).ids
        after = self.shown(backend, lambda snapshot: snapshot.job(marker))
        assert "good" not in {job.spec.name for job in after.jobs}
        backend.act(Cancel((marker,)))

    def test_nothing_is_submitted_by_nothing(self, backend: Backend) -> None:
        assert backend.act(SubmitJobs(())).ids == ()

    def test_new_jobs_are_foreseen(self, backend: Backend, harness: Harness) -> None:
        wanted = SubmitJobs((Submission(replace(harness.spec(), name="foreseen")),))
        caps = backend.about().caps
        if not caps.has(Capability.WHAT_IF):
            if harness.has_drafts:
                done = backend.foresee(wanted)
                assert (done.ids, done.jobs, len(done.drafts)) == ((), (), 1)
            elif not self.lacks(backend, Capability.TEST_ONLY, lambda: backend.foresee(wanted)):
                done = backend.foresee(wanted)
                assert (done.ids, done.jobs, len(done.starts)) == ((), (), 1)
            return
        [job] = backend.foresee(wanted).jobs
        assert job.spec.command == wanted.submissions[0].spec.command
        [marker] = backend.act(SubmitJobs((self.waiting(harness),))).ids
        after = self.shown(backend, lambda snapshot: snapshot.job(marker))
        assert "foreseen" not in {job.spec.name for job in after.jobs}
        backend.act(Cancel((marker,)))
        refused = SubmitJobs((harness.impossible(),))
        assert self.refusal(lambda: backend.foresee(refused)) == self.refusal(lambda: backend.act(refused))

    # Actions on jobs

    @cases("name", JOB_ACTIONS)
    def test_a_missing_job_is_named_and_no_other_changed(
        self, backend: Backend, harness: Harness, jobs: Callable[..., Ids], name: str
    ) -> None:
        capability, act = JOB_ACTIONS[name]
        [waiting] = jobs()
        ids = (harness.missing, waiting) if name in NOT_YET else (waiting, harness.missing)
        before, action = backend.job(waiting), act(ids)
        if capability and not backend.about().caps.has(capability):
            return
        with pytest.raises(NotFoundError, match=f"no job {own_id(harness.missing)}"):
            backend.act(action)
        assert backend.job(waiting) == before

    @cases("name", JOB_ACTIONS)
    def test_what_is_foreseen_fails_as_it_would(self, backend: Backend, harness: Harness, name: str) -> None:
        action = JOB_ACTIONS[name][1]((harness.missing,))
        with pytest.raises(GputuiError) as acted:
            backend.act(action)
        with pytest.raises(type(acted.value)) as foreseen:
            backend.foresee(action)
        assert str(foreseen.value) == str(acted.value)

    def test_changes_are_shown_by_job_and_snapshot(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        changed: dict[JobId, Callable[[Job], object]] = {}
        for name, is_so in EFFECTS.items():
            capability, act = JOB_ACTIONS[name]
            ids = jobs(2)[::-1]
            action = act(ids)
            if not self.lacks(backend, capability, partial(backend.act, action)):
                assert backend.act(action).ids == ids  # in the order of the action
                changed |= dict.fromkeys(ids, is_so)
        for job_id, is_so in changed.items():
            self.until_job(backend, job_id, is_so)

        def is_shown(snapshot: Snapshot, job_id: JobId) -> object:
            """Return whether the snapshot has the changed job; an engine may forget a cancelled one at once."""
            job = snapshot.job(job_id)
            return changed[job_id](job) if job is not None else backend.job(job_id).state.is_terminal

        self.shown(backend, lambda snapshot: all(is_shown(snapshot, job_id) for job_id in changed))

    def test_a_change_makes_another_version(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        ids, feed = jobs(), backend.snapshots()
        version = feed.version()
        backend.act(Cancel(ids))
        self.until(lambda: feed.version() != version, "the version is another")

    @cases("name", [*EFFECTS, "release"])
    def test_what_is_foreseen_is_not_done(self, backend: Backend, jobs: Callable[..., Ids], name: str) -> None:
        capability, act = JOB_ACTIONS[name]
        if self.lacks(backend, capability, lambda: backend.foresee(act(jobs()))):
            return
        ids = jobs(held=name == "release")
        before = backend.job(ids[0])
        [would] = backend.foresee(act(ids)).jobs
        assert EFFECTS[name](would) if name in EFFECTS else not would.held
        assert backend.job(ids[0]) == before

    @pytest.mark.parametrize("name", UNDONE)
    def test_a_change_is_undone_once(self, backend: Backend, jobs: Callable[..., Ids], name: str) -> None:
        capability, act = JOB_ACTIONS[name]
        ids = jobs(2)
        if self.lacks(backend, capability, lambda: backend.act(act(ids))):
            return
        changes = backend.act(act(ids)).changes
        assert all(change.subject({}) and change.done for change in changes)
        assert {why for _, why in backend.undo(changes)} == {""}
        for job_id in ids:
            self.until_job(backend, job_id, UNDONE[name])

    def test_what_was_changed_since_is_not_undone(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        first, second = jobs(2)
        if not backend.about().caps.has(Capability.LOWER_PRIORITY):
            return
        changes = backend.act(SetPriority((first, second), 40)).changes
        backend.act(SetPriority((second,), 30))
        answers = {change.subject({}): why for change, why in backend.undo(changes)}
        assert [bool(why) for why in answers.values()].count(True) == 1
        assert [backend.job(job_id).priority for job_id in (first, second)] == [50, 30]

    def test_what_is_final_has_no_change(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        assert backend.act(Cancel(jobs())).changes == ()

    def test_what_is_so_already_is_no_change(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        if backend.about().caps.has(Capability.HOLD):
            done = backend.act(Hold(jobs(held=True)))
            assert (done.ids, done.changes) == ((), ())

    @cases("name", NOT_YET)
    def test_what_does_not_suit_a_waiting_job_is_refused_or_left_out_by_an_engine(
        self, backend: Backend, jobs: Callable[..., Ids], name: str
    ) -> None:
        ids = jobs()
        action = NOT_YET[name](ids)
        if self.lacks(backend, JOB_ACTIONS[name][0], lambda: backend.act(action)):
            return
        before = backend.job(ids[0])
        if backend.about().caps.engine == "gputui":
            assert f"job {without_server(before.shown_id)} is " in self.refusal(lambda: backend.act(action))
        else:
            assert backend.act(action) == Done()
        assert backend.job(ids[0]) == before

    def test_a_priority_out_of_range_is_refused(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        ids = jobs()
        if not self.lacks(backend, Capability.RAISE_PRIORITY, lambda: backend.act(SetPriority(ids, 101))):
            assert self.refusal(lambda: backend.act(SetPriority(ids, 101)), InputError) == "101 is out of range"

    def test_a_relative_priority_stays_in_range(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        ids = jobs()
        if backend.about().caps.has(Capability.RAISE_PRIORITY):
            backend.act(SetPriority(ids, 200, relative=True))
            assert backend.job(ids[0]).priority == 100

    def test_a_running_job_is_suspended_and_continues(self, backend: Backend, running: Job) -> None:
        ids = (running.id,)
        if self.lacks(backend, Capability.SUSPEND, lambda: backend.act(Suspend(ids))):
            return
        assert backend.act(Suspend(ids)).ids == ids
        assert backend.job(running.id).suspended
        assert backend.act(Unsuspend(ids)).ids == ids
        assert not backend.job(running.id).suspended

    def test_a_cancelled_job_ends(self, backend: Backend, running: Job) -> None:
        assert backend.act(Cancel((running.id,))).ids == (running.id,)
        job = self.until_job(backend, running.id, lambda job: job.state.is_terminal)
        assert job.state is JobState.CANCELLED
        assert backend.act(Cancel((running.id,))).ids == ()

    # Controls

    def test_gpus_are_drained_resumed_and_that_undone(self, backend: Backend, harness: Harness) -> None:
        names = harness.drainable
        needs = Capability.DRAIN_NODE if backend.about().caps.engine != "gputui" else Capability.DRAIN_GPU
        if self.lacks(backend, needs, lambda: backend.act(DrainGpus(names, "fans"))):
            return

        def reasons(snapshot: Snapshot) -> set[str]:
            return {view.drain.reason for view in snapshot.gpus if view.drain is not None}

        done = backend.act(DrainGpus(names, "fans"))
        assert len(done.changes) == len(names)
        self.shown(backend, lambda snapshot: reasons(snapshot) == {"fans"})
        assert {why for _, why in backend.undo(done.changes)} == {""}
        assert len(backend.act(DrainGpus(names, "doors")).changes) == len(names)
        assert backend.act(ResumeGpus(names)).changes
        self.shown(backend, lambda snapshot: not reasons(snapshot))

    def test_an_unknown_gpu_is_not_drained(self, backend: Backend) -> None:
        if backend.about().caps.has(Capability.DRAIN_NODE):
            try:
                self.refusal(lambda: backend.act(DrainGpus(("GPU-nowhere",), "fans")))
            finally:
                drained = (view.gpu.uuid for view in backend.snapshots().read().gpus if view.drain is not None)
                backend.act(ResumeGpus(tuple(drained)))

    def test_a_pause_is_shown_and_undone(self, backend: Backend) -> None:
        if self.lacks(backend, Capability.PAUSE, lambda: backend.act(Pause("fans")), lambda: backend.act(Unpause())):
            return
        done = backend.act(Pause("fans"))
        self.shown(backend, lambda snapshot: snapshot.controls.paused)
        assert [why for _, why in backend.undo(done.changes)] == [""]

    def test_a_reservation_gets_a_name_and_is_removed(self, backend: Backend, harness: Harness) -> None:
        begin = harness.now() + HOUR
        snapshot = self.shown(backend, lambda snapshot: snapshot.gpus)
        asked = ReserveGpus(Window("", begin, begin + HOUR, count=1), tuple(view.gpu for view in snapshot.gpus))
        if self.lacks(backend, Capability.RESERVE, lambda: backend.act(asked), lambda: backend.foresee(asked)):
            return
        assert backend.foresee(asked).window
        made = backend.act(asked).window
        assert made is not None
        shown = self.shown(backend, lambda snapshot: snapshot.windows)
        [view] = shown.windows
        assert view.window.name.endswith(made.name)
        backend.act(Unreserve(view.window.name))
        self.refusal(lambda: backend.act(Unreserve(view.window.name)))

    def test_a_recurring_job_is_added_paused_resumed_and_removed(self, backend: Backend, harness: Harness) -> None:
        asked = AddRecurring(Recurrence("0 3 * * *", "UTC"), Submission(harness.spec()))
        if self.lacks(backend, Capability.RECURRING, lambda: backend.act(asked)):
            return
        ids = backend.act(asked).ids

        def paused(snapshot: Snapshot) -> list[bool]:
            return [each.paused for each in snapshot.recurring if each.id in ids]

        backend.act(PauseRecurring(ids))
        self.shown(backend, lambda snapshot: paused(snapshot) == [True])
        backend.act(ResumeRecurring(ids))
        self.shown(backend, lambda snapshot: paused(snapshot) == [False])
        backend.act(RemoveRecurring(ids))
        self.refusal(lambda: backend.act(PauseRecurring(ids)), NotFoundError)

    # Jobs and history

    def test_a_missing_job_is_not_found(self, backend: Backend, harness: Harness) -> None:
        calls: list[Callable[[], object]] = [
            lambda: backend.job(harness.missing),
            lambda: backend.log(harness.missing),
            lambda: backend.enter(harness.missing, ExecRequest(("true",))),
            lambda: backend.processes(harness.missing),
            lambda: backend.shell(harness.missing),
            lambda: backend.measured(harness.missing),
        ]
        for call in calls:
            with pytest.raises((NotFoundError, CapabilityError)) as refused:
                call()
            assert (
                isinstance(refused.value, CapabilityError) or f"no job {own_id(harness.missing)}" in refused.value.what
            )

    def test_an_ended_job_is_in_snapshot_or_history_and_known(self, backend: Backend, harness: Harness) -> None:
        now = harness.now()
        old = harness.past(now - timedelta(days=70), now - timedelta(days=40), now - timedelta(days=10))
        shown = {job.id for job in self.shown(backend, lambda s: not any(map(s.job, old)), "they have left").jobs}
        found = [job for job in backend.history() if job.id in old]
        assert [job.id for job in found] == list(old[::-1])  # the latest first
        assert not shown & {job.id for job in found}
        assert [backend.job(job_id).state for job_id in old] == [JobState.COMPLETED] * 3
        since = [job.id for job in backend.history(now - timedelta(days=41)) if job.id in old]
        assert since == list(old[:0:-1])
        assert self.refusal(lambda: backend.act(Signal(old[:1], 10)))

    # Output, and ways in

    def test_what_has_not_started_has_no_output(self, backend: Backend, jobs: Callable[..., Ids]) -> None:
        ids = jobs()
        words = self.refusal(lambda: backend.log(ids[0]), NotFoundError)
        assert words == f"job {without_server(backend.job(ids[0]).shown_id)} has not started yet, so it has no output"

    def test_an_unknown_attempt_has_no_output(self, backend: Backend, running: Job) -> None:
        assert "attempt" in self.refusal(lambda: backend.log(running.id, LogRequest(7)), NotFoundError)

    def test_output_is_followed_to_the_end_and_complete_then(
        self, backend: Backend, harness: Harness, running: Job
    ) -> None:
        if not self.lacks(backend, Capability.LIVE_LOG, lambda: backend.log(running.id, LogRequest(follow=True))):
            with closing(backend.log(running.id, LogRequest(follow=True))) as stream:
                lines = iter(stream)
                assert [next(lines) for _ in LINES] == LINES
                harness.end(running)
                assert list(lines) == []
        else:
            harness.end(running)
        self.until_job(backend, running.id, lambda job: job.state is JobState.COMPLETED)
        assert list(backend.log(running.id)) == LINES
        assert list(backend.log(running.id, LogRequest(1, follow=True))) == LINES
        for tail in range(5):
            assert list(backend.log(running.id, LogRequest(tail=tail))) == LINES[max(0, 3 - tail) :]

    def test_a_closed_stream_ends(self, backend: Backend, running: Job) -> None:
        if not backend.about().caps.has(Capability.LIVE_LOG):
            return
        stream = backend.log(running.id, LogRequest(follow=True))
        lines, over = iter(stream), threading.Event()
        assert [next(lines) for _ in LINES] == LINES

        def read() -> None:
            list(lines)
            over.set()

        threading.Thread(target=read, daemon=True).start()
        stream.close()
        assert over.wait(PATIENCE)
        stream.close()

    def test_a_command_runs_in_a_running_job(self, backend: Backend, harness: Harness, running: Job) -> None:
        request = ExecRequest(("sh", "-c", "echo inside; exit 3"))
        if not self.lacks(backend, harness.entering, lambda: backend.enter(running.id, request)):
            talk = Talk(backend.enter(running.id, request))
            assert talk.end() == 3
            assert talk.out == b"inside\n"

    def test_a_waiting_job_cannot_be_entered(
        self, backend: Backend, harness: Harness, jobs: Callable[..., Ids]
    ) -> None:
        ids, request = jobs(), ExecRequest(("true",))
        if not self.lacks(backend, harness.entering, lambda: backend.enter(ids[0], request)):
            words = "is PENDING: a shell and its processes are only available while it is RUNNING"
            assert words in self.refusal(lambda: backend.enter(ids[0], request))
            assert words in self.refusal(lambda: backend.processes(ids[0]))
            assert words in self.refusal(lambda: backend.shell(ids[0]))

    def test_users_attach_to_interactive_jobs(self, backend: Backend, harness: Harness) -> None:
        spec = replace(
            harness.spec(), command=("sh", "-c", "read a; echo got $a"), interactive=Interactive(stdin=True, tty=True)
        )
        wanted = SubmitJobs((Submission(spec),))
        if not backend.about().caps.has(Capability.STREAMS):
            return
        with ended(backend) as ids:
            ids.extend(backend.act(wanted).ids)
            self.until_job(backend, ids[0], lambda job: job.state is JobState.RUNNING)
            talk = Talk(backend.enter(ids[0], Attach()))
            talk.channel.send(b"it\n")
            talk.until(b"got it")
            talk.channel.close()

    def test_a_job_without_streams_is_not_attached_to(self, backend: Backend, running: Job) -> None:
        if not self.lacks(backend, Capability.STREAMS, lambda: backend.enter(running.id, Attach())):
            assert self.refusal(lambda: backend.enter(running.id, Attach()))

    def test_processes_of_a_running_job(self, backend: Backend, harness: Harness, running: Job) -> None:
        if not harness.has_processes:
            assert self.lacks(backend, Capability.INSIDE, lambda: backend.processes(running.id))
            return
        need("ps")
        assert backend.processes(running.id)
        assert backend.shell(running.id).arguments

    def test_each_attempt_is_measured(
        self, backend: Backend, harness: Harness, running: Job, jobs: Callable[..., Ids]
    ) -> None:
        assert backend.measured(jobs()[0]) == {}
        assert set(backend.measured(running.id)) <= {1}
        harness.end(running)
        self.until_job(backend, running.id, lambda job: job.state is JobState.COMPLETED)
        assert set(backend.measured(running.id)) <= {1}

    def test_images_are_named_or_none(self, backend: Backend) -> None:
        assert all(isinstance(name, str) for name in backend.images())


class DirectContract:
    """Behaviour of a backend that this process has opened itself; for a class that is a BackendContract too."""

    def test_its_queue_is_what_its_snapshot_shows(
        self, backend: DirectBackend, harness: Harness, jobs: Callable[..., Ids]
    ) -> None:
        first, second = jobs(2)
        shown = self.shown(backend, lambda snapshot: snapshot.job(first) and snapshot.job(second))  # type: ignore[attr-defined]
        queue = backend.queue
        assert queue.get(first) == backend.job(first)
        assert {first, second} <= set(queue.jobs())
        assert {record.id for record in queue.records()} >= {first, second}
        assert queue.controls() == shown.controls
        assert queue.recurring() == {each.id: each for each in shown.recurring}
        assert queue.store_id
        with pytest.raises(NotFoundError, match=f"no job {harness.missing}"):
            queue.get(harness.missing)

    def test_a_whole_queue_is_read_without_a_warning(self, backend: DirectBackend) -> None:
        assert backend.queue.unread() == ()
        backend.queue.check()

    def test_it_says_that_jobs_are_started(self, backend: DirectBackend) -> None:
        assert backend.is_scheduled()

    def test_gpus_are_known_or_the_engine_refuses_itself(self, backend: DirectBackend, harness: Harness) -> None:
        told: list[str] = []
        assert {gpu.uuid for gpu in backend.known_gpus()} in (set(), set(harness.drainable))
        assert backend.with_gpus(backend.snapshots().read(), told.append).nodes
        assert backend.gpus(told.append).nodes
        assert told == []

    def test_a_job_that_never_started_was_never_unread(self, backend: DirectBackend, jobs: Callable[..., Ids]) -> None:
        [job_id] = jobs()
        assert backend.why_unread(backend.job(job_id)) == {}

    def test_a_command_that_makes_no_sense_is_refused_with_advice(self, backend: DirectBackend) -> None:
        caps = backend.about().caps
        caps.need_command("queue")
        for name, advice in caps.commands.items():
            with pytest.raises(CapabilityError, match=f"gputui {name} is for the queue of one machine") as refused:
                caps.need_command(name)
            assert refused.value.hint == advice


class ClosingContract:
    """The end of every Backend; each test closes one of its own."""

    def test_closing_ends_streams_and_may_be_repeated(self, closing_harness: Harness) -> None:
        backend = closing_harness.backend
        [job_id] = backend.act(SubmitJobs((Submission(closing_harness.spec()),))).ids
        BackendContract().until_job(backend, job_id, lambda job: job.state is JobState.RUNNING)
        stream = backend.log(job_id, LogRequest(follow=True))
        lines, over = iter(stream), threading.Event()
        assert next(lines) == LINES[0]

        def read() -> None:
            with suppress(GputuiError):  # a stream that is not complete ends with an error
                list(lines)
            over.set()

        threading.Thread(target=read, daemon=True).start()
        job = backend.job(job_id)
        backend.close()
        assert over.wait(PATIENCE)
        backend.close()
        closing_harness.end(job)
