"""Index of a machine's GPUs: bits for GPUs, and requests of jobs as masks of usable GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from gputui.domain.gpu import Gpu, GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.policy.gpus.match import is_named, suitable_gpus
from gputui.domain.policy.gpus.placement import Ask, Grant, NodeLayout, node_layout
from gputui.domain.policy.gpus.sharing import GpuBit, SharedSlots
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Node


class GpuIndex(Struct):
    """The GPUs of all nodes in order of assignment, each with its bit."""

    rows: tuple[tuple[GpuView, ...], ...]
    layouts: tuple[NodeLayout, ...]
    bits: dict[str, tuple[int, int]]
    """Node number and mask of each GPU, by UUID."""
    left_free: tuple[str, ...]
    asks: dict[object, Ask] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node], settings: PolicySettings) -> GpuIndex:
        """Return the index of the nodes' GPUs, except those divided into MIG instances."""
        rows = tuple(_preferred(node.gpus, settings.prefer) for node in nodes)
        bits = {row.gpu.uuid: (number, 1 << bit) for number, node in enumerate(rows) for bit, row in enumerate(node)}
        layouts = tuple(node_layout([row.gpu for row in node]) for node in rows)
        return cls(rows, layouts, bits, settings.left_free)

    def free(self) -> list[int]:
        """Return by node the GPUs that are free."""
        return [self._mask(node, [row.state is GpuState.FREE for row in node]) for node in self.rows]

    def row(self, place: GpuBit) -> GpuView:
        """Return the view of the GPU with that bit."""
        return self.rows[place[0]][place[1].bit_length() - 1]

    def bays(self, settings: Settings) -> list[list[SharedSlots]]:
        """Return the capacity for sharing jobs on each node."""
        policy, floor = settings.policy, settings.scheduler.memory_floor
        return [
            [
                SharedSlots(
                    row.gpu.memory_total or 0, floor, policy.share_jobs if shareable(row.gpu, policy) else 1, row.closed
                )
                for row in node
            ]
            for node in self.rows
        ]

    def counts_with(self, job: Job, place: GpuBit) -> int:
        """Return the bytes of that GPU that a job on it counts with."""
        known = (sharer.memory for sharer in self.row(place).sharers if sharer.job_id == job.id)
        return max(next(known, 0), job.spec.gpus.promised)

    def grant(self, uuids: Iterable[str]) -> Grant:
        """Return those of the GPUs that exist here and that another job may get afterwards."""
        found: dict[int, int] = {}
        for uuid in uuids:
            node, bit = self.bits.get(uuid, (-1, 0))
            if node >= 0 and self.rows[node][bit.bit_length() - 1].drain is None:
                found[node] = found.get(node, 0) | bit
        return tuple(found.items())

    def uuids(self, grant: Grant) -> tuple[str, ...]:
        """Return the UUIDs, in the order of the driver's indices."""
        rows = [row for node, mask in grant for bit, row in enumerate(self.rows[node]) if mask >> bit & 1]
        return tuple(row.gpu.uuid for row in sorted(rows, key=lambda row: row.gpu.index))

    def ask(self, job: Job) -> Ask:
        """Return the ask of a job; the same object for equal requests."""
        request = job.spec.gpus
        key: object = (request.minimum, request.maximum) if is_plain(job) else (request, job.avoid_gpus)
        found = self.asks.get(key)
        if found is None:
            found = self.asks[key] = self._ask(job)
        return found

    def named(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return by node the GPUs with these UUIDs or indices."""
        return tuple(self._mask(node, [is_named(row.gpu, names) for row in node]) for node in self.rows)

    def _ask(self, job: Job) -> Ask:
        request = job.spec.gpus
        eligible = self._eligible(job)
        share = request.promised
        if request.everything:
            whole = max((len(node) for node in self.rows), default=0) or 1
            return Ask(whole, whole, eligible, share=share)
        # waiting for more GPUs than will ever fit is pointless
        most = max((mask.bit_count() for mask in eligible), default=0)
        return Ask(request.minimum, max(request.minimum, min(request.maximum, most)), eligible, share=share)

    def _eligible(self, job: Job) -> tuple[int, ...]:
        """Return the GPUs of each node that the job could ever use.

        GPUs that failed the job are excluded, unless too few others would be left: after a repair it must be able to
        start.
        """
        request = job.spec.gpus
        suiting = tuple(
            self._mask(node, [suits(job, row) and self._given(row.gpu, request) for row in node]) for node in self.rows
        )
        if not job.avoid_gpus:
            return suiting
        preferred = tuple(mask & ~avoided for mask, avoided in zip(suiting, self.named(job.avoid_gpus), strict=True))
        fitting = max((mask.bit_count() for mask in preferred), default=0)
        return preferred if fitting >= max(1, request.minimum) and not request.everything else suiting

    def is_left_free(self, gpu: Gpu) -> bool:
        """Return whether only jobs that name it get it."""
        return is_named(gpu, self.left_free)

    def _given(self, gpu: Gpu, request: GpuRequest) -> bool:
        return bool(request.devices) or not self.is_left_free(gpu)

    def _mask(self, rows: Sequence[GpuView], chosen: Sequence[bool]) -> int:
        return sum(1 << bit for bit in range(len(rows)) if chosen[bit])


def is_plain(job: Job) -> bool:
    """Return whether a job asks only for a number of GPUs, as nearly all do."""
    request = job.spec.gpus
    return not (
        job.avoid_gpus
        or request.devices
        or request.everything
        or request.memory
        or request.model
        or request.free_memory
    )


def _preferred(rows: Iterable[GpuView], prefer: Sequence[str]) -> tuple[GpuView, ...]:
    def place(row: GpuView) -> int:
        return next((number for number, name in enumerate(prefer) if is_named(row.gpu, (name,))), len(prefer))

    return tuple(sorted((row for row in rows if not row.gpu.mig_enabled), key=place))


def shareable(gpu: Gpu, settings: PolicySettings) -> bool:
    """Return whether the site allows jobs to share it."""
    return "all" in settings.share or is_named(gpu, settings.share)


def suits(job: Job, row: GpuView) -> bool:
    """Return whether the job could use this GPU now, with enough free memory for it."""
    wanted = job.spec.gpus.free_memory
    return bool(suitable_gpus(job.spec.gpus, (row.gpu,))) and (wanted is None or _memory_free(row) >= wanted)


def _memory_free(row: GpuView) -> int:
    """Return the free bytes; the total where only our own jobs use it."""
    total = row.gpu.memory_total or 0
    if row.sample is not None and row.sample.memory_free is not None and row.state is not GpuState.ALLOCATED:
        return row.sample.memory_free
    used = row.sample.memory_used if row.sample and row.state is not GpuState.ALLOCATED else 0
    return total - (used or 0)
