"""Slurm behind the port `Cluster`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gputui.cluster.journal import Submissions
from gputui.cluster.slurm import commands, site
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.submission import BatchSubmitter, expanded, is_refused, key_of_comment
from gputui.domain.cluster import element_id
from gputui.domain.errors import ClusterError, ClusterRefusedError, NotFoundError
from gputui.domain.text import format_duration, format_limit

if TYPE_CHECKING:
    from gputui.cluster.slurm.changes import JobChanger
    from gputui.cluster.slurm.inside import RemoteLog, SharedFileLog, StepPlace
    from gputui.cluster.slurm.listings import Ended, JobRow
    from gputui.cluster.slurm.node_checker import NodeChecker
    from gputui.cluster.slurm.picture import Pictures
    from gputui.cluster.slurm.poll import Ends, Poll, Polled
    from gputui.cluster.slurm.site import SlurmSite
    from gputui.cluster.ssh import CommandChannel
    from gputui.domain.cluster import Caps, ClusterFault
    from gputui.domain.container import ProcessRow
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.settings import Settings
    from gputui.domain.snapshot import Snapshot
    from gputui.ports.backend import Entry
    from gputui.ports.cluster import EngineAction


_OLD = 10.0
"""Seconds after which a picture that processes share tells its age."""


class SlurmCluster:
    """Jobs and nodes of a cluster that Slurm runs.

    Its parts are imported and made when they are first needed: a submission needs few, and its job waits meanwhile.
    """

    def __init__(self, commands: SlurmCommands, settings: Settings, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._commands = commands
        self._directory = directory
        self._submissions = Submissions(directory)
        self._submitter = BatchSubmitter(commands, settings, self._submissions, self._forgotten)
        self._all_settings = settings
        self._settings = settings.cluster
        self._lock = Lock()
        self._shown: tuple[float, Snapshot] | None = None
        self._polled: Polled | None = None

    @cached_property
    def _poll(self) -> Poll:
        from gputui.cluster.slurm.poll import Poll

        interval = self._settings.poll_interval.total_seconds()
        return Poll(self._commands, self._directory, interval, self._submissions)

    @cached_property
    def _pictures(self) -> Pictures:
        from gputui.cluster.slurm.picture import Pictures

        return Pictures(self._submissions, runs_once=not self._settings.requeue)

    @cached_property
    def _changes(self) -> JobChanger:
        from gputui.cluster.slurm.changes import JobChanger

        return JobChanger(self._commands, self._poll, self._is_ours, self._is_contained, self._settings.requeue)

    @property
    def name(self) -> str:
        """Slurm's name of the cluster; that of the login node until Slurm has answered."""
        return (self._polled.site.cluster if self._polled else "") or self._commands.place or "slurm"

    @property
    def user(self) -> str:
        return self._polled.site.user if self._polled else ""

    @property
    def caps(self) -> Caps:
        return site.caps_of(self._polled.site if self._polled else None)

    def snapshot(self) -> Snapshot:
        polled = self._latest()
        found, age = self._shown_of(polled), time.time() - polled.at
        if age < _OLD:
            return found
        from msgspec.structs import replace

        from gputui.domain.snapshot import Notice

        ago = format_duration(timedelta(seconds=age))
        words = f"this was so {ago} ago: Slurm is asked every {format_limit(self._settings.poll_interval)}"
        notice = Notice("warning", f"{words} (cluster.poll_interval)", short=f"{ago} old")
        return replace(found, notices=(*found.notices, notice))

    def _shown_of(self, polled: Polled) -> Snapshot:
        with self._lock:
            if self._shown is None or self._shown[0] != polled.at:
                paused = {(each.job_id, each.run_key) for each in self._poll.suspensions.all().values() if each.is_on}
                suspended = {row.job_id for row in polled.rows if (row.job_id, row.run_key) in paused} if paused else ()
                self._shown = polled.at, self._pictures.snapshot(polled, frozenset(suspended))
            return self._shown[1]

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        here = self._site()
        limited = [site.with_limit(each, self._settings, here)[0] for each in submissions]
        try:
            return self._submitter.submit(limited, key, here.home, is_new=is_new)
        finally:
            self._poll.forget()

    def draft(self, submission: Submission) -> str:
        return ""

    def note(self, submission: Submission) -> str:
        return site.with_limit(submission, self._settings, self._site())[1]

    def expected_start(self, submission: Submission) -> datetime | None:
        here = self._site()
        limited, _ = site.with_limit(submission, self._settings, here)
        return self._submitter.expected_start(limited, here.home)

    def _site(self) -> SlurmSite:
        return site.known(self._directory / site.FILE) or self._poll.site()

    def act(self, action: EngineAction) -> tuple[JobId, ...]:
        from gputui.cluster.slurm.changes import fits, needed
        from gputui.domain.action import Cancel, DrainGpus, Hold, ResumeGpus

        if (capability := needed(action)) is not None:
            self._latest()
            self.caps.need(capability)
        if isinstance(action, DrainGpus | ResumeGpus):
            self._changes.update_nodes(action)
            self._poll.forget()
            return ()
        if isinstance(action, Hold):  # Slurm takes it for a job that has begun too, and has it wait after a requeue
            self._latest(time.time())
        found = self._rows(action.ids, with_past=isinstance(action, Cancel))
        rows = {job_id: row for job_id, row in found.items() if fits(action, row)}
        try:
            return self._changes.act(action, rows) if rows else ()
        finally:
            if rows:
                self._poll.forget()

    def job(self, job_id: JobId) -> Job:
        asked_at, polled = time.time(), self._latest()
        if (found := self._shown_of(polled).named(job_id)) is not None:
            return found
        if self._poll.records.of(job_id) is None:  # others may have asked Slurm before it was submitted
            polled = self._latest(asked_at)
            if (found := self._shown_of(polled).named(job_id)) is not None:
                return found
        array = self._submissions.of_number(job_id)
        if array is not None and array.submission.array:  # it stands for its first element
            job_id = element_id(job_id, array.submission.array[0])
        ended = self._recorded_ends().of(job_id)
        if ended is None and polled.site.has_accounting:
            from gputui.cluster.slurm import listings

            ended = listings.ended_job(self._commands, job_id)
        if ended is None:
            raise NotFoundError(f"Slurm knows no job {commands.words(job_id)}, and nothing was recorded of it")
        return self._pictures.job_of(ended.row, ended.detail, polled.site.user)

    def last_known(self, job_id: JobId) -> Job | None:
        from gputui.cluster.slurm.poll import unknown_end

        polled, ended = self._poll.last(), self._poll.ends.of(job_id)
        submitted = self._submissions.of_number(commands.parts(job_id)[0]) if ended is None else None
        if submitted is not None:
            (ended,) = self._poll.ends.completed(
                [unknown_end(job_id, submitted, polled.site.user)], has_accounting=False
            )
        return None if ended is None else self._pictures.job_of(ended.row, ended.detail, polled.site.user)

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        from gputui.cluster.slurm import listings
        from gputui.cluster.slurm.poll import is_later

        self._recorded_ends()
        polled = self._latest()
        found = {job_id: each for job_id, each in self._poll.records.all().items() if each.row.life.is_terminal}
        for each in listings.ended_jobs(self._commands, since) if polled.site.has_accounting else ():
            ours = found.get(each.row.job_id)
            if ours is None or is_later(each, ours):  # ours has GPUs by index, and its comment
                found[each.row.job_id] = each
        for each in found.values():
            job = self._pictures.job_of(each.row, each.detail, polled.site.user)
            if job.ended_at is not None and (since is None or job.ended_at >= since):
                yield job

    def log(self, job: Job, *, tail: int | None, follow: bool) -> SharedFileLog | RemoteLog:
        from gputui.cluster.slurm.inside import RemoteLog, SharedFileLog

        path = self._output(job)
        is_over = (lambda: self._is_over(job.id)) if follow else None
        if self._commands.place:
            return RemoteLog(self._commands, path, tail, is_over)
        return SharedFileLog(Path(path), tail, is_over)

    def place(self, job: Job) -> str:
        from gputui.cluster.slurm.inside import StepPlace

        row = self._own_row(job)
        node, is_beside = next(iter(commands.hosts(row.nodes)), "its node"), self._step_place(row) is StepPlace.NODE
        return f"node {node}, beside the job" if is_beside else f"container gputui-{row.number} on {node}"

    def enter(self, job: Job, request: Entry) -> CommandChannel:
        from gputui.cluster.slurm.inside import StepPlace, step
        from gputui.domain.container import ExecRequest
        from gputui.ports.backend import Attach

        row = self._own_row(job)
        if not isinstance(request, Attach):
            return step(self._commands, row, self._step_place(row), request)
        if (streams := job.spec.interactive) is None:
            raise ClusterRefusedError("it has neither a terminal nor input", where=f"job {job.shown_id}")
        wanted = ExecRequest((), streams.stdin, streams.tty, detach_keys=request.detach_keys)
        return step(self._commands, row, StepPlace.ATTACH, wanted)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        from gputui.cluster.slurm.inside import processes

        row = self._own_row(job)
        return processes(self._commands, row, self._step_place(row))

    def _step_place(self, row: JobRow) -> StepPlace:
        from gputui.cluster.slurm.inside import StepPlace

        if self._is_contained(row):
            return StepPlace.CONTAINER
        return StepPlace.EITHER if not self._is_ours(row) and key_of_comment(row.comment) else StepPlace.NODE

    def _own_row(self, job: Job) -> JobRow:
        row = self._rows([job.id])[job.id]
        if row.user != self._poll.site().user:
            from gputui.cluster.slurm.inside import not_theirs

            raise not_theirs(row)
        return row

    def faults(self) -> tuple[ClusterFault, ...]:
        return tuple(site.faults(self._commands, self._settings.container))

    def checker(self) -> NodeChecker:
        from gputui.cluster.slurm.node_checker import NodeChecker

        return NodeChecker(self._commands, self._all_settings, self._latest, self._poll.forget)

    def close(self) -> None:
        self._commands.close()

    def _latest(self, since: float = 0.0) -> Polled:
        self._polled = self._poll.latest(since)
        return self._polled

    def _rows(self, chosen: Iterable[JobId], *, with_past: bool = False) -> dict[JobId, JobRow]:
        """Return the jobs as Slurm lists them; raises NotFoundError for one that it does not know.

        `with_past`: those that it has forgotten, but gputui has not, are left out.
        """
        known: dict[JobId, JobRow] = {}
        for row in self._latest().rows:
            known[row.job_id] = row
            known |= {element_id(int(row.array), index): row for index in row.indices}
        for job_id in (chosen := tuple(dict.fromkeys(chosen))):
            if job_id not in known and with_past:
                self.job(job_id)
            elif job_id not in known:
                raise NotFoundError(
                    f"Slurm knows no job {commands.words(job_id)}; it forgets jobs minutes after their end"
                )
        return {job_id: known[job_id] for job_id in chosen if job_id in known}

    def _is_ours(self, row: JobRow) -> bool:
        return self._pictures.submitted(row, self._poll.site().user) is not None

    def _is_contained(self, row: JobRow) -> bool:
        """Return whether a batch script of ours runs the job in a container of Docker, beyond Slurm's reach."""
        submitted = self._pictures.submitted(row, self._poll.site().user)
        return self._settings.container == "docker" and submitted is not None and not submitted.submission.spec.is_host

    def _forgotten(self, key: str, since: datetime) -> int | None:
        from gputui.cluster.slurm import listings

        here = self._latest().site
        every: Iterable[Ended] = tuple(self._poll.records.all().values())
        if here.has_accounting:
            every = chain(every, listings.ended_jobs(self._commands, since))
        rows = (each.row for each in every if each.row.user == here.user and not is_refused(each.row))
        if (found := next((row.owner for row in rows if key_of_comment(row.comment) == key), None)) is not None:
            return found
        known = self._submissions.of_key(key)
        return self._poll.ends.started([known]).get(key, (None,))[0] if known is not None else None

    def _recorded_ends(self) -> Ends:
        from gputui.cluster.slurm.poll import ids_of

        polled = self._latest()
        listed, here = {job_id for row in polled.rows for job_id in ids_of(row)}, polled.site
        self._poll.ends.record_lost(listed, polled.at, here.user, has_accounting=here.has_accounting)
        return self._poll.ends

    def _output(self, job: Job) -> str:
        number, _ = commands.parts(job.id)
        submitted = self._submissions.of_number(number)
        if submitted is not None and submitted.output:
            return expanded(submitted.output, job.id)
        polled, recorded = self._latest(), self._poll.records.of(job.id)
        details = [polled.details.get(row.run_key) for row in polled.rows if row.job_id == job.id]
        for detail in (*details[:1], recorded.detail if recorded else None):
            if detail is not None and detail.output:
                return detail.output
        raise NotFoundError("Slurm does not tell where the job's output is", where=f"job {job.shown_id}")

    def _is_over(self, job_id: JobId) -> bool:
        try:
            found = self.snapshot().job(job_id)
        except ClusterError:
            return False  # Slurm does not answer, but the job may run on
        return found is None or found.state.is_terminal
