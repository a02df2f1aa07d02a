"""Why each waiting job does not start now, in a word and in a sentence with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple, TypeAlias

from gputui.domain.gpu import GpuState
from gputui.domain.job import JobId
from gputui.domain.policy.board import Keep
from gputui.domain.policy.decide import Outcome, Refusal, Refused, is_hopeless
from gputui.domain.policy.durations import Source
from gputui.domain.policy.lanes import LaneKey
from gputui.domain.policy.lineup import Entry, Lineup
from gputui.domain.policy.look import Look
from gputui.domain.policy.machine import size
from gputui.domain.policy.needs import Supply, needs
from gputui.domain.policy.occupancy import UNANSWERED
from gputui.domain.policy.preempted import story, was_preempted
from gputui.domain.policy.shadow import needed
from gputui.domain.state import PendingReason, Reason, moment
from gputui.domain.units import format_duration, plural

Tail: TypeAlias = tuple[str, tuple[datetime, ...]]
"""What is said of a job behind its place, and the times in it."""


class Gated(NamedTuple):
    """The jobs that may not start whatever is free."""

    why: Mapping[JobId, Reason]
    line: Lineup
    """In their order."""


class Reasons(Mapping[JobId, Reason]):
    """The reason of every job that waits and does not start, in their order: each made when it is asked for.

    What it is made from is changed by nobody any more once it is here.
    """

    def __init__(self, look: Look, outcome: Outcome, waiting: Lineup, gated: Gated) -> None:
        self._look, self._outcome, self._gated, self._line = look, outcome, gated, waiting
        self._started = {run.id for run in outcome.starts}
        self._made: dict[JobId, Reason] = {}
        self._supply = Supply(look)
        rows = [row for node in look.places.rows for row in node]
        unread = [row.why for row in rows if row.state is GpuState.UNKNOWN]
        self._blind = (unread or [""])[0] or "no GPU is known" if len(unread) == len(rows) else ""
        """Why no GPU at all can be judged; empty when one can."""
        self._firsts = {outcome.first_refused, outcome.hold.id if outcome.hold else None}
        """Those that wait for no job ahead of them."""
        self._tails: dict[tuple[LaneKey, Refused], Tail] = {}
        self._times: list[datetime] = []
        """Those told of in the sentence being made."""

    def __getitem__(self, job_id: JobId) -> Reason:
        gated = self._gated.why.get(job_id)
        if gated is not None:
            return gated
        made = self._made.get(job_id)
        if made is None:
            made = self._made[job_id] = self._reason(*self._refused[job_id])
        return made

    def __iter__(self) -> Iterator[JobId]:
        return (job.id for job in self._line.jobs if job.id not in self._started)

    def __len__(self) -> int:
        return len(self._line.jobs) - len(self._started)

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    @cached_property
    def _able(self) -> Lineup:
        """Those that could start, and do not."""
        passed = self._started | self._gated.why.keys()
        return self._line.at(place for place, job in enumerate(self._line.jobs) if job.id not in passed)

    @cached_property
    def _refused(self) -> dict[JobId, tuple[int, Refused]]:
        """How many of those go before each of them, and why it is refused: as the last one told of in its lane."""
        told, able = self._outcome.refusals, self._able
        latest: dict[LaneKey, Refused] = {}
        found: dict[JobId, tuple[int, Refused]] = {}
        for ahead, (job, key) in enumerate(zip(able.jobs, able.keys, strict=True)):
            if job.id in told:
                latest[key] = told[job.id]
            found[job.id] = (ahead, latest[key] if job.id in told else self._as_for(ahead, latest[key]))
        return found

    def _as_for(self, ahead: int, refused: Refused) -> Refused:
        """The refusal of one before it in its lane, with the GPUs that this one takes at this moment."""
        entry, board = self._able.entry(ahead), self._look.board
        if entry.key.ask.minimum == entry.key.ask.maximum or refused.why in _BEFORE_ITS_NEED:
            return refused
        owed = self._owed(entry.key.tenant)
        return refused._replace(need=needed(board, entry.key, entry.item, self._look.second, owed))

    def _reason(self, ahead: int, refused: Refused) -> Reason:
        entry = self._able.entry(ahead)
        reason = self._why(entry, ahead, refused)
        reason = replace(reason, text=reason.text + self._taken(entry, refused))
        if not (entry.job.attempts and was_preempted(entry.job)):
            return reason
        words, at = story(entry.job, self._look.now)
        return replace(reason, text=f"{reason.text}; {words}", times=(*reason.times, at))

    def _why(self, entry: Entry, ahead: int, refused: Refused) -> Reason:
        tail = self._tails.get((entry.key, refused))
        if tail is not None and entry.job.id not in self._firsts:
            return Reason(PendingReason.PRIORITY, f"{plural(ahead, 'job')} ahead of it; {tail[0]}", tail[1])
        if refused.why in _QUOTAS:
            return Reason(PendingReason.QUOTA_EXCEEDED, self._quota(entry, refused))
        if self._blind:
            return Reason(PendingReason.NODE_UNKNOWN, f"no GPU can be judged free: {self._blind}" + self._remedy(entry))
        self._times = []
        text = f"{self._needs(entry, refused)}: {self._supply.of(entry.key.ask)}"
        code, text = self._turn(entry, refused, text)
        times = tuple(self._times)
        if code is PendingReason.PRIORITY and refused.need == entry.key.ask.minimum:
            self._tails[entry.key, refused] = (text, times)
        if code is PendingReason.PRIORITY:
            text = f"{plural(ahead, 'job')} ahead of it; {text}"
        return Reason(code, text, times)

    def _remedy(self, entry: Entry) -> str:
        """Return what lets a host job start on a machine without Docker."""
        if not entry.job.spec.is_host or self._blind != UNANSWERED:
            return ""
        return "; if this machine has no Docker, start the scheduler with --runtime process"

    def _turn(self, entry: Entry, refused: Refused, text: str) -> tuple[PendingReason, str]:
        """The code of a job that waits for GPUs, and its sentence, which begins as `text`."""
        if is_hopeless(entry.key.ask):
            return PendingReason.RESOURCES, text
        if refused.why is Refusal.STANDING:
            least = self._look.settings.policy.standing_priority
            return PendingReason.RESERVATION, f"{text}; GPUs go to jobs of priority {least} and above first"
        if refused.why is Refusal.WINDOW:
            return PendingReason.RESERVATION, text + self._windows(entry) + self._promise(entry)
        if refused.why is Refusal.BACKFILL:
            return PendingReason.PRIORITY, text + self._backfill()
        if entry.job.id in self._firsts:
            return PendingReason.RESOURCES, text + self._promise(entry)
        return PendingReason.PRIORITY, text

    def _promise(self, entry: Entry) -> str:
        hold = self._outcome.hold
        if hold is None or hold.id != entry.job.id:
            return ""
        text = f"{self._making_way(entry.job.id)}; expected {self._time(hold.at)}"
        if hold.because is not None and hold.because not in self._look.making_way:
            known = self._look.sources.get(hold.because)
            source = known.value if known else self._planned(hold.because)
            text += f" when job {hold.because} ends {source}"
        return text

    def _making_way(self, job_id: JobId) -> str:
        """`; job 12 is being preempted for it, up to 60 s grace`."""
        ids = sorted(victim for victim, by in self._look.making_way.items() if by == job_id)
        if not ids:
            return ""
        who = f"job {ids[0]} is" if len(ids) == 1 else f"jobs {', '.join(map(str, ids))} are"
        grace = self._look.settings.policy.preemption_grace.total_seconds()
        return f"; {who} being preempted for it, up to {grace:g} s grace"

    def _planned(self, job_id: JobId) -> str:
        """Where the planned end of a job that starts only now comes from."""
        job = self._look.snapshot.job(job_id)
        return self._look.durations.of(job).source.value if job else ""

    def _backfill(self) -> str:
        hold = self._outcome.hold
        if hold is None:
            return ""
        if hold.is_firm:
            return f"; {size(hold.grant)} are kept for job {hold.id}, for which others make way"
        return f"; would run past {self._time(hold.at)}, when {size(hold.grant)} are kept for job {hold.id}"

    def _taken(self, entry: Entry, refused: Refused) -> str:
        """What its user can do, where it waits because it is planned to run so long."""
        hold, second, planned = self._outcome.hold, self._look.second, self._look.durations.of(entry.job)
        backfill = refused.why is Refusal.BACKFILL and hold is not None and not hold.is_firm
        window = refused.why is Refusal.WINDOW and any(second < keep.start for keep in self._against(entry))
        if self._blind or planned.source is not Source.DEFAULT or not (backfill or window):
            return ""
        lasts = format_duration(timedelta(seconds=planned.seconds))
        return f"; planned to run {lasts} by the default: give it a --time-limit"

    def _windows(self, entry: Entry) -> str:
        end = self._look.second + entry.item.duration
        return "".join(
            f"; {sum(mask.bit_count() for mask in keep.masks)} kept by reservation {keep.name} "
            f"from {self._time(keep.start)} to {self._time(keep.end)}, and it may run until {self._time(end)}"
            for keep in self._against(entry)
        )

    def _against(self, entry: Entry) -> list[Keep]:
        """The windows of others that it would run into."""
        now, end = self._look.second, self._look.second + entry.item.duration
        tenant, priority = entry.key.tenant, entry.job.priority
        keeps = self._look.board.keeps
        return [keep for keep in keeps if keep.start < end and now < keep.end and not keep.admits(tenant, priority)]

    def _quota(self, entry: Entry, refused: Refused) -> str:
        board, job = self._look.board, entry.job
        if refused.why is Refusal.ARRAY and job.array:
            running = board.by_array[job.array.id]
            words = f"{plural(running, 'element')} of array {job.array.id} {_are(running)}"
            return f"{words} running, and {job.array.limit} may"
        if refused.why is Refusal.CPU:
            running = board.cpu_running
            return f"{plural(running, 'job')} without GPUs {_are(running)} running, and no more may"
        tenant, caps = job.spec.tenant, board.rules.caps[job.spec.tenant]
        running, held, need = board.running[tenant], board.gpus_held[tenant], entry.key.ask.minimum
        is_over = caps.gpus is not None and held + need > caps.gpus
        owed = 0 if is_over else self._owed(tenant)
        if caps.running is not None and running + (owed > 0) >= caps.running:
            beside = ", 1 more is promised its turn" if running < caps.running else ""
            return f"{plural(running, 'job')} of {tenant} {_are(running)} running{beside}, and {caps.running} may"
        beside = f" and is promised {owed}" if owed else ""
        holds = f"{tenant} holds {plural(held, 'GPU')}{beside}, and may hold {caps.gpus}"
        return f"{self._needs(entry, Refused(refused.why, need))}: {holds}"

    def _owed(self, tenant: str) -> int:
        """GPUs promised to the tenant's first job that does not fit."""
        hold = self._outcome.hold
        job = self._look.snapshot.job(hold.id) if hold else None
        return size(hold.grant) if hold and job and job.spec.tenant == tenant else 0

    def _needs(self, entry: Entry, refused: Refused) -> str:
        settles = entry.item.submitted + self._look.board.rules.patience
        fewer = f"after {self._time(settles)}" if refused.need > entry.key.ask.minimum else ""
        return needs(entry.job, entry.key.ask, refused.need, fewer)

    def _time(self, second: float) -> str:
        """`14:32 UTC`, with the date when it is not today's; remembered as told of."""
        at = self._look.when(second)
        self._times.append(at)
        return moment(at, self._look.now)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


_QUOTAS = frozenset({Refusal.ARRAY, Refusal.CPU, Refusal.QUOTA})
_BEFORE_ITS_NEED = _QUOTAS | {Refusal.STANDING}
"""What a job is refused for before it is asked how many GPUs it takes."""
