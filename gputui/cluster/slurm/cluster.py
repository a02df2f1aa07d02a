"""Slurm behind the port `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gputui.cluster.slurm import ids, site
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.submission import BatchSubmitter, Submissions, expanded, is_refused, key_of_comment
from gputui.domain.cluster import element_id
from gputui.domain.errors import ClusterError, ClusterRefusedError, NotFoundError

if TYPE_CHECKING:
    from gputui.cluster.command_channel import CommandChannel
    from gputui.cluster.slurm.changes import JobChanger
    from gputui.cluster.slurm.inside import JobSteps, RemoteLog, SharedFileLog, StepPlace
    from gputui.cluster.slurm.listings import JobDetail, JobRow
    from gputui.cluster.slurm.node_checker import NodeChecker
    from gputui.cluster.slurm.picture import Pictures
    from gputui.cluster.slurm.poll import Ended, Poll, Polled
    from gputui.domain.cluster import Caps, ClusterFault
    from gputui.domain.container import ProcessRow
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.settings import Settings
    from gputui.domain.snapshot import Snapshot
    from gputui.ports.backend import Entry
    from gputui.ports.cluster import EngineAction


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
        return Poll(self._commands, self._directory, interval, self._with_noted_gpus)

    @cached_property
    def _pictures(self) -> Pictures:
        from gputui.cluster.slurm.picture import Pictures

        return Pictures(self._submissions)

    @cached_property
    def _changes(self) -> JobChanger:
        from gputui.cluster.slurm.changes import JobChanger

        can_requeue = self._settings.requeue
        return JobChanger(
            self._commands, self._poll.records, self._poll.suspensions, self._is_ours, self._is_contained, can_requeue
        )

    @cached_property
    def _steps(self) -> JobSteps:
        from gputui.cluster.slurm.inside import JobSteps

        return JobSteps(self._commands)

    @property
    def name(self) -> str:
        """Slurm's name of the cluster; that of the login node until Slurm has answered."""
        return (self._polled.site.cluster if self._polled else "") or self._commands.place or "slurm"

    @property
    def user(self) -> str:
        """Slurm's name of this user, on the login node; empty until Slurm has answered."""
        return self._polled.site.user if self._polled else ""

    @property
    def caps(self) -> Caps:
        """Slurm's capabilities for this user."""
        return site.caps_of(self._polled.site if self._polled else None)

    def snapshot(self) -> Snapshot:
        """Return all jobs that Slurm remembers, and the nodes."""
        polled = self._latest()
        with self._lock:
            if self._shown is None or self._shown[0] != polled.at:
                suspended = self._poll.suspensions.among((row.job_id, row.run_key) for row in polled.rows)
                self._shown = polled.at, self._pictures.snapshot(polled, suspended)
            return self._shown[1]

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        """Submit jobs by sbatch."""
        home = self._home()
        try:
            return self._submitter.submit(submissions, key, home, is_new=is_new)
        finally:
            self._poll.forget()

    def expected_start(self, submission: Submission) -> datetime | None:
        """Return what `sbatch --test-only` says."""
        return self._submitter.expected_start(submission, self._home())

    def _home(self) -> str:
        """Return the user's home directory where Slurm's commands run."""
        return (site.known(self._directory / site.FILE) or self._poll.site()).home

    def act(self, action: EngineAction) -> tuple[JobId, ...]:
        from gputui.cluster.slurm.changes import fits, needed
        from gputui.domain.action import DrainGpus, ResumeGpus

        if (capability := needed(action)) is not None:
            self._latest()
            self.caps.need(capability)
        if isinstance(action, DrainGpus | ResumeGpus):
            self._changes.update_nodes(action)
            self._poll.forget()
            return ()
        rows = {job_id: row for job_id, row in self._rows(action.ids) if fits(action, row)}
        try:
            return self._changes.act(action, rows) if rows else ()
        finally:
            if rows:
                self._poll.forget()

    def job(self, job_id: JobId) -> Job:
        """Return a job that Slurm remembers, else one from our records or Slurm's accounts."""
        snapshot = self.snapshot()
        found = snapshot.job(job_id) or self._recorded(job_id)
        if found is None:
            found = next((job for job in snapshot.jobs if job.array and job.array.id == job_id), None)
        if found is None:
            raise NotFoundError(f"Slurm knows no job {ids.words(job_id)}, and nothing was recorded of it")
        return found

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that have ended, from our records, and from sacct where Slurm keeps accounts."""
        from gputui.cluster.slurm import accounting

        polled = self._latest()
        found = {each.row.job_id: each for each in self._poll.records.all()}
        if polled.site.has_accounting:
            found |= {each.row.job_id: _merged(each, found) for each in accounting.ended_jobs(self._commands, since)}
        for each in found.values():
            job = self._job_of(each, polled)
            if job.ended_at is not None and (since is None or job.ended_at >= since):
                yield job

    def log(self, job: Job, *, tail: int | None, follow: bool) -> SharedFileLog | RemoteLog:
        """Return the output of a job from its file."""
        from gputui.cluster.slurm.inside import RemoteLog, SharedFileLog

        path = self._output(job)
        is_over = (lambda: self._is_over(job.id)) if follow else None
        if self._commands.place:
            return RemoteLog(self._commands, path, tail, is_over)
        return SharedFileLog(Path(path), tail, is_over)

    def place(self, job: Job) -> str:
        """Return the job's container or node, in words."""
        from gputui.cluster.slurm.inside import place_words

        row = self._own_row(job)
        return place_words(row, self._step_place(row))

    def enter(self, job: Job, request: Entry) -> CommandChannel:
        from gputui.ports.backend import Attach

        row = self._own_row(job)
        if not isinstance(request, Attach):
            return self._steps.execute(row, request, self._step_place(row))
        if job.spec.interactive is None:
            raise ClusterRefusedError("it has neither a terminal nor input", where=f"job {job.shown_id}")
        return self._steps.attach(row, job.spec.interactive, request.detach_keys)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the processes of the job's container, or of all its steps."""
        row = self._own_row(job)
        return self._steps.processes(row, self._step_place(row))

    def _step_place(self, row: JobRow) -> StepPlace:
        from gputui.cluster.slurm.inside import StepPlace

        if self._is_contained(row):
            return StepPlace.CONTAINER
        is_known = self._pictures.submitted(row, self._poll.site().user) is not None
        return StepPlace.EITHER if not is_known and key_of_comment(row.comment) else StepPlace.NODE

    def _own_row(self, job: Job) -> JobRow:
        """Return a job of this user as Slurm lists it; Slurm lets nobody else run steps in it."""
        [(_, row)] = self._rows([job.id])
        if row.user != self._poll.site().user:
            from gputui.cluster.slurm.inside import not_theirs

            raise not_theirs(row)
        return row

    def faults(self) -> tuple[ClusterFault, ...]:
        """Return what Slurm's settings lack, or why its commands do not work."""
        from gputui.cluster.slurm.site import faults

        return tuple(faults(self._commands))

    def checker(self) -> NodeChecker:
        """Return the check of its nodes by probe jobs."""
        from gputui.cluster.slurm.node_checker import NodeChecker

        return NodeChecker(self._commands, self._all_settings, self._latest, self._poll.forget)

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()

    def _latest(self) -> Polled:
        self._polled = self._poll.latest()
        return self._polled

    def _rows(self, chosen: Iterable[JobId]) -> list[tuple[JobId, JobRow]]:
        """Return the jobs as Slurm lists them; raises NotFoundError for one that it does not know."""
        known: dict[JobId, JobRow] = {}
        for row in self._latest().rows:
            known[row.job_id] = row
            known |= {element_id(int(row.array), index): row for index in row.indices}
        pairs = []
        for job_id in dict.fromkeys(chosen):
            if job_id not in known:
                raise NotFoundError(f"Slurm knows no job {ids.words(job_id)}; it forgets jobs minutes after their end")
            pairs.append((job_id, known[job_id]))
        return pairs

    def _is_ours(self, row: JobRow) -> bool:
        """Return whether it was submitted from here."""
        return self._pictures.submitted(row, self._poll.site().user) is not None

    def _is_contained(self, row: JobRow) -> bool:
        """Return whether a batch script of ours runs the job in a container of Docker, beyond Slurm's reach."""
        submitted = self._pictures.submitted(row, self._poll.site().user)
        return self._settings.container == "docker" and submitted is not None and not submitted.submission.spec.is_host

    def _forgotten(self, key: str, since: datetime) -> int | None:
        """Return the number of an ended job of this user with that key, from our records or Slurm's accounts."""
        from gputui.cluster.slurm import accounting

        here = self._latest().site
        every = self._poll.records.all()
        if here.has_accounting:
            every = chain(every, accounting.ended_jobs(self._commands, since))
        rows = (each.row for each in every if each.row.user == here.user and not is_refused(each.row))
        return next((row.owner for row in rows if key_of_comment(row.comment) == key), None)

    def _with_noted_gpus(self, row: JobRow, detail: JobDetail) -> JobDetail:
        """Return the details with the GPUs that the batch script of a job of ours noted at its start."""
        from gputui.cluster.slurm.batch_script import gpu_note
        from gputui.cluster.slurm.listings import with_noted_gpus

        submitted = self._submissions.of_number(row.owner)
        if submitted is None or key_of_comment(row.comment) != submitted.key:
            return detail
        result = self._commands.run("cat", gpu_note(submitted.output, ids.words(row.job_id)))
        return with_noted_gpus(detail, result.out)

    def _recorded(self, job_id: JobId) -> Job | None:
        found = self._poll.records.of(job_id)
        polled = self._latest()
        if found is None and polled.site.has_accounting:
            from gputui.cluster.slurm import accounting

            found = accounting.ended_job(self._commands, job_id)
        return self._job_of(found, polled) if found else None

    def _job_of(self, ended: Ended, polled: Polled) -> Job:
        from gputui.cluster.slurm.picture import job_of

        submitted = self._pictures.submitted(ended.row, polled.site.user)
        return job_of(ended.row, ended.detail, submitted)

    def _output(self, job: Job) -> str:
        number, _ = ids.parts(job.id)
        submitted = self._submissions.of_number(number)
        if submitted is not None and submitted.output:
            return expanded(submitted.output, job.id)
        detail = next((self._polled_detail(row) for row in self._latest().rows if row.job_id == job.id), "")
        recorded = self._poll.records.of(job.id)
        path = detail or (recorded.detail.output if recorded else "")
        if not path:
            raise NotFoundError("Slurm does not tell where the job's output is", where=f"job {job.shown_id}")
        return path

    def _polled_detail(self, row: JobRow) -> str:
        detail = self._latest().details.get(row.run_key)
        return detail.output if detail else ""

    def _is_over(self, job_id: JobId) -> bool:
        """Return whether no more output of the job is to come."""
        try:
            found = self.snapshot().job(job_id)
        except ClusterError:
            return False  # Slurm does not answer, but the job may run on
        return found is None or found.state.is_terminal


def _merged(ended: Ended, recorded: dict[JobId, Ended]) -> Ended:
    """Return the account of a job with what our records have and accounts lack: its GPUs by index, and its comment."""
    ours = recorded.get(ended.row.job_id)
    return ours if ours is not None and ours.row.started == ended.row.started else ended
