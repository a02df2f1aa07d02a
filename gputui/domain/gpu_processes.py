"""Processes and containers on all GPUs: the rows of the process view, their filter, and the actions on them.

The filter `alice kind:foreign gpu:3 mem>10g age>2h image~jupyter -user:root` has the language of `domain.filter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import groupby
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.container import ProcessRow
from gputui.domain.filter import Filter, FilterField, FilterQuantity, FilterText, figure, filter_duration, parse_terms
from gputui.domain.gpu import GpuProcess, GpuView, Holder, index_of
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import parse_size, plural, ranges

JOB, CONTAINER, FOREIGN, OTHER = "job", "container", "foreign", "parent"
"""Kinds of a row: of a job, in a foreign container, any other process, and a parent without a GPU."""


class GpuProcessRow(Struct, frozen=True):
    """A process on GPUs, or a container that has requested GPUs; None: unknown."""

    pid: int | None
    """Process id in the host's PID namespace; None: a container without a process on a GPU."""
    kind: str
    gpus: tuple[str, ...] = ()
    """Indices of its GPUs, in order."""
    user: str | None = None
    command: str | None = None
    job_id: JobId | None = None
    job: str = ""
    """Id and name of its job, as displayed: `#12_5 sweep`."""
    container_id: str | None = None
    container: str = ""
    """Name of its container; empty if unknown."""
    image: str = ""
    gpu_memory: int | None = None
    """Bytes on all its GPUs together."""
    sm: float | None = None
    """0 to 1: the largest share of time in which it kept the multiprocessors of a GPU busy."""
    ticks: int | None = None
    """Start time in clock ticks since boot."""
    is_visible: bool = True
    """True if /proc of its machine shows the process; False in another PID namespace."""
    machine: str = ""
    """Name of its machine, if it is another than the scheduler's."""
    computes: bool = True
    parent: int | None = None
    age: timedelta | None = None
    memory: int | None = None
    """Resident host memory in bytes."""
    cpu: float | None = None
    """CPU use in cores."""
    depth: int = 0
    """Number of its displayed parents, in a tree."""

    @property
    def key(self) -> str:
        """Key that stays the same during its lifetime."""
        return f"container {self.container_id}" if self.pid is None else f"{self.pid} {self.ticks}"

    @property
    def what(self) -> str:
        """Short text: job, container or `foreign`."""
        if self.kind == JOB:
            return self.job
        if self.container_id is not None:
            name = self.container or self.container_id[:12]
            return f"{name} ({self.image})" if self.image else name
        return "" if self.kind == OTHER else FOREIGN


def process_rows(snapshot: Snapshot) -> tuple[GpuProcessRow, ...]:
    """Return all processes on GPUs, sorted by GPU, and foreign containers without processes.

    A process on several GPUs once. Those of a GPU that is not read now stay listed, without figures.
    """
    jobs, now = {job.id: job for job in snapshot.jobs if job.state.is_active}, snapshot.taken_at
    found: dict[object, GpuProcessRow] = {}
    machine = snapshot.elsewhere
    for view in snapshot.gpus:
        label = index_of(view)
        requested = {each.container_id: each for each in view.holders if each.kind == CONTAINER and each.container_id}
        for process in (view.sample.processes or ()) if view.sample else ():
            if (row := found.get(process.pid)) is None:
                row = _row(process, view, jobs, requested.get(process.container_id or ""), now)
            found[process.pid] = _with_gpu(row, label, process if view.current else None)
        for id_, holder in requested.items():
            row = found.get(id_) or GpuProcessRow(
                None,
                CONTAINER,
                user=holder.user,
                container_id=id_,
                container=holder.name,
                image=holder.image or "",
                age=_age(holder.since, now),
            )
            found[id_] = _with_gpu(row, label)
    inhabited = {row.container_id for row in found.values() if row.pid is not None}
    kept = (row for row in found.values() if row.pid is not None or row.container_id not in inhabited)
    return tuple(replace(row, machine=machine) for row in kept) if machine else tuple(kept)


def local_pids(rows: Iterable[GpuProcessRow]) -> tuple[int, ...]:
    """Return the pids of the rows that may be looked up in /proc of this machine."""
    return tuple(row.pid for row in rows if row.pid is not None and row.ticks is not None and not row.machine)


def _row(
    process: GpuProcess, view: GpuView, jobs: Mapping[JobId, Job], holder: Holder | None, now: datetime
) -> GpuProcessRow:
    job_id = view.process_jobs.get(process.pid)
    job = jobs.get(job_id) if job_id is not None else None
    return GpuProcessRow(
        process.pid,
        JOB if job_id is not None else CONTAINER if process.container_id else FOREIGN,
        user=process.user,
        command=process.command,
        job_id=job_id,
        job="" if job_id is None else f"#{job.shown_id} {job.name}" if job else f"#{job_id}",
        container_id=process.container_id,
        container=holder.name if holder else "",
        image=(holder.image or "") if holder else "",
        ticks=process.ticks,
        is_visible=process.visible,
        computes=process.compute,
        age=_age(process.started_at, now),
    )


def gpu_words(labels: Iterable[str]) -> str:
    """Return `0-3,6` for these GPU labels; labels of MIG instances are listed separately."""
    parts = groupby(labels, str.isdigit)
    return ",".join(ranges(map(int, part), least=3) if is_index else ",".join(part) for is_index, part in parts)


def _age(since: datetime | None, now: datetime) -> timedelta | None:
    return None if since is None else max(now - since, timedelta(0))


def _with_gpu(row: GpuProcessRow, label: str, process: GpuProcess | None = None) -> GpuProcessRow:
    memory, sm = (process.memory, process.sm) if process else (None, None)
    return replace(
        row,
        gpus=row.gpus if label in row.gpus else (*row.gpus, label),
        gpu_memory=row.gpu_memory if memory is None else (row.gpu_memory or 0) + memory,
        sm=row.sm if sm is None else max(row.sm or 0.0, sm),
    )


def with_host_values(rows: Iterable[GpuProcessRow], seen: Mapping[int, ProcessRow]) -> tuple[GpuProcessRow, ...]:
    """Return the rows with CPU, memory and age from the host, where pid and start time match."""
    return tuple(_with_host(row, seen.get(row.pid) if row.pid is not None else None) for row in rows)


def _with_host(row: GpuProcessRow, seen: ProcessRow | None) -> GpuProcessRow:
    if seen is None or row.ticks is None or seen.ticks != row.ticks:
        return row
    return replace(
        row,
        user=seen.user or row.user,
        command=seen.command or row.command,
        parent=seen.parent,
        age=row.age if seen.age is None else seen.age,
        memory=seen.memory,
        cpu=seen.cpu,
    )


def tree_of(rows: Iterable[GpuProcessRow], seen: Mapping[int, ProcessRow]) -> tuple[GpuProcessRow, ...]:
    """Return the rows as a tree, children below their parents; parents of foreign processes are added from `seen`.

    Siblings keep their order, and a parent is placed where its first child was.
    """
    ordered = tuple(rows)
    by_pid: dict[int | None, GpuProcessRow] = {row.pid: row for row in ordered if row.pid is not None}
    for row in ordered:
        child = row
        while row.kind == FOREIGN and (pid := child.parent) is not None and pid not in by_pid and pid in seen:
            parent = seen[pid]
            bare = GpuProcessRow(pid, OTHER, user=parent.user, command=parent.command, ticks=parent.ticks)
            by_pid[pid] = child = _with_host(bare, parent)
    children: dict[str, dict[str, GpuProcessRow]] = {}
    for row in ordered:
        line = [row]  # with its parents, which may form a loop, since /proc is not read atomically
        while line[-1].parent is not None and (above := by_pid.get(line[-1].parent)) and above not in line:
            line.append(above)
        for each, parent_key in zip(line, [*(above.key for above in line[1:]), ""], strict=True):
            line_of = children.setdefault(parent_key, {})
            line_of[each.key] = each
    # in depth, without recursion: a chain of processes may be long
    tree: dict[str, GpuProcessRow] = {}
    stack = [iter(children.get("", {}).values())]
    while stack:
        next_row = next(stack[-1], None)
        if next_row is None:
            stack.pop()
        elif next_row.key not in tree:
            tree[next_row.key] = replace(next_row, depth=len(stack) - 1)
            stack.append(iter(children.get(next_row.key, {}).values()))
    return tuple(tree.values())


class ProcessTarget(Struct, frozen=True):
    """A process to be signalled, as it was displayed to the user who decided that."""

    pid: int
    ticks: int | None
    user: str | None = None
    command: str | None = None
    gpus: tuple[str, ...] = ()
    what: str = ""
    container_id: str | None = None
    job_id: JobId | None = None
    is_visible: bool = True
    machine: str = ""

    @property
    def sentence(self) -> str:
        where = f" on GPU {gpu_words(self.gpus)}" if self.gpus else ""
        inside = f" in container {self.what}" if self.container_id and self.what else ""
        return f"pid {self.pid} of {self.user or 'an unknown user'}{where}{inside}: {self.command or 'unknown command'}"

    @property
    def refusal(self) -> tuple[str, str]:
        """Return why no signal may be sent to it, with a hint; empty if one may."""
        if self.job_id is not None:
            return f"pid {self.pid} belongs to job {self.job_id}", f"cancel the job: gputui cancel {self.job_id}"
        if self.machine:
            return (
                f"pid {self.pid} is a process of {self.machine}",
                f"there: kill -TERM {self.pid}, or stop its container",
            )
        if not self.is_visible:
            text = f"pid {self.pid} has ended, or is in another PID namespace and cannot be identified"
            return text, "let gputui run with --pid=host, or stop its container"
        if self.ticks is None:
            text = f"the start time of pid {self.pid} is not known, so it may be another process by now"
            return text, "the scheduler that reads the GPUs may be older than this gputui, or its GPUs are simulated"
        return "", ""


def process_target(row: GpuProcessRow) -> ProcessTarget | None:
    names = ProcessTarget.__struct_fields__
    return None if row.pid is None else ProcessTarget(**{name: getattr(row, name) for name in names})


class SignalOutcome(Struct, frozen=True):
    """State of a process some seconds after a signal was sent to it."""

    has_ended: bool
    seconds: float
    """Seconds after which it had ended, or for which it was watched."""
    state: str = ""
    """State in /proc if the process is alive: D is a wait in the kernel, T stopped."""

    @property
    def sentence(self) -> str:
        if self.has_ended:
            return f"ended after {self.seconds:.1f} s"
        states = {"D": ": it waits in the kernel, often for a driver that hangs", "T": ": it is stopped"}
        return f"still there after {self.seconds:.0f} s{states.get(self.state, '')}"


class ContainerDetail(Struct, frozen=True):
    """A foreign container, as described by its engine."""

    id: str
    name: str
    image: str = ""
    user: str = ""
    """User from its label `user`, else the account named by its image or command line."""
    command: str = ""
    state: str = ""
    started_at: datetime | None = None
    exit_code: int | None = None
    mounts: tuple[str, ...] = ()
    """`/data/bob → /data (read-only)`."""
    ports: tuple[str, ...] = ()
    """`8888/tcp on 0.0.0.0:49153`."""
    devices: tuple[str, ...] = ()
    """GPUs that it has requested, as written."""
    restart: str = ""
    """Restart policy; empty: none."""
    stop_signal: str = ""
    stop_timeout: int = 10
    """Seconds between its stop signal and SIGKILL."""
    project: str = ""
    """Compose project or pod that it belongs to."""
    store: str = ""
    """Id of the gputui queue whose container it is; empty: none."""
    job: str = ""
    """Id of its job in that queue."""

    @property
    def is_running(self) -> bool:
        return self.state in {"running", "paused", "restarting"}

    @property
    def sentence(self) -> str:
        image = f" ({self.image})" if self.image else ""
        return f"container {self.name}{image}{f' of {self.user}' if self.user else ''}"


def summary(rows: Iterable[GpuProcessRow]) -> str:
    listed = [row for row in rows if row.kind != OTHER]
    foreign = sum(row.kind != JOB for row in listed)
    return plural(len(listed), "process") + (f", {foreign} foreign" if foreign else "")


def _percent(text: str, *, where: str | None = None) -> float:
    return figure(text.removesuffix("%"), where=where) / 100


PROCESS_FIELDS: Mapping[str, FilterField] = MappingProxyType(
    {
        "user": FilterField("", "user:alice", FilterText(lambda row: (row.user or "",))),
        "kind": FilterField(
            "", "kind:foreign", FilterText(lambda row: ("foreign" if row.kind == "container" else "", row.kind))
        ),
        "gpu": FilterField("", "gpu:0", FilterText(lambda row: row.gpus)),
        "pid": FilterField("", "pid:4711", FilterText(lambda row: ("" if row.pid is None else str(row.pid),))),
        "job": FilterField("", "job:7", FilterText(lambda row: (row.job.partition(" ")[0].removeprefix("#"),))),
        "container": FilterField(
            "", "container~jupyter", FilterText(lambda row: (row.container, row.container_id or ""))
        ),
        "image": FilterField("", "image~pytorch", FilterText(lambda row: (row.image,))),
        "command": FilterField("", "command~train.py", FilterText(lambda row: (row.command or "",))),
        "gpumem": FilterField("", "gpumem>10g", FilterQuantity(lambda row: row.gpu_memory, parse_size)),
        "mem": FilterField("", "mem>64g", FilterQuantity(lambda row: row.memory, parse_size)),
        "sm": FilterField("", "sm<10", FilterQuantity(lambda row: row.sm, _percent)),
        "cpu": FilterField("", "cpu>100", FilterQuantity(lambda row: row.cpu, _percent)),
        "age": FilterField("", "age>2h", filter_duration(lambda row: row.age or None)),
    }
)
"""Fields of the filter by name, in the order in which messages list them."""


def parse_process_filter(text: str) -> Filter:
    """Parse a filter of rows of processes; raises InputError."""

    def text_of(row: GpuProcessRow) -> str:
        return " ".join((str(row.pid or ""), row.user or "", row.what, row.command or "")).casefold()

    return Filter(text, tuple(parse_terms(text, PROCESS_FIELDS, text_of)))
