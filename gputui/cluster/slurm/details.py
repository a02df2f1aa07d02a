"""Details of a job that only `scontrol show job` prints: its GPUs by index, exit code, signal and restarts."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm import texts
from gputui.cluster.slurm.job_rows import JobRow

_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_BEGIN = r"^JobId={} (?:(?:Array|Het)\w+=\S+ )*JobName={} (?:(?:HetJobIdSet|SLUID)=\S+ )*(?=UserId=)"
_REQUESTS = ("AllocTRES", "TresPerJob", "TresPerNode", "TresPerTask", "ReqTRES", "TRES")


class JobDetail(Struct, frozen=True):
    """Details of a run of a job."""

    run_key: str
    state: str
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    gpus: tuple[tuple[str, int], ...] = ()
    """Nodes and indices of its GPUs; empty before the start and after the end."""
    nodes: tuple[str, ...] = ()
    requested: int | None = None
    """Number of GPUs that it asks for; None: it is not known."""
    output: str = ""
    """Path of its standard output, as Slurm tells it."""
    directory: str = ""
    share: float = 1.0
    """Share of its GPUs, where Slurm divides them into shards or by MPS."""


def parse(text: str, row: JobRow) -> JobDetail | None:
    """Return the details in the answer to `scontrol -d -o show job`, of the job that squeue listed as `row`.

    For the first element of an array the answer has records of all. The job's name may hold anything, so it is cut off
    first; texts that follow the fields read here cannot change them.
    """
    begin = re.search(_BEGIN.format(row.number, re.escape(row.name)), text, re.MULTILINE)
    if begin is None:
        return None
    fields = text[begin.end() - 1 :].partition("\nJobId=")[0]
    head = fields.partition(" Command=")[0]
    state = _value(head, "JobState")
    if state is None:
        return None
    code, _, signal = (_value(head, "ExitCode") or "").partition(":")
    return JobDetail(
        run_key=row.run_key,
        state=state,
        exit_code=int(code) if code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else None,
        restarts=int(restarts) if (restarts := _value(head, "Restarts") or "").isdigit() else 0,
        gpus=_gpus(head),
        share=_share(head),
        nodes=texts.hosts(_value(head, "NodeList") or ""),
        requested=_requested(fields, head, row),
        output=_last(fields, "StdOut"),
        directory=_last(fields, "WorkDir"),
    )


def with_noted_gpus(detail: JobDetail, note: str) -> JobDetail:
    """Return the details with the GPUs of a note `RESTARTS NODE 0,1`, if it is of the same run on one node."""
    words = note.split()
    if len(words) != 3 or words[0] != str(detail.restarts) or (words[1],) != detail.nodes:
        return detail
    indices = [int(index) for index in words[2].split(",") if index.isdigit()]
    return replace(detail, gpus=tuple((words[1], index) for index in indices))


def _value(text: str, name: str) -> str | None:
    match = re.search(rf"\s{name}=(\S*)", text)
    return match[1] if match else None


def _last(text: str, name: str) -> str:
    """Return the last value of that name, which may have blanks: later ones are Slurm's, earlier ones a comment's."""
    found = text.rpartition(f" {name}=")[2] if f" {name}=" in text else ""
    return texts.some(re.split(r"\s+[A-Z]\w*=", found, maxsplit=1)[0].strip())


def _gpus(head: str) -> tuple[tuple[str, int], ...]:
    found = []
    for match in _NODES.finditer(head):
        places = [index for _, _, indices in texts.gpu_lists(match[2]) for index in indices]
        places += [index for index in texts.shared_gpus(match[2]) if index not in places]
        found += [(node, index) for node in texts.hosts(match[1]) for index in places]
    return tuple(found)


def _share(head: str) -> float:
    """Return the mean share of the job's GPUs; 1 with any whole one."""
    shares: list[float] = []
    for match in _NODES.finditer(head):
        if texts.gpu_count(match[2]):
            return 1.0
        shares += texts.shared_gpus(match[2]).values()
    return sum(shares) / len(shares) if shares else 1.0


def _requested(fields: str, head: str, row: JobRow) -> int | None:
    """Return the number of GPUs in the first of Slurm's fields that names any."""
    nodes = int(row.node_count) if row.node_count.isdigit() else 1
    for name in _REQUESTS:
        value = _value(head, name) or _last(fields, name)
        if count := texts.gpu_count(value):
            return count * {"TresPerNode": nodes, "TresPerTask": _tasks(head)}.get(name, 1)
    return 0


def _tasks(head: str) -> int:
    told = _value(head, "NumTasks") or ""
    return int(told) if told.isdigit() else 1
