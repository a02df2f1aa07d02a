"""GPUs that jobs leave idle, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from gputui.domain.attempt import BootTime
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import MAX_GAP
from gputui.domain.units import format_duration, plural

_MINUTE = timedelta(minutes=1)


def idle_gpus(views: Iterable[GpuView], now: datetime) -> Mapping[JobId, str]:
    """Return `idle 45m`, or `2 of 8 idle 45m`, for each job that leaves some of these GPUs idle."""
    held: dict[JobId, list[datetime | None]] = {}
    for view in views:
        for job_id in view.job_ids:
            held.setdefault(job_id, []).append(view.idle_since)
    found = {}
    for job_id, times in held.items():
        if idle := [since for since in times if since is not None]:
            some = "" if len(idle) == len(times) else f"{len(idle)} of {len(times)} "
            found[job_id] = f"{some}{idle_words(now - max(idle))}"
    return found


def idle_words(idle: timedelta) -> str:
    """Return `idle 12m`, in whole minutes: seconds would redraw the line all the time."""
    return f"idle {format_duration(idle // _MINUTE * _MINUTE).removesuffix('00s')}"


def idle_times(tracks: Mapping[str, tuple[float, float]], after: timedelta, now: datetime) -> dict[str, datetime]:
    """Return the time since which each idle GPU of a job has been idle; none if `after` is zero.

    `tracks` has the seconds since the epoch at which each GPU was last used and last read.
    """
    if not after:
        return {}
    least, second = after.total_seconds(), now.timestamp()
    return {
        uuid: datetime.fromtimestamp(used_at, UTC)
        for uuid, (used_at, read_at) in tracks.items()
        if read_at - used_at >= least and second - read_at <= MAX_GAP
    }


def idle_by_gpu(jobs: Iterable[Job], found: Mapping[JobId, Mapping[str, datetime]]) -> dict[str, datetime]:
    """Return the time since which each GPU has been idle; a shared GPU is idle if all its jobs leave it idle."""
    idle: dict[str, datetime] = {}
    busy = {uuid for job in jobs for uuid in job.gpus if uuid not in found[job.id]}
    for spans in found.values():
        for uuid, since in spans.items():
            if uuid not in busy:
                idle[uuid] = max(since, idle.get(uuid, since))
    return idle


def idle_sentence(job: Job, idle: int, ends_after: timedelta | None = None) -> str:
    """Return `job 7 train (lab) leaves 2 of its 8 GPUs idle`, with the time after which that ends it."""
    held = len(job.gpus)
    gpus = f"its {plural(held, 'GPU')}" if idle == held else f"{idle} of its {plural(held, 'GPU')}"
    end = f": it is ended if that lasts for another {format_duration(ends_after)}" if ends_after is not None else ""
    name = f" {job.name}" if job.name else ""
    return f"job {job.shown_id}{name} ({job.spec.tenant}) leaves {gpus} idle{end}"


class IdleSpell(Struct):
    """Period in which a job leaves GPUs idle."""

    words: str
    """Words with which it was reported."""
    gpus: tuple[str, ...]
    since: datetime
    told_at: BootTime
    is_whole: bool = False
    """True if all its GPUs are idle."""


class IdleSpells:
    """Periods in which jobs leave GPUs idle, each told once, and again if it becomes one of all GPUs of the job."""

    def __init__(self, ends_after: timedelta | None, may_end: Callable[[Job], bool] = lambda _: True) -> None:
        """`ends_after` is the time after which a period of all GPUs ends a job that `may_end` allows; None: never."""
        self._ends_after = ends_after
        self._may_end = may_end
        self._spells: dict[tuple[JobId, int], IdleSpell] = {}

    def __iter__(self) -> Iterator[IdleSpell]:
        """Yield the periods that last."""
        return iter(self._spells.values())

    def update(
        self, jobs: Iterable[Job], idle: Mapping[JobId, Mapping[str, datetime]], at: BootTime
    ) -> list[tuple[Job, IdleSpell]]:
        """Take the time since which GPUs of running jobs have been idle; return the periods that are to be told."""
        found: dict[tuple[JobId, int], IdleSpell] = {}
        news = []
        for job in jobs:
            if not (times := idle.get(job.id)):
                continue
            key, is_whole = (job.id, job.attempts[-1].number), len(times) == len(job.gpus)
            spell = self._spells.get(key)
            is_new = spell is None or (is_whole and not spell.is_whole)
            if spell is None or spell.is_whole != is_whole:
                ends_after = self._ends_after if is_whole and self._may_end(job) else None
                words = idle_sentence(job, len(times), ends_after)
                spell = IdleSpell(words, tuple(times), max(times.values()), at, is_whole)
            found[key] = spell
            if is_new:
                news.append((job, spell))
        self._spells = found
        return news

    def causes(self, jobs: Iterable[Job], at: BootTime, now: datetime) -> Mapping[JobId, Cause]:
        """Return the cause for ending each of these jobs whose warning was long enough ago."""
        found = {}
        for job in jobs:
            spell = self._spells.get((job.id, job.attempts[-1].number))
            if spell is not None and not job.suspended and self._may_end(job) and self._is_over(spell, at):
                found[job.id] = idle_cause(now - spell.since)
        return found

    def _is_over(self, spell: IdleSpell, at: BootTime) -> bool:
        if self._ends_after is None or not spell.is_whole or spell.told_at.boot != at.boot:
            return False
        return at.seconds - spell.told_at.seconds >= self._ends_after.total_seconds()


def idle_cause(idle: timedelta) -> Cause:
    """Return the cause of a job that was ended because it left its GPUs idle."""
    words = f"its GPUs were idle for {format_duration(idle)}: no use, and no change of memory"
    return Cause(CauseCode.TIME_LIMIT, f"{words} (scheduler.idle_gpus_end)")
