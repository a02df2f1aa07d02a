"""Admission: checks the request of a new or edited job against the site's rules, and records proof of its submitter.

The number of waiting jobs is checked only at submission: a retried, requeued or preempted job is never refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from gputui.domain.audit import Actor
from gputui.domain.entries import new_entries, numbered
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.dependency import has_failed
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.settings import PolicySettings
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.domain.units import plural
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.permissions import within_time_limits
from gputui.ports import JobStore

MAX_ARRAY = 100_000
"""Maximum number of elements of an array."""


class Admission:
    """Checks submissions and edits of one actor."""

    def __init__(self, context: ActionContext) -> None:
        self.context = context

    def new_jobs(self, submissions: Iterable[Submission], recurring: JobId | None) -> list[Job]:
        """Return the submitted jobs, without ids yet; raises GputuiError for forbidden specs."""
        jobs: list[Job] = []
        place = 0
        for submission in submissions:
            if len(submission.array) > MAX_ARRAY:
                raise InputError(f"an array has at most {MAX_ARRAY} elements", where="--array")
            jobs += new_entries(self._new_job(submission, recurring), submission, place)
            place += len(submission.array) or 1
        return jobs

    def _new_job(self, submission: Submission, recurring: JobId | None) -> Job:
        spec = self.check_spec(submission.spec)
        return Job(
            id=0,
            spec=spec,
            submitted_at=self.context.now(),
            priority=spec.priority,
            held=submission.held,
            held_by=self.context.actor.user if submission.held else "",
            held_at=self.context.now() if submission.held else None,
            submitted_by=self.context.actor.user,
            recurring=recurring,
        )

    def check_spec(self, spec: JobSpec) -> JobSpec:
        """Return the spec of a new job as it is stored; raises GputuiError for a forbidden one."""
        if self.context.permissions:
            self.context.permissions.check_leader(spec, self.context.actor.uid)
        return self.with_dependencies(self.within_limits(spec))

    def within_limits(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the site's time limit; raises InputError for forbidden options or times."""
        if self.context.permissions:
            self.context.permissions.check(spec, self.context.actor.uid)
        return within_time_limits(spec, self.context.settings)

    def with_dependencies(self, spec: JobSpec) -> JobSpec:
        """Return the spec with a failed element added for each awaited array in history, which ticks do not read.

        Raises NotFoundError for jobs that do not exist. A new job has no id yet, so it cannot cause a circular
        dependency.
        """
        store = self.context.store
        for job_id in spec.after_any:
            store.get(job_id)
        after = [store.get(job_id) for job_id in spec.after]
        arrays = {job.id for job in after if job.array and job.array.id == job.id}
        if not arrays:
            return spec
        failed = (job for job in store.history() if job.array and job.array.id in arrays and has_failed(job))
        return replace(spec, after=(*spec.after, *(job.id for job in itertools.islice(failed, 1))))

    def check_caps(self, jobs: Iterable[Job], controls: Controls) -> None:
        """Raise InputError for jobs whose tenant or priority the actor may not use."""
        caps = self.context.caps(controls)
        for job in jobs:
            caps.check_new(job.spec)

    def vouched(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs with proof of their submitter, one proof for all elements of an array."""
        specs = {id(job.spec): job.spec for job in jobs}
        proven = {key: self.context.store.with_warrant(spec, self.context.actor.uid) for key, spec in specs.items()}
        return [job if proven[id(job.spec)] is job.spec else job.evolve(spec=proven[id(job.spec)]) for job in jobs]

    def revouched(self, before: JobSpec, after: JobSpec) -> JobSpec:
        """Return an edited spec, with a new proof if it runs something else, which only its submitter may do."""
        if not before.warrant or after.runs_as_much_as(before):
            return after
        if before.warrant.partition("/")[0] != str(self.context.actor.uid):
            raise GputuiError(
                "only its submitter can change its image or command", hint="clone it, and cancel this one"
            )
        return self.context.store.with_warrant(after, self.context.actor.uid)


def submit(context: ActionContext, submissions: Iterable[Submission], recurring: JobId | None = None) -> Done:
    """Put jobs into the queue, all or none.

    `recurring` is the id of the recurring job that submits them, if one does: its submitter was verified and its
    priority checked when it was added.
    """
    admission = Admission(context)
    jobs = admission.new_jobs(submissions, recurring)
    if recurring is None:
        jobs = admission.vouched(jobs)
    if not jobs:
        return Done()

    def check(controls: Controls) -> None:
        if recurring is None:
            admission.check_caps(jobs, controls)

    ids = submit_within(context.store, jobs, context.actor, context.policy, check)
    every = (range(first, first + job.count) for first, job in zip(ids, jobs, strict=True))
    return Done(tuple(itertools.chain.from_iterable(every)))


def foreseen(context: ActionContext, submissions: Iterable[Submission]) -> Done:
    """Return the jobs that `submit` would put into the queue, with provisional ids; raises the same errors."""
    admission = Admission(context)
    jobs = admission.new_jobs(submissions, None)
    admission.check_caps(jobs, context.store.controls())
    check_within(context.store, jobs, context.policy)
    return Done(jobs=tuple(numbered(jobs, context.store.jobs().highest + 1)))


ControlsCheck: TypeAlias = Callable[[Controls], None]
"""Raises GputuiError for jobs that the operators' settings do not allow."""


def submit_within(
    store: JobStore, jobs: Sequence[Job], actor: Actor, policy: PolicySettings, check: ControlsCheck
) -> tuple[JobId, ...]:
    """Submit all jobs or none; raises GputuiError if a tenant would exceed its cap of waiting jobs.

    The queue is loaded only if a tenant may be capped; then no write can come between the count and the submission.
    """
    tenants = {job.spec.tenant for job in jobs}
    of_file = any(tenant.pending is not None and tenant.name in tenants for tenant in policy.tenants)
    if not of_file and not store.caps_waiting():
        check(Controls())
        return store.submit(jobs, actor=actor)
    with store.transaction() as transaction:
        controls = transaction.controls()
        check(controls)
        _check_waiting(transaction.waiting(), jobs, effective_policy(policy, controls))
        return store.submit(jobs, actor=actor)


def check_within(store: JobStore, jobs: Sequence[Job], policy: PolicySettings) -> None:
    """Raise GputuiError if `submit_within` would, for the present queue; nothing is written."""
    waiting = _counted(job for job in store.jobs().values() if job.state is JobState.PENDING)
    _check_waiting(waiting, jobs, effective_policy(policy, store.controls()))


def _check_waiting(waiting: Mapping[str, int], jobs: Sequence[Job], policy: PolicySettings) -> None:
    caps = {tenant.name: tenant.pending for tenant in policy.tenants}
    new = _counted(jobs)
    for tenant, count in new.items():
        cap, now = caps.get(tenant), waiting.get(tenant, 0)
        if cap is not None and now + count > cap:
            more = "1 more is" if count == 1 else f"{count} more are"
            text = f"tenant {tenant} has {plural(now, 'job')} waiting and may have {cap}: {more} too many"
            raise GputuiError(text, hint="wait, cancel some, or have the cap raised: gputui tenant set")


def _counted(jobs: Iterable[Job]) -> Counter[str]:
    """Return the number of jobs of each tenant."""
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[job.spec.tenant] += job.count
    return counts
