"""Reasons why waiting jobs do not start now: a code, and a sentence with numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.gpu import LOST, SICK, GpuState, GpuView, fault_of
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.availability import UNANSWERED
from gputui.domain.policy.cluster_state import ClusterState, ReservedWindow
from gputui.domain.policy.decide import Outcome, Refusal, Refused, gpus_needed, is_unsatisfiable
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.placement import Ask, GpuBit, GpuIndex, size
from gputui.domain.policy.planning_context import DurationSource, PlanningContext
from gputui.domain.policy.preemption import describe_preemption, was_preempted
from gputui.domain.policy.queue_order import OrderedQueue, QueuedJob
from gputui.domain.state import PendingReason, Reason, utc_moment
from gputui.domain.text import format_limit, format_size, listed, plural

Tail: TypeAlias = tuple[str, tuple[datetime, ...]]
"""Reason's sentence up to the place in the queue, and the times in it."""


class Gated(NamedTuple):
    """Jobs that gates keep from starting."""

    why: Mapping[JobId, Reason]
    line: OrderedQueue
    """Jobs of `why` that may start later without an action of a user, in order."""


class StartDecision(NamedTuple):
    """Decision of one plan, as masks; reasons and forecast are computed from it."""

    context: PlanningContext
    waiting: OrderedQueue
    gated: Gated
    outcome: Outcome


class _Turn(NamedTuple):
    place: int
    """Position among the eligible jobs that do not start."""
    ahead: int
    """Number of eligible jobs before it that do not start."""
    first: JobId
    refused: Refused
    behind: Refused
    """Refusal of the other elements."""


class Reasons(Mapping[JobId, Reason]):
    """Reasons of all waiting jobs that do not start, in order; each is computed on first access.

    Its inputs do not change any more.
    """

    def __init__(self, decided: StartDecision, foreseen: Mapping[JobId, float]) -> None:
        """`foreseen` has the starts of a simulation, which also knows the jobs that come later."""
        self._context, self._line, self._gated, outcome = decided
        self._outcome, self._foreseen = outcome, foreseen
        self._started = {run.id for run in outcome.starts}
        self._known: dict[JobId, Reason] = {}
        self._supplies: dict[Ask, str] = {}
        rows = [row for node in self._context.gpus.rows for row in node]
        unread = [row.why for row in rows if row.state is GpuState.UNKNOWN]
        self._blind = (unread or [""])[0] or "no GPU is known" if len(unread) == len(rows) else ""
        """Reason why no GPU can be judged free at all; empty when one can."""
        self._firsts = {outcome.first_refused, outcome.hold.id if outcome.hold else None}
        """Jobs that wait for no job ahead of them."""
        self._tails: dict[tuple[LaneKey, Refused], Tail] = {}
        self._times: list[datetime] = []
        """Times in the sentence under construction."""

    @property
    def gated(self) -> Mapping[JobId, Reason]:
        """Reasons of the jobs and entries that cannot start even on free GPUs, by their own ids."""
        return self._gated.why

    def __getitem__(self, job_id: JobId) -> Reason:
        """Return the reason of a job, or of any element of an entry."""
        known = self._known.get(job_id) or self._gated.why.get(job_id)
        if known is not None:
            return known
        turn = self._turns.get(job_id)
        if turn is None:
            entry = self._context.job(job_id)
            if entry is None or not entry.runs or job_id in self._started:
                raise KeyError(job_id)
            if entry.id in self._gated.why:
                return self._gated.why[entry.id]
            run, place = arrays.find(entry.runs, job_id), bisect_right(self._first_ids, job_id) - 1
            if run is None or place < 0 or self._first_ids[place] < run.id:
                raise KeyError(job_id)
            turn = self._turns[self._first_ids[place]]
        reason = self._known[job_id] = self._reason(job_id, turn)
        return reason

    def __iter__(self) -> Iterator[JobId]:
        passed: set[JobId] = set()
        for job, item in zip(self._line.jobs, self._line.items, strict=True):
            if job.id not in passed and (first := self._first(item)) is not None:
                yield first if job.runs and job.id not in self._gated.why else job.id
                if job.runs:
                    passed.add(job.id)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    def _first(self, item: Waiting) -> JobId | None:
        """Return the first of its jobs that does not start; None if all start."""
        if item.count == 1:
            return None if item.id in self._started else item.id
        return next((job_id for job_id in range(item.id, item.id + item.count) if job_id not in self._started), None)

    @cached_property
    def _first_ids(self) -> list[JobId]:
        return sorted(self._turns)

    @cached_property
    def _able(self) -> OrderedQueue:
        """Eligible jobs that do not start."""
        jobs, items, why = self._line.jobs, self._line.items, self._gated.why
        places = [n for n, job in enumerate(jobs) if job.id not in why and self._first(items[n]) is not None]
        return self._line.at(places)

    @cached_property
    def _turns(self) -> dict[JobId, _Turn]:
        """Position in `_able` and refusal of each entry, by the id of its first job that keeps waiting."""
        refusals, able = self._outcome.refusals, self._able
        latest: dict[LaneKey, Refused] = {}
        found: dict[JobId, _Turn] = {}
        ahead = 0
        for place, (key, item) in enumerate(zip(able.keys, able.items, strict=True)):
            first, left = item.id, 1
            if item.count > 1:
                first = self._first(item) or item.id
                left = item.count - sum(item.id <= job_id < item.id + item.count for job_id in self._started)
            if first in refusals:
                refused = latest[key] = refusals[first]
            else:
                refused = latest[key]  # of one before it in its lane, with the GPUs that this job accepts now
                if key.ask.minimum != key.ask.maximum and refused.why not in _BEFORE_ITS_NEED:
                    context, owed = self._context, self._owed(key.tenant)
                    refused = refused._replace(need=gpus_needed(context.cluster, key, item, context.second, owed))
            if first + 1 in refusals and left > 1:
                latest[key] = refusals[first + 1]
            found[first] = _Turn(place, ahead, first, refused, latest[key])
            ahead += left
        return found

    def _reason(self, job_id: JobId, turn: _Turn) -> Reason:
        entry = self._able.entry(turn.place)
        entry = entry._replace(item=entry.item._replace(id=job_id))
        refused = turn.refused if job_id == turn.first else turn.behind
        reason = self._why(entry, turn.ahead + job_id - turn.first, refused)
        remedy, because = self._missing_limit(entry, refused)
        reason = replace(reason, text=remedy + reason.text + because)
        if not (entry.job.attempts and was_preempted(entry.job)):
            return reason
        words, at = describe_preemption(entry.job, self._context.now)
        return replace(reason, text=f"{reason.text}; {words}", times=(*reason.times, at))

    def _why(self, entry: QueuedJob, ahead: int, refused: Refused) -> Reason:
        tail = self._tails.get((entry.key, refused))
        if tail is not None and entry.item.id not in self._firsts:
            return Reason(PendingReason.PRIORITY, f"{tail[0]}; {plural(ahead, 'job')} ahead of it", tail[1])
        if refused.why in _QUOTAS:
            return Reason(PendingReason.QUOTA_EXCEEDED, self._quota(entry, refused))
        if self._blind:
            remedy = ""
            if entry.job.spec.is_host and self._blind == UNANSWERED:
                remedy = "; if this machine has no Docker, start the scheduler with --runtime process"
            return Reason(PendingReason.NODE_UNKNOWN, f"no GPU can be judged free: {self._blind}{remedy}")
        self._times = []
        ask = entry.key.ask
        sign = ":" if ask.minimum == ask.maximum else ";"
        if ask not in self._supplies:
            self._supplies[ask] = describe_supply(self._context, ask)
        text = f"{self._needs(entry, refused)}{sign} {self._supplies[ask]}"
        code, text = self._turn(entry, refused, text)
        times = tuple(self._times)
        if code is PendingReason.PRIORITY and refused.need == entry.key.ask.minimum:
            self._tails[entry.key, refused] = (text, times)
        if code is PendingReason.PRIORITY:
            text += f"; {plural(ahead, 'job')} ahead of it"
        return Reason(code, text, times)

    def _turn(self, entry: QueuedJob, refused: Refused, text: str) -> tuple[PendingReason, str]:
        """Return the code of a job that waits for GPUs, and its sentence, which begins with `text`."""
        if is_unsatisfiable(entry.key.ask):
            return PendingReason.RESOURCES, text
        if refused.why is Refusal.STANDING:
            least = self._context.settings.policy.standing_priority
            return PendingReason.RESERVATION, f"{text}; GPUs go to jobs of priority {least} and above first"
        if refused.why is Refusal.WINDOW:
            end = self._context.second + entry.key.duration
            windows = "".join(
                f"; {plural(sum(mask.bit_count() for mask in keep.masks), 'GPU')} reserved by {keep.window.name} "
                f"from {self._time(keep.start)} to {self._time(keep.end)}, and it may run until {self._time(end)}"
                for keep in self._against(entry)
            )
            return PendingReason.RESERVATION, text + windows + self._promise(entry)
        if refused.why is Refusal.BACKFILL:
            return PendingReason.PRIORITY, text + self._past_promise()
        if entry.item.id in self._firsts:
            return PendingReason.RESOURCES, text + self._promise(entry)
        return PendingReason.PRIORITY, text

    def _promise(self, entry: QueuedJob) -> str:
        hold = self._outcome.hold
        if hold is None or hold.id != entry.item.id:
            return ""
        text, making_way = "", self._context.making_way
        if ids := sorted(victim for victim, by in making_way.items() if by == hold.id):
            who = f"job {self._shown(ids[0])} is" if len(ids) == 1 else f"jobs {', '.join(map(self._shown, ids))} are"
            grace = self._context.settings.policy.preemption_grace.total_seconds()
            text = f"; {who} being preempted for it, up to {grace:g} s grace"
        if not self._context.gpus.is_known(hold.grant):
            return text
        start = max(hold.at, self._foreseen.get(hold.id, hold.at))
        text += f"; expected {self._time(start)}"
        if start > hold.at:
            return text if next(iter(self._foreseen)) == hold.id else f"{text}, after jobs that will go before it"
        if hold.because is not None and hold.because not in making_way:
            known = self._context.sources.get(hold.because)
            source = known.value if known else self._context.expected(hold.because).source.value
            text += f" when job {self._shown(hold.because)} ends {source}"
        return text

    def _past_promise(self) -> str:
        """Return why it must not delay the head of the queue."""
        hold = self._outcome.hold
        if hold is None:
            return ""
        count = size(hold.grant)
        kept = f"{plural(count, 'GPU')} {_are(count)} reserved for job {self._shown(hold.id)}"
        return (
            f"; {kept}, for which others make way"
            if hold.is_firm or not self._context.gpus.is_known(hold.grant)
            else f"; would run past {self._time(hold.at)}, when {kept}"
        )

    def _shown(self, job_id: JobId) -> str:
        """Return the displayed id: `5_19` for an element of an array."""
        job = self._context.job(job_id)
        return str(job_id) if job is None else (job.element(job_id) if job.runs else job).shown_id

    def _missing_limit(self, entry: QueuedJob, refused: Refused) -> tuple[str, str]:
        """Return begin and end of the sentence of a job that waits only as it has no limit: the remedy, and why."""
        hold, second, planned = self._outcome.hold, self._context.second, self._context.durations.planned_for(entry.job)
        backfill = refused.why is Refusal.BACKFILL and hold is not None and not hold.is_firm
        window = refused.why is Refusal.WINDOW and any(second < keep.start for keep in self._against(entry))
        if self._blind or planned.source is not DurationSource.DEFAULT or not (backfill or window):
            return "", ""
        lasts = format_limit(timedelta(seconds=planned.seconds))
        wanted = "backfill" if backfill else "end before the reservation"
        return (
            f"needs a --time-limit to {wanted}; ",
            f"; planned to run {lasts}, the longest time allowed, without one",
        )

    def _against(self, entry: QueuedJob) -> list[ReservedWindow]:
        now, end = self._context.second, self._context.second + entry.key.duration
        tenant, priority = entry.key.tenant, entry.job.priority
        keeps = self._context.cluster.keeps
        return [
            keep for keep in keeps if keep.start < end and now < keep.end and not keep.window.admits(tenant, priority)
        ]

    def _quota(self, entry: QueuedJob, refused: Refused) -> str:
        cluster, job = self._context.cluster, entry.job
        if refused.why is Refusal.ARRAY and job.array:
            running = cluster.by_array[job.array.id]
            words = f"{plural(running, 'element')} of array {job.array.id} {_are(running)}"
            return f"{words} running; at most {job.array.limit} may run"
        if refused.why is Refusal.CPU:
            running = cluster.cpu_running
            return f"{plural(running, 'job')} without GPUs {_are(running)} running; no more may run"
        tenant, caps = job.spec.tenant, cluster.rules.caps[job.spec.tenant]
        running, held, need = cluster.running[tenant], cluster.gpus_held[tenant], entry.key.ask.minimum
        is_over = caps.gpus is not None and held + need > caps.gpus
        owed = 0 if is_over else self._owed(tenant)
        if caps.running is not None and running + (owed > 0) >= caps.running:
            beside = ", 1 more is promised its turn" if running < caps.running else ""
            return (
                f"{plural(running, 'job')} of {tenant} {_are(running)} running{beside}; at most {caps.running} may run"
            )
        beside = f" and is promised {owed}" if owed else ""
        holds = f"{tenant} holds {plural(held, 'GPU')}{beside}; at most {caps.gpus} allowed"
        return f"{self._needs(entry, Refused(refused.why, need))}: {holds}"

    def _owed(self, tenant: str) -> int:
        """Return the GPUs promised to the tenant's first job that does not fit."""
        hold, head = self._outcome.hold, self._outcome.head
        return size(hold.grant) if hold and head and head.tenant == tenant else 0

    def _needs(self, entry: QueuedJob, refused: Refused) -> str:
        settles = entry.item.since + self._context.cluster.rules.patience
        fewer = f"from {self._time(settles)}" if refused.need > entry.key.ask.minimum else ""
        return describe_request(entry.job, entry.key.ask, refused.need, fewer)

    def _time(self, second: float) -> str:
        """Return `14:32 UTC`, with the date unless it is today, and record the time for the sentence."""
        at = self._context.when(second)
        self._times.append(at)
        return utc_moment(at, self._context.now)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


_QUOTAS = frozenset({Refusal.ARRAY, Refusal.CPU, Refusal.QUOTA})
_BEFORE_ITS_NEED = _QUOTAS | {Refusal.STANDING}
"""Refusals that are checked before the number of accepted GPUs is known."""


_MOST = 3
"""Number of shared GPUs that are described one by one."""


def describe_shared_gpus(cluster: ClusterState, gpus: GpuIndex, ask: Ask) -> str:
    """Return `; GPU 3 has 6G left beside jobs 4 and 9`, for each usable shared GPU; empty without any."""
    found = [place for place in cluster.shares.uses if ask.eligible[place[0]] & place[1]]
    found.sort(key=lambda place: (-cluster.shares.left(place), place))
    rooms = [_describe_room(cluster, gpus, place) for place in found[:_MOST]]
    more = len(found) - len(rooms)
    rooms += [f"{more} more shared {'GPU has' if more == 1 else 'GPUs have'} no more left"] if more else []
    return "".join(f"; {room}" for room in rooms)


def _describe_room(cluster: ClusterState, gpus: GpuIndex, place: GpuBit) -> str:
    shares, row = cluster.shares, gpus.row(place)
    bay, jobs = shares.bay(place), sorted(job_id for job_id, _ in shares.uses[place])
    name = row.gpu.uuid[:12] if row.gpu.mig_parent else f"GPU {row.gpu.index}"
    if bay.most == 1:
        return f"{name} may not be shared, and {_names(jobs)} {'has' if len(jobs) == 1 else 'have'} it"
    if bay.closed:
        return f"{name} may not be joined: {bay.closed}"
    if len(jobs) >= bay.most:
        return f"{name} has {_names(jobs)}, and no more than {bay.most} may share it"
    size = shares.left(place)
    # the size, never rounded up: users request the displayed amount
    shown = 1024**3 if size >= 10 * 1024**3 else 1024**3 // 10
    at_least = format_size(size - size % shown if size >= 1024**3 else size)
    return f"{name} has {at_least} left beside {_names(jobs)}"


def _names(jobs: list[JobId]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {listed(jobs)}"


_HELD = "held by jobs"
_IN_WORDS = {
    GpuState.ALLOCATED: _HELD,
    GpuState.FOREIGN: "used by others",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}
_ORDER = (*_IN_WORDS.values(), SICK, LOST)


def describe_supply(context: PlanningContext, ask: Ask) -> str:
    """Return `3 free, 4 held by jobs, 1 drained`, counting suitable GPUs only, after the starts of this plan."""
    rows, free = context.gpus.rows, context.cluster.free
    suiting = [
        row for node, mask in zip(rows, ask.eligible, strict=True) for bit, row in enumerate(node) if mask >> bit & 1
    ]
    total = sum(map(len, rows))
    if not suiting:
        return f"none of {total} here is suitable"
    able = [(mask & eligible).bit_count() for mask, eligible in zip(free, ask.eligible, strict=True)]
    states = Counter(map(_word, suiting))
    states[_HELD] += states.pop("", 0) - sum(able)
    words = ", ".join((f"{sum(able)} free", *(f"{states[word]} {word}" for word in _ORDER if states[word])))
    if max(able) < sum(able):
        words = words.replace(" free", f" free (at most {max(able)} on one node)", 1)
    words = words if len(suiting) == total else f"of {plural(len(suiting), 'suitable GPU')} {words}"
    return words + (describe_shared_gpus(context.cluster, context.gpus, ask) if ask.share else "")


def _word(row: GpuView) -> str:
    """Return why the GPU is not free, in a word; empty for a free one."""
    fault = fault_of(row)
    return fault if fault in {LOST, SICK} else _IN_WORDS.get(row.state, "")


def describe_request(job: Job, ask: Ask, need: int, fewer: str) -> str:
    """Return `needs 2 GPUs of model H100 with 40G`; `fewer` says when it accepts fewer than `need`."""
    request = job.spec.gpus
    if ask.minimum == ask.maximum:
        words = [f"needs {plural(need, 'GPU')}"]
    else:  # a range: `wants 4 GPUs, will take 2 from 14:51 UTC`
        words = [f"wants {plural(ask.maximum, 'GPU')}"]
        words[0] += f", will take {need}" if need < ask.maximum else ""
        if need > ask.minimum:
            words[0] += f", {'will take ' if need == ask.maximum else ''}{ask.minimum} {fewer}"
    words += [f"of model {request.model}"] if request.model else []
    sharing = " shared" if request.promised else ""
    words += [f"with {format_size(request.memory)}{sharing}"] if request.memory else []
    words += [f"with {format_size(request.free_memory)} free"] if request.free_memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
    words += [f"(only {fitting} suitable here)"] if 0 < fitting < ask.minimum else []
    return " ".join(words)


def gated_jobs(reasons: Mapping[JobId, Reason]) -> Mapping[JobId, Reason]:
    """Return the reasons of jobs and entries that cannot start even on free GPUs, without computing other sentences."""
    if isinstance(reasons, Reasons):
        return reasons.gated
    return {job_id: reason for job_id, reason in reasons.items() if reason.code not in _ONLY_GPUS}


_ONLY_GPUS = frozenset({PendingReason.RESOURCES, PendingReason.PRIORITY})
"""Reasons of jobs that only need their turn and free GPUs, as the engine of a cluster gives them."""
