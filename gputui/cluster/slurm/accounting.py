"""Ended jobs from `sacct`, where Slurm keeps accounts (slurmdbd)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gputui.cluster.slurm import texts
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.details import JobDetail
from gputui.cluster.slurm.directives import COMMENT
from gputui.cluster.slurm.job_rows import JobRow
from gputui.cluster.slurm.poll import Ended, mark_of

_FIELDS = (
    *("JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "User", "Account", "Partition"),
    *("NodeList", "NNodes", "ReqTRES", "AllocTRES", "Timelimit", "Comment", "JobName"),
)
_ENDED = ("BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO")
"""States asked for: without any, sacct leaves out jobs that were cancelled while they were held."""
_LONG_AGO = "1970-01-02"


def arguments(mark: str, since: datetime | None, jobs: tuple[str, ...] = ()) -> list[str]:
    """Return the options of sacct for jobs that ended, with `mark` after each field."""
    start = since.strftime("%Y-%m-%dT%H:%M:%S") if since else _LONG_AGO
    ended = [f"--starttime={start}", "--endtime=now", f"--state={','.join(_ENDED)}", "--allusers"]
    chosen = [f"--jobs={','.join(jobs)}"] if jobs else ended
    shape = ["--noheader", "--allocations", "--parsable", f"--delimiter={mark}", f"--format={','.join(_FIELDS)}"]
    return [*shape, *chosen]


def ended_jobs(commands: SlurmCommands, since: datetime | None, jobs: tuple[str, ...] = ()) -> Iterator[Ended]:
    """Yield jobs that ended; all users' as far as Slurm shows them."""
    mark = mark_of()
    yield from parse(commands.ask("sacct", *arguments(mark, since, jobs)), mark)


def parse(output: str, mark: str) -> Iterator[Ended]:
    """Yield the jobs in the output of sacct that have ended; a record that cannot be read is left out."""
    fields = output.split(mark)
    for start in range(0, len(fields) - len(_FIELDS), len(_FIELDS)):
        values = dict(zip(_FIELDS, fields[start : start + len(_FIELDS)], strict=True))
        values["JobIDRaw"] = values["JobIDRaw"].removeprefix("\n")
        try:
            found = _ended(values)
            if found.row.life.is_terminal and found.row.job_id > 0:
                yield found
        except (ValueError, IndexError):
            continue


def _ended(values: dict[str, str]) -> Ended:
    array, underscore, index = values["JobID"].partition("_")
    code, _, signal = values["ExitCode"].partition(":")
    row = JobRow(
        number=values["JobIDRaw"],
        array=array,
        index=index if underscore else "N/A",
        state=values["State"].split(" ")[0],
        reason="None",
        submitted=values["Submit"],
        started=values["Start"],
        ended=values["End"],
        limit=values["Timelimit"],
        nice="0",
        priority="0",
        user=values["User"],
        account=values["Account"],
        partition=values["Partition"],
        nodes=values["NodeList"] if values["NodeList"] != "None assigned" else "",
        node_count=values["NNodes"],
        gres="",
        dependency="",
        name=values["JobName"],
        comment=values["Comment"] if values["Comment"].startswith(COMMENT) else "",
        command="",
    )
    detail = JobDetail(
        row.run_key,
        row.state,
        int(code) if code.isdigit() else None,
        int(signal) if signal.isdigit() else None,
        nodes=texts.hosts(row.nodes),
        requested=texts.gpu_count(values["AllocTRES"] or values["ReqTRES"]),
    )
    return Ended(row, detail)
