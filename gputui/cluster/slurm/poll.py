"""Poll of Slurm that all processes of a user on this machine share: one squeue and one scontrol per interval.

Beside it are records of what Slurm forgets, or does not know: jobs that have ended, and paused containers.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.cluster.journal import Index, locked, write_whole
from gputui.cluster.slurm import ids, site, states
from gputui.cluster.slurm.commands import SlurmCommands, mark_of
from gputui.cluster.slurm.ends import Ends, ids_of
from gputui.cluster.slurm.listings import (
    Ended,
    JobDetail,
    JobRow,
    NodeRow,
    is_mixed,
    parse_detail,
    parse_jobs,
    parse_nodes,
    regrouped,
    squeue_arguments,
)
from gputui.cluster.slurm.site import SlurmSite
from gputui.cluster.slurm.submission import key_of_comment
from gputui.cluster.slurm.texts import NOTHING
from gputui.cluster.submissions import Submissions
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState

MOST_DETAILS = 200
"""Number of jobs whose details are asked for in one poll."""


class Suspension(Struct, frozen=True):
    """A run of a job whose container was paused, or continued: Slurm itself still calls it running."""

    job_id: JobId
    run_key: str
    is_on: bool


class Polled(Struct, frozen=True):
    """Findings of one poll."""

    at: float
    """Second since 1970."""
    site: SlurmSite = SlurmSite()
    site_at: float = 0.0
    rows: tuple[JobRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    details: Mapping[str, JobDetail] = field(default_factory=dict)
    """Details by run."""
    recorded: frozenset[str] = frozenset()
    """Runs that have ended, with the seconds of their ends, of which there are records."""
    error: str = ""
    """Why Slurm did not answer; the other processes need not try."""
    rows_at: float = 0.0
    """Second since 1970 at which Slurm listed the jobs; earlier than `at` if it did not answer since."""


_DECODER = json_decoder(Polled)


class Poll:
    """Asks Slurm, or takes what another process has just found."""

    def __init__(
        self,
        commands: SlurmCommands,
        directory: Path,
        interval: float,
        submissions: Submissions,
    ) -> None:
        self.records = Index(directory / "ended.jsonl", Ended, lambda each: each.row.job_id)
        """The last runs of jobs that have ended, as long as the file keeps them."""
        self.ends = Ends(commands, submissions, self.records)
        self.suspensions = Index(directory / "suspended.jsonl", Suspension, lambda each: each.job_id, 1024**2)
        self._commands = commands
        self._file = directory / site.FILE
        self._interval = interval
        self._latest: Polled | None = None
        self._on_disk: tuple[tuple[int, int, int], Polled] | None = None
        self._thread_lock = Lock()

    def latest(self, since: float = 0.0) -> Polled:
        """Return the latest poll, at most one interval old, and begun after `since`, a second since 1970.

        Raises ClusterUnavailableError if Slurm did not answer.
        """
        with self._thread_lock:
            found = self._latest
            if found is None or not self._is_fresh(found, since):
                with locked(self._file.with_suffix(".lock")):
                    shared = self._read()  # what another process found within the interval
                    found = shared if shared is not None and self._is_fresh(shared, since) else self._made()
                    self._latest = found
        if found.error:
            raise ClusterUnavailableError(found.error)
        return found

    def last(self) -> Polled:
        """Return the last poll that this process knows of, however old it is."""
        return self._latest or self._read() or Polled(0.0)

    def site(self) -> SlurmSite:
        """Return Slurm's configuration, from any recent poll."""
        found = self.last()
        if not site.is_recent(found.site, found.site_at):
            return self.latest().site
        return found.site

    def forget(self) -> None:
        """Make the next call ask Slurm: something was changed."""
        with self._thread_lock, locked(self._file.with_suffix(".lock")):
            before = self._read()
            if before is not None:
                self._write(replace(before, at=0.0, error=""))
            self._latest = None

    def _is_fresh(self, polled: Polled, since: float) -> bool:
        return polled.at >= since and 0 <= time.time() - polled.at < self._interval

    def _read(self) -> Polled | None:
        """Return what the file has; decodes it only if another process wrote it."""
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                version = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._on_disk is None or self._on_disk[0] != version:
                    self._on_disk = version, _DECODER.decode(file.read())
            return self._on_disk[1]
        return None

    def _write(self, polled: Polled) -> None:
        write_whole(self._file, msgspec.json.encode(polled))
        status = self._file.stat()
        self._on_disk = (status.st_ino, status.st_mtime_ns, status.st_size), polled

    def _made(self) -> Polled:
        before = self._read() or Polled(0.0)
        try:
            found = self._asked(before)
        except ClusterUnavailableError as error:
            self._write(replace(before, at=time.time(), error=str(error)))
            raise
        self._write(found)
        return found

    def _asked(self, before: Polled) -> Polled:
        now = time.time()
        is_known = site.is_recent(before.site, before.site_at)
        known = before.site if is_known else site.ask(self._commands)
        mark = mark_of()
        rows = self._rows(mark)
        runs = {row.run_key: before.details[row.run_key] for row in rows if row.run_key in before.details}
        wanted = _wanted(rows, runs, before.recorded)
        # one scontrol reads all orders from a pipe; `show hostnames` prints the mark, which parts the answers
        part = f"show hostnames {mark}\n"
        orders = "".join((f"show nodes\n{part}", *(f"show job {row.number}\n{part}" for row in wanted)))
        answers = parted(self._commands.run("scontrol", "-d", "-o", stdin=orders).out, mark)
        ended = []
        for row, text in zip(wanted, answers[1:], strict=False):
            if (detail := parse_detail(text, row)) is not None:
                runs[row.run_key] = _with_gpus(detail, runs.get(row.run_key))
                if row.life.is_terminal and states.state_of(detail.state).is_terminal:
                    ended.append(Ended(row, replace(runs[row.run_key], state=row.state)))
        told = self.ends.completed(
            [*ended, *self._vanished(before, rows, known, now)], has_accounting=known.has_accounting
        )
        self.records.add(told)
        runs |= {each.detail.run_key: each.detail for each in told[: len(ended)]}
        recorded = before.recorded.union(each.row.end_key for each in ended)
        recorded = recorded.intersection(row.end_key for row in rows)
        nodes, site_at = tuple(parse_nodes(answers[0])), before.site_at if is_known else now
        return Polled(now, known, site_at, tuple(rows), nodes, runs, recorded, rows_at=now)

    def _vanished(self, before: Polled, rows: list[JobRow], known: SlurmSite, now: float) -> Iterator[Ended]:
        """Yield the ends without a record of the user's jobs from here that the last poll still listed."""
        for each in _vanished(before, rows, known.user, now):
            recorded = self.records.of(each.row.job_id)
            if recorded is not None and not recorded.row.life.is_terminal:
                yield replace(each, cancelled_at=recorded.cancelled_at)
            elif recorded is None or float(recorded.row.ended or 0) < each.detail.alive:  # that of an earlier run
                yield each

    def _rows(self, mark: str) -> list[JobRow]:
        rows = parse_jobs(self._commands.ask("squeue", *squeue_arguments(mark)), mark)
        mixed = {row.array: row.array_limit for row in rows if is_mixed(row)}
        if not mixed:
            return rows
        # all of their elements anew: one that waited before may have started in between
        asked = ("--array", f"--jobs={','.join(mixed)}")
        output = self._commands.run("squeue", *squeue_arguments(mark), *asked).out  # nothing for forgotten ones
        waiting: dict[str, list[JobRow]] = {array: [] for array in mixed}
        apart = [row for row in rows if row.array not in mixed]
        for row in parse_jobs(output, mark):
            (waiting[row.array] if row.life is JobState.PENDING else apart).append(row)
        return apart + [row for array, limit in mixed.items() for row in regrouped(waiting[array], limit)]


def _vanished(before: Polled, rows: Iterable[JobRow], user: str, now: float) -> Iterator[Ended]:
    """Yield the ends of the user's jobs from here that one poll lists and the next does not; of live ones unknown."""
    listed = {job_id for row in rows if row.user == user for job_id in ids_of(row)}
    for row in before.rows:
        is_over = row.life.is_terminal
        if (is_over and row.end_key in before.recorded) or row.user != user or not key_of_comment(row.comment):
            continue
        for job_id in ids_of(row):
            if job_id in listed:
                continue
            detail = before.details.get(row.run_key, JobDetail(row.run_key, row.state))
            if is_over:
                yield Ended(row, replace(detail, state=row.state))
            else:
                _, index = ids.parts(job_id)
                ended = replace(row, state=states.END_UNKNOWN, ended=str(int(now)))
                ended = ended if index is None else replace(ended, index=str(index))
                yield Ended(
                    ended, replace(detail, state=ended.state, alive=max(int(before.rows_at), int(row.submitted)))
                )


def parted(output: str, mark: str) -> list[str]:
    """Return the answers between the lines of `mark`, without prompts: some builds repeat each command, some do not."""
    answers = []
    for text in re.split(rf"(?:^|\n)(?:scontrol: )*{mark}\n", output):
        while text.startswith("scontrol: "):
            text = text.removeprefix("scontrol: ")
            if text.startswith("show "):
                text = text.partition("\n")[2]
        answers.append(text.removesuffix(f"\nscontrol: show hostnames {mark}"))
    return answers


def _wanted(rows: Iterable[JobRow], known: Mapping[str, JobDetail], recorded: Collection[str]) -> list[JobRow]:
    """Return the jobs whose details are missing, those first that Slurm will forget first.

    An ended one is wanted until its end is recorded: details of a moment later than squeue's may have shown it before.
    """
    ended, running, waiting = [], [], []
    for row in rows:
        detail = known.get(row.run_key)
        if row.life.is_terminal:
            if row.end_key not in recorded:
                ended.append(row)
        elif row.life is not JobState.PENDING:
            if detail is None or (detail.state != row.state and not detail.gpus):
                running.append(row)
        elif detail is None and (row.gres in NOTHING or row.reason == "BeginTime"):  # which follows a requeue too
            waiting.append(row)
    return [*ended, *running, *waiting][:MOST_DETAILS]


def _with_gpus(detail: JobDetail, before: JobDetail | None) -> JobDetail:
    """Return the details with the GPUs of the same run, which Slurm no longer names once it has ended."""
    if before is None or detail.gpus:
        return detail
    return replace(
        detail, gpus=before.gpus, share=before.share, nodes=detail.nodes or before.nodes, requested=before.requested
    )
