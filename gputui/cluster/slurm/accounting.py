"""Ended jobs from `sacct`, where Slurm keeps accounts (slurmdbd)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm import ids, texts
from gputui.cluster.slurm.batch_script import COMMENT
from gputui.cluster.slurm.commands import SlurmCommands, mark_of
from gputui.cluster.slurm.listings import Ended, JobDetail, JobRow
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState

_FIELDS = (
    *("JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "User", "Account", "Partition"),
    *("NodeList", "NNodes", "ReqTRES", "AllocTRES", "Timelimit", "Comment", "JobName"),
)
_ENDED = ("BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO")
"""States asked for: without any, sacct leaves out jobs that were cancelled while they were held."""
_RANGES = tuple(map(timedelta, (366, 31, 7, 1)))
"""Days back for which all jobs are asked, until slurmdbd's MaxQueryTimeRange allows it: some sites have millions."""
_TOO_WIDE = "date range"


class _Number(Struct, frozen=True):
    number: int = 0


class _ExitCode(Struct, frozen=True):
    return_code: int | _Number = 0

    @property
    def code(self) -> int:
        """Number, which an object holds from Slurm 23.02 on."""
        return self.return_code if isinstance(self.return_code, int) else self.return_code.number


class _Job(Struct, frozen=True):
    job_id: int
    exit_code: _ExitCode = _ExitCode()


class _Jobs(Struct, frozen=True):
    jobs: tuple[_Job, ...] = ()


_JOBS = json_decoder(_Jobs)


def sacct_arguments(mark: str, since: datetime | None, jobs: tuple[str, ...] = ()) -> list[str]:
    """Return the options of sacct for jobs that ended, with `mark` after each field."""
    start = [f"--starttime={since:%Y-%m-%dT%H:%M:%S}"] if since else []
    ended = [*start, "--endtime=now", f"--state={','.join(_ENDED)}", "--allusers"]
    chosen = [f"--jobs={','.join(jobs)}"] if jobs else ended
    shape = ["--noheader", "--allocations", "--parsable", f"--delimiter={mark}", f"--format={','.join(_FIELDS)}"]
    return [*shape, *chosen]


def ended_jobs(commands: SlurmCommands, since: datetime | None, jobs: tuple[str, ...] = ()) -> Iterator[Ended]:
    """Yield jobs that ended, all users' as far as Slurm shows them; without `since`, those of a year at most."""
    mark, now = mark_of(), datetime.now(UTC)
    for start in [since] if since or jobs else [now - each for each in _RANGES]:
        told = commands.run("sacct", *sacct_arguments(mark, start, jobs))
        if _TOO_WIDE not in told.err:
            break
    if _TOO_WIDE in told.err:
        raise ClusterRefusedError(told.words, where="sacct", hint="slurmdbd has a MaxQueryTimeRange: --since -7d")
    if told.code:
        raise ClusterRefusedError(told.words, where="sacct")
    yield from parse_accounts(told.out, mark)


def ended_job(commands: SlurmCommands, job_id: JobId) -> Ended | None:
    """Return a job that ended, or an element of an array, with its whole exit code; None if accounts do not have it."""
    every = ended_jobs(commands, None, (ids.words(job_id),))
    found = next((each for each in every if job_id in (each.row.job_id, each.row.owner)), None)
    if found is None or found.row.life is JobState.COMPLETED:
        return found
    # sacct of 24.11 takes 128 from codes that are not less, except in JSON
    told = commands.run("sacct", "--allocations", "--json", f"--jobs={found.row.number}")
    try:
        codes = [job.exit_code.code for job in _JOBS.decode(told.out).jobs if str(job.job_id) == found.row.number]
    except msgspec.MsgspecError:
        return found  # Slurm was built without JSON
    code = next((code for code in codes if code), found.detail.exit_code)
    return replace(found, detail=replace(found.detail, exit_code=code))


def parse_accounts(output: str, mark: str) -> Iterator[Ended]:
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
        submitted=values["Submit"],
        started=values["Start"],
        ended=values["End"],
        limit=values["Timelimit"],
        user=values["User"],
        account=values["Account"],
        partition=values["Partition"],
        nodes=values["NodeList"] if values["NodeList"] != "None assigned" else "",
        node_count=values["NNodes"],
        name=values["JobName"],
        comment=values["Comment"] if values["Comment"].startswith(COMMENT) else "",
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
