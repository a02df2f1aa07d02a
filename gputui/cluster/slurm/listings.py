"""Jobs and nodes as `squeue` and `scontrol` list them.

Names, comments and commands are whatever their users wrote, also `|` and line ends. So a number that nobody can guess
begins each record of squeue and each of these texts, which come last.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm import states, texts
from gputui.domain.cluster import element_id
from gputui.domain.job_spec import JobId
from gputui.domain.runs import merged, runs_of
from gputui.domain.state import JobState

_PLAIN = {
    "number": "%A",
    "array": "%F",
    "index": "%K",
    "state": "%T",
    "reason": "%r",
    "submitted": "%V",
    "started": "%S",
    "ended": "%e",
    "limit": "%l",
    "nice": "%y",
    "priority": "%Q",
    "user": "%u",
    "account": "%a",
    "partition": "%P",
    "nodes": "%N",
    "node_count": "%D",
    "gres": "%b",
    "dependency": "%E",
}
_FREE = {"name": "%j", "comment": "%k", "command": "%o"}
_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_BEGIN = r"^JobId={} (?:(?:Array|Het)\w+=\S+ )*JobName={} (?:(?:HetJobIdSet|SLUID)=\S+ )*(?=UserId=)"
_REQUESTS = ("AllocTRES", "TresPerJob", "TresPerNode", "TresPerTask", "ReqTRES", "TRES")
_RECORD = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_REASON = re.compile(r"\sReason=(.*?)\s\[([^\s\[\]@]+)@(\d+|Unknown)\]", re.DOTALL)


class JobRow(Struct, frozen=True):
    """A job, or the waiting elements of an array, as squeue lists it; its words, unread."""

    number: str
    """Slurm's own number, which elements of arrays have too."""
    array: str
    index: str
    """Index of an element, list of indices of waiting ones, or `N/A`."""
    state: str
    reason: str = "None"
    submitted: str = ""
    started: str = ""
    """Start, or expected start."""
    ended: str = ""
    """End, or end of the time limit."""
    limit: str = ""
    nice: str = "0"
    priority: str = "0"
    user: str = ""
    account: str = ""
    partition: str = ""
    nodes: str = ""
    node_count: str = "1"
    gres: str = ""
    dependency: str = ""
    name: str = ""
    comment: str = ""
    command: str = ""

    @property
    def job_id(self) -> JobId:
        """Id of the job, or of the first of the elements."""
        if self.index in texts.NOTHING:
            return int(self.number)
        return element_id(int(self.array), self.indices[0])

    @property
    def indices(self) -> list[int]:
        """Indices of the elements; empty unless it is an array."""
        if self.index in texts.NOTHING:
            return []
        return texts.numbers(self.index.partition("%")[0].strip("[]"))

    @property
    def owner(self) -> int:
        """Number of the job, or of the array that it belongs to: what sbatch printed."""
        return int(self.array if self.index not in texts.NOTHING else self.number)

    @property
    def array_limit(self) -> int | None:
        """Number of elements that may run at a time; None: no limit."""
        limit = self.index.partition("%")[2]
        return int(limit) if limit.isdigit() else None

    @property
    def run_key(self) -> str:
        """Key of this run of the job: another after a requeue."""
        return f"{self.number}@{'' if self.life is JobState.PENDING else self.started}"

    @property
    def end_key(self) -> str:
        """Key of the end of this run."""
        return f"{self.run_key} {self.ended}"

    @property
    def life(self) -> JobState:
        return states.state_of(self.state)


def squeue_arguments(mark: str) -> list[str]:
    """Return the options of squeue for all jobs, with `mark` before each record and each free text."""
    plain = "|".join(_PLAIN.values())
    return [
        "--noheader",
        "--all",
        "--states=all",
        "--format",
        "".join((mark, plain, *(mark + f for f in _FREE.values()))),
    ]


def is_mixed(row: JobRow) -> bool:
    """Return whether squeue has merged waiting elements of an array that wait for different reasons."""
    return len(row.indices) > 1 and "," in row.reason and not row.reason.startswith("ReqNodeNotAvail")


def regrouped(elements: Iterable[JobRow], limit: int | None) -> list[JobRow]:
    """Return elements of one array, those together that wait alike."""
    groups: dict[JobRow, list[int]] = {}
    for row in elements:
        groups.setdefault(replace(row, number=row.array, index="", started=""), []).extend(row.indices)
    most = f"%{limit}" if limit else ""
    firsts = {indices[0]: (row, indices) for row, indices in groups.items() if indices}
    return [
        replace(row, index=",".join(map(str, merged(runs_of(0, sorted(indices))))) + most, started="N/A")
        for _, (row, indices) in sorted(firsts.items())
    ]


def parse_jobs(output: str, mark: str) -> list[JobRow]:
    """Return the jobs in the output of squeue; a record that cannot be read is left out."""
    rows: list[JobRow] = []
    pieces = output.split(mark)[1:]
    step = 1 + len(_FREE)
    for start in range(0, len(pieces) - step + 1, step):
        plain = pieces[start].split("|")
        if len(plain) != len(_PLAIN):
            continue
        free = pieces[start + 1 : start + step]
        free[-1] = free[-1].removesuffix("\n")
        row = JobRow(*plain, *free)
        with contextlib.suppress(ValueError, IndexError):
            rows += [row] if row.job_id > 0 else []
    return rows


class JobDetail(Struct, frozen=True):
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
    told: str = ""
    """Why it failed, as its batch script knew: the code of a cause, a blank and a sentence."""
    alive: int = 0
    """Second since 1970 at which it had not ended, if nobody knows when it did."""


class Ended(Struct, frozen=True):
    """A run of a job that has ended, as far as it is known; one that has not ended yet was cancelled or requeued."""

    row: JobRow
    detail: JobDetail
    cancelled_at: str = ""
    """Second since 1970 at which it was cancelled from here."""


def parse_detail(text: str, row: JobRow) -> JobDetail | None:
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
            tasks = _value(head, "NumTasks") or ""
            return count * {"TresPerNode": nodes, "TresPerTask": int(tasks) if tasks.isdigit() else 1}.get(name, 1)
    return 0


class NodeRow(Struct, frozen=True):
    name: str
    states: tuple[str, ...]
    """State and flags, without `*` and the like: `IDLE`, `DRAIN`."""
    gpus: tuple[str, ...] = ()
    """Models of its GPUs by index; empty words where Slurm knows none."""
    used: tuple[int, ...] = ()
    """Indices of the allocated ones, also of those that jobs share by shards or MPS."""
    used_count: int = 0
    """Number of the allocated ones, also where Slurm does not tell which."""
    reason: str = ""
    reason_by: str = ""
    reason_at: int | None = None
    """Reason of its state by an administrator or Slurm, with the second since 1970."""


def parse_nodes(output: str) -> list[NodeRow]:
    """Return the nodes in the output of `scontrol -d -o show nodes`."""
    return [row for record in _RECORD.split(output) if (row := _row(record)) is not None]


def _row(record: str) -> NodeRow | None:
    head, _, _ = record.partition(" Reason=")
    name, state = _field(head, "NodeName"), _field(head, "State")
    if not name or not state:
        return None
    models = [model for model, count, _ in texts.gpu_lists(_field(head, "Gres")) for _ in range(min(count, 1024))]
    used = texts.gpu_lists(_field(head, "GresUsed"))
    whole = [index for _, _, indices in used for index in indices]
    shared = [index for index in texts.shared_gpus(_field(head, "GresUsed")) if index not in whole]
    has_used = "GresUsed=" in head
    reason = _REASON.search(record)
    return NodeRow(
        name,
        tuple(flag.strip("*~#!%$@^-") for flag in state.split("+")) + (("NOT_RESPONDING",) if "*" in state else ()),
        tuple(models),
        tuple(index for index in (*whole, *shared) if index < len(models)),
        sum(count for _, count, _ in used) + len(shared) if has_used else 0,
        " ".join(reason[1].split()) if reason else "",
        reason[2] if reason else "",
        int(reason[3]) if reason and reason[3].isdigit() else None,
    )


def _field(text: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return match[1] if match else ""
