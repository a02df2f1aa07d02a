"""Commands in running jobs, as steps that overlap with all that the job runs, on the node of its batch script.

Slurm starts such a step for the job's submitter alone. A step in a container only calls the node's engine, so it needs
none of the job's GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from gputui.cluster.marks import CommandMarks
from gputui.cluster.slurm import ids, texts
from gputui.cluster.slurm.batch_script import shell_text
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.job_rows import JobRow
from gputui.domain.container import ExecRequest, ProcessRow
from gputui.domain.errors import ClusterRefusedError, GputuiError
from gputui.domain.job_spec import Interactive
from gputui.domain.process_table import COLUMNS, parse_ps

if TYPE_CHECKING:
    from gputui.cluster.command_channel import CommandChannel

_OWN = ("Access/permission denied", "Invalid user")


class StepPlace(StrEnum):
    """Where a step runs its command."""

    CONTAINER = "container"
    """In the container of Docker that the job's batch script runs."""
    NODE = "node"
    """On the node, beside the batch script."""
    EITHER = "either"
    """In the container, if there is one: of a job that gputui submitted on another machine."""
    ATTACH = "attach"
    """At the streams of the container itself."""


class JobSteps:
    """Runs commands in jobs that run."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    def execute(self, row: JobRow, request: ExecRequest, place: StepPlace) -> CommandChannel:
        """Run a command; the channel raises what refuses it."""
        return self._inside(row, place, request)

    def attach(self, row: JobRow, interactive: Interactive, keys: str) -> CommandChannel:
        """Attach to the streams of the job's container; one that does not run yet is started then."""
        return self._inside(
            row, StepPlace.ATTACH, ExecRequest((), interactive.stdin, interactive.tty, detach_keys=keys)
        )

    def _inside(self, row: JobRow, place: StepPlace, request: ExecRequest) -> CommandChannel:
        marks = CommandMarks(ends_line=not request.tty)
        options = ["--pty"] if request.tty else [] if request.stdin else ["--input=none"]
        words = [marks.key, place, request.term if request.tty else "", "1" if request.stdin else ""]
        script = [shell_text("inside.sh"), "gputui", *words, request.detach_keys, *request.command]
        return self._commands.channel(
            [*_srun(row, place), *options, "--", "bash", "-c", *script],
            marks,
            is_tty=request.tty,
            has_input=request.stdin,
            term=request.term,
            refused=lambda complaint: refusal(row, complaint),
        )

    def processes(self, row: JobRow, place: StepPlace) -> tuple[ProcessRow, ...]:
        """Return the processes of the job on that node."""
        script = ["bash", "-c", shell_text("processes.sh"), "gputui", place, COLUMNS]
        result = self._commands.run(*_srun(row, place), "--input=none", "--", *script)
        if result.code:
            raise refusal(row, result.err)
        return parse_ps(result.out)


def refusal(row: JobRow, complaint: str) -> GputuiError:
    """Return the error that says why a step did not run, from the messages of srun and of the step."""
    job = f"job {ids.words(row.job_id)}"
    words = next(_told(complaint), "srun did not run the command")
    return not_theirs(row) if any(each in words for each in _OWN) else ClusterRefusedError(words, where=job)


def not_theirs(row: JobRow) -> GputuiError:
    """Return the error for another user's job; Slurm refuses even its administrators."""
    hint = "Slurm lets only its submitter enter it"
    return ClusterRefusedError(f"job {ids.words(row.job_id)} is a job of {row.user}", hint=hint)


def place_words(row: JobRow, place: StepPlace) -> str:
    """Return where commands in the job run, in words."""
    node = next(iter(texts.hosts(row.nodes)), "its node")
    return f"node {node}, beside the job" if place is StepPlace.NODE else f"container gputui-{row.number} on {node}"


def _told(complaint: str) -> Iterator[str]:
    """Yield the messages, the one that tells most first: the step's own, then srun's errors, then its other words."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    yield from (line for line in lines if not line.startswith(("srun: ", "slurmstepd")))
    yield from (line.partition("error: ")[2] for line in lines if "error: " in line)
    yield from (line.removeprefix("srun: ") for line in lines)


def _srun(row: JobRow, place: StepPlace) -> list[str]:
    node = texts.hosts(row.nodes)[:1]
    return [
        "srun",
        "--quiet",  # errors are told all the same
        f"--jobid={row.number}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--job-name=gputui-exec",
        *(f"--nodelist={name}" for name in node),
        *(["--gres=none"] if place in {StepPlace.CONTAINER, StepPlace.ATTACH} else []),
    ]
