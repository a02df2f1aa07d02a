"""Inside running jobs: their output, and commands as steps that overlap with all that the job runs.

Slurm starts such a step for the job's submitter alone, on the node of its batch script. A step in a container only
calls the node's engine, so it needs none of the job's GPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from gputui.cluster.slurm import commands
from gputui.cluster.slurm.batch_script import shell_text
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.listings import JobRow
from gputui.domain.container import COLUMNS, ExecRequest, ProcessRow, parse_ps
from gputui.domain.errors import ClusterRefusedError, GputuiError, NotFoundError
from gputui.domain.frames import CommandMarks
from gputui.domain.text import tail_start

if TYPE_CHECKING:
    from gputui.cluster.ssh import CommandChannel

_OWN = ("Access/permission denied", "Invalid user")
_PAUSE = 0.25
"""Seconds between two looks at a file, which may grow on another machine."""
_REMOTE_PAUSE = 2.0
_FOLLOW = """exec 3<&0; tail -F "$@" & tail=$!
{ cat <&3; kill $tail; } >/dev/null 2>&1 & wait $tail"""
"""Lines of sh: a `tail` that ends with the connection, which it would see only when the file grows."""
_CHUNK = 64 * 1024
_LONGEST_LINE = 1024**2


class StepPlace(StrEnum):
    CONTAINER = "container"
    """The container of Docker that the job's batch script runs."""
    NODE = "node"
    """The node, beside the batch script."""
    EITHER = "either"
    """The container, if there is one: of a job that gputui submitted on another machine."""
    ATTACH = "attach"
    """The streams of the container itself."""


def step(commands: SlurmCommands, row: JobRow, place: StepPlace, request: ExecRequest) -> CommandChannel:
    """Run a command in a job that runs; the channel raises what refuses it.

    A container to whose streams somebody attaches, and that does not run yet, is started then.
    """
    marks = CommandMarks(ends_line=not request.tty)
    options = ["--pty"] if request.tty else [] if request.stdin else ["--input=none"]
    words = [marks.key, place, request.term if request.tty else "", "1" if request.stdin else ""]
    script = [shell_text("inside.sh"), "gputui", *words, request.detach_keys, *request.command]
    return commands.channel(
        [*_srun(row, place), *options, "--", "bash", "-c", *script],
        marks,
        is_tty=request.tty,
        has_input=request.stdin,
        term=request.term,
        refused=lambda complaint: refusal(row, complaint),
    )


def processes(commands: SlurmCommands, row: JobRow, place: StepPlace) -> tuple[ProcessRow, ...]:
    script = ["bash", "-c", shell_text("processes.sh"), "gputui", place, COLUMNS]
    result = commands.run(*_srun(row, place), "--input=none", "--", *script)
    if result.code:
        raise refusal(row, result.err)
    return parse_ps(result.out)


def refusal(row: JobRow, complaint: str) -> GputuiError:
    job = f"job {commands.words(row.job_id)}"
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    found = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]  # the step's own tell most
    found += [line.partition("error: ")[2] for line in lines if "error: " in line]
    words = next(iter(found + [line.removeprefix("srun: ") for line in lines]), "srun did not run the command")
    return not_theirs(row) if any(each in words for each in _OWN) else ClusterRefusedError(words, where=job)


def not_theirs(row: JobRow) -> GputuiError:
    hint = "Slurm lets only its submitter enter it"
    return ClusterRefusedError(f"job {commands.words(row.job_id)} is a job of {row.user}", hint=hint)


def _srun(row: JobRow, place: StepPlace) -> list[str]:
    node = commands.hosts(row.nodes)[:1]
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


class SharedFileLog:
    """Lines of a file; with `is_over`, those that are still to come until that returns True."""

    is_stamped = False

    def __init__(self, path: Path, tail: int | None, is_over: Callable[[], bool] | None) -> None:
        if is_over is None and not path.exists():
            raise NotFoundError("it has no output here yet, or the file is gone", where=str(path))
        self._path = path
        self._tail = tail
        self._is_over = is_over
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        rest, offset = b"", _offset_of_tail(self._path, self._tail)
        while not self._closed.is_set():
            was_over = self._is_over is None or self._is_over()  # asked first: the last lines are read after the end
            with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
                file.seek(offset)
                while chunk := file.read(_CHUNK):
                    offset += len(chunk)
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
                    if len(rest) > _LONGEST_LINE:
                        yield rest
                        rest = b""
            if was_over:
                break
            self._closed.wait(_PAUSE)
        if rest:
            yield rest

    def close(self) -> None:
        self._closed.set()


class RemoteLog:
    is_stamped = False

    def __init__(
        self, commands: SlurmCommands, path: str, tail: int | None, is_over: Callable[[], bool] | None
    ) -> None:
        if is_over is None and commands.run("test", "-e", path).code:
            raise NotFoundError("it has no output there yet, or the file is gone", where=f"{commands.place}:{path}")
        start = ["-n", "+1" if tail is None else str(tail)]
        follow = ["sh", "-c", _FOLLOW, "sh", *start] if is_over else ["tail", *start]
        self._process, self._marks = commands.popen(*follow, "--", path)
        self._is_over = is_over
        self._is_read = False
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        if self._is_over is not None:
            from gputui.threads import Watcher  # only who follows needs it

            Watcher("log-end", partial(self._end_with_job, self._is_over)).start()
        self._is_read, rest = True, b""
        assert self._process.stdout is not None
        try:
            with self._process.stdout as output:
                while data := os.read(output.fileno(), _CHUNK):
                    *lines, rest = (rest + self._marks.feed(data)).split(b"\n")
                    yield from lines
            if rest := rest + self._marks.rest():
                yield rest
        finally:
            self.close()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.stdout is not None and not self._is_read:
            self._process.stdout.close()

    def _end_with_job(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._closed.wait(_REMOTE_PAUSE):
                return
        if not self._closed.wait(_REMOTE_PAUSE):  # tail looks at the file each second
            self.close()


def _offset_of_tail(path: Path, tail: int | None) -> int:
    """Return the offset of the last `tail` lines: of the whole file for None, or while there is none."""
    if tail is None:
        return 0
    try:
        with path.open("rb") as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            return tail_start(size, tail, lambda at, count: os.pread(descriptor, count, at))
    except FileNotFoundError:
        return 0
