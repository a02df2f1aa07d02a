"""Texts about a GPU: its name, holders, reservations and throttling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from msgspec import Struct, field

from gputui.domain.gpu import GpuProcess, GpuView, Holder
from gputui.domain.gpu_names import index_of, index_ranges
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import UNKNOWN, format_duration, format_limit, format_size, plural

_ID = re.compile("[0-9a-f]{64}")
_MINUTE = timedelta(minutes=1)


SLOWED = "slowed: "


def slowed_words(throttle: Iterable[str], most: int = 100) -> str:
    """Return `slowed: power cap` for throttle reasons; empty if there is none."""
    reasons = plain(", ".join(throttle), most)
    return SLOWED + reasons if reasons else ""


def running_words(job: Job, now: datetime) -> str:
    """Return `2h14m / 8h`, to the minute: seconds would redraw every GPU's line all the time."""
    if job.started_at is None:
        return "starting"
    return age_words(now - job.started_at) + (f" / {format_limit(job.spec.time_limit)}" if job.spec.time_limit else "")


def age_words(passed: timedelta) -> str:
    """Return `<1m`, `7m`, `2h14m` or `3d04h`, to the minute."""
    return "<1m" if passed < _MINUTE else format_duration(passed // _MINUTE * _MINUTE).removesuffix("00s")


def elapsed_words(job: Job, now: datetime) -> str:
    """Return `2h14m`, or `2h14m/8h` with the limit."""
    return running_words(job, now).replace(" / ", "/")


def elapsed_share(job: Job, now: datetime) -> float | None:
    """Return the share of its time limit that a running job has used; None without a limit."""
    if job.started_at is None or not job.spec.time_limit:
        return None
    return (now - job.started_at) / job.spec.time_limit


def process_of(view: GpuView, holder: Holder) -> GpuProcess | None:
    """Return the process of a holder; for a container, its first one."""
    processes = view.sample.processes if view.sample else None
    for process in processes or ():
        is_its = process.container_id is not None and process.container_id == holder.container_id
        if process.pid == holder.pid or is_its:
            return process
    return None


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
    process = process_of(view, holder)
    pid = holder.pid if holder.pid is not None else (process.pid if process else None)
    command = process.command if process and process.command else None
    is_told = holder.kind == "process"  # its name is the command, and its pid is shown beside it
    parts = [f"pid {pid}" if pid is not None and not is_told else ""]
    parts += [plain(command, 60)] if command and not (is_told and command == holder.name) else []
    memory = holder.memory if holder.memory is not None else (process.memory if process else None)
    container = holder.container_id or (process.container_id if process else None)
    user = process.user if process and process.user and not holder.user else None
    age = f"for {age_words(now - holder.since)}" if now and holder.since else ""
    words = [age, f"image {plain(holder.image, 100)}" if holder.image else ""]
    words += [" ".join(part for part in parts if part), format_size(memory) if memory else ""]
    words.append(f"user {plain(user, 32)}" if user else "")
    words.append(f"container {_short_id(container)}" if container else "")
    return ", ".join(word for word in words if word)


def container_of(job: Job) -> str:
    """Return the container of its running attempt."""
    attempt = job.attempt
    return _short_id(attempt.container_id) if attempt and attempt.container_id else ""


def _short_id(container: str) -> str:
    """Return the first twelve digits of a container id, as engines show it; a name unchanged."""
    return container[:12] if _ID.fullmatch(container) else plain(container, 40)


_VENDOR = re.compile(r"^(NVIDIA|Tesla|GeForce|Quadro)\s+", re.IGNORECASE)


@lru_cache(maxsize=256)
def short_model(model: str | None) -> str:
    """Return `H100 80GB HBM3` of `NVIDIA H100 80GB HBM3`."""
    return _VENDOR.sub("", plain(model, 60)) if model else UNKNOWN


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
        """Return the labels of all GPUs of a snapshot."""
        several = len(snapshot.nodes) > 1
        return cls(
            {
                view.gpu.uuid: (f"{plain(node.name, 12)}:" if several else "") + index_of(view)
                for node in snapshot.nodes
                for view in node.gpus
            }
        )

    @property
    def width(self) -> int:
        """Width of the longest label in cells."""
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
        parts = [
            f"{node}:{index_ranges(indices)}" if node else index_ranges(indices) for node, indices in by_node.items()
        ]
        told = [f"GPU {' '.join(parts)}"] if parts else []
        if unlisted:
            told.append(f"{unlisted} more" if told else plural(unlisted, "GPU"))
        return " and ".join(told) or "no GPU"
