"""Notices of scheduler, runtimes and probe, worst first, each with a remedy."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.cluster import ENGINES
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import ProbeCode, ProbeStatus
from gputui.domain.keyed import keyed
from gputui.domain.snapshot import CONNECTING, EMPTY, Notice, ServerView, Snapshot
from gputui.domain.units import format_duration

LATE = timedelta(seconds=10)
"""Age from which a snapshot is called old."""
_RANK = {"error": 0, "warning": 1, "information": 2}


def pressing(snapshot: Snapshot, now: datetime) -> tuple[Notice, ...]:
    """Return notices worth a row of the screen: errors, and anything that stops starts or outdates the snapshot."""
    if snapshot is EMPTY:
        return ()
    if snapshot.servers:
        return _ranked([notice for server in snapshot.servers for notice in _of_server(server, now)])
    errors = [notice for notice in _lasting(snapshot) if notice.severity == "error"]
    return _ranked([*_old_picture(snapshot, now), *_paused(snapshot), *errors])


def standing(snapshot: Snapshot) -> tuple[Notice, ...]:
    """Return notices that may last for days and need no action now: the status line counts them."""
    if snapshot is EMPTY:
        return ()
    if snapshot.servers:
        answering = [server for server in snapshot.servers if not server.problem]
        return _ranked([_named(server, notice) for server in answering for notice in standing(server.snapshot)])
    return _ranked([notice for notice in _lasting(snapshot) if notice.severity != "error"])


def _of_server(server: ServerView, now: datetime) -> list[Notice]:
    """Return the pressing notices of one of several servers; of one that does not answer only that."""
    if server.problem == CONNECTING:
        return [Notice("information", f"{server.name}: connecting")]
    if server.problem:
        short = f"{server.name} silent"
        return [Notice("error", f"{server.name} does not answer: {server.problem}", short=short, since=server.seen_at)]
    return [_named(server, notice) for notice in pressing(server.snapshot, now)]


def _named(server: ServerView, notice: Notice) -> Notice:
    """Return a server's notice with its name."""
    short = f"{server.name}: {notice.short}" if notice.short else ""
    return replace(notice, text=f"{server.name}: {notice.text}", short=short)


def _ranked(found: list[Notice]) -> tuple[Notice, ...]:
    return tuple(sorted(dict.fromkeys(found), key=lambda notice: _RANK.get(notice.severity, 1)))


def _lasting(snapshot: Snapshot) -> list[Notice]:
    return [*_scheduling(snapshot), *_runtimes(snapshot), *_probe(snapshot), *snapshot.notices]


def _old_picture(snapshot: Snapshot, now: datetime) -> list[Notice]:
    late = now - snapshot.taken_at
    if late < LATE:
        return []
    text = f"this view is {format_duration(late)} old: no news from the scheduler since"
    return [Notice("warning", text, short="old view", since=snapshot.taken_at)]


def _paused(snapshot: Snapshot) -> list[Notice]:
    controls = snapshot.controls
    if not controls.paused:
        return []
    why = f': "{controls.pause_reason}"' if controls.pause_reason else ""
    by = f" by {controls.paused_by}" if controls.paused_by else ""
    text = f"paused{by}{why}. Running jobs continue; no new starts ({keyed('unpause')} resumes)"
    return [Notice("warning", text, short="paused", since=controls.paused_at)]


def _scheduling(snapshot: Snapshot) -> list[Notice]:
    leader = snapshot.leader
    if snapshot.leads_here:
        return []
    if leader is None:
        return [Notice("error", "no scheduler runs, so nothing starts: run `gputui serve`")]
    if leader.silent_for:
        return []  # the snapshot's own notices tell it
    if engine := ENGINES.get(leader.kind):
        return [Notice("information", f"{engine} schedules; its controller is {leader.host}")]
    kind = "gputui serve" if leader.kind == "serve" else "another console"
    where = f"{kind} (pid {leader.pid}, {leader.user}@{leader.host})"
    return [Notice("information", f"{where} is the scheduler; every command here works as usual")]


def _runtimes(snapshot: Snapshot) -> list[Notice]:
    found = []
    for node in snapshot.nodes:
        for runtime in node.runtimes:
            if runtime.asked and not runtime.up:
                found.append(Notice("error", _down_words(runtime), short=f"{runtime.name} down", since=runtime.since))
            found += [Notice("warning", f"{runtime.name}: {warning}") for warning in runtime.all_warnings]
    return found


def _down_words(runtime: RuntimeStatus) -> str:
    """Return the runtime's own sentence, if it names the runtime."""
    is_named = runtime.text.lower().startswith(runtime.name.lower())
    return runtime.text if is_named else f"{runtime.name} does not answer: {runtime.text}"


_HARMLESS = frozenset({ProbeCode.OK, ProbeCode.STARTING, ProbeCode.NO_PROBE})
_HUNG = frozenset({ProbeCode.WEDGED, ProbeCode.WEDGED_AT_START})


def _probe(snapshot: Snapshot) -> list[Notice]:
    """Return notices of failing probes, if GPUs are listed or the driver hangs; otherwise a text replaces the grid.

    Nodes of a cluster have one condition for all: the cluster starts jobs on them all the same.
    """
    if snapshot.engine_decides:
        return []
    return [
        Notice("error", f"GPUs are not read: {node.probe.text}", short=_probe_words(node.probe), since=node.probe.since)
        for node in snapshot.nodes
        if node.probe.code in _HUNG or (node.gpus and node.probe.code not in _HARMLESS)
    ]


def _probe_words(status: ProbeStatus) -> str:
    return "driver hung" if status.code in _HUNG else "GPUs not read"
