"""Actions of users and operators, as commands and the console ask for them.

An action is written into the store and audited in one transaction. Only the scheduler carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.action import (
    Action,
    AddRecurring,
    ControlAction,
    DrainGpus,
    Edit,
    EditJobs,
    JobAction,
    Pause,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    RemoveTenant,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    SetStanding,
    SetTenant,
    Unpause,
    Unreserve,
    check_suits_state,
    differs,
    put,
    refuse_cancelled,
)
from gputui.domain.errors import GputuiError, InputError, NotFoundError, signal_name
from gputui.domain.gpu import Drain
from gputui.domain.job import Job, Placed
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.waits import Dependencies, keep_wait
from gputui.domain.settings import TenantSettings, Window
from gputui.domain.snapshot import Controls, effective_policy
from gputui.domain.spec_values import check_values
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids, SubmitJobs
from gputui.domain.text import format_duration, format_limit
from gputui.engine.actions import admission
from gputui.engine.actions.admission import with_dependencies, within_limits
from gputui.engine.actions.context import (
    REPORT_EVERY,
    ActionContext,
    DrainChange,
    JobChange,
    PauseChange,
    PriorityCaps,
    UndoableChange,
    check_action,
    check_job,
    check_undo,
)
from gputui.engine.actions.permissions import check_warning
from gputui.ports import JobStore, Transaction
from gputui.ports.backend import Progress


class Actions(ActionContext, eq=False, dict=True):
    def act(self, action: Action, *, server: str = "", on_progress: Progress | None = None) -> Done:
        """See `Performer.act`; there is one queue, whatever the name of the server."""
        check_action(self.caller, action)
        context = replace(self, on_progress=on_progress) if on_progress else self
        if isinstance(action, SubmitJobs):
            return admission.submit(context, action.submissions)
        if isinstance(action, JobAction | PlaceJobs):
            return change_jobs(context, action)
        if isinstance(action, AddRecurring | PauseRecurring | ResumeRecurring | RemoveRecurring):
            return admission.change_recurring(context, action)
        return change_controls(context, action)

    def foresee(self, action: Action) -> Done:
        """Return what `act` would do; of actions about anything else than jobs and reservations nothing is known."""
        check_action(self.caller, action)
        if isinstance(action, SubmitJobs):
            return admission.foreseen(self, action.submissions)
        if isinstance(action, JobAction | PlaceJobs):
            named = _named_dependencies(self, action.edit) if isinstance(action, EditJobs) else {}
            found = _changed(self, self.store, partial(map, self.store.get), action, named)
            return Done(action.ids, jobs=tuple(after for _, after in found))
        if isinstance(action, ReserveGpus):
            return Done(window=_checked(self, action, self.store.controls()))
        return Done()

    def submit_run(self, recurring: JobId, submission: Submission) -> tuple[JobId, ...]:
        return admission.submit(self, (submission,), recurring).ids

    def undo(
        self, changes: Iterable[UndoableChange], on_progress: Progress | None = None
    ) -> list[tuple[UndoableChange, str]]:
        """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
        done = []
        latest_first = list(changes)[::-1]
        with self.store.transaction() as transaction:
            check_undo(self, transaction.controls(), latest_first)
            for number, change in enumerate(latest_first):
                if on_progress is not None and number % REPORT_EVERY == 0:
                    on_progress(number, len(latest_first))
                refusal = change.revert(transaction, self.clock.now())
                if not refusal:
                    self.audit(transaction, f"undo {change.verb}", change.target, "", change.done)
                done.append((change, refusal))
        return done


_REMEMBERED = timedelta(days=30)
"""Time after its end during which a reservation's name is not reused."""
_PolicyAction: TypeAlias = ReserveGpus | Unreserve | SetStanding | SetTenant | RemoveTenant


def change_controls(context: ActionContext, action: ControlAction | _PolicyAction) -> Done:
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        match action:
            case ReserveGpus() | Unreserve():
                return _change_reservations(context, transaction, controls, action)
            case SetTenant() | RemoveTenant():
                _change_tenant(context, transaction, controls, action)
                return Done()
            case SetStanding():
                after = replace(controls, standing=action.rule)
                ranks = [effective_policy(context.policy, each).standing_priority for each in (controls, after)]
                text = "GPUs go to jobs of priority {} and above first"
                words = ("no standing rule" if rank is None else text.format(rank) for rank in ranks)
            case _:
                if isinstance(action, DrainGpus) and (known := {gpu.uuid for gpu in context.known_gpus()}):
                    for uuid in action.uuids:
                        if uuid not in known and uuid not in controls.drains:
                            raise NotFoundError(f"no GPU {uuid!r}", hint="gputui gpus lists them")
                after = action.apply(controls, context.clock.now(), context.actor.user)
                words = ("paused: " + each.pause_reason if each.paused else "dispatching" for each in (controls, after))
        transaction.set_controls(after)
        if isinstance(action, DrainGpus | ResumeGpus):  # each GPU has an entry of its own in the audit log
            changes: list[UndoableChange] = []
            for uuid in dict.fromkeys(action.uuids):
                was, now = controls.drains.get(uuid), after.drains.get(uuid)
                context.audit(transaction, action.verb, uuid, _drain_words(was), _drain_words(now))
                changes += [DrainChange(action.verb, uuid, was, now)] if was != now else []
            return Done(changes=tuple(changes))
        context.audit(transaction, action.verb, "scheduler", *words)
        can_be_undone = isinstance(action, Pause | Unpause) and controls != after
    return Done(changes=(PauseChange(action.verb, controls, after),) if can_be_undone else ())


def _drain_words(drain: Drain | None) -> str:
    return f"drained: {drain.reason}" if drain is not None else "in use"


def _change_reservations(
    context: ActionContext, transaction: Transaction, controls: Controls, action: ReserveGpus | Unreserve
) -> Done:
    """Reserve GPUs, or remove a reservation that has not ended and was added by an action."""
    now = context.clock.now()
    if isinstance(action, ReserveGpus):
        window = _checked(context, action, controls)
        others = tuple(other for other in controls.reservations if other.end > now - _REMEMBERED)
        left, was, then = (*others, window), "", describe_window(window)
    else:
        name = action.name
        found = [each for each in controls.reservations if each.name == name and each.end > now]
        if not found and any(each.name == name for each in context.policy.reservations):
            raise GputuiError(f"reservation {name} is defined in the settings file", hint="remove it there")
        if not found:
            raise NotFoundError(f"there is no reservation {name}", hint="gputui reserve list shows them")
        window = found[0]
        left = tuple(each for each in controls.reservations if each not in found)
        was, then = describe_window(window), ""
    # without claim and release of an earlier window with that name and start
    claimed = {key: at for key, at in controls.claimed.items() if key != window.key}
    released = {key: at for key, at in controls.released.items() if key != window.key}
    transaction.set_controls(replace(controls, reservations=left, claimed=claimed, released=released))
    context.audit(transaction, action.verb, f"reservation {window.name}", was, then)
    return Done(window=window) if isinstance(action, ReserveGpus) else Done()


def _checked(context: ActionContext, action: ReserveGpus, controls: Controls) -> Window:
    """Return the window with a name, `r1` or `r2` and so on if it has none; raises GputuiError if it cannot be."""
    from gputui.domain.policy.reservations import check_conflicts, check_times  # no other action loads the policy

    window, now = action.window, context.clock.now()
    everyone = (*context.policy.reservations, *controls.reservations)
    check_times(window, now)
    numbers = (re.fullmatch(r"r(\d{1,9})", each.name, re.ASCII) for each in everyone)
    free = f"r{max((int(match[1]) for match in numbers if match), default=0) + 1}"
    named = window if window.name else replace(window, name=free)
    open_ones = [other for other in everyone if other.end > now and other.key not in controls.released]
    if any(other.name == named.name for other in everyone if other.end > now):
        raise InputError(f"reservation {named.name} exists already", where="--name", hint="choose another name")
    check_conflicts(named, open_ones, action.gpus)
    return named


def describe_window(window: Window) -> str:
    """Return the window as `4 GPUs from 2026-12-01T09:00:00+00:00 to … for bob`."""
    what = f"GPUs {', '.join(window.gpus)}" if window.gpus else f"{window.count} GPUs"
    return f"{what} from {window.start.isoformat()} to {window.end.isoformat()} for {beneficiary(window)}"


def beneficiary(window: Window) -> str:
    """Return the beneficiary: `bob`, `priority 80 and above`, `bob, and priority 80 and above`, `nobody`."""
    words = [window.tenant] if window.tenant is not None else []
    words += [f"priority {window.priority} and above"] if window.priority is not None else []
    return ", and ".join(words) or "nobody"


def _change_tenant(
    context: ActionContext, transaction: Transaction, controls: Controls, action: SetTenant | RemoveTenant
) -> None:
    """Change a tenant's weight and caps, or remove its values, so that those of the settings file apply again."""
    name = action.name
    after: TenantSettings | None
    set_here, of_file = (
        next((each for each in tenants if each.name == name), None)
        for tenants in (controls.tenants, context.policy.tenants)
    )
    before = set_here
    if isinstance(action, SetTenant):
        before = set_here or of_file
        after = replace(TenantSettings(name) if action.clear or before is None else before, **action.changes)
        row = [after]
    elif set_here is not None:
        after, row = of_file, []
    elif of_file is not None:
        raise GputuiError(f"tenant {name} is defined in the settings file", hint="change it there, or tenant set")
    else:
        raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
    others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
    transaction.set_controls(replace(controls, tenants=(*others, *row)))
    context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(after))


def _in_words(tenant: TenantSettings | None) -> str:
    if tenant is None:
        return ""
    caps = {"GPUs": tenant.gpus, "running": tenant.running, "pending": tenant.pending}
    words = [f"at most {cap} {word}" for word, cap in caps.items() if cap is not None]
    words += [f"at most priority {tenant.max_priority}"] if tenant.max_priority is not None else []
    words += [f"for {', '.join(tenant.users)} alone"] if tenant.users else []
    return ", ".join((f"weight {tenant.weight:g}", *words))


_LIMIT = "--time-limit"


def change_jobs(context: ActionContext, action: JobAction | PlaceJobs) -> Done:
    """Change the jobs of the action, elements of one entry together.

    Raises GputuiError, and changes nothing, if one of them may not be changed.
    """
    done: list[JobId] = []
    changes: list[JobChange] = []
    edit, total = action.edit if isinstance(action, EditJobs) else None, len(set(action.ids))
    named = _named_dependencies(context, edit) if edit is not None else {}
    with context.store.transaction() as transaction:
        taken = admission.taken(context, lambda: transaction.jobs().values())
        for number, (before, after) in enumerate(_changed(context, transaction, transaction.chosen, action, named)):
            if context.on_progress is not None and number % REPORT_EVERY == 0:
                context.on_progress(number, total)
            if isinstance(action, EditJobs) and action.seen is not None and differs(action.seen, before):
                what = f"job {before.shown_id} was changed meanwhile: nothing is edited"
                raise GputuiError(what, hint="edit it as it is now")
            if after == before:
                continue
            if edit is None:
                was, then = _requests(before), _requests(after)
            else:
                was, then = edit.words(before.spec, before.held), edit.words(after.spec, after.held)
                then = f"elements {runs.words(before.runs)}: {then}" if before.runs else then
            transaction.put(after)
            context.audit(transaction, action.verb, before.target, was, then)
            if not action.is_final and (after.state is JobState.PENDING or isinstance(action, SetPriority)):
                changes.append(JobChange(action.verb, before, after))
            done += before.ids
        admission.check_taken(context, taken, lambda: transaction.jobs().values())
    return Done(tuple(done), tuple(changes))


def _changed(
    context: ActionContext,
    queue: JobStore | Transaction,
    chosen: Callable[[Iterable[JobId]], Iterable[Job]],
    action: JobAction | PlaceJobs,
    named: Mapping[str, Any],
) -> Iterator[tuple[Job, Job]]:
    """Yield each job with what the action makes of it; raises GputuiError if its state or the actor forbids that.

    The whole queue is read only if a changed job depends on others.
    """
    caps, now, by = PriorityCaps(context, queue.controls()), context.clock.now(), context.actor.user
    dependencies: Dependencies | None = None
    wishes: Sequence[tuple[Ids, JobAction | Placed]]
    wishes = (
        [(each.ids, each.placed) for each in action.places] if isinstance(action, PlaceJobs) else [(action.ids, action)]
    )
    for ids, wish in wishes:
        for before in chosen(dict.fromkeys(ids)):
            if isinstance(wish, Placed):
                after = put(before, wish, by)
            else:
                check_job(context.caller, before, wish)
                if isinstance(wish, EditJobs):
                    after = _edited(context, queue, before, wish, named)
                else:
                    # of jobs put on top together the last is first
                    after = wish.apply(before, context.clock.now(), by)
                    if isinstance(wish, Requeue) and not context.may_operate:
                        after = after.evolve(waited=())  # or members could divide a long job, each part with all waits
            if after != before:
                ended_at = None
                if before.spec.after or before.spec.after_any:
                    dependencies = dependencies or Dependencies.of(queue.jobs().values())
                    ended_at = dependencies.ended_at(before, now)
                after = keep_wait(before, after, ended_at, now)
                caps.check(before, after)
                admission.check_changed(context, before, after)
            yield before, after


def _named_dependencies(context: ActionContext, edit: Edit) -> Mapping[str, Any]:
    named = {name: edit.spec[name] for name in ("after", "after_any") if name in edit.spec}
    known = with_dependencies(context, JobSpec(**named)) if named else None
    return {name: getattr(known, name) for name in named}


def _edited(
    context: ActionContext, queue: JobStore | Transaction, before: Job, action: EditJobs, named: Mapping[str, Any]
) -> Job:
    """Return the edited job; of a running one its time limit, if the job and the actor allow it, and its comment."""
    check_editable(before, action.edit)
    check_values(action.edit.apply(before.spec))
    now = context.clock.now()
    edited = action.apply(before, now, context.actor.user)
    if before.state is not JobState.PENDING:
        if edited.spec.time_limit != before.spec.time_limit:
            _check_limit(context, before, edited, now)
            check_warning(edited.spec)
        return edited
    spec = replace(within_limits(context, edited.spec), **named)
    # it must not wait for itself: directly, through others, or as an element of its array
    seen: set[JobId] = set()
    todo = [*spec.after, *spec.after_any]
    while todo:
        other = todo.pop()
        if before.has(other) or (before.array is not None and other == before.array.id):
            raise InputError("would wait for itself", where="after", hint="leave out the jobs that wait for this one")
        if other not in seen:
            seen.add(other)
            with suppress(NotFoundError):
                found = queue.get(other).spec
                todo += [*found.after, *found.after_any]
    return edited.evolve(spec=spec)


def check_editable(job: Job, edit: Edit | None = None) -> None:
    """Raise GputuiError if the job cannot be edited in this way: of a running job, few fields can change."""
    refuse_cancelled(job)
    if job.state is JobState.PENDING:
        return
    if job.state not in {JobState.CONFIGURING, JobState.RUNNING}:
        text = f"job {job.shown_id} is {job.state}: it can no longer be edited"
        raise GputuiError(text, hint="submit another like it instead")
    if edit is not None:
        check_suits_state(job, suits_running=edit.suits_running)


def _check_limit(context: ActionContext, before: Job, after: Job, now: datetime) -> None:
    """Raise InputError for a time limit that has passed, or one that only operators may give."""
    limit, attempt, longest = after.spec.time_limit, before.attempt, context.settings.max_time
    asked, had = (timedelta.max if each is None else each for each in (limit, before.spec.time_limit))
    if after.limit_at is not None and limit is not None and after.limit_at <= now:
        ran = now - attempt.started_at if attempt and attempt.started_at else timedelta()
        text = f"job {before.shown_id} has run for {format_duration(ran)}"
        hint = "give it longer than that, or cancel it"
        raise InputError(f"{text}: the limit of {format_limit(limit)} has already passed", where=_LIMIT, hint=hint)
    if asked <= had or context.may_operate:
        return
    if context.policy.extend == "operator":
        what, hint = "only operators may give a running job more time", "ask one: the setting policy.extend"
        raise context.refusal(what, "operators-extend", where=_LIMIT, hint=hint)
    if longest is not None and asked > longest:
        hint = f"at most {format_limit(longest)} in all (scheduler.max_time); an operator may give more"
        what = f"{format_limit(limit) if limit else 'no limit'} is longer than a job may run here"
        raise context.refusal(what, "longest-time", where=_LIMIT, hint=hint)


def _requests(job: Job) -> str:
    words = [f"priority {job.priority}"]
    words += ["held"] if job.held else []
    words += [f"released {job.released_at.isoformat()}"] if job.released_at else []
    words += ["cancel requested"] if job.cancel_requested else []
    words += ["requeue requested"] if job.requeue_requested else []
    words += ["suspended"] if job.suspended else []
    words += [f"to be sent {signal_name(number)}" for number in job.signals]
    words += [f"placed beside job {job.placed.past}"] if job.placed else []
    words += [f"topped {job.topped_at.isoformat()}"] if job.topped_at else []
    which = f"elements {runs.words(job.runs)} " if job.runs else ""
    return f"{which}{job.state}: " + ", ".join(words)
