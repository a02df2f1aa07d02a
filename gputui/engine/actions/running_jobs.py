"""Edits of running jobs: which fields, who may change them, and within which limits."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputui.domain.action import EditJobs, refuse_cancelled
from gputui.domain.edit import Edit, check_suits_state
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.job_changes import check_owner
from gputui.engine.actions.limits import check_warning

_LIMIT = "--time-limit"


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


def edited_while_running(context: ActionContext, before: Job, action: EditJobs) -> Job:
    """Return the running job after the edit; raises GputuiError if the job or the actor does not allow it."""
    check_owner(context, before, "change it while it runs")
    after = action.apply(before, context.now(), context.actor.user)
    if after.spec.time_limit != before.spec.time_limit:
        _check_limit(context, before, after)
        check_warning(after.spec)
    return after


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
