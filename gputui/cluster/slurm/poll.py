"""Poll of Slurm that all processes of a user on this machine share: one squeue and one scontrol per interval.

Beside it are records of what Slurm forgets, or does not know: jobs that have ended, and paused containers. Each job
that was submitted from this state directory gets a record of its end, whoever watched: with its exit code, from the
note of its batch script beside the output or Slurm's accounts, or with the window in which it ended if nobody noted
that.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.cluster.journal import Index, Submissions, Submitted, locked, write_whole
from gputui.cluster.slurm import commands, listings, site
from gputui.cluster.slurm.batch_script import COMMENT, clock, nice_of, record_file
from gputui.cluster.slurm.commands import NOTHING, SlurmCommands, mark_of
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
from gputui.domain.cluster import element_id
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import ClusterError, ClusterUnavailableError
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState

_RETRIED = 7 * 86400
"""Seconds for which an unknown end is looked for again: a file system or the accounts may have been away."""
_LOST = 86400
"""Seconds for which the job of a submission is looked for whose answer was lost."""
_SKEW = 60
"""Seconds by which the clocks of a node and of slurmctld may differ."""
_STOPPED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
_LATE = 5
"""Seconds by which a batch script may begin after Slurm's clock of its time limit has."""
_TOGETHER = 1000
"""Number of jobs that one sacct is asked for."""
_READ = "tr '\\n' '\\0' | xargs -0 -r grep -sHZ ''"
"""Line of sh that prints path, NUL and line for each line of the files on standard input; missing ones are left out."""


class RunNote(Struct, frozen=True):
    """Note of the last run of a job, by its batch script; times in seconds since 1970."""

    started: int
    restarts: int
    node: str
    gpus: tuple[int, ...] = ()
    key: str = ""
    """Key of its submission: numbers of jobs are used again where Slurm is set up anew."""
    ended: int | None = None
    code: int | None = None
    why: str = ""
    """Code of a cause and a sentence, if the script knew why the run failed."""


def parse_note(lines: Iterable[str]) -> RunNote | None:
    """Return the last run in the lines of a file that `record.sh` describes; a line that cannot be read is left out."""
    found: RunNote | None = None
    for line in lines:
        match line.split():
            case ["start", at, restarts, node, gpus, key] if at.isdigit() and restarts.isdigit():
                indices = tuple(int(each) for each in gpus.split(",") if each.isdigit())
                found = RunNote(int(at), int(restarts), node, indices, key)
            case ["end", at, code, *why] if found is not None and at.isdigit() and code.isdigit():
                found = replace(found, ended=int(at), code=int(code), why=" ".join(why))
    return found


def with_note(ended: Ended, note: RunNote) -> Ended:
    row, detail = ended.row, ended.detail
    gpus = tuple((note.node, index) for index in note.gpus) or detail.gpus
    if row.state != listings.END_UNKNOWN:
        nodes, start, end = detail.nodes or commands.hosts(row.nodes), *map(commands.moment, (row.started, row.ended))
        if nodes != (note.node,) or start is None or end is None:
            return ended
        if not start.timestamp() - _SKEW <= note.started <= end.timestamp() + _SKEW:  # begun while it lasted
            return ended
        code = detail.exit_code if note.code is None or row.state == "COMPLETED" else note.code
        return replace(ended, detail=replace(detail, gpus=detail.gpus or gpus, exit_code=code, told=note.why))
    has_been_seen = str(detail.alive) != row.submitted
    if has_been_seen and note.ended is not None and note.ended < detail.alive - _SKEW:
        return ended  # of an earlier run: it has waited since
    row = replace(row, started=str(note.started), nodes=note.node)
    detail = replace(detail, run_key=row.run_key, nodes=(note.node,), gpus=gpus, restarts=note.restarts)
    if note.ended is None:
        return replace(ended, row=row, detail=replace(detail, alive=max(detail.alive, note.started)))
    limit, state = commands.span(row.limit), "FAILED"
    is_late = limit is not None and note.ended - note.started >= limit.total_seconds() - _LATE
    if not note.code:
        state = "COMPLETED"
    elif ended.cancelled_at:
        state = "CANCELLED"
    elif is_late and note.code in _STOPPED:  # Slurm ends a run by a signal once its time limit is over
        state = "TIMEOUT"
    detail = replace(detail, state=state, exit_code=note.code, told=note.why)
    return replace(ended, row=replace(row, state=state, ended=str(note.ended)), detail=detail)


class Ends(Struct, eq=False):
    """Completes records of ends, and makes those of jobs whose end no poll showed."""

    _commands: SlurmCommands
    _submissions: Submissions
    _records: Index[JobId, Ended]

    def of(self, job_id: JobId) -> Ended | None:
        found = self._records.of(job_id)
        return found if found is not None and found.row.life.is_terminal else None

    def completed(self, ends: Sequence[Ended], *, has_accounting: bool) -> list[Ended]:
        """Return ends with what Slurm did not tell of our jobs: GPUs, exit codes, and ends that no poll showed."""
        ours: dict[JobId, Submitted] = {}
        for each in ends:  # those that lack something that their batch scripts may have noted
            row, detail = each.row, each.detail
            lacks_gpus = detail.requested and detail.nodes and not detail.gpus
            if lacks_gpus or detail.exit_code is None or row.life is JobState.FAILED:
                submitted = self._submissions.of_number(row.owner)
                if submitted is not None and key_of_comment(row.comment) == submitted.key:
                    ours[row.job_id] = submitted
        if not ours:
            return list(ends)
        unseen = [each.row.owner for each in ends if each.row.state == listings.END_UNKNOWN]
        words, told = [str(each) for each in dict.fromkeys(unseen)] if has_accounting else [], dict[JobId, Ended]()
        with suppress(ClusterError):  # what accounts do not tell now is asked again
            for start in range(0, len(words), _TOGETHER):
                found = listings.ended_jobs(self._commands, None, tuple(words[start : start + _TOGETHER]))
                told |= {each.row.job_id: each for each in found}
        notes = self._notes(ours)
        return [self._completed(each, told.get(each.row.job_id), notes.get(each.row.job_id)) for each in ends]

    def record_lost(self, listed: Collection[JobId], at: float, user: str, *, has_accounting: bool) -> None:
        """Record the ends of our jobs that Slurm, asked at that time, did not list any more."""
        found, now, recorded = [], time.time(), self._records.all()
        lost = [each for each in self._submissions.all() if each.known_at is None and now - each.at.timestamp() < _LOST]
        begun = self.started(lost) if lost else {}
        for key, (number, _) in begun.items():
            self._submissions.note_jobs(key, number)
        for submitted in self._submissions.all():
            if submitted.number is None or submitted.known_at is None:
                continue
            if (begun[submitted.key][1] if submitted.key in begun else submitted.known_at.timestamp()) >= at:
                continue
            array = submitted.submission.array
            for job_id in [element_id(submitted.number, index) for index in array] if array else [submitted.number]:
                known, is_open = recorded.get(job_id), True
                if known is not None and known.row.life.is_terminal:
                    is_open = known.row.state == listings.END_UNKNOWN and now - float(known.row.ended or 0) < _RETRIED
                if job_id not in listed and is_open:
                    found.append(unknown_end(job_id, submitted, user, known))
        completed = self.completed(found, has_accounting=has_accounting)
        self._records.add(each for each in completed if recorded.get(each.row.job_id) != each)

    def started(self, submissions: Sequence[Submitted]) -> dict[str, tuple[int, int]]:
        """Return number and start of the jobs that these submissions became, by key, as far as they have begun."""
        folders = {record_file(each.output, "").rpartition("/")[0] for each in submissions}
        keys = [f"-e{each.key}" for each in submissions]
        named = ("-maxdepth", "1", "-name", ".*.run", "-exec", "grep", "-sZHF", *keys, "{}", "+")
        found = {}
        for line in self._commands.run("find", *sorted(folders), *named).out.split("\n"):
            path, _, noted = line.partition("\0")
            job_id, note = commands.of_words(path.rpartition("/.")[2].removesuffix(".run")), parse_note([noted])
            if job_id is not None and note is not None and note.key in {each.key for each in submissions}:
                found[note.key] = commands.parts(job_id)[0], note.started
        return found

    def _notes(self, ours: Mapping[JobId, Submitted]) -> dict[JobId, RunNote]:
        paths = {
            record_file(each.output, commands.words(job_id)): job_id for job_id, each in ours.items() if each.output
        }
        lines: dict[str, list[str]] = {}
        told = self._commands.script(_READ, "grep", stdin="".join(f"{path}\n" for path in paths))
        for line in told.out.split("\n"):
            path, _, noted = line.partition("\0")
            lines.setdefault(path, []).append(noted)
        found = {job_id: parse_note(lines.get(path, ())) for path, job_id in paths.items()}
        return {job_id: note for job_id, note in found.items() if note is not None and note.key == ours[job_id].key}

    def _completed(self, ended: Ended, told: Ended | None, note: RunNote | None) -> Ended:
        if ended.row.state == listings.END_UNKNOWN and told is not None:
            row = replace(told.row, comment=ended.row.comment)
            ended = replace(ended, row=row, detail=replace(told.detail, run_key=row.run_key))
        if note is not None:
            ended = with_note(ended, note)
        if ended.row.state == listings.END_UNKNOWN and ended.cancelled_at:
            row = replace(ended.row, state="CANCELLED", ended=ended.cancelled_at)
            ended = replace(ended, row=row, detail=replace(ended.detail, state=row.state))
        return ended


def is_later(told: Ended, recorded: Ended) -> bool:
    begun, ended = commands.moment(told.row.started), commands.moment(recorded.row.ended)
    return recorded.row.state == listings.END_UNKNOWN or (begun is not None and ended is not None and begun > ended)


def ids_of(row: JobRow) -> Iterator[JobId]:
    if row.indices:
        yield from (element_id(int(row.array), index) for index in row.indices)
    else:
        yield row.job_id


def unknown_end(job_id: JobId, submitted: Submitted, user: str, known: Ended | None = None) -> Ended:
    """Return the unknown end of a job that was submitted from here; `known` is what was recorded of it before."""
    now = str(int(time.time()))
    if known is not None:
        is_over = known.row.life.is_terminal
        return known if is_over else replace(known, row=replace(known.row, state=listings.END_UNKNOWN, ended=now))
    spec, (number, index) = submitted.submission.spec, commands.parts(job_id)
    row = JobRow(
        number=str(number),
        array=str(number),
        index="N/A" if index is None else str(index),
        state=listings.END_UNKNOWN,
        submitted=str(int(submitted.at.timestamp())),
        ended=now,
        limit=clock(spec.time_limit) if spec.time_limit else "",
        nice=str(nice_of(spec.priority)),
        user=user,
        name=spec.name,
        comment=COMMENT + submitted.key,
    )
    return Ended(row, JobDetail(row.run_key, row.state, alive=int(submitted.at.timestamp())))


MOST_DETAILS = 200
"""Number of jobs whose details are asked for in one poll."""


class Suspension(Struct, frozen=True):
    """A run of a job whose container was paused, or continued: Slurm itself still calls it running."""

    job_id: JobId
    run_key: str
    is_on: bool


class Polled(Struct, frozen=True):
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

    def __init__(self, commands: SlurmCommands, directory: Path, interval: float, submissions: Submissions) -> None:
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
        return self._latest or self._read() or Polled(0.0)

    def site(self) -> SlurmSite:
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
        with suppress(OSError, msgspec.DecodeError, ValueError):
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
                earlier = runs.get(row.run_key)
                if earlier is not None and not detail.gpus:  # Slurm no longer names them once it has ended
                    places = {"gpus": earlier.gpus, "nodes": detail.nodes or earlier.nodes}
                    detail = replace(detail, **places, share=earlier.share, requested=earlier.requested)
                runs[row.run_key] = detail
                if row.life.is_terminal and listings.state_of(detail.state).is_terminal:
                    ended.append(Ended(row, replace(detail, state=row.state)))
        told = self.ends.completed(
            [*ended, *self._vanished(before, rows, known.user, now)], has_accounting=known.has_accounting
        )
        self.records.add(told)
        runs |= {each.detail.run_key: each.detail for each in told[: len(ended)]}
        recorded = before.recorded.union(each.row.end_key for each in ended)
        recorded = recorded.intersection(row.end_key for row in rows)
        nodes, site_at = tuple(parse_nodes(answers[0])), before.site_at if is_known else now
        return Polled(now, known, site_at, tuple(rows), nodes, runs, recorded, rows_at=now)

    def _vanished(self, before: Polled, rows: Iterable[JobRow], user: str, now: float) -> Iterator[Ended]:
        """Yield the ends without a record of the user's jobs from here that the last poll still listed."""
        listed = {job_id for row in rows if row.user == user for job_id in ids_of(row)}
        for row in before.rows:
            is_over = row.life.is_terminal
            if (is_over and row.end_key in before.recorded) or row.user != user or not key_of_comment(row.comment):
                continue
            detail = before.details.get(row.run_key, JobDetail(row.run_key, row.state))
            for job_id in ids_of(row):
                if job_id in listed:
                    continue
                end = Ended(row, replace(detail, state=row.state))
                if not is_over:  # how it ended is unknown
                    _, index = commands.parts(job_id)
                    ended = replace(row, state=listings.END_UNKNOWN, ended=str(int(now)))
                    ended = ended if index is None else replace(ended, index=str(index))
                    alive = max(int(before.rows_at), int(row.submitted))
                    end = Ended(ended, replace(detail, state=ended.state, alive=alive))
                recorded = self.records.of(end.row.job_id)
                if recorded is not None and not recorded.row.life.is_terminal:
                    yield replace(end, cancelled_at=recorded.cancelled_at)
                elif recorded is None or float(recorded.row.ended or 0) < end.detail.alive:  # that of an earlier run
                    yield end

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
