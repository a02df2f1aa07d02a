"""GPUs that jobs leave idle, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import GpuState, GpuView, Holder, index_of, index_ranges
from gputui.domain.job import BootTime, Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.domain.telemetry import MAX_GAP
from gputui.domain.text import age_words, format_duration, format_limit, plain, plural


def idle_gpus(views: Iterable[GpuView], now: datetime) -> Mapping[JobId, str]:
    """Return `GPU 2 idle 45m` for each job that leaves some of these GPUs idle."""
    found: dict[JobId, list[GpuView]] = {}
    for view in views:
        for job_id in view.job_ids if view.idle_since is not None else ():
            found.setdefault(job_id, []).append(view)
    words = {}
    for job_id, idle in found.items():
        gpus, since = index_ranges([index_of(view) for view in idle]), max(view.idle_since or now for view in idle)
        words[job_id] = f"GPU {gpus} {idle_words(now - since)}"
    return words


def idle_jobs(snapshot: Snapshot) -> frozenset[JobId]:
    return frozenset(job_id for view in snapshot.gpus if view.idle_since is not None for job_id in view.job_ids)


def idle_words(idle: timedelta) -> str:
    """Return `idle 12m`, in whole minutes: seconds would redraw the line all the time."""
    return f"idle {age_words(idle)}"


class IdleTrack(Struct):
    """Period in which the holders of a GPU hardly use it."""

    users: frozenset[object]
    since: datetime
    read_at: datetime
    busy: float = 0.0
    """Seconds of use: a tenth of the unused time is taken off, so that the mean decides and not single readings."""


_OVER = 10.0
"""Seconds of use that end a period."""


class IdleTracker(Struct, eq=False):
    """Time since which each held GPU has been idle, by the readings that this process has seen.

    The one rule for jobs, foreign processes and containers: utilisation below `console.idle_below` percent for
    `console.idle_after`. A GPU that only a request of a container holds, without memory in use, is not idle but unused.
    """

    _settings: Settings
    _tracks: dict[str, IdleTrack] = field(default_factory=dict)

    def marked(self, nodes: Iterable[Node], jobs: Mapping[JobId, Job], now: datetime) -> tuple[Node, ...]:
        """Return the nodes with idle GPUs marked; marks of a longer time, as telemetry knows it, stay."""
        found, tracks = [], {}
        for node in nodes:
            views = []
            for view in node.gpus:
                running = [
                    job
                    for job_id in view.job_ids
                    if (job := jobs.get(job_id)) is not None
                    and job.state is JobState.RUNNING
                    and not (job.suspended or job.is_suspended)
                ]
                track = self._followed(view, frozenset(job.id for job in running), now)
                if track is not None:
                    tracks[view.gpu.uuid] = track
                    began = max((job.started_at for job in running if job.started_at is not None), default=track.since)
                    since = max(track.since, began)
                    is_longer = view.idle_since is None or view.idle_since > since
                    if view.current is not None and now - since >= self._settings.console.idle_after and is_longer:
                        view = replace(view, idle_since=since)
                views.append(view)
            found.append(replace(node, gpus=tuple(views)))
        self._tracks = tracks
        return tuple(found)

    def _followed(self, view: GpuView, running: frozenset[object], now: datetime) -> IdleTrack | None:
        track, sample = self._tracks.get(view.gpu.uuid), view.current
        if track is not None and (now - track.read_at).total_seconds() > MAX_GAP:
            track = None
        if sample is None or sample.utilization is None:
            return track
        users = running
        if not view.job_ids:  # the foreign processes and containers that keep memory in use
            holds = bool(sample.processes) or (sample.memory_used or 0) > self._settings.scheduler.memory_floor
            if not holds or view.state not in {GpuState.FOREIGN, GpuState.DRAINED}:
                return None
            users = frozenset(holder.container_id or holder.pid for holder in view.holders)
            users = users or frozenset({"unknown"} if view.state is GpuState.FOREIGN else ())
        if not users:
            return None
        is_used = sample.utilization >= self._settings.console.idle_below / 100
        if track is None or track.users.isdisjoint(users):
            return None if is_used else IdleTrack(users, sample.sampled_at, sample.sampled_at)
        passed = max(0.0, (sample.sampled_at - track.read_at).total_seconds())
        track.busy = track.busy + passed if is_used else max(0.0, track.busy - passed / 10)
        track.users, track.read_at = users, sample.sampled_at
        return track if track.busy < _OVER else None


class IdleUse(Struct, frozen=True):
    """A job, process or container that leaves GPUs idle."""

    gpus: tuple[GpuView, ...]
    since: datetime
    """Time since which all of them are idle."""
    job_id: JobId | None = None
    holder: Holder | None = None
    """The foreign holder; None: a job, or an unknown process."""

    @property
    def who(self) -> str:
        """Return `#5`, `pid 22110 root` or `jupyter-carol carol`."""
        if self.job_id is not None:
            return f"#{shown_id(self.job_id)}"
        if self.holder is None:
            return "an unknown process"
        is_process = self.holder.kind == "process" and self.holder.pid is not None
        name = f"pid {self.holder.pid}" if is_process else plain(self.holder.name, 30)
        return f"{name} {plain(self.holder.user, 20)}" if self.holder.user else name

    @property
    def labels(self) -> str:
        return f"{'GPU' if len(self.gpus) == 1 else 'GPUs'} {index_ranges([index_of(view) for view in self.gpus])}"


def idle_uses(snapshot: Snapshot) -> tuple[IdleUse, ...]:
    """Return who leaves GPUs idle, the longest first."""
    found: dict[object, list[GpuView]] = {}
    for view in snapshot.gpus:
        if view.idle_since is None or view.current is None:
            continue
        for job_id in view.job_ids:
            found.setdefault(job_id, []).append(view)
        if not view.job_ids:
            first = next(iter(view.foreign), None)
            found.setdefault(first and (first.kind, first.container_id, first.pid), []).append(view)
    uses = []
    for key, views in found.items():
        held_by = key if isinstance(key, int) else None
        since = max(view.idle_since for view in views if view.idle_since is not None)
        uses.append(
            IdleUse(tuple(views), since, held_by, next(iter(views[0].foreign), None) if held_by is None else None)
        )
    return tuple(sorted(uses, key=lambda use: use.since))


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
    end = f": it is ended if that lasts for another {format_limit(ends_after)}" if ends_after is not None else ""
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


class IdleSpells(Struct, eq=False):
    """Periods in which jobs leave GPUs idle, each told once, and again if it becomes one of all GPUs of the job."""

    _ends_after: timedelta | None
    """Time after which a period of all GPUs ends a job that `_may_end` allows; None: never."""
    _may_end: Callable[[Job], bool] = lambda _: True
    _spells: dict[tuple[JobId, int], IdleSpell] = field(default_factory=dict)

    def __iter__(self) -> Iterator[IdleSpell]:
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
            is_whole = spell is not None and spell.is_whole and spell.told_at.boot == at.boot
            if spell is None or not is_whole or self._ends_after is None or job.suspended or not self._may_end(job):
                continue
            if at.seconds - spell.told_at.seconds >= self._ends_after.total_seconds():
                idle = now - spell.since
                words = f"its GPUs were idle for {format_duration(idle)}: no use, and no change of memory"
                found[job.id] = Cause(CauseCode.TIME_LIMIT, f"{words} (scheduler.idle_gpus_end)")
        return found
