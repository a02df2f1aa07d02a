"""Conditions: problems and unusual states of the machine and the queue that last, worst first, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from gputui.domain.event import ended
from gputui.domain.host import DOCKER, STATE, DiskUse, HostSample
from gputui.domain.job import Job
from gputui.domain.snapshot import EMPTY, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size, plural
from gputui.tui.keys import keyed
from gputui.tui.present.cells import Cell, Span
from gputui.tui.present.condition import DISK_LOW, FAILED, Condition
from gputui.tui.present.gpu_conditions import gpu_conditions
from gputui.tui.present.gpu_words import ranges
from gputui.tui.present.notices import pressing, standing
from gputui.tui.present.same import Same
from gputui.tui.present.style import AMBER, DIM, PLAIN, RED, SEVERITY_STYLES, VIOLET
from gputui.tui.present.summary import DISK, FULL_SOON

RECENT = timedelta(hours=1)
"""Time for which a failure of a job is shown."""
MOST_FAILURES = 10
"""Failures that are listed singly."""
_FAILED = (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY)
_RANK = {"error": 0, "warning": 1, "information": 2}
_PLACES = ("lost", "sick", "not read", "throttled", DISK_LOW, FAILED, "intruder", "foreign", "capped", "drained")
"""Kinds of one severity in the order in which they are shown; others come first among errors, else last."""
_STYLES = {FAILED: RED, "foreign": VIOLET, "intruder": VIOLET, "drained": AMBER, "capped": AMBER}
_SAID = frozenset({"paused"})
"""Kinds that the status line says elsewhere."""
_NAMED = 2
"""GPUs that are named in the status line; more are counted."""


def conditions(snapshot: Snapshot, now: datetime) -> tuple[Condition, ...]:
    """Return all conditions that last now, worst first."""
    if snapshot is EMPTY:
        return ()
    disks = list(disk_conditions(snapshot))
    others = (*pressing(snapshot, now), *standing(snapshot))
    found = [
        *(_of_notice(notice) for notice in others if not (disks and notice.short == DISK_LOW)),
        *gpu_conditions(snapshot),
        *disks,
        *recent_failures(snapshot, now),
    ]
    return ranked(found)


def ranked(found: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions worst first, each once."""
    return tuple(sorted(dict.fromkeys(found), key=_rank))


def _rank(condition: Condition) -> tuple[int, int]:
    otherwise = -1 if condition.severity == "error" else len(_PLACES)
    place = _PLACES.index(condition.kind) if condition.kind in _PLACES else otherwise
    return _RANK.get(condition.severity, 1), place


def _of_notice(notice: Notice) -> Condition:
    return Condition(notice.severity, notice.text, notice.short, notice.short, since=notice.since)


def disk_conditions(snapshot: Snapshot) -> Iterator[Condition]:
    """Yield the disks that are full, or will be within the hour."""
    for host in [node.host for node in snapshot.nodes if node.host is not None]:
        yield from (_disk(disk, host) for disk in host.disks if disk.used >= DISK.alarm or is_filling(disk))


def is_filling(disk: DiskUse) -> bool:
    """Return whether the disk will be full within the hour."""
    return disk.full_in is not None and disk.full_in < FULL_SOON


def _disk(disk: DiskUse, host: HostSample) -> Condition:
    name = plain(disk.mount, 40)
    soon = f"; full in {format_duration(disk.full_in)} at this rate" if is_filling(disk) else ""
    text = f"disk {name} is {disk.used:.0%} full, {format_size(disk.free)} of {format_size(disk.total)} left{soon}"
    short = f"{name} full in {format_duration(disk.full_in)}" if soon else f"{name} {disk.used:.0%} full"
    holds = {
        STATE: "queue and logs need room",
        DOCKER: "`docker system df` shows what Docker could free",
    }
    todo = "; ".join(holds[role] for role in disk.roles if role in holds)
    return Condition("error" if disk.free == 0 else "warning", text, DISK_LOW, short, subject=disk.mount, todo=todo)


def recent_failures(snapshot: Snapshot, now: datetime) -> Iterator[Condition]:
    """Yield the jobs that failed within the last hour, the latest first."""
    jobs = [job for job in _failed(Same(snapshot.jobs)) if job.ended_at and now - job.ended_at < RECENT]
    jobs.sort(key=lambda job: job.ended_at or now, reverse=True)
    todo = f"{keyed('detail')} on it shows why, {keyed('requeue')} runs it again"
    for job in jobs[:MOST_FAILURES]:
        yield Condition(
            "warning", ended(job).text, FAILED, subject=str(job.id), since=job.ended_at, todo=todo, count=job.count
        )
    if left := sum(job.count for job in jobs[MOST_FAILURES:]):
        text = f"{plural(left, 'other job')} failed in the last hour"
        since = jobs[MOST_FAILURES].ended_at
        yield Condition("warning", text, FAILED, subject="others", since=since, todo=todo, count=left)


@lru_cache(maxsize=1)
def _failed(jobs: Same) -> tuple[Job, ...]:
    """Return the failed jobs of a snapshot; cached, for there may be thousands of others."""
    return tuple(job for job in jobs.jobs if job.state in _FAILED)


def groups(found: Sequence[Condition]) -> list[Cell]:
    """Return short words for the status line, worst first, one entry for conditions of one kind."""
    kinds: dict[tuple[str, str], list[Condition]] = {}
    for condition in found:
        if condition.kind and condition.kind not in _SAID:
            subject = "" if condition.gpu or condition.kind == FAILED else condition.short
            kinds.setdefault((condition.kind, subject), []).append(condition)
    return [(_span(members),) for members in kinds.values()]


def uncounted(found: Iterable[Condition]) -> int:
    """Return the number of warnings that have no words in the status line."""
    return sum(not c.kind and c.severity == "warning" for c in found)


def _span(members: Sequence[Condition]) -> Span:
    first = members[0]
    mark = "✗ " if first.severity == "error" else "! " if first.severity == "warning" else ""
    style = _STYLES.get(first.kind) or SEVERITY_STYLES.get(first.severity, PLAIN)
    return f"{mark}{_group_words(members)}", style


def _group_words(members: Sequence[Condition]) -> str:
    first = members[0]
    if first.kind == FAILED:
        return f"{sum(member.count for member in members)} failed in 1h"
    if not first.gpu:
        return plain(first.short, 60)
    if len(members) > _NAMED:
        return f"{plural(len(members), 'GPU')} {first.kind_words}"
    return f"{'GPU' if len(members) == 1 else 'GPUs'} {ranges([m.gpu for m in members])} {first.kind_words}"


def condition_words(found: Sequence[Condition], most: int = 1000) -> Cell:
    """Return the words of the `most` worst kinds, and how many others there are."""
    entries = groups(found)
    spans: list[Span] = []
    for entry in entries[:most]:
        spans += [("  ", DIM)] if spans else []
        spans += entry
    left = len(entries[most:]) + uncounted(found)
    if not left:
        return tuple(spans)
    return (*spans, ("  ", DIM), (f"+{left}", AMBER)) if spans else ((f"! {plural(left, 'warning')}", AMBER),)
