"""Admission: checks the request of a new or edited job against the site's rules, and records its submitter.

The number of waiting jobs is checked only at submission: a retried, requeued or preempted job is never refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from gputui.domain.action import Done
from gputui.domain.arrays import new_entries, numbered
from gputui.domain.errors import AccessError, GputuiError
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.waits import has_failed
from gputui.domain.settings import PolicySettings
from gputui.domain.snapshot import Controls, effective_policy
from gputui.domain.spec_values import check_array, check_values
from gputui.domain.text import plural
from gputui.engine.actions import agents
from gputui.engine.actions.context import ActionContext, PriorityCaps
from gputui.engine.actions.permissions import within_time_limits


def checked_spec(context: ActionContext, spec: JobSpec) -> JobSpec:
    """Return the spec of a new job as it is stored; raises GputuiError for a forbidden one."""
    spec = within_limits(context, spec)
    return with_dependencies(context, spec) if spec.after or spec.after_any else spec


def within_limits(context: ActionContext, spec: JobSpec) -> JobSpec:
    """Return the spec with the site's time limit; raises InputError for forbidden options, times and values."""
    check_values(spec)
    if context.permissions:
        context.permissions.check(spec, context.actor.uid, context.caller)
    return within_time_limits(spec, context.settings)


def with_dependencies(context: ActionContext, spec: JobSpec) -> JobSpec:
    """Return the spec with a failed element added for each awaited array in history, which ticks do not read.

    Raises NotFoundError for jobs that do not exist. A new job has no id yet, so it cannot cause a circular dependency.
    """
    store = context.store
    for job_id in spec.after_any:
        store.get(job_id)
    after = [store.get(job_id) for job_id in spec.after]
    arrays = {job.id for job in after if job.array and job.array.id == job.id}
    if not arrays:
        return spec
    failed = [job.id for job in store.past() if job.array and job.array.id in arrays and has_failed(job)]
    return replace(spec, after=(*spec.after, *sorted(failed)[:1]))


def submit(context: ActionContext, submissions: Iterable[Submission], recurring: JobId | None = None) -> Done:
    """Put jobs into the queue, all or none; raises GputuiError if a tenant would exceed its cap of waiting jobs.

    `recurring` is the id of the recurring job that submits them, if one does: its submitter was verified and its
    priority checked when it was added. No write can come between the check and the submission.
    """
    submissions = tuple(submissions)
    _check_number(context, len(submissions))
    store, jobs = context.store, _new_jobs(context, submissions, recurring)
    if not jobs:
        return Done()
    with store.transaction() as transaction:
        controls = transaction.controls()

        def queued() -> Iterable[Job]:
            return transaction.jobs().values()

        if recurring is None:
            _check_asked(context, jobs, controls, queued)
        _check_waiting(queued, jobs, effective_policy(context.policy, controls))
        ids = store.submit(jobs, actor=context.actor)
    every = (range(first, first + job.count) for first, job in zip(ids, jobs, strict=True))
    return Done(tuple(itertools.chain.from_iterable(every)))


def foreseen(context: ActionContext, submissions: Iterable[Submission]) -> Done:
    """Return the jobs that `submit` would put into the queue, with provisional ids; raises the same errors."""
    submissions = tuple(submissions)
    _check_number(context, len(submissions))
    store, jobs = context.store, _new_jobs(context, submissions, None)
    controls, queued = store.controls(), store.jobs()
    _check_asked(context, jobs, controls, queued.values)
    _check_waiting(queued.values, jobs, effective_policy(context.policy, controls))
    return Done(jobs=tuple(numbered(jobs, queued.highest + 1)))


def with_tenant(context: ActionContext, submission: Submission) -> Submission:
    """Return the submission; one without a tenant is charged to its caller."""
    if context.caller is None or submission.spec.tenant:
        return submission
    return replace(submission, spec=replace(submission.spec, tenant=context.caller.user))


def _new_jobs(context: ActionContext, submissions: Iterable[Submission], recurring: JobId | None) -> list[Job]:
    """Return the submitted jobs, without ids yet; raises GputuiError for forbidden specs."""
    jobs: list[Job] = []
    place, actor = 0, context.actor
    for submission in (with_tenant(context, each) for each in submissions):
        check_array(submission)
        spec, held = checked_spec(context, submission.spec), submission.held
        job = Job(
            id=0,
            spec=spec,
            submitted_at=context.clock.now(),
            priority=spec.priority,
            held=held,
            held_by=actor.user if held else "",
            held_at=context.clock.now() if held else None,
            submitted_by=actor.user,
            submitted_uid=actor.uid,
            key=context.key,
            submitted_via=actor.via,
            recurring=recurring,
        )
        jobs += new_entries(job, submission, place)
        place += len(submission.array) or 1
    return jobs


def _check_asked(
    context: ActionContext, jobs: Sequence[Job], controls: Controls, queued: Callable[[], Iterable[Job]]
) -> None:
    """Raise GputuiError for jobs whose tenant or priority the actor may not use, or that are too many for a user."""
    caps = PriorityCaps(context, controls)
    for job in jobs:
        caps.check_new(job.spec)
    agents.check_new(context, jobs, queued)
    _check_number(context, len(jobs), queued)


def _check_number(context: ActionContext, new: int, queued: Callable[[], Iterable[Job]] = tuple) -> None:
    """Raise AccessError if a user would have more entries waiting than one may have, among those that are queued."""
    caller, site = context.caller, context.permissions
    if caller is None or caller.operates or site is None:
        return
    most = site.settings.admission.waiting
    now = sum(job.state is JobState.PENDING and caller.owns(job) for job in queued())
    if now + new > most:
        has = f", and has {now}" if now else ""
        what = f"{caller.user} may have {plural(most, 'job')} waiting{has}: {new} more are too many"
        raise AccessError(what, rule="admission-waiting", hint="an array counts as one; or submit the rest later")


def _check_waiting(queued: Callable[[], Iterable[Job]], jobs: Sequence[Job], policy: PolicySettings) -> None:
    """Raise GputuiError if a tenant would have too many; the whole queue is counted only for one with a cap."""
    caps = {tenant.name: tenant.pending for tenant in policy.tenants if tenant.pending is not None}
    new = {tenant: count for tenant, count in _counted(jobs).items() if tenant in caps}
    counts = _counted(job for job in queued() if job.state is JobState.PENDING) if new else {}
    for tenant, count in new.items():
        cap, now = caps[tenant], counts.get(tenant, 0)
        if now + count > cap:
            more = "1 more is" if count == 1 else f"{count} more are"
            text = f"tenant {tenant} has {plural(now, 'job')} waiting and may have {cap}: {more} too many"
            raise GputuiError(text, hint="wait, cancel some, or have the cap raised: gputui tenant set")


def _counted(jobs: Iterable[Job]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[job.spec.tenant] += job.count
    return counts
