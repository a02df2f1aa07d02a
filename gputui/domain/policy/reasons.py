"""Why each waiting job does not start now, in a word and in a sentence with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from gputui.domain.gpu import GpuState
from gputui.domain.job import Job, JobId
from gputui.domain.policy.decide import Outcome, Refusal
from gputui.domain.policy.lineup import Entry, Lineup
from gputui.domain.policy.look import Look
from gputui.domain.policy.machine import size
from gputui.domain.policy.preempted import story, was_preempted
from gputui.domain.policy.shared_reasons import shared_words
from gputui.domain.state import PendingReason, Reason
from gputui.domain.units import format_size, plural

Gated: TypeAlias = dict[JobId, tuple[Reason, Entry]]

_IN_WORDS = {
    GpuState.ALLOCATED: "held by jobs",
    GpuState.FOREIGN: "used by others",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}


class Reasons(Mapping[JobId, Reason]):
    """The reason of every job that waits and does not start, in their order: each made when it is asked for.

    What it is made from is changed by nobody any more once it is here.
    """

    def __init__(self, look: Look, outcome: Outcome, waiting: Lineup, gated: Gated) -> None:
        self._look, self._outcome, self._gated, self._line = look, outcome, gated, waiting
        self._started = {run.id for run in outcome.starts}
        self._made: dict[JobId, Reason] = {}
        rows = [row for node in look.places.rows for row in node]
        self._states = Counter(row.state for row in rows)
        self._count = len(rows)
        self._unread = next((row.why for row in rows if row.state is GpuState.UNKNOWN), "")
        self._others = self._in_words()
        self._tails: dict[int, str] = {}
        """By identity of the lane: what is said of each job in it behind the first."""

    def __getitem__(self, job_id: JobId) -> Reason:
        if job_id in self._gated:
            return self._gated[job_id][0]
        made = self._made.get(job_id)
        if made is None:
            made = self._made[job_id] = self._make(self._ahead[job_id])
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
        passed = self._started | self._gated.keys()
        return self._line.at(place for place, job in enumerate(self._line.jobs) if job.id not in passed)

    @cached_property
    def _ahead(self) -> dict[JobId, int]:
        """How many of those go before each of them."""
        return {job.id: ahead for ahead, job in enumerate(self._able.jobs)}

    def _make(self, ahead: int) -> Reason:
        entry = self._able.entry(ahead)
        if entry.job.attempts and was_preempted(entry.job):
            reason = self._reason(entry, ahead)
            return replace(reason, text=f"{reason.text}; {story(entry.job, self._look.now)}")
        tail = self._tails.get(id(self._look.board.lanes[entry.key]))
        if tail and ahead > 1 and entry.item.id != self._outcome.first_refused:
            return Reason(PendingReason.PRIORITY, f"{ahead} jobs ahead of it; {tail}")
        return self._reason(entry, ahead)

    def _reason(self, entry: Entry, ahead: int) -> Reason:
        job, lane = entry.job, self._look.board.lanes[entry.key]
        refusal = self._outcome.refusals.get(id(lane))
        if refusal is Refusal.STANDING and not self._stands_behind(job):
            refusal = None
        if refusal in _QUOTAS:
            return Reason(PendingReason.QUOTA_EXCEEDED, self._quota(entry, refusal))
        if not self._count or self._states[GpuState.UNKNOWN] == self._count:
            unread = self._unread or "no GPU is known"
            return Reason(PendingReason.NODE_UNKNOWN, f"no GPU can be judged free: {unread}")
        text = f"needs {self._needed(job)}: {self._others}" + self._shared(job)
        if refusal is Refusal.STANDING:
            least = self._look.settings.policy.standing_priority
            return Reason(PendingReason.RESERVATION, f"{text}; GPUs go to jobs of priority {least} and above first")
        if refusal is Refusal.WINDOW:
            return Reason(PendingReason.RESERVATION, text + self._windows(entry))
        if job.id == self._outcome.first_refused:
            return Reason(PendingReason.RESOURCES, text + self._promise(job))
        if refusal is Refusal.BACKFILL:
            text += self._backfill()
        if refusal is not None:
            self._tails[id(lane)] = text
        return Reason(PendingReason.PRIORITY, f"{plural(ahead, 'job')} ahead of it; {text}")

    def _stands_behind(self, job: Job) -> bool:
        least = self._look.settings.policy.standing_priority
        return least is not None and job.priority < least

    def _in_words(self) -> str:
        """`3 free, 4 held by jobs, 1 drained`: what this very plan starts is held already."""
        free = sum(mask.bit_count() for mask in self._look.board.free)
        states = self._states.copy()
        states[GpuState.ALLOCATED] += states[GpuState.FREE] - free
        counts = [f"{states[state]} {word}" for state, word in _IN_WORDS.items() if states[state]]
        return ", ".join((f"{free} free", *counts))

    def _shared(self, job: Job) -> str:
        """What is left on shared GPUs, for a job that shares."""
        ask = self._look.places.ask(job)
        return shared_words(self._look.board, self._look.places, ask) if ask.share else ""

    def _promise(self, job: Job) -> str:
        hold = self._outcome.hold
        if hold is None or hold.id != job.id:
            return ""
        text = f"{self._making_way(job)}; expected {self._time(hold.at)}"
        if hold.because is not None and hold.because not in self._look.making_way:
            known = self._look.sources.get(hold.because)
            source = known.value if known else self._planned(hold.because)
            text += f" when job {hold.because} ends {source}"
        return text

    def _making_way(self, job: Job) -> str:
        """`; job 12 is being preempted for it, up to 60 s grace`."""
        ids = sorted(victim for victim, by in self._look.making_way.items() if by == job.id)
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
        return f"; would run past {self._time(hold.at)}, when {size(hold.grant)} are kept for job {hold.id}"

    def _windows(self, entry: Entry) -> str:
        end = self._look.second + entry.item.duration
        return "".join(
            f"; {sum(mask.bit_count() for mask in keep.masks)} kept by reservation {keep.name} "
            f"from {self._time(keep.start)} to {self._time(keep.end)}, and it may run until {self._time(end)}"
            for keep in self._look.board.keeps
            if keep.start < end
            and self._look.second < keep.end
            and not keep.admits(entry.key.tenant, entry.job.priority)
        )

    def _quota(self, entry: Entry, refusal: Refusal | None) -> str:
        board, job = self._look.board, entry.job
        if refusal is Refusal.ARRAY and job.array:
            running = board.by_array[job.array.id]
            return f"{running} elements of array {job.array.id} are running, and {job.array.limit} may"
        if refusal is Refusal.CPU:
            return f"{plural(board.cpu_running, 'job')} without GPUs are running, and no more may"
        tenant, caps = job.spec.tenant, board.rules.caps[job.spec.tenant]
        if caps.running is not None and board.running[tenant] >= caps.running:
            return f"{plural(board.running[tenant], 'job')} of {tenant} are running, and {caps.running} may"
        held = plural(board.gpus_held[tenant], "GPU")
        return f"needs {self._needed(job)}: {tenant} holds {held}, and may hold {caps.gpus}"

    def _needed(self, job: Job) -> str:
        """`2 GPUs of model H100 with 40G`."""
        request, ask = job.spec.gpus, self._look.places.ask(job)
        words = [plural(ask.minimum, "GPU")]
        words += [f"of model {request.model}"] if request.model else []
        sharing = " shared" if request.promised else ""
        words += [f"with {format_size(request.memory)}{sharing}"] if request.memory else []
        words += [f"with {format_size(request.free_memory)} free"] if request.free_memory else []
        words += [f"among {', '.join(request.devices)}"] if request.devices else []
        fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
        words += [f"(only {fitting} here ever fit)"] if fitting < ask.minimum else []
        return " ".join(words)

    def _time(self, second: float) -> str:
        """`14:32 UTC`, with the date when it is not today's."""
        at = self._look.when(second)
        return f"{at:%H:%M} UTC" if at.date() == self._look.now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


_QUOTAS = frozenset({Refusal.ARRAY, Refusal.CPU, Refusal.QUOTA})
