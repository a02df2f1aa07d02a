"""Notices of scheduler, runtimes and probe; conditions: lasting problems and unusual states of machine and queue.

Both worst first, with remedies. One table says which condition asks for action, which for a look, and which only tells;
every face reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.cluster import ENGINES
from gputui.domain.event import ended
from gputui.domain.gpu import (
    ALMOST_FULL,
    DOCKER,
    FULL_SOON,
    LOST,
    NOT_READ,
    SICK,
    STATE,
    DiskUse,
    Drain,
    GpuState,
    GpuView,
    Holder,
    ProbeCode,
    fault_of,
    index_of,
    index_ranges,
)
from gputui.domain.gpu_history import Steady
from gputui.domain.idle_gpus import idle_uses, idle_words
from gputui.domain.job import Job
from gputui.domain.job_spec import shown_id
from gputui.domain.snapshot import CONNECTING, EMPTY, Node, Notice, ServerView, Snapshot
from gputui.domain.text import format_duration, format_size, plain, plural

_MARK = "\u2063"
"""Invisible mark around a command's name; text that is made plain without a keymap loses it, and shows the name."""
_KEYED = re.compile(f"{_MARK}([a-z_]+){_MARK}")


def keyed(name: str) -> str:
    return f"{_MARK}{name}{_MARK}"


def with_keys(text: str, key: Callable[[str], str]) -> str:
    return _KEYED.sub(lambda match: key(match[1]), text) if _MARK in text else text


LATE = timedelta(seconds=10)
"""Age from which a snapshot is called old."""
_RANK = {"error": 0, "warning": 1, "information": 2}


def pressing(snapshot: Snapshot, now: datetime) -> tuple[Notice, ...]:
    """Return notices worth a row of the screen: errors, and anything that stops starts or outdates the snapshot.

    Of a server that does not answer only that.
    """
    if snapshot is EMPTY:
        return ()
    if snapshot.servers:
        found = list(snapshot.notices)
        for server in snapshot.servers:
            if server.problem == CONNECTING:
                found.append(Notice("information", f"{server.name}: connecting"))
            elif server.problem:
                text, short = f"{server.name} does not answer: {server.problem}", f"{server.name} silent"
                found.append(Notice("error", text, short=short, since=server.seen_at))
            else:
                found += [_named(server, notice) for notice in pressing(server.snapshot, now)]
        return _ranked(found)
    found = [notice for notice in _lasting(snapshot) if notice.severity == "error"]
    if (late := now - snapshot.taken_at) >= LATE:
        text = f"this view is {format_duration(late)} old: no news from the scheduler since"
        found.insert(0, Notice("warning", text, short="old view", since=snapshot.taken_at))
    if (controls := snapshot.controls).paused:
        why = f': "{controls.pause_reason}"' if controls.pause_reason else ""
        by = f" by {controls.paused_by}" if controls.paused_by else ""
        text = f"paused{by}{why}. Running jobs continue; no new starts ({keyed('unpause')} resumes)"
        found.append(Notice("warning", text, short="paused", since=controls.paused_at))
    return _ranked(found)


def standing(snapshot: Snapshot) -> tuple[Notice, ...]:
    """Return notices that may last for days and need no action now: the status line counts them."""
    if snapshot is EMPTY:
        return ()
    if snapshot.servers:
        answering = [server for server in snapshot.servers if not server.problem]
        return _ranked([_named(server, notice) for server in answering for notice in standing(server.snapshot)])
    return _ranked([notice for notice in _lasting(snapshot) if notice.severity != "error"])


def _named(server: ServerView, notice: Notice) -> Notice:
    short = f"{server.name}: {notice.short}" if notice.short else ""
    return replace(notice, text=f"{server.name}: {notice.text}", short=short)


def _ranked(found: list[Notice]) -> tuple[Notice, ...]:
    return tuple(sorted(dict.fromkeys(found), key=lambda notice: _RANK.get(notice.severity, 1)))


def _lasting(snapshot: Snapshot) -> list[Notice]:
    found = []
    leader = snapshot.leader
    if leader is None and not snapshot.leads_here:
        found.append(Notice("error", "no scheduler runs, so nothing starts: run `gputui serve`"))
    elif leader is not None and not snapshot.leads_here and not leader.silent_for:  # else own notices tell it
        if engine := ENGINES.get(leader.kind):
            text = f"{engine} schedules; its controller is {leader.host}"
        else:
            kind = "gputui serve" if leader.kind == "serve" else "another console"
            where = f"{kind} (pid {leader.pid}, {leader.user}@{leader.host})"
            text = f"{where} is the scheduler; every command here works as usual"
        found.append(Notice("information", text))
    for runtime in (runtime for node in snapshot.nodes for runtime in node.runtimes):
        if runtime.asked and not runtime.up:
            short = runtime.short or f"{runtime.name} down"
            found.append(Notice("error", runtime.text, short=short, since=runtime.since))
        found += [Notice("warning", f"{runtime.name}: {warning}") for warning in runtime.all_warnings]
    # nodes of a cluster have one condition for all: the cluster starts jobs on them all the same
    for node in () if snapshot.engine_decides else snapshot.nodes:
        is_hung = node.probe.code in _HUNG
        if is_hung or (node.gpus and node.probe.code not in _HARMLESS):  # without GPUs a text replaces the grid
            short = "driver hung" if is_hung else "GPUs not read"
            found.append(Notice("error", f"GPUs are not read: {node.probe.text}", short=short, since=node.probe.since))
    return [*found, *snapshot.notices]


_HARMLESS = frozenset({ProbeCode.OK, ProbeCode.STARTING, ProbeCode.NO_PROBE})
_HUNG = frozenset({ProbeCode.WEDGED, ProbeCode.WEDGED_AT_START})


ERROR, WARNING, INFORMATION = "error", "warning", "information"
"""Act now (red, `✗`), look (amber, `!`), and know (no mark)."""
THROTTLED, CAPPED = "throttled", "capped"
DISK_FULL, DISK_LOW = "disk full", "disk low"
TRESPASS, INTRUDER, IDLE, FOREIGN = "trespass", "intruder", "idle", "foreign"
MEMORY, HOT, SWAP, LOAD = "memory", "hot", "swap", "load"
FAILED, DRAINED = "failed", "drained"


class ConditionKind(Struct, frozen=True):
    severity: str
    words: str = ""
    """Words after the names of GPUs; empty: the name of the kind."""
    short: str = ""
    """The same where room is short; empty: the name of the kind."""
    fluctuates: bool = False
    """True if it follows readings that come and go, so that it is told only while it holds. Others are told at once:
    they last by nature, or their source tells them only while they hold."""


KINDS: Mapping[str, ConditionKind] = {
    LOST: ConditionKind(ERROR),
    SICK: ConditionKind(ERROR),
    THROTTLED: ConditionKind(ERROR),
    DISK_FULL: ConditionKind(ERROR),
    NOT_READ: ConditionKind(WARNING, fluctuates=True),
    DISK_LOW: ConditionKind(WARNING, fluctuates=True),
    TRESPASS: ConditionKind(WARNING, "used by a job that does not hold it", "used unheld", fluctuates=True),
    INTRUDER: ConditionKind(WARNING, "shared with a foreign process", "shared", fluctuates=True),
    IDLE: ConditionKind(WARNING, fluctuates=True),
    CAPPED: ConditionKind(WARNING),
    FAILED: ConditionKind(WARNING),
    MEMORY: ConditionKind(WARNING, fluctuates=True),
    HOT: ConditionKind(WARNING, fluctuates=True),
    SWAP: ConditionKind(WARNING, fluctuates=True),
    LOAD: ConditionKind(WARNING, fluctuates=True),
    FOREIGN: ConditionKind(INFORMATION, "in foreign use", fluctuates=True),
    DRAINED: ConditionKind(INFORMATION),
}
"""Worst first. Notices of scheduler, runtimes and probe bring a severity of their own; nobody scheduling is an error.

Memory, heat, swap and load are marked at their figures only: they are no alarms of the status line.
"""
_PLACES = {kind: place for place, kind in enumerate(KINDS)}


def severity_of(kind: str) -> str:
    return KINDS[kind].severity


def slowed_kind(*, is_fault: bool) -> str:
    return THROTTLED if is_fault else CAPPED


def place_of(severity: str, kind: str) -> int:
    """Return the place among conditions of one severity: others come first among errors, else last."""
    return _PLACES.get(kind, -1 if severity == ERROR else len(_PLACES))


class Same(Struct, eq=False):
    """Compares tuples of jobs by identity: comparing ten thousand jobs would cost more than recomputing."""

    jobs: tuple[Job, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.jobs is other.jobs

    def __hash__(self) -> int:
        return id(self.jobs)


class Condition(Struct, frozen=True):
    """Problem or unusual state that lasts until its reason is gone."""

    severity: str
    """Severity of a notice: `error`, `warning` or `information`."""
    text: str
    kind: str = ""
    """Kind of condition, such as `lost`; empty: not shown in the status line."""
    short: str = ""
    """Text for the status line; empty: derived from kind and GPU."""
    subject: str = ""
    """Subject, with a name that stays the same while the condition lasts."""
    since: datetime | None = None
    """Time since which it lasts; None: unknown."""
    is_seen: bool = False
    """True if `since` is the time at which this console first saw it."""
    todo: str = ""
    """Command or key that helps."""
    gpu: str = ""
    """Displayed index of the GPU; empty: it concerns no GPU."""
    count: int = 1
    """Number of jobs that it represents."""
    place: tuple[str, str] = ("", "")
    """Where to look: a kind, `job`, `process`, `container` or `gpu`, and its id, pid or UUID; empty: nowhere."""

    @property
    def key(self) -> tuple[str, str]:
        """Identity by which it is recognised in the next snapshot: figures in its text may change."""
        return self.kind, self.subject or self.gpu or ("" if self.kind else self.text)

    @property
    def fluctuates(self) -> bool:
        return self.kind in KINDS and KINDS[self.kind].fluctuates


RECENT = timedelta(hours=1)
"""Time for which a failed job is shown."""
_MOST_IDLE = 2
"""Maximum number of holders of idle GPUs that the status line names."""
_FULL = 0.995
"""Used share of a disk that is full: as a percentage, 100."""
MOST_FAILURES = 10
"""Maximum number of failures that are listed singly."""


Acknowledged: TypeAlias = Callable[[Job], bool]
"""Returns whether the operator knows of the failure of a job."""


def conditions(
    snapshot: Snapshot, now: datetime, is_acknowledged: Acknowledged = lambda job: False
) -> tuple[Condition, ...]:
    """Return all conditions that last now, worst first, without failures that are acknowledged."""
    if snapshot is EMPTY:
        return ()
    disks = [
        _disk(disk, kind)
        for node in snapshot.nodes
        if node.host is not None
        for disk in node.host.disks
        if (kind := disk_kind(disk))
    ]
    notices = (*pressing(snapshot, now), *standing(snapshot))
    return ranked(
        [
            *(
                Condition(each.severity, each.text, each.short, each.short, since=each.since)
                for each in notices
                if not (disks and each.short == DISK_LOW)
            ),
            *gpu_conditions(snapshot),
            *idle_conditions(snapshot, now),
            *disks,
            *recent_failures(snapshot, now, is_acknowledged),
        ]
    )


def _disk(disk: DiskUse, kind: str) -> Condition:
    name = plain(disk.mount, 40)
    soon = f"; full in {format_duration(disk.full_in)} at this rate" if is_filling(disk) else ""
    text = f"disk {name} is {disk.used:.0%} full, {format_size(disk.free)} of {format_size(disk.total)} left{soon}"
    short = f"{name} full in {format_duration(disk.full_in)}" if soon else f"{name} {disk.used:.0%} full"
    holds = {STATE: "queue and logs need room", DOCKER: "`docker system df` shows what Docker could free"}
    todo = "; ".join(holds[role] for role in disk.roles if role in holds)
    return Condition(severity_of(kind), text, kind, short, subject=disk.mount, todo=todo)


def ranked(found: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions worst first, each once."""
    return tuple(
        sorted(dict.fromkeys(found), key=lambda each: (_RANK.get(each.severity, 1), place_of(each.severity, each.kind)))
    )


def is_filling(disk: DiskUse) -> bool:
    return disk.full_in is not None and disk.full_in < FULL_SOON


def disk_kind(disk: DiskUse) -> str:
    """Return the kind of the condition of a disk; empty: it has room."""
    if disk.free == 0 or disk.used >= _FULL:
        return DISK_FULL
    return DISK_LOW if disk.used >= ALMOST_FULL or is_filling(disk) else ""


def idle_conditions(snapshot: Snapshot, now: datetime) -> Iterator[Condition]:
    """Yield who leaves GPUs idle, the longest first; all have one text for the status line."""
    uses = idle_uses(snapshot)
    if not uses:
        return
    gpus = {view.gpu.uuid: view for use in uses for view in use.gpus}
    who = ", ".join(use.who for use in uses[:_MOST_IDLE]) + (f" +{len(uses) - _MOST_IDLE}" if uses[_MOST_IDLE:] else "")
    count = uses[0].labels if len(gpus) == 1 else f"{len(gpus)} GPUs"
    short = f"{count} {idle_words(now - uses[0].since)}: {who}"
    for use in uses:
        holder, place = use.holder, ("gpu", use.gpus[0].gpu.uuid)
        what = f" leaves {use.labels} idle" if holder is None else f" holds {use.labels} idle"
        job = snapshot.job(use.job_id) if use.job_id is not None else None
        if use.job_id is not None:
            place = "job", str(use.job_id)
        elif holder is not None and holder.pid is not None:
            place = "process", str(holder.pid)
        elif holder is not None and holder.container_id is not None:
            place = "container", holder.container_id
        yield Condition(
            severity_of(IDLE),
            f"job {use.who} {plain(job.name, 60)} ({plain(job.spec.tenant, 40)}){what}" if job else use.who + what,
            IDLE,
            short,
            subject=f"{use.job_id} {holder.container_id or holder.pid if holder else ''}",
            since=use.since,
            todo=f"{keyed('alarm')} goes there",
            place=place,
        )


def recent_failures(snapshot: Snapshot, now: datetime, is_acknowledged: Acknowledged) -> Iterator[Condition]:
    """Yield the jobs that failed within the last hour, the latest first."""
    recent = (job for job in _failed(Same(snapshot.jobs)) if job.ended_at and now - job.ended_at < RECENT)
    jobs = sorted((j for j in recent if not is_acknowledged(j)), key=lambda job: job.ended_at or now, reverse=True)
    severity, todo = severity_of(FAILED), f"{keyed('detail')} on it shows why, {keyed('requeue')} runs it again"
    for job in jobs[:MOST_FAILURES]:
        text, since = ended(job).text, job.ended_at
        yield Condition(severity, text, FAILED, subject=str(job.id), since=since, todo=todo, count=job.count)
    if left := sum(job.count for job in jobs[MOST_FAILURES:]):
        text = f"{plural(left, 'other job')} failed in the last hour"
        since = jobs[MOST_FAILURES].ended_at
        yield Condition(severity, text, FAILED, subject="others", since=since, todo=todo, count=left)


@lru_cache(maxsize=1)
def _failed(jobs: Same) -> tuple[Job, ...]:
    """Return the failed jobs of a snapshot; cached, for there may be thousands of others."""
    return tuple(job for job in jobs.jobs if job.state.is_failure)


class ConditionTracker(Struct, eq=False):
    _first: dict[tuple[str, str], datetime | None] = field(default_factory=dict)
    """Time at which each was first seen; None: it existed when the console was opened."""
    _has_begun: bool = False
    _steady: Steady[tuple[str, str]] = field(default_factory=Steady)
    is_acknowledged: Acknowledged = lambda job: False
    shown: tuple[Condition, ...] = ()
    """Present conditions, worst first, with their start as far as known."""

    def look(self, snapshot: Snapshot, now: datetime) -> tuple[Condition, ...]:
        """Track the conditions of a snapshot, and return the shown ones. Before the first one nothing is known."""
        return self.shown if snapshot is EMPTY else self.update(conditions(snapshot, now, self.is_acknowledged), now)

    def update(self, found: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
        """Track the given conditions, and return the shown ones; one that is just over has its last words."""
        present = ranked(found)
        loose = [each for each in present if each.fluctuates]
        began = {each.key: each.since for each in loose if each.since}
        held = self._steady.update((each.key for each in loose), now, began)
        keys = {each.key for each in present}
        over = [each for each in self.shown if each.key in held and each.key not in keys]
        begun = now if self._has_begun else None
        self._first = {each.key: self._first.get(each.key, begun) for each in (*present, *over)}
        self._has_begun = True
        kept = (each for each in present if not each.fluctuates or each.key in held)
        dated = (each if each.since else replace(each, since=self._first[each.key], is_seen=True) for each in kept)
        self.shown = ranked([*dated, *over])
        return self.shown


_MOST_NODES = 4
"""Maximum number of nodes that are named."""


def gpu_conditions(snapshot: Snapshot) -> list[Condition]:
    found: list[Condition] = []
    for node in snapshot.nodes:
        name = plain(node.name, 40)
        where = f" of {name}" if len(snapshot.nodes) > 1 else ""
        found += [_broken(view, where, snapshot) for view in node.gpus if fault_of(view) in {LOST, SICK}]
        found += _not_read(node, where, snapshot)
        for view in node.gpus:
            found += [*_slowed(view, where), *_foreign(view, where, is_engines=snapshot.engine_decides)]
        drains = [view.drain for view in node.gpus]
        if where and drains and len(set(drains)) == 1 and (drain := drains[0]) is not None:
            todo = f"`gputui resume {name}` ends that"
            text, short = f"node {name} is drained {_drain_words(drain)}", f"{name} drained"
            found.append(Condition(severity_of(DRAINED), text, DRAINED, short, node.name, drain.at, todo=todo))
            continue
        for view in node.gpus:
            if (drain := view.drain) is not None:
                todo, text = f"`gputui resume {index_of(view)}` ends that", f"is drained {_drain_words(drain)}"
                found.append(_of_gpu(DRAINED, view, where, text, todo, drain.at))
    return [*found, *_unread_nodes(snapshot)]


def _of_gpu(kind: str, view: GpuView, where: str, text: str, todo: str, since: datetime | None = None) -> Condition:
    index, node = index_of(view), where.removeprefix(" of ")
    is_numbered = view.gpu.index >= 0
    name = index if is_numbered else plain(view.gpu.uuid, 12)
    label = f"{node}:{index}" if node else index
    if kind in {LOST, SICK} and not is_numbered:
        label = name
    text = f"GPU {name}{where} {text}"
    return Condition(severity_of(kind), text, kind, subject=view.gpu.uuid, since=since, todo=todo, gpu=label)


def _broken(view: GpuView, where: str, snapshot: Snapshot) -> Condition:
    fault, record = fault_of(view), snapshot.controls.faults.get(view.gpu.uuid)
    text = plain(view.health.reason, 300) or str(view.health.code)
    todo = f"after a reset `gputui resume {index_of(view)}` gives it jobs again" if view.is_stopped_by_xid else ""
    takes_none = " and takes no job"
    if snapshot.engine_decides:
        todo = f"`gputui drain {where.removeprefix(' of ') or 'NODE'}` keeps jobs off its node"
        takes_none = ""
    held, ids = "", view.job_ids or (() if view.job_id is None else (view.job_id,))
    if ids:
        numbers = ", ".join(map(shown_id, ids))
        held = f" (job {numbers} still holds it)" if len(ids) == 1 else f" (jobs {numbers} still hold it)"
    todo = todo or "`gputui doctor` checks the driver"
    return _of_gpu(fault, view, where, f"is {fault}{takes_none}{held}: {text}", todo, record.at if record else None)


def _not_read(node: Node, where: str, snapshot: Snapshot) -> Iterable[Condition]:
    """Return nothing while the probe itself reports why no GPU is read."""
    stale = [view for view in node.gpus if fault_of(view) == NOT_READ]
    if not stale or node.probe.code is not ProbeCode.OK:
        return
    oldest = max((view.age or timedelta(0) for view in stale), default=timedelta(0))
    since = f" for {format_duration(oldest)}" if oldest else ""
    names = index_ranges([index_of(view) for view in stale])
    kind = "GPU" if len(stale) == 1 else "GPUs"
    takes_none = "" if snapshot.engine_decides else f" and {'takes' if len(stale) == 1 else 'take'} no job"
    yield Condition(
        severity_of(NOT_READ),
        f"{kind} {names}{where} could not be read{since}{takes_none}",
        NOT_READ,
        f"{kind} {names} not read",
        subject=where,
        since=snapshot.taken_at - oldest if oldest else None,
        todo="`gputui doctor` checks the driver",
    )


def _unread_nodes(snapshot: Snapshot) -> Iterator[Condition]:
    """Yield that probes of a cluster's nodes read nothing; a node on which none is wanted is not a problem."""
    unread = [node for node in snapshot.nodes if node.gpus and node.probe.code not in _HARMLESS]
    if not unread or not snapshot.engine_decides:
        return
    first = unread[0]
    names = ", ".join(plain(node.name, 40) for node in unread[:_MOST_NODES])
    more = f" and {len(unread) - _MOST_NODES} more" if len(unread) > _MOST_NODES else ""
    subject = f"node {names}" if len(unread) == 1 else f"nodes {names}{more}"
    why = plain(first.probe.text.removeprefix("no readings: "), 200)
    yield Condition(
        severity_of(NOT_READ),
        f"{subject} not read: {why}" if len(unread) == 1 else f"{subject} not read; {plain(first.name, 40)}: {why}",
        NOT_READ,
        f"node {names} not read" if len(unread) == 1 else f"{plural(len(unread), 'node')} not read",
        subject="nodes",
        todo="`gputui doctor` says why",
    )


def _slowed(view: GpuView, where: str) -> Iterator[Condition]:
    sample = view.current
    if sample is None or not sample.slowed:
        return
    is_fault = sample.has_slowing_fault
    power = f" at {sample.power:.0f} of {sample.power_limit:.0f} W" if sample.power and sample.power_limit else ""
    usual = f", {view.gpu.default_power_limit:.0f} W by default" if power and view.gpu.default_power_limit else ""
    heat = f" at {sample.temperature:.0f} °C" if sample.temperature is not None and is_fault else ""
    text = f"is slowed by the driver: {plain(', '.join(sample.slowed), 100)}{heat or power + usual}"
    todo = (
        "check cooling and power supply" if is_fault else f"`nvidia-smi -i {index_of(view)} -pl WATTS` sets the limit"
    )
    yield _of_gpu(slowed_kind(is_fault=is_fault), view, where, text, todo)


def _foreign(view: GpuView, where: str, *, is_engines: bool) -> Iterator[Condition]:
    """Yield that a foreign process or container uses the GPU, or a job that does not hold it."""
    is_held = view.state is GpuState.ALLOCATED
    if view.state is not GpuState.FOREIGN and not (is_held and view.foreign):
        return
    who = ", ".join(map(_who, view.foreign)) or plain(view.why, 200) or "an unknown process"
    instead = "; it takes no job" if not is_engines else ", although nobody was given it"
    text = f"is used by {who}{f' beside job {shown_id(view.job_id or 0)}' if is_held else instead}"
    if view.trespassers:
        ends = f"`gputui cancel {shown_id(view.trespassers[0])}` ends it"
        yield _of_gpu(TRESPASS, view, where, text, f"a job must keep the CUDA_VISIBLE_DEVICES that it is given; {ends}")
    else:
        todo = "" if is_engines else f"{keyed('gpu_processes')} shows its processes and ends them"
        yield _of_gpu(INTRUDER if is_held else FOREIGN, view, where, text, todo)


def _who(holder: Holder) -> str:
    user = f" of {plain(holder.user, 40)}" if holder.user else ""
    image = f", image {plain(holder.image, 60)}" if holder.image else ""
    pid = f" (pid {holder.pid})" if holder.pid is not None and holder.kind == "process" else ""
    kind = "" if holder.job_id is not None else f"{holder.kind} "
    return f"{kind}{plain(holder.name, 60)}{pid}{user}{image}"


def _drain_words(drain: Drain) -> str:
    reason = f": {plain(drain.reason, 200)}" if drain.reason else ""
    return f"by {plain(drain.by, 40)} and takes no new job{reason}"
