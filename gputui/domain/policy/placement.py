"""GPUs as bits: free GPUs of each node, requests, and the choice of GPUs that belong together.

Bit i of a node's mask is its i-th GPU in order of assignment. The same code decides for the scheduler, the forecast and
the replay, so it is optimised for speed.

Every job on a GPU that several jobs share asked to share. Each counts with its promised memory, or with its actual use
if that is more: so a job that has not allocated memory yet takes none from others, and none is taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from gputui.domain.gpu import LOST, SICK, Gpu, GpuState, GpuView, fault_of
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId
from gputui.domain.policy.availability import AWAITED
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Node
from gputui.domain.text import format_size, plural


def suitable_gpus(request: GpuRequest, gpus: Iterable[Gpu]) -> list[Gpu]:
    return [
        gpu
        for gpu in gpus
        if (request.model is None or request.model.lower() in (gpu.model or "").lower())
        and (request.memory is None or (gpu.memory_total or 0) >= request.memory)
        and (not request.devices or is_named(gpu, request.devices))
        and not gpu.mig_enabled
    ]


def shortage(request: GpuRequest, gpus: Sequence[Gpu]) -> str:
    """Return why the request can never be met by these GPUs; empty when it can, or when no GPU is known."""
    if not gpus or not request.minimum or request.everything:
        return ""
    fitting = len(suitable_gpus(request, gpus))
    if fitting >= request.minimum:
        return ""
    here = sum(not gpu.mig_enabled for gpu in gpus)
    if not here:
        return f"asks for {plural(request.minimum, 'GPU')}, but all here are in MIG mode without instances"
    words = [f"of model {request.model}"] if request.model else []
    words += [f"with {format_size(request.memory)}"] if request.memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    wants = " ".join([plural(request.minimum, "GPU"), *words])
    if not words:
        return f"asks for {wants}, this server has {here}"
    return f"asks for {wants}, {fitting or 'none'} of {here} here {'is' if fitting < 2 else 'are'} suitable"


def is_named(gpu: Gpu, names: Sequence[str]) -> bool:
    """Return whether one of the names means this GPU.

    Its UUID, at least eight characters of its beginning, or its index.
    """
    if any(gpu.uuid == name or (len(name) >= 8 and gpu.uuid.startswith(name)) for name in names):
        return True
    return gpu.mig_parent is None and str(gpu.index) in names


Grant: TypeAlias = tuple[tuple[int, int], ...]
"""GPUs that a job gets: pairs of a node's number and a mask of its GPUs."""
GpuGroups: TypeAlias = tuple[int, ...]
"""Masks that divide a node's GPUs into groups."""


class Ask(Struct, frozen=True, eq=False):
    """Request of a job as masks. Jobs with equal requests share one Ask."""

    minimum: int
    maximum: int
    eligible: tuple[int, ...]
    """GPUs by node that it could ever use."""
    whole_nodes: int = 0
    """Number of whole nodes, for a request wider than a node."""
    share: int = 0
    """Bytes of each GPU for a job that shares; 0: it gets the GPUs to itself."""


class NodeLayout(Struct, frozen=True):
    """Fixed properties of a node: its GPUs and their connections."""

    everything: int
    """Mask of all its GPUs."""
    levels: tuple[GpuGroups, ...] = ()
    """Groups by NVLink clique, NUMA node and PCIe switch, the most important first."""


def choose(usable: Sequence[int], ask: Ask, need: int, most: int, layouts: Sequence[NodeLayout]) -> Grant | None:
    """Choose `need` to `most` GPUs of one node, or whole nodes; None when they are not available.

    Prefers the node that gives the most, then the one with the fewest GPUs left over.
    """
    if ask.whole_nodes:
        whole = [(node, mask) for node, mask in enumerate(usable) if mask and mask == layouts[node].everything]
        return tuple(whole[: ask.whole_nodes]) if len(whole) >= ask.whole_nodes else None
    best, best_key = -1, (0, 0)
    for node, mask in enumerate(usable):
        count = mask.bit_count()
        if count >= need:
            key = (-count if count < most else -most, count)
            if best < 0 or key < best_key:
                best, best_key = node, key
    if best < 0:
        return None
    width = -best_key[0]
    return ((best, pick(usable[best], width, layouts[best].levels)),)


def pick(free: int, width: int, levels: Sequence[GpuGroups]) -> int:
    """Return `width` of the free GPUs: the best connected ones, splitting as few connected groups as possible."""
    for number, level in enumerate(levels):
        if free.bit_count() == width:
            return free
        parts = [group & free for group in level if group & free]
        holding = [part for part in parts if part.bit_count() >= width]
        if not holding:
            return _spread(free, parts, width, levels[number:])
        free = min(holding, key=lambda part: (part.bit_count(), part & -part))
    return lowest(free, width)


def _spread(free: int, parts: Sequence[int], width: int, levels: Sequence[GpuGroups]) -> int:
    """Choose more GPUs than any group has: whole groups first, the largest first, the rest by best fit."""
    taken = 0
    for part in sorted(parts, key=lambda part: (-part.bit_count(), part & -part)):
        if taken.bit_count() + part.bit_count() <= width:
            taken |= part
    left = width - taken.bit_count()
    return taken | pick(free & ~taken, left, levels) if left else taken


def lowest(mask: int, width: int) -> int:
    taken = 0
    for _ in range(width):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken


def size(grant: Grant) -> int:
    return sum(mask.bit_count() for _, mask in grant)


NVLINK = "NVLINK"
_SWITCH = frozenset({NVLINK, "PIX", "PXB"})
"""Link kinds that do not pass the host bridge."""


def node_layout(gpus: Sequence[Gpu]) -> NodeLayout:
    """Return the layout of the node's GPUs, with the groupings that distinguish some of them."""
    everything, by_numa = (1 << len(gpus)) - 1, dict[int | None, int]()
    if len(gpus) < 3:
        return NodeLayout(everything)
    for number, gpu in enumerate(gpus):
        by_numa[gpu.numa_node] = by_numa.get(gpu.numa_node, 0) | 1 << number
    levels = (
        cliques(gpus, lambda kind: kind == NVLINK),
        tuple(by_numa.values()),
        cliques(gpus, lambda kind: kind in _SWITCH),
    )
    return NodeLayout(everything, tuple(level for level in levels if 1 < len(level) < len(gpus)))


def cliques(gpus: Sequence[Gpu], joins: Callable[[str], bool]) -> GpuGroups:
    """Return groups in which every GPU reaches every other one by such a link, built in the GPUs' order."""
    bit = {gpu.uuid: 1 << number for number, gpu in enumerate(gpus)}
    reach = [sum({bit[link.peer] for link in gpu.links if joins(link.kind) and link.peer in bit}) for gpu in gpus]
    groups, left = [], (1 << len(gpus)) - 1
    while left:
        group, common = 0, left
        while common:
            first = common & -common
            group |= first
            common &= reach[first.bit_length() - 1] & ~group
        groups.append(group)
        left &= ~group
    return tuple(groups)


GpuBit: TypeAlias = tuple[int, int]
"""GPU as a node's number and the bit of the GPU there."""
Uses: TypeAlias = tuple[tuple[JobId, int], ...]
"""Bytes that each job on a GPU counts with."""


class SharedSlots(NamedTuple):
    """Capacity of a GPU for jobs that share it."""

    total: int
    """Total memory in bytes."""
    floor: int
    """Bytes that are never promised to a second job."""
    most: int
    """Maximum number of jobs; 1 if the site does not allow sharing it."""
    closed: str = ""
    """Reason why no further job may join now, even if there is room; empty when one may."""


class SharedGpus(Struct, eq=False):
    """The GPUs that jobs share now, and their remaining room."""

    bays: Sequence[Sequence[SharedSlots]] = ()
    uses: dict[GpuBit, Uses] = field(default_factory=dict)

    def copy(self) -> SharedGpus:
        return SharedGpus(self.bays, self.uses.copy())

    def bay(self, place: GpuBit) -> SharedSlots:
        return self.bays[place[0]][place[1].bit_length() - 1]

    def left(self, place: GpuBit) -> int:
        """Return the bytes that a further job may ask for on the shared GPU; 0 if none may join."""
        bay, uses = self.bay(place), self.uses.get(place, ())
        if bay.closed or len(uses) >= bay.most:
            return 0
        return max(0, bay.total - bay.floor - sum(size for _, size in uses))

    @property
    def is_open(self) -> bool:
        return any(self.left(place) for place in self.uses)

    def take(self, job_id: JobId, place: GpuBit, size: int) -> None:
        self.uses[place] = (*self.uses.get(place, ()), (job_id, size))

    def give(self, job_id: JobId, grant: Grant) -> Iterator[GpuBit]:
        """Remove a job; yield those of its GPUs that no other job holds."""
        for place in gpu_bits(grant):
            rest = tuple(use for use in self.uses.pop(place, ()) if use[0] != job_id)
            if rest:
                self.uses[place] = rest
            else:
                yield place

    def part(self, ask: Ask, grant: Grant) -> float:
        """Return the share of each GPU that such a job is charged for.

        Its part of the memory or of the slots, whichever is larger.
        """
        if not ask.share or not grant:
            return 1.0
        bays = [self.bay(place) for place in gpu_bits(grant)]
        return sum(min(1.0, max(1 / bay.most, ask.share / max(1, bay.total))) for bay in bays) / len(bays)


class PromisedRoom(Struct, eq=False):
    """Room on GPUs beside a job to which memory on one of them is promised."""

    _promised: int
    _shares: SharedGpus
    """Sharing as it will be once the promise is fulfilled, without that job."""

    def fitting(self, node: int, mask: int, share: int) -> int:
        """Return those of these GPUs that have room for both that job and one that asks for `share` bytes."""
        shares = self._shares
        return sum(
            place[1]
            for place in gpu_bits(((node, mask),))
            if len(shares.uses.get(place, ())) + 2 <= shares.bay(place).most
            and shares.left(place) >= self._promised + share
        )

    def take(self, node: int, mask: int, share: int) -> int:
        """Record that a job with `share` bytes got these GPUs; return those with room left for the promised job."""
        beside = self.fitting(node, mask, share)
        for place in gpu_bits(((node, beside),)):
            self._shares.take(_ANYBODY, place, share)
        return beside


_ANYBODY: JobId = -1


def gpu_bits(grant: Grant) -> Iterator[GpuBit]:
    for node, mask in grant:
        while mask:
            bit = mask & -mask
            yield node, bit
            mask ^= bit


def usable_gpus(free: Sequence[int], shares: SharedGpus, ask: Ask) -> list[int]:
    """Return the GPUs that such a job could use now, by node: free ones, and those with room if it shares."""
    masks = list(free)
    if ask.share:
        for place in shares.uses:
            if shares.left(place) >= ask.share:
                masks[place[0]] |= place[1]
    return [mask & able for mask, able in zip(masks, ask.eligible, strict=True)]


def choose_shared(
    masks: Sequence[int], shares: SharedGpus, ask: Ask, need: int, most: int, layouts: Sequence[NodeLayout]
) -> Grant | None:
    """Choose GPUs as `choose` does; for a job that shares, prefer the GPUs that it fills most."""
    if not ask.share or ask.whole_nodes:
        return choose(masks, ask, need, most, layouts)
    fits = [_packed(node, mask, shares, min(mask.bit_count(), most), layouts) for node, mask in enumerate(masks)]
    fitting = [fit for node, fit in enumerate(fits) if masks[node].bit_count() >= need]
    return min(fitting).grant if fitting else None


class _Fit(NamedTuple):
    """Choice on one node; sorts the best first."""

    fewer: int
    tier: tuple[int, int]
    node: int
    grant: Grant


def _packed(node: int, mask: int, shares: SharedGpus, width: int, layouts: Sequence[NodeLayout]) -> _Fit:
    tiers: dict[tuple[int, int], int] = {}
    for place in gpu_bits(((node, mask),)):
        # shared ones with the least memory left first, then free shareable ones, then the rest
        key = (0, shares.left(place)) if place in shares.uses else (1 if shares.bay(place).most > 1 else 2, 0)
        tiers[key] = tiers.get(key, 0) | place[1]
    taken, worst = 0, (0, 0)
    for worst in sorted(tiers):
        left = width - taken.bit_count()
        taken |= tiers[worst] if tiers[worst].bit_count() <= left else pick(tiers[worst], left, layouts[node].levels)
        if taken.bit_count() == width:
            break
    return _Fit(-width, worst, node, ((node, taken),))


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
        prefer = settings.prefer

        def place(row: GpuView) -> int:
            return next((number for number, name in enumerate(prefer) if is_named(row.gpu, (name,))), len(prefer))

        rows = tuple(tuple(sorted((row for row in node.gpus if not row.gpu.mig_enabled), key=place)) for node in nodes)
        bits = {row.gpu.uuid: (number, 1 << bit) for number, node in enumerate(rows) for bit, row in enumerate(node)}
        layouts = tuple(node_layout([row.gpu for row in node]) for node in rows)
        return cls(rows, layouts, bits, settings.left_free)

    def row(self, place: GpuBit) -> GpuView:
        return self.rows[place[0]][place[1].bit_length() - 1]

    def bays(self, settings: Settings) -> list[list[SharedSlots]]:
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

    def grant(self, uuids: Iterable[str]) -> Grant:
        """Return those of the GPUs that exist here and that another job may get afterwards."""
        found: dict[int, int] = {}
        for uuid in uuids:
            node, bit = self.bits.get(uuid, (-1, 0))
            if node < 0:
                continue
            row = self.row((node, bit))
            if row.drain is None and fault_of(row) not in {LOST, SICK}:
                found[node] = found.get(node, 0) | bit
        return tuple(found.items())

    def known(self) -> tuple[int, ...]:
        """Return the GPUs that are read and sound, by node: each of them is free once no job holds it."""
        return gpu_masks(self, _is_known)

    def is_known(self, grant: Grant) -> bool:
        return all(_is_known(self.row(place)) for place in gpu_bits(grant))

    def uuids(self, grant: Grant) -> tuple[str, ...]:
        """Return the UUIDs, in the order of the driver's indices."""
        rows = [row for node, mask in grant for bit, row in enumerate(self.rows[node]) if mask >> bit & 1]
        return tuple(row.gpu.uuid for row in sorted(rows, key=lambda row: row.gpu.index))

    def ask(self, job: Job) -> Ask:
        """Return the ask of a job; the same object for equal requests."""
        request = job.spec.gpus
        key: object = (request.minimum, request.maximum) if is_plain(job) else (request, job.avoid_gpus)
        found = self.asks.get(key)
        if found is not None:
            return found
        eligible = gpu_masks(
            self, lambda row: suits(job, row) and (bool(request.devices) or not self.is_left_free(row.gpu))
        )
        if job.avoid_gpus and not request.everything:
            # not those that failed it, unless too few others would be left: after a repair it must be able to start
            others = tuple(mask & ~bad for mask, bad in zip(eligible, self.named(job.avoid_gpus), strict=True))
            if max((mask.bit_count() for mask in others), default=0) >= max(1, request.minimum):
                eligible = others
        # waiting for more GPUs than will ever fit is pointless
        fitting = max((mask.bit_count() for mask in eligible), default=0)
        least, most = request.minimum, max(request.minimum, min(request.maximum, fitting))
        if request.everything:
            least = most = max(map(len, self.rows), default=0) or 1
        found = self.asks[key] = Ask(least, most, eligible, share=request.promised)
        return found

    def named(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return by node the GPUs with these UUIDs or indices."""
        return gpu_masks(self, lambda row: is_named(row.gpu, names))

    def is_left_free(self, gpu: Gpu) -> bool:
        return is_named(gpu, self.left_free)


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


def shareable(gpu: Gpu, settings: PolicySettings) -> bool:
    return "all" in settings.share or is_named(gpu, settings.share)


def suits(job: Job, row: GpuView) -> bool:
    """Return whether the job could use this GPU now, with enough free memory for it."""
    wanted = job.spec.gpus.free_memory
    is_suitable = bool(suitable_gpus(job.spec.gpus, (row.gpu,)))
    if not is_suitable or wanted is None:
        return is_suitable
    free = row.gpu.memory_total or 0  # where only our own jobs use it
    if row.sample is not None and row.state is not GpuState.ALLOCATED:
        free = row.sample.memory_free if row.sample.memory_free is not None else free - (row.sample.memory_used or 0)
    return free >= wanted


SETTLING = timedelta(seconds=30)
"""Time after the end of an attempt during which its GPUs may still look busy."""
SOON = 1.0
"""Seconds until GPUs that were just released are known to be free."""


def recently_freed(jobs: Iterable[Job], gpus: GpuIndex, now: datetime) -> tuple[int, ...]:
    """Return the GPUs that will be free as soon as they are read again, by node."""
    if not any(_may_settle(row) for node in gpus.rows for row in node):
        return (0,) * len(gpus.rows)
    freed: set[str] = set()
    for job in jobs:
        ended_at = job.attempts[-1].ended_at if job.attempts else None
        if ended_at is not None and now - ended_at < SETTLING:
            freed.update(job.attempts[-1].gpus)

    def is_settling(row: GpuView) -> bool:  # it was just released, and only a fresh, idle reading is missing
        if not _may_settle(row):
            return False
        claimed = any(holder.kind == "container" for holder in row.holders)
        return row.why == AWAITED or (row.gpu.uuid in freed and not claimed and row.health.is_schedulable)

    return gpu_masks(gpus, is_settling)


def gpu_masks(gpus: GpuIndex, wanted: Callable[[GpuView], bool]) -> tuple[int, ...]:
    return tuple(sum(1 << bit for bit, row in enumerate(node) if wanted(row)) for node in gpus.rows)


def _is_known(row: GpuView) -> bool:
    return not row.stale and row.health.is_schedulable


def _may_settle(row: GpuView) -> bool:
    return row.state in {GpuState.UNKNOWN, GpuState.FOREIGN} and row.drain is None
