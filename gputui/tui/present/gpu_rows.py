"""Rows of the GPU grid, built from a snapshot."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.gpu import GpuSample, GpuState, GpuView, ProbeCode
from gputui.domain.gpu_history import NO_PAST, GpuHistory, GpuPast
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Node, Snapshot
from gputui.tui.present.cells import Column, PlacedColumn
from gputui.tui.present.gpu_look import GpuLook
from gputui.tui.present.gpu_words import Labels, model_in, short_model
from gputui.tui.present.reserved import kept_words, reservations_by_gpu


class GpuRow(Struct, frozen=True, dict=True):
    """Row of one GPU."""

    view: GpuView
    job: Job | None = None
    """First job that holds it."""
    past: GpuPast = NO_PAST
    late: timedelta = timedelta(0)
    """Age of the snapshot, which is added to the age of the reading."""
    beside: tuple[Job, ...] = ()
    """Other jobs that share it."""
    kept: str = ""
    """Text about its reservation."""
    label: str = ""
    """Label if there are several nodes; empty: the index."""
    now: datetime | None = None
    look: GpuLook = GpuLook()

    @property
    def is_held(self) -> bool:
        """Return whether jobs hold it."""
        return self.view.job_id is not None or bool(self.view.job_ids)

    @property
    def is_used(self) -> bool:
        """Return whether jobs hold it or others use it."""
        return self.is_held or self.view.state is GpuState.FOREIGN

    @property
    def memory_total(self) -> int | None:
        """Bytes of its memory."""
        return (self.view.sample.memory_total if self.view.sample else None) or self.view.gpu.memory_total

    @cached_property
    def idle(self) -> timedelta | None:
        """Time for which its holder has hardly used it, if that is an alarm."""
        since = None if self.is_old else self.view.idle_since
        return self.now - since if self.now is not None and since is not None else None

    @property
    def is_old(self) -> bool:
        """Return whether the last reading is outdated."""
        return self.view.current is None


class GpuPicture(Struct, frozen=True):
    """Rows of the grid by UUID, in the driver's order."""

    rows: Mapping[str, GpuRow] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    """Columns that are hidden."""
    nodes: tuple[Node, ...] = ()
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
        roomy = {"held": replace(_HELD, width=_HELD.width + MODEL.width - 1)}
        return tuple(roomy.get(column.key, column) for column in columns if column is not MODEL)

    def title_of(self, placed: PlacedColumn) -> str:
        """Return the title of a column; that of the holders says number and model of GPUs that are all alike."""
        title = placed.column.title
        if placed.column.key != "held" or self.nodes or not self.model:  # a node's line says it
            return title
        before = f"{title} · {len(self.rows)}x "
        return before + model_in(self.model, placed.width - len(before))

    @property
    def has_no_probe(self) -> bool:
        """Return whether no node of a cluster is read."""
        return bool(self.nodes) and all(
            node.probe.code in _UNREAD and not any(view.sample for view in node.gpus) for node in self.nodes
        )

    def unread(self) -> frozenset[str]:
        """Return the columns that no GPU has readings for; empty before anything was read."""
        samples = [row.view.sample for row in self.rows.values() if row.view.sample is not None]
        if not samples and self.has_no_probe:
            return self.left_out | _FIELDS.keys()
        if not samples:
            return self.left_out | {"fan"}
        gone = {name for name, fields in _FIELDS.items() if not any(_has(sample, fields) for sample in samples)}
        known_limit = any(row.view.gpu.power_limit is not None for row in self.rows.values())
        return self.left_out | (gone - {"power_limit"} if known_limit else gone)

    def unread_fields(self) -> frozenset[str]:
        """Return the readings that no GPU has; empty before anything was read."""
        samples = [row.view.sample for row in self.rows.values() if row.view.sample is not None]
        names = ("utilization", "memory_used", "power", "temperature") if samples else ()
        return frozenset(name for name in names if not any(_has(sample, (name,)) for sample in samples))


_UNREAD = frozenset({ProbeCode.NO_PROBE, ProbeCode.UNREACHABLE})


def _has(sample: GpuSample, fields: Iterable[str]) -> bool:
    return any(getattr(sample, name) is not None for name in fields)


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
"""Readings used by each column."""


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
    """Return every GPU with its jobs, reservation and past readings."""
    labels = Labels.of(snapshot).by_uuid if len(snapshot.nodes) > 1 else {}
    late = max(now - snapshot.taken_at, now - now)
    kept = reservations_by_gpu(snapshot)

    def row(view: GpuView) -> GpuRow:
        uuid = view.gpu.uuid
        return GpuRow(
            view,
            holder(view, jobs),
            history.past_of(uuid),
            late,
            tuple(jobs[job_id] for job_id in view.job_ids[1:] if job_id in jobs),
            kept_words(kept.get(uuid, ()), now),
            labels.get(uuid, ""),
            now,
            look or GpuLook(),
        )

    nodes = snapshot.nodes if len(snapshot.nodes) > 1 else ()
    return GpuPicture({view.gpu.uuid: row(view) for view in snapshot.gpus}, nodes=nodes)


def holder(view: GpuView, jobs: Mapping[JobId, Job]) -> Job | None:
    """Return the first job on a GPU."""
    return None if view.job_id is None else jobs.get(view.job_id)
