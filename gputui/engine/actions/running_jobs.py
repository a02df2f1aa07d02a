"""Changes of running jobs: kinds of changes, who may make them, and within which limits."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputui.domain.edit import Edit, check_suits_state
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.job_changes import refuse_cancelled
from gputui.engine.actions.limits import check_warning

_LIMIT = "--time-limit"
_MOST_SIGNALS = 16


def check_owner(context: ActionContext, job: Job, what: str) -> None:
    """Raise GputuiError unless the actor submitted the job or is an operator; `what` as in `suspend it`."""
    if not (context.may_operate or is_owner(context, job)):
        who = job.submitted_by or "its submitter"
        raise GputuiError(f"job {job.shown_id}: only {who}, who submitted it, and operators may {what}")


def is_owner(context: ActionContext, job: Job) -> bool:
    """Return whether the actor submitted the job; the proof of its submitter decides if there is one."""
    uid, slash, _ = job.spec.warrant.partition("/")
    return uid == str(context.actor.uid) if slash else job.submitted_by == context.actor.user


def check_editable(job: Job, edit: Edit | None = None) -> None:
    """Raise GputuiError if the job cannot be edited in this way: of a running job, few fields can change."""
    refuse_cancelled(job)
    if job.state is JobState.PENDING:
        return
    if job.state not in {JobState.CONFIGURING, JobState.RUNNING}:
        hint = "submit another like it instead"
        raise GputuiError(f"job {job.shown_id} is {job.state}: it can no longer be edited", hint=hint)
    if edit is not None:
        check_suits_state(job, suits_running=edit.suits_running)


def edited_while_running(context: ActionContext, before: Job, edit: Edit) -> Job:
    """Return the running job after the edit; raises GputuiError if the job or the actor does not allow it."""
    check_owner(context, before, "change it while it runs")
    after = edit.on(before, context.now())
    if after.spec.time_limit != before.spec.time_limit:
        _check_limit(context, before, after)
        check_warning(after.spec)
    return after


def signalled(context: ActionContext, job: Job, number: int) -> Job:
    """Return the running job with a request to send it a signal; raises GputuiError if it is not running."""
    check_owner(context, job, "send it signals")
    if job.state is not JobState.RUNNING:
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a running job can be sent a signal")
    if job.suspended:
        hint = f"gputui unsuspend {job.shown_id}"
        raise GputuiError(f"job {job.shown_id} is suspended, and gets no signals", hint=hint)
    if len(job.signals) >= _MOST_SIGNALS:
        hint = "a scheduler must run to send them"
        raise GputuiError(f"job {job.shown_id} has {_MOST_SIGNALS} signals to get already", hint=hint)
    return job.evolve(signals=(*job.signals, number))


def suspended(context: ActionContext, job: Job) -> Job:
    """Return the running job with a request to suspend it; raises GputuiError if it is not running."""
    check_owner(context, job, "suspend it")
    if job.state is not JobState.RUNNING:
        hint = "gputui hold keeps a waiting job from starting" if job.state is JobState.PENDING else None
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a running job can be suspended", hint=hint)
    return job.evolve(suspended=True, suspended_by=context.actor.user)


def unsuspended(context: ActionContext, job: Job) -> Job:
    """Return the job with a request to let it continue; raises GputuiError if the actor may not."""
    check_owner(context, job, "let it continue")
    return job.evolve(suspended=False, suspended_by="")


def _check_limit(context: ActionContext, before: Job, after: Job) -> None:
    limit, now = after.spec.time_limit, context.now()
    if after.limit_at is not None and limit is not None and after.limit_at <= now:
        text = f"job {before.shown_id} has run for {format_duration(_ran(before, now))}"
        hint = "give it longer than that, or cancel it"
        raise InputError(f"{text}: the limit of {format_duration(limit)} has already passed", where=_LIMIT, hint=hint)
    if _seconds(limit) > _seconds(before.spec.time_limit) and not context.may_operate:
        _check_extension(context, limit)


def _check_extension(context: ActionContext, limit: timedelta | None) -> None:
    """Raise InputError if only operators may give that much time."""
    longest = context.settings.max_time
    if context.policy.extend == "operator":
        hint = "ask one: the setting policy.extend"
        raise InputError("only operators may give a running job more time", where=_LIMIT, hint=hint)
    if longest is not None and _seconds(limit) > longest.total_seconds():
        hint = f"at most {format_duration(longest)} in all (scheduler.max_time); an operator may give more"
        words = format_duration(limit) if limit else "no limit"
        raise InputError(f"{words} is longer than a job may run here", where=_LIMIT, hint=hint)


def _seconds(limit: timedelta | None) -> float:
    return limit.total_seconds() if limit is not None else float("inf")


def _ran(job: Job, now: datetime) -> timedelta:
    attempt = job.attempt
    return now - attempt.started_at if attempt and attempt.started_at else timedelta()
