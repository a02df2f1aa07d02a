"""Jobs as `squeue` lists them.

Names, comments and commands are whatever their users wrote, also `|` and line ends. So a number that nobody can guess
begins each record and each of these texts, which come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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


class JobRow(Struct, frozen=True):
    """A job, or the waiting elements of an array, as squeue lists it; its words, unread."""

    number: str
    """Slurm's own number, which elements of arrays have too."""
    array: str
    index: str
    """Index of an element, list of indices of waiting ones, or `N/A`."""
    state: str
    reason: str
    submitted: str
    started: str
    """Start, or expected start."""
    ended: str
    """End, or end of the time limit."""
    limit: str
    nice: str
    priority: str
    user: str
    account: str
    partition: str
    nodes: str
    node_count: str
    gres: str
    dependency: str
    name: str
    comment: str
    command: str

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
    def life(self) -> JobState:
        """State in our words."""
        return states.state_of(self.state)


def arguments(mark: str) -> list[str]:
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


def parse(output: str, mark: str) -> list[JobRow]:
    """Return the jobs in the output of squeue; a record that cannot be read is left out."""
    return list(_rows(output, mark))


def _rows(output: str, mark: str) -> Iterator[JobRow]:
    pieces = output.split(mark)[1:]
    step = 1 + len(_FREE)
    for start in range(0, len(pieces) - step + 1, step):
        plain = pieces[start].split("|")
        if len(plain) != len(_PLAIN):
            continue
        free = pieces[start + 1 : start + step]
        free[-1] = free[-1].removesuffix("\n")
        row = JobRow(*plain, *free)
        if _is_readable(row):
            yield row


def _is_readable(row: JobRow) -> bool:
    try:
        return row.job_id > 0
    except (ValueError, IndexError):
        return False
