"""The queue of a cluster as a backend: what the engine lacks is refused in its words, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.cluster import Capability
from gputui.domain.errors import CauseCode, ClusterUnavailableError, GputuiError, NotFoundError
from gputui.domain.settings import Settings
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.engine.cluster.queue import EngineQueue, UnansweredSubmissions

if TYPE_CHECKING:
    from gputui.domain.action import Action
    from gputui.domain.container import ProcessRow, Shell
    from gputui.domain.gpu import Gpu
    from gputui.domain.job import Attempt, Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.telemetry_series import Measured
    from gputui.ports import Channel, GpuProbe, LogStream, StampedLogStream
    from gputui.ports.backend import About, Entry, LogRequest

_NO_FORECAST = "gputui has that for the queue of one machine, not for {}"


class EngineBackend:
    """The queue of a cluster, with the rights that this process's user has there.

    The engine applies a change to one job after the other: it may refuse one after it has changed others, and says so.
    """

    def __init__(
        self,
        queue: EngineQueue,
        settings: Settings,
        *,
        user: str = "",
        command: tuple[str, ...] = ("gputui",),
        with_gpus: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    ) -> None:
        """`user` is the user's name on this machine, and `command` runs gputui with the same options.

        `with_gpus` returns a snapshot with readings of its nodes, where the settings want them.
        """
        self.queue = queue
        self._cluster = queue.cluster
        self._settings = settings
        self._user = user
        self._command = command
        self._with_gpus = with_gpus
        self._streams: WeakSet[LogStream] = WeakSet()
        self._unanswered = UnansweredSubmissions(queue.directory)

    def about(self, server: str = "") -> About:
        from gputui.ports.backend import About

        caps, settings = self._cluster.caps, self._settings
        lacking = {Capability.WHAT_IF: _NO_FORECAST.format(caps.engine), **caps.lacking}
        caps, home = replace(caps, lacking=lacking), ""
        with suppress(OSError):  # it has been deleted
            home = str(Path.cwd())
        return About(self._cluster.name, self._user, home, caps, scheduler=settings.scheduler, policy=settings.policy)

    def snapshots(self) -> EngineQueue:
        return self.queue

    def job(self, job_id: JobId) -> Job:
        return self.queue.get(job_id)

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        return self.queue.past(since)

    def images(self, server: str = "") -> Iterable[str]:
        return ()

    def act(self, action: Action, /, *, server: str = "", on_progress: object = None) -> Done:
        if isinstance(action, SubmitJobs):
            asked = self._checked(action)
            if not asked:
                return Done()
            notes = tuple(map(self._cluster.note, asked))
            try:
                with self._unanswered.begun(asked) as (key, is_repeated):
                    ids = self._cluster.submit(asked, key, is_new=not is_repeated)
                return Done(ids, notes=notes, is_repeated=is_repeated)
            finally:
                self.queue.refresh()
        from gputui.engine.cluster import changes  # a submission waits while it is imported

        return changes.act(self.queue, action)

    def foresee(self, action: Action, /) -> Done:
        """Return the jobs as `act` would leave them; raises the same errors, but for those of the engine.

        Of new jobs the engine tells only when they would start, or what they would be in its own language.
        """
        if isinstance(action, SubmitJobs):
            asked = self._checked(action)
            if drafts := tuple(filter(None, map(self._cluster.draft, asked))):
                return Done(drafts=drafts)
            self._cluster.caps.need(Capability.TEST_ONLY)
            notes = tuple(map(self._cluster.note, asked))
            return Done(starts=tuple(map(self._cluster.expected_start, asked)), notes=notes)
        from gputui.engine.cluster import changes

        return changes.foresee(self.queue, action)

    def undo(self, changes: Iterable[Any], on_progress: object = None) -> Sequence[tuple[Any, str]]:
        from gputui.engine.cluster.changes import undone

        return list(undone(self.queue, changes))

    def _checked(self, action: SubmitJobs) -> tuple[Submission, ...]:
        for submission in action.submissions:
            self._cluster.caps.check_submission(submission)
        return action.submissions

    def log(self, job_id: JobId, request: LogRequest | None = None) -> LogStream:
        """Return the output of the last attempt; raises NotFoundError for an earlier one: it is not kept apart."""
        from gputui.ports.backend import WHOLE_LOG  # not needed to submit

        request = request or WHOLE_LOG
        try:
            job = self.queue.get(job_id)
        except ClusterUnavailableError:  # its output may be in reach all the same
            if (known := self._cluster.last_known(job_id)) is None:
                raise
            job = known
        is_unseen = job.cause is not None and job.cause.code is CauseCode.END_UNKNOWN
        if job.attempt is None and not is_unseen:
            raise NotFoundError(f"job {job.shown_id} has not started yet, so it has no output")
        if request.attempt is not None and job.attempt is not None and request.attempt != job.attempt.number:
            hint = f"attempt {job.attempt.number} is the last one"
            raise NotFoundError(f"attempt {request.attempt} of job {job.shown_id} has no output of its own", hint=hint)
        if request.follow and job.state.is_active:
            self._cluster.caps.need(Capability.LIVE_LOG)
        stream = self._cluster.log(job, tail=request.tail, follow=request.follow)
        opened: LogStream = stream if request.stamped or not stream.is_stamped else WithoutTimes(stream)
        self._streams.add(opened)
        return opened

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        from gputui.ports.backend import Attach

        job = self.queue.get(job_id)
        self._check_running(job, Capability.STREAMS if isinstance(request, Attach) else Capability.INSIDE)
        return self._cluster.enter(job, request)

    def submit_attached(self, submission: Submission, detach_keys: str = "") -> tuple[JobId, None]:
        (job_id,) = self.act(SubmitJobs((submission,))).ids
        return job_id, None

    def output(self, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
        from gputui.ports.backend import LogRequest

        with closing(self.log(job.id, LogRequest(attempt.number))) as stream:
            yield from ((False, line + b"\n") for line in stream)

    def await_start(self, job_id: JobId, detach_keys: str = "") -> None:
        del job_id, detach_keys

    def shell(self, job_id: JobId) -> Shell:
        from gputui.domain.container import Shell
        from gputui.engine.job_exec import SHELL

        job = self.queue.get(job_id)
        self._check_running(job)
        return Shell((*self._command, "exec", "-it", job.shown_id, *SHELL), self._cluster.place(job))

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        job = self.queue.get(job_id)
        self._check_running(job)
        return self._cluster.processes(job)

    def _check_running(self, job: Job, capability: Capability = Capability.INSIDE) -> None:
        from gputui.domain.job import check_running

        self._cluster.caps.need(capability)
        check_running(job)
        if job.suspended:
            hint = f"gputui unsuspend {job.shown_id}"
            raise GputuiError(f"job {job.shown_id} is suspended: no command can run in it", hint=hint)

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        from gputui.engine.cluster.measurements import measured

        return measured(self.queue.directory, self.queue.get(job_id))

    def is_scheduled(self) -> bool:
        return True

    def known_gpus(self) -> tuple[Gpu, ...]:
        return ()

    def gpus(self, tell: Callable[[str], object]) -> Snapshot:
        return self.with_gpus(self.snapshots().read(), tell)

    def with_gpus(self, snapshot: Snapshot, tell: Callable[[str], object], probe: GpuProbe | None = None) -> Snapshot:
        from gputui.domain.gpu import ProbeCode

        read = self._with_gpus(snapshot)
        for node in read.nodes if self._is_read else ():
            if node.gpus and node.probe.code is not ProbeCode.OK:
                tell(f"{node.name}: {node.probe.text}")
        return read

    def why_unread(self, job: Job) -> Mapping[int, str]:
        from gputui.domain.telemetry_series import unread_words

        engine, is_read = self._cluster.caps.engine, self._is_read
        return {attempt.number: unread_words(job, attempt, engine, is_read=is_read) for attempt in job.attempts}

    @property
    def _is_read(self) -> bool:
        return self._settings.cluster.probe != "off"

    def close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        self._unanswered.told()
        self.queue.close()


class WithoutTimes(Struct, eq=False, weakref=True):
    _stream: StampedLogStream

    def __iter__(self) -> Iterator[bytes]:
        return (line.partition(b" ")[2] for line in self._stream)

    def close(self) -> None:
        self._stream.close()
