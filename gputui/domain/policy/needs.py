"""What a job asks for and what of it is there, in words with numbers."""

from __future__ import annotations

from collections import Counter

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.look import Look
from gputui.domain.policy.machine import Ask
from gputui.domain.policy.shared_reasons import shared_words
from gputui.domain.units import format_size, plural

_IN_WORDS = {
    GpuState.ALLOCATED: "held by jobs",
    GpuState.FOREIGN: "used by others",
    GpuState.DRAINED: "drained",
    GpuState.UNKNOWN: "unknown",
}


class Supply:
    """How the GPUs stand that suit a request; what this very plan starts holds GPUs already."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._words: dict[Ask, str] = {}

    def of(self, ask: Ask) -> str:
        """`3 free, 4 held by jobs, 1 drained`, of those GPUs alone that could ever do."""
        words = self._words.get(ask)
        if words is None:
            words = self._words[ask] = self._count(ask)
        return words

    def _count(self, ask: Ask) -> str:
        rows = self._look.places.rows
        suiting = [row for node, mask in zip(rows, ask.eligible, strict=True) for row in _chosen(node, mask)]
        total = sum(map(len, rows))
        if not suiting:
            return f"none of {total} here suits it"
        free = [(mask & able).bit_count() for mask, able in zip(self._look.board.free, ask.eligible, strict=True)]
        words = _in_words(suiting, sum(free))
        if max(free) < sum(free):
            words = words.replace(" free", f" free (at most {max(free)} on one node)", 1)
        words = words if len(suiting) == total else f"of {len(suiting)} that suit it {words}"
        return words + (shared_words(self._look.board, self._look.places, ask) if ask.share else "")


def _chosen(node: tuple[GpuView, ...], mask: int) -> list[GpuView]:
    return [row for bit, row in enumerate(node) if mask >> bit & 1]


def _in_words(rows: list[GpuView], free: int) -> str:
    states = Counter(row.state for row in rows)
    states[GpuState.ALLOCATED] += states[GpuState.FREE] - free
    counts = [f"{states[state]} {word}" for state, word in _IN_WORDS.items() if states[state]]
    return ", ".join((f"{free} free", *counts))


def needs(job: Job, ask: Ask, need: int, fewer: str) -> str:
    """`needs 2 GPUs of model H100 with 40G`; `fewer` says when it settles for less than the `need` of now."""
    request = job.spec.gpus
    words = [f"needs {plural(need, 'GPU')}"]
    words += [f"({ask.minimum} {fewer})"] if need > ask.minimum else []
    words += [f"of model {request.model}"] if request.model else []
    sharing = " shared" if request.promised else ""
    words += [f"with {format_size(request.memory)}{sharing}"] if request.memory else []
    words += [f"with {format_size(request.free_memory)} free"] if request.free_memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
    words += [f"(only {fitting} here ever fit)"] if 0 < fitting < ask.minimum else []
    return " ".join(words)
