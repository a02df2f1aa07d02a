"""Idle GPUs: tells of jobs that hold GPUs and leave them unused, and ends such jobs where the site wants that.

Readings of the telemetry decide. A GPU whose use is not known is not idle, and a time without readings begins its spell
anew. A job is ended only after it was told of for as long as the settings say, by this very scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.event import Event, gpus_idle
from gputui.domain.job import BootTime, Job, JobId
from gputui.domain.snapshot import Notice
from gputui.domain.state import JobState
from gputui.domain.telemetry_tally import MAX_GAP
from gputui.domain.units import format_duration, plural
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.reconcile import AttemptKey
from gputui.engine.tick.stops import begin_stops


class _Spell(Struct):
    """Time in which a job leaves GPUs idle."""

    words: str
    """Words that were told of it."""
    since: datetime
    is_whole: bool = False
    """True if that were all its GPUs."""
    told_at: BootTime = BootTime("", 0.0)


class IdleGpus:
    """Watch over the GPUs of all running jobs."""

    def __init__(self, context: TickContext, announce: Callable[[Event, datetime], None]) -> None:
        self._context = context
        self._announce = announce
        self._spells: dict[AttemptKey, _Spell] = {}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices of the jobs that leave GPUs idle now."""
        return tuple(Notice("information", spell.words, since=spell.since) for spell in self._spells.values())

    def enforce(self, now: datetime, boot: BootTime) -> None:
        """Find idle GPUs, tell of them once, and end the jobs that the settings want to be ended."""
        running = [job for job in self._context.queue.active if job.state is JobState.RUNNING and job.gpus]
        found = {job.id: self._idle_of(job, now) for job in running}
        self._context.idle_since = _by_gpu(running, found)
        keys = {_key(job) for job in running if found[job.id]}
        self._spells = {key: spell for key, spell in self._spells.items() if key in keys}
        stops: dict[JobId, Cause] = {}
        for job in running:
            if idle := found[job.id]:
                spell = self._tell(job, idle, now, boot)
                if self._is_over(job, spell, boot):
                    stops[job.id] = _cause(now - spell.since)
        begin_stops(self._context, stops, now)

    def _idle_of(self, job: Job, now: datetime) -> dict[str, datetime]:
        """Return since when each idle GPU of the job is idle."""
        after = self._context.settings.scheduler.idle_gpus_after.total_seconds()
        if not after:
            return {}
        second, tracks = now.timestamp(), self._context.telemetry.idle_since(job)
        return {
            uuid: datetime.fromtimestamp(used_at, UTC)
            for uuid, (used_at, read_at) in tracks.items()
            if read_at - used_at >= after and second - read_at <= MAX_GAP
        }

    def _tell(self, job: Job, idle: Mapping[str, datetime], now: datetime, boot: BootTime) -> _Spell:
        """Return the spell of the job, told of if it is new, or if it has become one that ends the job."""
        ends_after = self._context.settings.scheduler.idle_gpus_end
        is_whole = len(idle) == len(job.gpus)
        spell = self._spells.get(_key(job))
        is_new = spell is None or (is_whole and not spell.is_whole)
        if spell is None or is_new or spell.is_whole != is_whole:
            words = _words(job, len(idle), ends_after if is_whole else None)
            spell = self._spells[_key(job)] = _Spell(words, max(idle.values()), is_whole, boot)
        if is_new:
            self._announce(gpus_idle(job, spell.words, tuple(idle), spell.since, now), now)
        return spell

    def _is_over(self, job: Job, spell: _Spell, boot: BootTime) -> bool:
        ends_after = self._context.settings.scheduler.idle_gpus_end
        if ends_after is None or not spell.is_whole or job.suspended or spell.told_at.boot != boot.boot:
            return False
        return boot.seconds - spell.told_at.seconds >= ends_after.total_seconds()


def _by_gpu(jobs: list[Job], found: Mapping[JobId, Mapping[str, datetime]]) -> dict[str, datetime]:
    """Return since when each GPU is idle; one that is shared is idle when all its jobs leave it so."""
    idle: dict[str, datetime] = {}
    busy = {uuid for job in jobs for uuid in job.gpus if uuid not in found[job.id]}
    for spans in found.values():
        for uuid, since in spans.items():
            if uuid not in busy:
                idle[uuid] = max(since, idle.get(uuid, since))
    return idle


def _words(job: Job, idle: int, ends_after: timedelta | None) -> str:
    held = len(job.gpus)
    gpus = f"its {plural(held, 'GPU')}" if idle == held else f"{idle} of its {plural(held, 'GPU')}"
    end = f": it is ended if that lasts for another {format_duration(ends_after)}" if ends_after is not None else ""
    name = f" {job.name}" if job.name else ""
    return f"job {job.shown_id}{name} ({job.spec.tenant}) leaves {gpus} idle{end}"


def _cause(idle: timedelta) -> Cause:
    words = f"its GPUs were idle for {format_duration(idle)}: no use, and no change of memory"
    return Cause(CauseCode.TIME_LIMIT, f"{words} (scheduler.idle_gpus_end)")


def _key(job: Job) -> AttemptKey:
    return (job.id, job.attempts[-1].number)
