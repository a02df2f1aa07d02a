"""Policies under which a trace is replayed: gputui's own decision, and common alternatives."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace, merge
from types import MappingProxyType
from typing import TypeAlias

from gputui.domain.settings import PolicySettings
from gputui.replay.simulation import Figures, TraceReplay, figures, mean_figures
from gputui.replay.trace import HOUR, Ran, Site, TraceJob

Started: TypeAlias = tuple[TraceJob, float, float, int]
HostGpus: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a host and a number of GPUs."""
LEASE = 24 * HOUR
_PARTS = 8
"""Maximum number of parts of a split."""


class Hosts:
    """Free GPUs by host: best fit within one host, whole free hosts for wider jobs."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = tuple(nodes)
        self.free = list(nodes)

    def take(self, gpus: int, among: Iterable[int] | None = None) -> HostGpus | None:
        """Take this many GPUs and return them by host; None if they are not available."""
        hosts = range(len(self.free)) if among is None else among
        if gpus > max(self.nodes):
            whole = [host for host in hosts if self.free[host] == self.nodes[host]]
            wanted = min(-(-gpus // max(self.nodes)), len(self.nodes))
            taken = tuple((host, self.nodes[host]) for host in whole[:wanted]) if len(whole) >= wanted else None
        else:
            fits = [(self.free[host], host) for host in hosts if self.free[host] >= gpus]
            taken = ((min(fits)[1], gpus),) if fits else None
        for host, count in taken or ():
            self.free[host] -= count
        return taken

    def give(self, taken: HostGpus) -> None:
        for host, count in taken:
            self.free[host] += count


def play(
    jobs: Sequence[TraceJob],
    arrive: Callable[[TraceJob], None],
    start: Callable[[float], Iterable[tuple[TraceJob, HostGpus]]],
    end: Callable[[TraceJob, HostGpus], None],
) -> Iterator[Started]:
    """Yield the starts of a trace. At each moment ends come first, then submissions, then starts."""
    ends: list[tuple[float, int, TraceJob, HostGpus]] = []
    coming, count = deque(jobs), 0
    while coming or ends:
        now = min(coming[0].submit if coming else math.inf, ends[0][0] if ends else math.inf)
        while ends and ends[0][0] <= now:
            _, _, job, taken = heappop(ends)
            end(job, taken)
        while coming and coming[0].submit <= now:
            arrive(coming.popleft())
        for job, taken in start(now):
            count += 1
            heappush(ends, (now + job.duration, count, job, taken))
            yield job, now, now + job.duration, job.gpus


def fifo(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Run jobs strictly in order of submission: one that does not fit blocks all behind it."""
    hosts, queue = Hosts(site.nodes), deque[TraceJob]()

    def start(_: float) -> Iterator[tuple[TraceJob, HostGpus]]:
        while queue and (taken := hosts.take(queue[0].gpus)):
            yield queue.popleft(), taken

    return play(jobs, queue.append, start, lambda _, taken: hosts.give(taken))


def greedy(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Run jobs by priority, then submission: any that fits starts, and nothing is reserved for others."""
    hosts = Hosts(site.nodes)
    queues: dict[tuple[int, int], deque[TraceJob]] = defaultdict(deque)

    def start(_: float) -> Iterator[tuple[TraceJob, HostGpus]]:
        heap = [(key[0], queue[0].number, key) for key, queue in queues.items() if queue]
        heapify(heap)
        while heap:
            priority, _number, key = heappop(heap)
            taken = hosts.take(key[1])
            if taken:
                yield queues[key].popleft(), taken
                if queues[key]:
                    heappush(heap, (priority, queues[key][0].number, key))

    def arrive(job: TraceJob) -> None:
        queues[-job.priority, job.gpus].append(job)

    return play(jobs, arrive, start, lambda _, taken: hosts.give(taken))


def static_equal(jobs: Sequence[TraceJob], site: Site, deal: int | None = None) -> Iterator[Started]:
    """Divide the GPUs into equal parts, with tenants assigned alphabetically or at random, regardless of their load."""
    tenants = sorted({job.tenant for job in jobs})
    if deal is not None:
        random.Random(deal).shuffle(tenants)  # noqa: S311 - the same deal for the same seed
    parts = min(_parts(site), len(tenants))
    sizes = [site.gpus // parts + (number < site.gpus % parts) for number in range(parts)]
    return _split(jobs, site, sizes, {tenant: number % parts for number, tenant in enumerate(tenants)})


def static_proportional(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Divide the GPUs in proportion to each group's actual use, which is unknown in advance in practice."""
    work: dict[str, float] = defaultdict(float)
    for job in jobs:
        work[job.tenant] += job.duration * job.gpus
    loads = [0.0] * min(_parts(site), len(work))
    part_of: dict[str, int] = {}
    for tenant in sorted(work, key=lambda tenant: (-work[tenant], tenant)):
        part_of[tenant] = loads.index(min(loads))
        loads[part_of[tenant]] += work[tenant]
    return _split(jobs, site, apportion(site.gpus, loads), part_of)


def apportion(gpus: int, loads: Sequence[float]) -> list[int]:
    """Split the GPUs in proportion to the loads: at least one each, the rest by largest remainder."""
    total, spare = math.fsum(loads) or 1.0, gpus - len(loads)
    exact = [max(0.0, gpus * load / total - 1) for load in loads]
    scale = spare / (math.fsum(exact) or 1.0)
    sizes = [1 + int(share * scale) for share in exact]
    by_rest = sorted(range(len(loads)), key=lambda part: (int(exact[part] * scale) - exact[part] * scale, part))
    for part in by_rest[: gpus - sum(sizes)]:
        sizes[part] += 1
    return sizes


def _parts(site: Site) -> int:
    return max(1, min(_PARTS, site.gpus // 2))


def _split(jobs: Sequence[TraceJob], site: Site, sizes: Sequence[int], part_of: dict[str, int]) -> Iterator[Started]:
    """Split the GPUs into parts, each a greedy queue; a job wider than its part runs narrower and longer, with equal
    GPU-seconds."""
    mine: list[list[TraceJob]] = [[] for _ in sizes]
    originals = {job.number: job for job in jobs}
    for job in jobs:
        part = part_of[job.tenant]
        if job.gpus > (gpus := sizes[part]):
            longer = job.duration * job.gpus / gpus
            job = TraceJob(job.number, job.submit, longer, gpus, job.tenant, job.limit, job.priority)
        mine[part].append(job)
    runs = [greedy(part, Site(gpus, site.per_node)) for part, gpus in zip(mine, sizes, strict=True) if part]
    for job, start, end, gpus in merge(*runs, key=lambda run: run[1]):
        yield originals[job.number], start, end, gpus


class _Leases:
    """Hosts with the tenants that lease them, and since when."""

    def __init__(self, site: Site) -> None:
        self.hosts = Hosts(site.nodes)
        self.tenant: list[str | None] = [None] * len(site.nodes)
        self.since = [0.0] * len(site.nodes)
        self.running = [0] * len(site.nodes)
        self.queue: dict[str, dict[int, deque[TraceJob]]] = defaultdict(dict)
        """Waiting jobs of each tenant by width; only widths with waiting jobs."""

    def arrive(self, job: TraceJob) -> None:
        self.queue[job.tenant].setdefault(job.gpus, deque()).append(job)

    def end(self, _: TraceJob, taken: HostGpus) -> None:
        self.hosts.give(taken)
        for host, _count in taken:
            self.running[host] -= 1

    def start(self, now: float) -> Iterator[tuple[TraceJob, HostGpus]]:
        for host, tenant in enumerate(self.tenant):
            over = now >= self.since[host] + LEASE or (tenant is not None and not self.queue[tenant])
            if tenant is not None and not self.running[host] and over:
                self.tenant[host] = None
        heads = (
            (min(jobs[0].number for jobs in queue.values()), tenant) for tenant, queue in self.queue.items() if queue
        )
        for _number, tenant in sorted(heads):
            while started := self._pack(tenant, now):
                yield started

    def _pack(self, tenant: str, now: float) -> tuple[TraceJob, HostGpus] | None:
        """Start the first of the tenant's jobs that fits on one of its hosts, or on a free host."""
        queue = self.queue[tenant]
        own = [h for h, who in enumerate(self.tenant) if who == tenant and now < self.since[h] + LEASE]
        unleased = [host for host, who in enumerate(self.tenant) if who is None]
        for gpus in sorted(queue, key=lambda gpus: queue[gpus][0].number) if own or unleased else ():
            taken = self.hosts.take(gpus, own) or self.hosts.take(gpus, unleased)
            if taken:
                job = queue[gpus].popleft()
                if not queue[gpus]:
                    del queue[gpus]
                for host, _ in taken:
                    self.running[host] += 1
                    if self.tenant[host] is None:
                        self.tenant[host], self.since[host] = tenant, now
                return job, taken
        return None


def host_lease(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Lease hosts to one tenant for 24 hours, first come, first served; its jobs are packed as they fit."""
    leases = _Leases(site)
    return play(jobs, leases.arrive, leases.start, leases.end)


JobOrder: TypeAlias = Callable[[TraceJob], tuple[float, ...]]
"""Sort key; the least starts first."""
_OVERRUN = 60.0
"""Minimum seconds that a job which exceeds its limit is expected to continue."""


def easy(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Run EASY in order of submission: the first job that does not fit gets a reservation, others fill the gaps."""
    backfill = _Backfill(Hosts(site.nodes), lambda job: (job.submit, job.number))
    return play(jobs, backfill.arrive, backfill.start, backfill.end)


def saf(jobs: Sequence[TraceJob], site: Site) -> Iterator[Started]:
    """Run EASY with the smallest area (GPUs times limit) first: short waits, but unlimited ones for wide long jobs."""
    backfill = _Backfill(Hosts(site.nodes), lambda job: (job.gpus * job.limit, job.submit, job.number))
    return play(jobs, backfill.arrive, backfill.start, backfill.end)


@dataclass(slots=True)
class _Reservation:
    """GPUs that are left for the first job that does not fit."""

    at: float
    extra: dict[int, int]
    """Number of GPUs by host that the job will not need."""


@dataclass(slots=True, eq=False)
class _Backfill:
    """Waiting jobs by width, and running ones with their expected ends."""

    hosts: Hosts
    order: JobOrder
    queues: dict[int, list[TraceJob]] = field(default_factory=dict)
    running: dict[int, tuple[float, float, HostGpus]] = field(default_factory=dict)

    def arrive(self, job: TraceJob) -> None:
        insort(self.queues.setdefault(job.gpus, []), job, key=self.order)

    def end(self, job: TraceJob, taken: HostGpus) -> None:
        self.hosts.give(taken)
        del self.running[job.number]

    def start(self, now: float) -> Iterator[tuple[TraceJob, HostGpus]]:
        """Go through the widths, always from the first job, and start those that fit."""
        reservation: _Reservation | None = None
        heap = [(self.order(queue[0]), width, 0) for width, queue in self.queues.items() if queue]
        heapify(heap)
        while heap and any(self.hosts.free):
            _, width, place = heap[0]
            queue = self.queues[width]
            taken = self._take(queue[place], reservation, now)
            if taken is None:
                reservation = reservation or self._reserve(width, now)
                place = self._next(queue, place, reservation, now)
            else:
                job = queue.pop(place)
                self.running[job.number] = (now, job.limit, taken)
                yield job, taken
            if place < len(queue):
                heapreplace(heap, (self.order(queue[place]), width, place))
            else:
                heappop(heap)

    def _next(self, queue: list[TraceJob], place: int, reservation: _Reservation, now: float) -> int:
        """Return the position of the next job of that width that ends before the reservation; past the end if none."""
        taken = self.hosts.take(queue[place].gpus)
        if taken is None:
            return len(queue)
        self.hosts.give(taken)
        latest = reservation.at - now
        return next((n for n in range(place + 1, len(queue)) if queue[n].limit <= latest), len(queue))

    def _take(self, job: TraceJob, reservation: _Reservation | None, now: float) -> HostGpus | None:
        """Return the GPUs that the job gets now; None if only those of the reservation are left."""
        if reservation is None or now + job.limit <= reservation.at:
            return self.hosts.take(job.gpus)
        free = self.hosts.free
        self.hosts.free = [min(gpus, reservation.extra.get(host, gpus)) for host, gpus in enumerate(free)]
        taken = self.hosts.take(job.gpus)
        self.hosts.free = free
        for host, gpus in taken or ():
            free[host] -= gpus
            if host in reservation.extra:
                reservation.extra[host] -= gpus
        return taken

    def _reserve(self, width: int, now: float) -> _Reservation:
        """Return when and where that many GPUs will be free by the limits of the running jobs."""
        then = Hosts(self.hosts.nodes)
        then.free = list(self.hosts.free)
        ends = []
        for began, lasts, taken in self.running.values():
            while began + lasts <= now:  # doubled each time it exceeds that, so that it is always in the future
                lasts = 2 * max(lasts, _OVERRUN)
            ends.append((began + lasts, taken))
        ends.sort()
        for number, (at, given) in enumerate(ends):
            then.give(given)
            if number + 1 < len(ends) and ends[number + 1][0] == at:
                continue
            before = list(then.free)
            if found := then.take(width):
                return _Reservation(at, {host: before[host] - gpus for host, gpus in found})
        return _Reservation(now, {})


Policy: TypeAlias = Callable[[Sequence[TraceJob], Site], Iterator[Ran]]


def plan(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Iterator[Ran]:
    """Yield the decisions of `plan()`, by the same code, at every submission and every end."""
    yield from TraceReplay(jobs, site, settings or PolicySettings()).run()


def _baseline(play: Callable[[Sequence[TraceJob], Site], Iterator[tuple[TraceJob, float, float, int]]]) -> Policy:
    def replayed(jobs: Sequence[TraceJob], site: Site) -> Iterator[Ran]:
        return (Ran(*each) for each in play(jobs, site))

    return replayed


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "plan": plan,
        "fifo": _baseline(fifo),
        "easy": _baseline(easy),
        "saf": _baseline(saf),
        "greedy": _baseline(greedy),
        "static-equal": _baseline(static_equal),
        "static-proportional": _baseline(static_proportional),
        "host-lease": _baseline(host_lease),
    }
)
"""Policies by name; `plan` is gputui's own."""


DEALS = 8
"""Number of deals, always the same ones, since an equal split depends on which tenants share a part."""


def measure(policy: str, jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Figures:
    """Return the figures of a policy; `plan` uses these settings, the equal split is the mean over several deals."""
    if policy == "plan":
        return figures(list(plan(jobs, site, settings)), site.gpus)
    if policy == "static-equal":
        return mean_figures([dealt(jobs, site, deal) for deal in range(DEALS)])
    return figures(list(POLICIES[policy](jobs, site)), site.gpus)


def dealt(jobs: Sequence[TraceJob], site: Site, deal: int | None) -> Figures:
    """Return the figures of one equal split; None assigns alphabetically."""
    return figures([Ran(*each) for each in static_equal(jobs, site, deal)], site.gpus)
