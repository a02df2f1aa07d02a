"""Descriptions of a job's GPU request and of the GPUs that suit it, with numbers."""

from __future__ import annotations

from collections import Counter

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.policy.cluster_state import ClusterState
from gputui.domain.policy.gpus.index import GpuIndex
from gputui.domain.policy.gpus.placement import Ask
from gputui.domain.policy.gpus.sharing import GpuBit
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.units import format_size, listed, plural

_MOST = 3
"""Number of shared GPUs that are described one by one."""


def describe_shared_gpus(cluster: ClusterState, gpus: GpuIndex, ask: Ask) -> str:
    """`; GPU 3 has 6G left beside jobs 4 and 9`, for each shared GPU that the job could use; empty without any."""
    found = [place for place in cluster.shares.uses if ask.eligible[place[0]] & place[1]]
    found.sort(key=lambda place: (-cluster.shares.left(place), place))
    told = [_told(cluster, gpus, place) for place in found[:_MOST]]
    more = len(found) - len(told)
    told += [f"{more} more shared {'GPU has' if more == 1 else 'GPUs have'} no more left"] if more else []
    return "".join(f"; {words}" for words in told)


def _told(cluster: ClusterState, gpus: GpuIndex, place: GpuBit) -> str:
    shares, row = cluster.shares, gpus.row(place)
    bay, jobs = shares.bay(place), sorted(job_id for job_id, _ in shares.uses[place])
    name = row.gpu.uuid[:12] if row.gpu.mig_parent else f"GPU {row.gpu.index}"
    if bay.most == 1:
        return f"{name} may not be shared, and {_names(jobs)} {'has' if len(jobs) == 1 else 'have'} it"
    if bay.closed:
        return f"{name} may not be joined: {bay.closed}"
    if len(jobs) >= bay.most:
        return f"{name} has {_names(jobs)}, and no more than {bay.most} may share it"
    return f"{name} has {_at_least(shares.left(place))} left beside {_names(jobs)}"


def _at_least(size: int) -> str:
    """Return the size, never rounded up: users ask for what looks left."""
    shown = 1024**3 if size >= 10 * 1024**3 else 1024**3 // 10
    return format_size(size - size % shown if size >= 1024**3 else size)


def _names(jobs: list[JobId]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {listed(jobs)}"


_IN_WORDS = {
    GpuState.ALLOCATED: "held by jobs",
    GpuState.FOREIGN: "used by others",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}


class Supply:
    """State of the GPUs that suit a request, with the starts of this plan counted as held."""

    def __init__(self, context: PlanningContext) -> None:
        self._context = context
        self._words: dict[Ask, str] = {}

    def describe(self, ask: Ask) -> str:
        """`3 free, 4 held by jobs, 1 drained`, of those GPUs alone that could ever do."""
        words = self._words.get(ask)
        if words is None:
            words = self._words[ask] = self._count(ask)
        return words

    def _count(self, ask: Ask) -> str:
        rows = self._context.gpus.rows
        suiting = [row for node, mask in zip(rows, ask.eligible, strict=True) for row in _chosen(node, mask)]
        total = sum(map(len, rows))
        if not suiting:
            return f"none of {total} here is suitable"
        free = [(mask & able).bit_count() for mask, able in zip(self._context.cluster.free, ask.eligible, strict=True)]
        words = _in_words(suiting, sum(free))
        if max(free) < sum(free):
            words = words.replace(" free", f" free (at most {max(free)} on one node)", 1)
        words = words if len(suiting) == total else f"of {plural(len(suiting), 'suitable GPU')} {words}"
        return words + (describe_shared_gpus(self._context.cluster, self._context.gpus, ask) if ask.share else "")


def _chosen(node: tuple[GpuView, ...], mask: int) -> list[GpuView]:
    return [row for bit, row in enumerate(node) if mask >> bit & 1]


def _in_words(rows: list[GpuView], free: int) -> str:
    states = Counter(row.state for row in rows)
    states[GpuState.ALLOCATED] += states[GpuState.FREE] - free
    counts = [f"{states[state]} {word}" for state, word in _IN_WORDS.items() if states[state]]
    return ", ".join((f"{free} free", *counts))


def describe_request(job: Job, ask: Ask, need: int, fewer: str) -> str:
    """Return `needs 2 GPUs of model H100 with 40G`; `fewer` says when it takes less than the `need` of now."""
    request = job.spec.gpus
    words = [_wants(ask, need, fewer) if ask.minimum < ask.maximum else f"needs {plural(need, 'GPU')}"]
    words += [f"of model {request.model}"] if request.model else []
    sharing = " shared" if request.promised else ""
    words += [f"with {format_size(request.memory)}{sharing}"] if request.memory else []
    words += [f"with {format_size(request.free_memory)} free"] if request.free_memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
    words += [f"(only {fitting} suitable here)"] if 0 < fitting < ask.minimum else []
    return " ".join(words)


def _wants(ask: Ask, need: int, fewer: str) -> str:
    """Return `wants 4 GPUs, takes 2 from 14:51 UTC`, of a request for a range."""
    words = f"wants {plural(ask.maximum, 'GPU')}"
    if need < ask.maximum:
        words += f", will take {need}"
    if need > ask.minimum:
        words += f", {'will take ' if need == ask.maximum else ''}{ask.minimum} {fewer}"
    return words
