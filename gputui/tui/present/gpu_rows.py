"""GPUs as the console shows them: rows of a snapshot, their texts, look, judgement and arrangement on the screen."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from math import fsum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from gputui.domain.conditions import CAPPED, ERROR, HOT, IDLE, MEMORY, THROTTLED, WARNING, severity_of, slowed_kind
from gputui.domain.gpu import CAP, GpuSample, GpuState, GpuView, Holder, ProbeCode, ProbeStatus, index_of, index_ranges
from gputui.domain.gpu_history import NO_PAST, GpuHistory, GpuPast
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot, kept_words, reservations_by_gpu
from gputui.domain.text import UNKNOWN, age_words, format_limit, format_size, plain, plural
from gputui.tui.preferences import Preferences
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GRAPH,
    GREEN,
    LIGHT_GREEN,
    RED,
    TRACK,
    Cell,
    Column,
    PlacedColumn,
    block_bar,
    cell,
)


def running_words(job: Job, now: datetime) -> str:
    """Return `2h14m / 8h`, to the minute: seconds would redraw every GPU's line all the time."""
    if job.started_at is None:
        return "starting"
    return age_words(now - job.started_at) + (f" / {format_limit(job.spec.time_limit)}" if job.spec.time_limit else "")


def elapsed_words(job: Job, now: datetime) -> str:
    """Return `2h14m`, or `2h14m/8h` with the limit."""
    return running_words(job, now).replace(" / ", "/")


def elapsed_share(job: Job, now: datetime) -> float | None:
    if job.started_at is None or not job.spec.time_limit:
        return None
    return (now - job.started_at) / job.spec.time_limit


_INTERPRETER = re.compile(r"(python|pypy|ipython|bash|dash|sh|perl|ruby|node|Rscript|julia)[\d.]*")


def program_words(command: str) -> str:
    """Return a command without what many have in common: `train.py --lr 1` of `/opt/bin/python3 -u train.py --lr 1`."""
    program, *rest = command.split()[:100] or [""]
    program = program.rpartition("/")[2] or program
    if _INTERPRETER.fullmatch(program):
        at = next((n for n, word in enumerate(rest) if not word.startswith("-") or word == "-c"), None)
        if at is not None and rest[at] != "-c":
            program, rest = rest[at].rpartition("/")[2] or rest[at], rest[at + 1 :]
    return " ".join([program, *rest])


def foreign_words(view: GpuView, holder: Holder, now: datetime | None = None) -> str:
    """Return details beyond name and kind: `for 6h, image jupyter:7, pid 22110 python train.py, 31G, container f0…`."""
    its = holder.container_id
    listed = (view.sample.processes or ()) if view.sample else ()  # of a container, its first one
    known = (each for each in listed if each.pid == holder.pid or (its is not None and each.container_id == its))
    process = next(known, None)
    pid, memory, container, command, user = holder.pid, holder.memory, its, None, None
    if process is not None:
        pid = process.pid if pid is None else pid
        memory = process.memory if memory is None else memory
        container, command = container or process.container_id, process.command
        user = None if holder.user else process.user
    is_process = holder.kind == "process"  # its name is the command, and its pid is shown beside it
    parts = [f"pid {pid}"] if pid is not None and not is_process else []
    parts += [plain(command, 60)] if command and not (is_process and command == holder.name) else []
    words = [f"for {age_words(now - holder.since)}" if now and holder.since else ""]
    words += [f"image {plain(holder.image, 100)}" if holder.image else "", " ".join(parts)]
    words += [format_size(memory) if memory else "", f"user {plain(user, 32)}" if user else ""]
    words.append(f"container {short_container(container)}" if container else "")
    return ", ".join(word for word in words if word)


def short_container(container: str) -> str:
    """Return the first twelve digits of a container id, as engines show it; a name unchanged."""
    return container[:12] if re.fullmatch("[0-9a-f]{64}", container) else plain(container, 40)


@lru_cache(maxsize=256)
def short_model(model: str | None) -> str:
    """Return `H100 80GB HBM3` of `NVIDIA H100 80GB HBM3`."""
    vendor = r"^(NVIDIA|Tesla|GeForce|Quadro)\s+"
    return re.sub(vendor, "", plain(model, 60), flags=re.IGNORECASE) if model else UNKNOWN


def model_in(model: str, room: int) -> str:
    """Return as many whole words as fit, at least one: `H100` in 7 cells, `H100 80GB` in 9."""
    words = [part for part in re.split(r"(?=[ -])", model) if part]
    while len(words) > 1 and sum(map(len, words)) > room:
        words.pop()
    return "".join(words)


class Labels(Struct, frozen=True):
    """Labels of GPUs: the index, with the node if there are several."""

    by_uuid: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Labels:
        labels = {}
        for node in snapshot.nodes:
            before = f"{plain(node.name, 12)}:" if len(snapshot.nodes) > 1 else ""
            labels.update({view.gpu.uuid: before + index_of(view) for view in node.gpus})
        return cls(labels)

    @property
    def width(self) -> int:
        return max((len(label) for label in self.by_uuid.values()), default=1)

    def of_all(self, uuids: Iterable[str]) -> str:
        """Return `GPU 0-3`, `GPU node1:0-3 node2:1`, `no GPU`; GPUs that are no longer listed are counted: `2 GPUs`."""
        by_node: dict[str, list[str]] = {}
        unlisted = 0
        for uuid in uuids:
            if uuid not in self.by_uuid:
                unlisted += 1
                continue
            node, _, index = self.by_uuid[uuid].rpartition(":")
            by_node.setdefault(node, []).append(index)
        parts = [(f"{node}:" if node else "") + index_ranges(indices) for node, indices in by_node.items()]
        words = [f"GPU {' '.join(parts)}"] if parts else []
        if unlisted:
            words.append(f"{unlisted} more" if words else plural(unlisted, "GPU"))
        return " and ".join(words) or "no GPU"


SPANS = {"live": 0, "10m": 600, "1h": 3600}
"""Seconds over the whole width of a graph, by name; 0: two per cell."""
COLOURS = {"judgement": "busy green, idle amber", "intensity": "the more the redder"}
_SECTION = "gpus"


class GpuLook(Struct, frozen=True):
    """Choices of the user, and thresholds from the settings."""

    rules: ConsoleSettings = ConsoleSettings()
    span: str = "live"
    colours: str = "judgement"

    @property
    def seconds(self) -> int:
        """Seconds over the width of a graph; 0: two per cell."""
        return SPANS[self.span]

    @property
    def span_words(self) -> str:
        return {"live": "2 seconds a cell", "10m": "10 minutes across", "1h": "1 hour across"}[self.span]


class GpuRow(Struct, frozen=True, dict=True):
    view: GpuView
    job: Job | None = None
    """First job that holds it."""
    past: GpuPast = NO_PAST
    late: timedelta = timedelta(0)
    """Age of the snapshot, which is added to the age of the reading."""
    beside: tuple[Job, ...] = ()
    kept: str = ""
    label: str = ""
    """Label if there are several nodes; empty: the index."""
    now: datetime | None = None
    look: GpuLook = GpuLook()

    @property
    def is_held(self) -> bool:
        return self.view.job_id is not None or bool(self.view.job_ids)

    @property
    def is_used(self) -> bool:
        return self.is_held or self.view.state is GpuState.FOREIGN

    def reading(self, name: str) -> Any:
        return getattr(self.view.sample, name) if self.view.sample is not None else None

    @property
    def memory_total(self) -> int | None:
        return self.reading("memory_total") or self.view.gpu.memory_total

    @cached_property
    def idle(self) -> timedelta | None:
        """Time for which its holder has hardly used it, if that is an alarm."""
        since = None if self.is_old else self.view.idle_since
        return self.now - since if self.now is not None and since is not None else None

    @property
    def is_old(self) -> bool:
        return self.view.current is None


class GpuNode(Struct, frozen=True, dict=True):
    name: str
    rows: tuple[GpuRow, ...] = ()
    probe: ProbeStatus = ProbeStatus()

    @property
    def key(self) -> str:
        """Key of its line in the grid, among the UUIDs of GPUs."""
        return f"node {self.name}"

    @property
    def is_unread(self) -> bool:
        return self.probe.code is not ProbeCode.OK and not any(row.view.sample for row in self.rows)

    @cached_property
    def free(self) -> int:
        return sum(row.view.state is GpuState.FREE for row in self.rows)

    @cached_property
    def load(self) -> float | None:
        loads = (row.view.current.utilization for row in self.rows if row.view.current is not None)
        found = [load for load in loads if load is not None]
        return fsum(found) / len(found) if found else None

    @cached_property
    def late(self) -> timedelta | None:
        ages = [row.view.age + row.late for row in self.rows if row.view.stale and row.view.age is not None]
        return min(ages) if ages and len(ages) == len(self.rows) else None


class GpuPicture(Struct, frozen=True):
    rows: Mapping[str, GpuRow] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    nodes: tuple[GpuNode, ...] = ()
    """The nodes, if there are several."""

    @property
    def model(self) -> str:
        """Return the model if all GPUs are alike; empty if they are not, or if some are divided into instances."""
        gpus = [row.view.gpu for row in self.rows.values()]
        models = {"" if gpu.mig_enabled or gpu.mig_profile else gpu.model or "" for gpu in gpus}
        model = models.pop() if len(models) == 1 else ""
        return short_model(model) if model else ""

    def columns(self, left_out: Container[str] = ()) -> tuple[Column, ...]:
        """Return the columns of the table: a title has the model if all GPUs are alike."""
        columns = (column for column in GPU_COLUMNS if column.key not in left_out)
        if not self.model:
            return tuple(columns)
        roomy = replace(_HELD, width=_HELD.width + MODEL.width - 1)
        return tuple(roomy if column is _HELD else column for column in columns if column is not MODEL)

    def title_of(self, placed: PlacedColumn) -> str:
        """Return the title of a column; that of the holders says number and model of GPUs that are all alike."""
        title = placed.column.title
        if placed.column.key != "held" or self.nodes or not self.model:  # a node's line says it
            return title
        before = f"{title} · {len(self.rows)}x "
        return before + model_in(self.model, placed.width - len(before))

    @property
    def has_no_probe(self) -> bool:
        missing = {ProbeCode.NO_PROBE, ProbeCode.UNREACHABLE}
        return bool(self.nodes) and all(node.is_unread and node.probe.code in missing for node in self.nodes)

    def unread(self) -> frozenset[str]:
        """Return the columns that no GPU has readings for; empty before anything was read."""
        samples = [row.view.sample for row in self.rows.values() if row.view.sample is not None]
        if not samples and self.has_no_probe:
            return self.left_out | _FIELDS.keys() | {"uuid"}
        if not samples:
            return self.left_out | {"fan"}
        gone = {
            column
            for column, names in _FIELDS.items()
            if all(getattr(sample, name) is None for sample in samples for name in names)
        }
        known_limit = any(row.view.gpu.power_limit is not None for row in self.rows.values())
        return self.left_out | (gone - {"power_limit"} if known_limit else gone)

    def unread_fields(self) -> frozenset[str]:
        is_read = any(row.view.sample is not None for row in self.rows.values())
        names = JUDGED if is_read else ()
        return frozenset(name for name in names if all(row.reading(name) is None for row in self.rows.values()))


_FIELDS = {
    "history": ("utilization", "memory_used"),
    "load": ("utilization",),
    "percent": ("utilization",),
    "memory_bar": ("memory_used",),
    "memory": ("memory_used", "memory_total"),
    "temperature": ("temperature",),
    "power": ("power",),
    "power_limit": ("power_limit",),
    "clock": ("sm_clock",),
    "fan": ("fan",),
}
MODEL = Column("model", "MODEL", 5, flex=1, rank=4, most=16)
_HELD = Column("held", "HELD BY", 24, flex=5, most=44)
GPU_COLUMNS = (
    Column("index", "GPU", 3, right=True),
    MODEL,
    Column("load", "UTIL", 7, flex=3, rank=1, most=24),
    Column("percent", "", 4, right=True),
    Column("memory_bar", "MEM", 6, flex=2, rank=2, most=16),
    Column("memory", "", 7, right=True),
    Column("power", "PWR", 4, right=True),
    Column("power_limit", "LIMIT", 5, right=True, rank=8),
    Column("temperature", "°C", 3, right=True),
    Column("clock", "CLOCK", 7, right=True, rank=7),
    Column("fan", "FAN", 4, right=True, rank=10),
    Column("history", "HISTORY", 16, flex=3, rank=5, most=60),
    _HELD,
    Column("time", "TIME", 6, right=True, rank=3),
    Column("time_bar", "OF LIMIT", 10, rank=6),
    Column("uuid", "UUID", 12, rank=11),
)


def gpu_picture(
    snapshot: Snapshot, jobs: Mapping[JobId, Job], history: GpuHistory, now: datetime, look: GpuLook | None = None
) -> GpuPicture:
    labels = Labels.of(snapshot).by_uuid if len(snapshot.nodes) > 1 else {}
    late = max(now - snapshot.taken_at, timedelta(0))
    kept = reservations_by_gpu(snapshot)
    rows = {
        view.gpu.uuid: GpuRow(
            view,
            holder(view, jobs),
            history.past_of(view.gpu.uuid),
            late,
            tuple(jobs[job_id] for job_id in view.job_ids[1:] if job_id in jobs),
            kept_words(kept.get(view.gpu.uuid, ()), now),
            labels.get(view.gpu.uuid, ""),
            now,
            look or GpuLook(),
        )
        for view in snapshot.gpus
    }
    nodes = snapshot.nodes if len(snapshot.nodes) > 1 else ()
    shown = (GpuNode(node.name, tuple(rows[view.gpu.uuid] for view in node.gpus), node.probe) for node in nodes)
    return GpuPicture(rows, nodes=tuple(shown))


class GpuPictures:
    """The GPUs of a console's snapshots, with their past and in the look that the user chose, else the settings'."""

    def __init__(
        self, rules: ConsoleSettings, preferences: Preferences, history: GpuHistory, *, has_graphs: bool = True
    ) -> None:
        self._preferences, self._history = preferences, history
        self._left_out: frozenset[str] = frozenset() if has_graphs else frozenset({"history"})
        chosen = preferences.get(_SECTION)
        span, colours = chosen.get("span"), chosen.get("colours")
        self.look = GpuLook(
            rules,
            span if isinstance(span, str) and span in SPANS else "live",
            colours if isinstance(colours, str) and colours in COLOURS else rules.gpu_colours,
        )

    def turn(self, *, span: bool = False, colours: bool = False) -> None:
        spans, known, look = tuple(SPANS), tuple(COLOURS), self.look
        if span:
            look = replace(look, span=spans[(spans.index(look.span) + 1) % len(spans)])
        if colours:
            look = replace(look, colours=known[1 - known.index(look.colours)])
        self.look = look
        self._preferences.put(_SECTION, {"span": look.span, "colours": look.colours})

    def of(self, snapshot: Snapshot, jobs: Mapping[JobId, Job], now: datetime) -> GpuPicture:
        picture = gpu_picture(snapshot, jobs, self._history, now, self.look_for(snapshot))
        return replace(picture, left_out=self._left_out)

    def look_for(self, snapshot: Snapshot) -> GpuLook:
        """Return the user's chosen look; while no GPU is in use, live graphs show up to an hour instead.

        That is the longest span of which half is recorded, so that no graph is empty.
        """
        look, in_use = self.look, {GpuState.ALLOCATED, GpuState.FOREIGN}
        if look.seconds or any(
            view.job_ids or view.job_id is not None or view.state in in_use for view in snapshot.gpus
        ):
            return look
        recorded = self._history.recorded.total_seconds()
        return replace(look, span=[name for name, seconds in SPANS.items() if seconds <= 2 * recorded][-1])


def holder(view: GpuView, jobs: Mapping[JobId, Job]) -> Job | None:
    return None if view.job_id is None else jobs.get(view.job_id)


BRAKE = "power brake"
HOTTEST = 100.0


class Tone(Struct, frozen=True):
    """Judgement on a reading: its colour, and a mark for users who do not see colours."""

    style: Style
    mark: str = " "

    @property
    def is_loud(self) -> bool:
        return self.mark != " "


WATCH, ALARM = "!", "✗"
QUIET = Tone(DIM)
_TONES = {ERROR: Tone(RED, ALARM), WARNING: Tone(AMBER, WATCH)}


def tone_of_kind(kind: str) -> Tone:
    return _TONES.get(severity_of(kind), QUIET)


def tone_of(row: GpuRow, name: str, share: float | None) -> Tone:
    """Return the judgement on a reading of that name; `share` is relative to its maximum, None if that is unknown."""
    if row.is_old:
        return QUIET
    reasons = row.reading("slowed") or ()
    if name == "power" and (BRAKE in reasons or CAP in reasons):
        return tone_of_kind(THROTTLED if BRAKE in reasons else CAPPED)
    if name == "temperature" and any(reason not in {BRAKE, CAP} for reason in reasons):
        return tone_of_kind(THROTTLED)
    if share is None:
        return QUIET
    if row.look.colours != "intensity":
        return _judged(row, name, share) if row.is_used else QUIET
    if name == "temperature":
        return judged if (judged := _judged(row, name, share)).is_loud else Tone(GREEN)
    rules = row.look.rules
    high, heavy = (rules.load_moderate, rules.load_heavy)
    if name == "memory_used":
        high, heavy = (rules.memory_moderate, rules.memory_heavy)
    percent = 100 * share
    return Tone(RED if percent >= heavy else AMBER if percent >= high else GREEN)


def _judged(row: GpuRow, name: str, share: float) -> Tone:
    rules = row.look.rules
    if name == "utilization":
        usual = Tone(GREEN if share >= 0.5 else LIGHT_GREEN)  # utilisation from which green is bright
        return usual if row.idle is None else tone_of_kind(IDLE)
    if name == "memory_used":
        least, total = rules.memory_high / 100, row.memory_total or 0
        is_high = row.past.holds_from(name, least * total) if total else None
        return tone_of_kind(MEMORY) if (share >= least if is_high is None else is_high) else Tone(BLUE)
    if name == "temperature":
        limit = rules.temperature_high
        is_high = row.past.holds_from(name, limit)
        return tone_of_kind(HOT) if (HOTTEST * share >= limit if is_high is None else is_high) else Tone(GRAPH)
    return Tone(GRAPH)  # power has no alarm: a well-used GPU is at its limit


JUDGED = frozenset({"utilization", "memory_used", "power", "temperature"})


def slowed_cell(sample: GpuSample | None, most: int = 100) -> Cell:
    """Return `slowed: too hot`, red for a fault and amber for a limit that was set; empty if it is not slowed."""
    if sample is None or not sample.slowed:
        return ()
    reasons = plain(", ".join(sample.slowed), most)
    style = tone_of_kind(slowed_kind(is_fault=sample.has_slowing_fault)).style
    return cell(f"slowed: {reasons}" if reasons else "", style)


def charted(row: GpuRow) -> str:
    """Return the reading whose history represents the GPU: utilisation, or memory of a MIG instance."""
    has_load = row.view.sample is None or row.view.sample.utilization is not None
    return "utilization" if has_load else "memory_used"


def graph_style(row: GpuRow) -> Style:
    if row.is_old or not row.is_used:
        return DIM
    return AMBER if row.idle is not None else LIGHT_GREEN


def history_style(row: GpuRow, name: str) -> Style:
    """Return the colour of a reading's history; only the load's has the GPU's state."""
    return graph_style(row) if name == "utilization" or row.is_old else tone(row, name).style


def share_of(row: GpuRow, name: str) -> float | None:
    value = row.reading(name)
    if name == "temperature":
        return None if value is None else value / HOTTEST
    most = most_of(row, name)
    return None if value is None or not most else value / most


def power_limit_of(row: GpuRow) -> float | None:
    return row.reading("power_limit") or row.view.gpu.power_limit


def most_of(row: GpuRow, name: str) -> float:
    if name == "memory_used":
        return float(row.memory_total or 0)
    if name == "power":
        return power_limit_of(row) or max((value or 0 for value in row.past.values("power")), default=0.0)
    return HOTTEST if name == "temperature" else 1.0


def tone(row: GpuRow, name: str) -> Tone:
    return tone_of(row, name, share_of(row, name))


def gauge(row: GpuRow, name: str, room: int) -> Cell:
    share = share_of(row, name)
    if share is None or row.is_old:
        return cell(" " * room, DIM)
    is_idle = name == "utilization" and row.idle is not None
    return block_bar(share, room, AMBER if is_idle else tone(row, name).style, is_hatched=is_idle)


def progress_bar(share: float, room: int) -> Cell:
    filled = round(min(1.0, max(0.0, share)) * room)
    return (("━" * filled, BLUE if share <= 1 else AMBER), ("─" * (room - filled), TRACK))
