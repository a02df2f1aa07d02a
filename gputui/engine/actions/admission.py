"""Admission: checks the request of a new or edited job against the site's rules, and records its submitter.

The number of waiting jobs is checked only at submission: a retried, requeued or preempted job is never refused.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.access import Caller, check_same, is_agents, name_of_key
from gputui.domain.action import AddRecurring, PauseRecurring, RemoveRecurring, ResumeRecurring
from gputui.domain.arrays import new_entries, numbered
from gputui.domain.errors import AccessError, GputuiError, InputError, NotFoundError, StoreBusyError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.policy.waits import has_failed
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import PolicySettings
from gputui.domain.snapshot import Controls, effective_policy
from gputui.domain.spec_values import check_array, check_values
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.domain.text import plain, plural, quoted
from gputui.engine.actions.context import ActionContext, PriorityCaps, check_own_recurring
from gputui.engine.actions.permissions import within_time_limits
from gputui.ports.store import Queue

AGENT_GPUS = "agent-gpus"


def gpus_at_once(jobs: Iterable[Job]) -> int:
    """Return how many GPUs these jobs may have together: of an array as many elements as its limit lets run."""
    counts: dict[int, int] = {}
    arrays: dict[int, tuple[int, int]] = {}
    for place, job in enumerate(jobs):
        gpus = job.spec.gpus.maximum
        if job.array is None:
            counts[place] = gpus * job.count
        else:
            count, most = arrays.get(job.array.id, (0, 0))
            count += job.count
            arrays[job.array.id] = (count, max(most, gpus * min(count, job.array.limit or count)))
    return sum(counts.values()) + sum(most for _, most in arrays.values())


def check_new(context: ActionContext, jobs: Iterable[Job], queued: Callable[[], Iterable[Job]]) -> None:
    """Raise AccessError if an agent would take too many GPUs with new jobs; `queued` are those of the queue."""
    if (limit := context.agent_gpus) is None:
        return
    new = tuple(jobs)
    for job in new:
        _check_one(job, limit)
    _check_sum(gpus_at_once(new), gpus_at_once(_of_agent(context, queued())), limit)


def check_changed(context: ActionContext, before: Job, after: Job) -> None:
    """Raise AccessError for a job that an agent lets take more GPUs than agents may, also by running it again."""
    if (limit := context.agent_gpus) is None or after.has_ended:
        return
    wanted, had = after.spec.gpus, before.spec.gpus
    if before.has_ended or wanted.everything > had.everything or wanted.maximum > had.maximum:
        _check_one(after, limit)


def taken(context: ActionContext, queued: Callable[[], Iterable[Job]]) -> int:
    """Return how many GPUs the agents of the user may have now; 0 where that is not limited."""
    return gpus_at_once(_of_agent(context, queued())) if context.agent_gpus is not None else 0


def check_taken(context: ActionContext, before: int, queued: Callable[[], Iterable[Job]]) -> None:
    """Raise AccessError if changes by an agent have let the jobs of agents take more GPUs than they may."""
    if (limit := context.agent_gpus) is not None and (now := taken(context, queued)) > before:
        _check_sum(now - before, before, limit)


def _of_agent(context: ActionContext, jobs: Iterable[Job]) -> Iterable[Job]:
    uid = context.actor.uid
    return (job for job in jobs if not job.has_ended and job.submitted_uid == uid and is_agents(job.submitted_via))


def _check_one(job: Job, limit: int) -> None:
    gpus = job.spec.gpus
    if gpus.everything or gpus.maximum > limit:
        asked = "all GPUs" if gpus.everything else plural(gpus.maximum, "GPU")
        what = f"an agent may take {plural(limit, 'GPU')} at once, and job {job.spec.name} asks for {asked}"
        raise AccessError(what, rule=AGENT_GPUS, where="gpus", hint="submit it yourself: gputui submit")


def _check_sum(new: int, before: int, limit: int) -> None:
    if new and new + before > limit:
        what = f"an agent may take {plural(limit, 'GPU')} at once: its jobs may have {before}, and these {new} more"
        hint = "wait until some have ended, or let fewer elements run at a time (sweep_limit, or array %N)"
        raise AccessError(what, rule=AGENT_GPUS, where="gpus", hint=hint)


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
    if context.caller is None or submission.spec.tenant:
        return submission
    return replace(submission, spec=replace(submission.spec, tenant=context.caller.user))


def _new_jobs(context: ActionContext, submissions: Iterable[Submission], recurring: JobId | None) -> list[Job]:
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
    check_new(context, jobs, queued)
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


MAX_TEXT = 1000
_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")
_DIRECTORY = "/zoneinfo/"
_POSIX = r"(?a)([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d.*"
"""Values of TZ that describe a zone, such as CET-1CEST,M3.5.0,M10.5.0/3."""


def find_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # also known on hosts without the database
    from zoneinfo import ZoneInfo  # takes milliseconds, and no other command needs it

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        hint = "write it as in Europe/Berlin; they come with the package tzdata"
        raise InputError(f"{quoted(name)} is not a time zone on this host", where="--time-zone", hint=hint) from error


def local_zone_name(
    environ: Mapping[str, str] = os.environ, localtime: Path = _LOCALTIME, text: Path = _TIMEZONE
) -> str:
    """Return the name of this host's time zone, from TZ, /etc/localtime or /etc/timezone.

    Raises InputError if none of them names it, unless the host is at UTC: a guess would run jobs at wrong times.
    """
    check_local_zone("--time-zone", environ)
    candidates = [_bare(environ["TZ"])] if environ.get("TZ") else []
    if not candidates:
        with suppress(OSError):
            candidates.append(os.readlink(localtime).rpartition(_DIRECTORY)[2])  # noqa: PTH115 - not where it leads
        with suppress(OSError, UnicodeDecodeError):
            candidates.append(text.read_text().partition("\n")[0].strip())
    name = next((each for each in candidates if each and _is_known(each)), None)
    if name is None and (time.timezone or time.daylight):
        hint = "give it, as in --time-zone Europe/Berlin"
        raise InputError("the name of this host's time zone is unknown", where="--time-zone", hint=hint)
    return name or "UTC"


def check_local_zone(where: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise InputError if TZ names a zone that this host does not know, which the C library takes for UTC."""
    given = environ.get("TZ", "").removeprefix(":")
    if (
        not given
        or re.fullmatch(_POSIX, given)
        or _is_known(_bare(given))
        or (given[0] == "/" and Path(given).is_file())
    ):
        return
    hint = "set TZ as in TZ=Europe/Berlin; zones come with the package tzdata"
    raise InputError(f"TZ is {quoted(given)}, which is not a time zone on this host", where=where, hint=hint)


def _bare(given: str) -> str:
    """Return the name of the zone in a value of TZ, which may be `:NAME` or the path of its file."""
    return given.removeprefix(":").rpartition(_DIRECTORY)[2]


def _is_known(name: str) -> bool:
    try:
        find_zone(name)
    except InputError:
        return False
    return True


def change_recurring(
    context: ActionContext, action: AddRecurring | PauseRecurring | ResumeRecurring | RemoveRecurring
) -> Done:
    """Add a recurring job, whose id differs from all job ids; or pause, resume or remove some, all of them or none."""
    if isinstance(action, AddRecurring):
        return _add(context, action)
    ids, verb = tuple(dict.fromkeys(action.ids)), action.verb.removesuffix("_recurring")
    with context.store.transaction() as transaction:
        for one in ids:
            if (before := transaction.recurring().get(one)) is None:
                raise NotFoundError(f"there is no recurring job {one}", hint="gputui cron list")
            check_own_recurring(context.caller, before)
            if isinstance(action, RemoveRecurring):
                transaction.remove_recurring(one)
                context.audit(transaction, verb, f"recurring {one}", _words(before), "")
            elif before.paused != (paused := isinstance(action, PauseRecurring)):
                after = replace(before, paused=paused).awaiting(find_zone(before.zone), context.clock.now())
                transaction.put_recurring(after)
                context.audit(transaction, verb, f"recurring {one}", _words(before), _words(after))
    return Done(ids)


def _add(context: ActionContext, action: AddRecurring) -> Done:
    recurrence, submission = action.recurrence, with_tenant(context, action.submission)
    check_array(submission)
    checked_spec(context, submission.spec)
    if len(recurrence.expression) > MAX_TEXT or plain(recurrence.name) != recurrence.name:
        hint = f"an expression of at most {MAX_TEXT} characters, and a name of one line"
        raise InputError("is too long, or has control characters", where="cron", hint=hint)
    PriorityCaps(context, context.store.controls()).check_new(submission.spec)
    if context.agent_gpus is not None:  # the jobs of its runs could not be counted
        raise AccessError("an agent adds no recurring jobs where access.agent_gpus is set", rule=AGENT_GPUS)
    if submission.spec.begin_at is not None:
        raise InputError("a recurring job has no begin time", where="--begin", hint="the expression says when")
    entry = recurrence.begun(submission, find_zone(recurrence.zone), context.actor, context.clock.now())
    with context.store.transaction() as transaction:
        caller, site = context.caller, context.permissions
        if caller is not None and not caller.operates and site is not None:
            most = site.settings.admission.recurring
            if sum(each.uid == caller.uid for each in transaction.recurring().values()) >= most:
                what = f"{caller.user} has {plural(most, 'recurring job')}, the most for one user"
                raise AccessError(what, rule="admission-recurring", hint="remove some: gputui cron remove")
        entry = transaction.add_recurring(entry)
        context.audit(transaction, "add", f"recurring {entry.id}", "", _words(entry))
    return Done((entry.id,))


def _words(entry: RecurringJob) -> str:
    return f"{'paused' if entry.paused else 'waiting'}: {entry.expression} in {entry.zone}"


MOST = 100_000
"""Maximum number of requests that are known."""
_PATIENCE = 30.0
"""Seconds to wait for the same request, which is still carried out."""


class KnownRequests(Struct, eq=False):
    """Requests of all callers, by this process, or by those before as far as the queue knows them. Thread-safe."""

    _known: dict[tuple[int, str], tuple[str, tuple[JobId, ...]]] = field(default_factory=dict)
    """Keys as stored with the jobs, by uid and key."""
    _running: set[tuple[int, str]] = field(default_factory=set)
    _read: set[int] = field(default_factory=set)
    """Users whose requests were read from the queue."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def once(self, caller: Caller, queue: Queue, act: Callable[[], Done]) -> Done:
        """Return the result of `act`, or of the request that was carried out with the caller's key.

        Raises InputError if that was another request. Nobody else of that key acts meanwhile.
        """
        if not caller.key:
            return act()
        mine = caller.uid, name_of_key(caller.key)
        with self._changed:
            if not self._changed.wait_for(lambda: mine not in self._running, _PATIENCE):
                raise StoreBusyError("the same request is still carried out", hint="ask again")
            if caller.uid not in self._read:
                for key, ids in queue.requests(caller.uid):
                    self._keep(caller.uid, key, ids)
                self._read.add(caller.uid)
            if (known := self._known.get(mine)) is not None:
                check_same(caller.key, known[0])
                return Done(known[1], is_repeated=True)
            self._running.add(mine)
        try:
            done = act()
            with self._changed:
                self._keep(caller.uid, caller.key, done.ids)
            return done
        finally:
            with self._changed:
                self._running.discard(mine)
                self._changed.notify_all()

    def _keep(self, uid: int, key: str, ids: tuple[JobId, ...]) -> None:
        self._known[uid, name_of_key(key)] = key, ids
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
