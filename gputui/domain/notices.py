"""Notices of scheduler, runtimes and probe, worst first, each with a remedy; and the one table of conditions.

The table says which condition asks for action, which for a look, and which only tells. Every face reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.cluster import ENGINES
from gputui.domain.gpu import LOST, NOT_READ, SICK, ProbeCode, ProbeStatus
from gputui.domain.snapshot import CONNECTING, EMPTY, Notice, ServerView, Snapshot
from gputui.domain.units import format_duration

_MARK = "\u2063"
"""Invisible mark around a command's name; text that is made plain without a keymap loses it, and shows the name."""
_KEYED = re.compile(f"{_MARK}([a-z_]+){_MARK}")


def keyed(name: str) -> str:
    """Return the placeholder for the key of a command."""
    return f"{_MARK}{name}{_MARK}"


def with_keys(text: str, key: Callable[[str], str]) -> str:
    """Return the text with placeholders replaced by keys."""
    return _KEYED.sub(lambda match: key(match[1]), text) if _MARK in text else text


LATE = timedelta(seconds=10)
"""Age from which a snapshot is called old."""
_RANK = {"error": 0, "warning": 1, "information": 2}


def pressing(snapshot: Snapshot, now: datetime) -> tuple[Notice, ...]:
    """Return notices worth a row of the screen: errors, and anything that stops starts or outdates the snapshot."""
    if snapshot is EMPTY:
        return ()
    if snapshot.servers:
        of_servers = [notice for server in snapshot.servers for notice in _of_server(server, now)]
        return _ranked([*snapshot.notices, *of_servers])
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
                is_named = runtime.text.lower().startswith(runtime.name.lower())
                down_words = runtime.text if is_named else f"{runtime.name} does not answer: {runtime.text}"
                found.append(Notice("error", down_words, short=f"{runtime.name} down", since=runtime.since))
            found += [Notice("warning", f"{runtime.name}: {warning}") for warning in runtime.all_warnings]
    return found


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


ERROR, WARNING, INFORMATION = "error", "warning", "information"
"""Act now (red, `✗`), look (amber, `!`), and know (no mark)."""
THROTTLED, CAPPED = "throttled", "capped"
DISK_FULL, DISK_LOW = "disk full", "disk low"
TRESPASS, INTRUDER, IDLE, FOREIGN = "trespass", "intruder", "idle", "foreign"
MEMORY, HOT, SWAP, LOAD = "memory", "hot", "swap", "load"
FAILED, DRAINED = "failed", "drained"


class ConditionKind(Struct, frozen=True):
    """A kind of condition."""

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
    """Return the severity of a kind of condition."""
    return KINDS[kind].severity


def slowed_kind(*, is_fault: bool) -> str:
    """Return the kind of a GPU that the driver slows down: for a fault, or for a limit that somebody set."""
    return THROTTLED if is_fault else CAPPED


def place_of(severity: str, kind: str) -> int:
    """Return the place among conditions of one severity: others come first among errors, else last."""
    return _PLACES.get(kind, -1 if severity == ERROR else len(_PLACES))
