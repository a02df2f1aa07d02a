"""Interface between a queue and every face of it: commands, consoles, servers of other consoles.

A queue is this machine's, a cluster's or that of several servers; nobody needs to ask which. What a backend cannot do
it refuses with the sentence of its capabilities, `CapabilityError(about().caps.why_not(capability))`, before anything
is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from gputui.domain.access import Caller
from gputui.domain.cluster import Caps
from gputui.domain.container import ExecRequest, ProcessRow, Shell
from gputui.domain.settings import PolicySettings, SchedulerSettings

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.domain.action import Action
    from gputui.domain.gpu import Gpu
    from gputui.domain.job import Attempt, Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.submit_action import Done
    from gputui.domain.telemetry_series import Measured
    from gputui.ports.machine import GpuProbe
    from gputui.ports.runtime import Channel, LogStream
    from gputui.ports.store import Queue


Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then with the number of finished jobs and the total; an exception in it undoes the action."""


class ActionChange(Protocol):
    """Change by an action that can be undone."""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object; `indices` has the displayed index of each GPU, by UUID."""


class Performer(Protocol):
    """Actions of one user. Methods may block, and raise GputuiError."""

    def act(self, action: Action, /, *, server: str = "", on_progress: Progress | None = None) -> Done:
        """Carry out an action for all of its jobs, or none.

        `server` is that of a new job, a reservation or a pause in a console over several; where there is one queue, it
        is ignored.
        """

    def foresee(self, action: Action, /) -> Done:
        """Return what `act` would do, with the jobs as they would be; raises the same errors, and changes nothing."""

    def undo(self, changes: Iterable[Any], on_progress: Progress | None = None) -> Sequence[tuple[Any, str]]:
        """Undo changes, latest first; return each with the reason why it was not undone, empty if it was."""


class About(Struct, frozen=True):
    """Description of a backend."""

    host: str
    """Machine or cluster, by its own name."""
    user: str
    """User with whose rights it acts; tenant of the jobs that it submits."""
    home: str
    """Directory in which relative paths of new jobs begin."""
    caps: Caps
    """Capabilities: those that it lacks have a sentence each."""
    scheduler: SchedulerSettings = SchedulerSettings()
    policy: PolicySettings = PolicySettings()
    own_uid: int | None = None
    """Uid on whose jobs alone this user may act; None: nothing here says so."""
    only_looks: str = ""
    """Sentence that tells how this user may get to change anything; empty: the user may."""


class Attach(Struct, frozen=True):
    """Request for the streams of a job that was submitted with a terminal or input."""

    detach_keys: str = ""
    """Keys in the notation of docker's --detach-keys."""
    from_start: bool = False
    """Wait for the next start of the job, and attach before its command runs, so that no output is missed."""


Entry: TypeAlias = ExecRequest | Attach


class LogRequest(Struct, frozen=True):
    """Request for the output of an attempt."""

    attempt: int | None = None
    """None: the latest."""
    tail: int | None = None
    stamped: bool = False
    follow: bool = False
    """Go on to the end of a running attempt."""
    in_frames: bool = False
    """Send frames, as the client has asked for an upgrade; else the plain bytes of an HTTP answer."""
    apart: bool = False
    """Send standard error apart from standard output, where that is known: for an ended attempt, in frames."""


WHOLE_LOG = LogRequest()
StreamRequest: TypeAlias = Entry | LogRequest


class AwaitedChannel(Protocol):
    """Streams of a job from its next start on, which waits for this client."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `channel` has news."""

    def channel(self) -> Channel | None:
        """Return the streams; None while the job has not started. Does not wait.

        Raises GputuiError if there will be none, as of a job that has ended, or if the owner of the queue has.
        """

    def close(self) -> None:
        """Give up waiting. The streams, once returned, are closed by themselves."""


class Snapshots(Protocol):
    """Snapshots of the queue."""

    def version(self) -> object:
        """Return a token that differs once `read` would return something else. Costs a stat; never blocks."""

    def read(self) -> Snapshot:
        """Return the present snapshot. Blocks on files or an engine."""


class Backend(Performer, Protocol):
    """A queue, with the rights of this process's user.

    Ids in answers are those that the backend takes. Methods block, may be called from any thread, and raise
    GputuiError: NotFoundError for a job that was never there, `there is no job 7` or an engine's words, and
    CapabilityError for what the backend lacks. An error of one of several servers names that in `where`, and jobs as
    that does.

    `act` returns ids in the order in which the action names them, those of new jobs in the order of their submissions.
    It changes all jobs or none, except where an engine or several servers change one after the other; the error then
    says what is done. A job that the action does not suit is refused; engines leave it out of the ids. What `act` has
    changed, `job` and `snapshots().read()` of the same backend show at once, or in three seconds where a server or an
    engine has to tell it. Changes in `Done` are for `undo` of the same backend; an action that is final has none.
    """

    def about(self, server: str = "") -> About:
        """Return its description; with several servers, that of the one named."""

    def snapshots(self) -> Snapshots:
        """Return its snapshots."""

    def job(self, job_id: JobId) -> Job:
        """Return a job, waiting, running or ended, however long ago; an element of an entry alone."""

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        """Yield ended jobs that no snapshot has any more, the latest month first; with `since`, those that ended since.

        A job is in the snapshot or here, never in both.
        """

    def log(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        """Return the output of an attempt, of the latest without a number: its lines, or the last `tail` of them.

        The lines are complete, or the iteration raises GputuiError. With `follow` the output of a running attempt
        continues to its end. With `stamped` lines begin with their times where these are known.
        """

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        """Run a command in a running job, or attach to its streams."""

    def shell(self, job_id: JobId) -> Shell:
        """Return the command that opens a shell in a running job, for the terminal of this process."""

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        """Return the present processes of a running job."""

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        """Return the telemetry of each attempt of a job, by number; empty for a job that never started."""

    def why_unread(self, job: Job) -> Mapping[int, str]:
        """Return by number of attempt why nothing is known of its use of GPUs; empty where the scheduler measures."""

    def images(self, server: str = "") -> Iterable[str]:
        """Return the names of images that the engine has; empty if it does not answer."""

    def close(self) -> None:
        """End all streams and connections; a second call does nothing."""


class DirectBackend(Backend, Protocol):
    """A backend that this process has opened itself, for commands: they read the whole queue, and what is beside it."""

    @property
    def queue(self) -> Queue:
        """Queue, opened when it is first read."""

    def submit_attached(self, submission: Submission, detach_keys: str = "") -> tuple[JobId, AwaitedChannel | None]:
        """Submit one job; return its id, and its streams from the start on where that waits for this client."""

    def output(self, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
        """Yield the output of an ended attempt in pieces, each with whether it is known to be standard error."""

    def await_start(self, job_id: JobId, detach_keys: str = "") -> AwaitedChannel | None:
        """Return the streams of a job from its next start on, which waits for this client; None: none would wait."""

    def is_scheduled(self) -> bool:
        """Return whether a scheduler or an engine starts jobs now."""

    def known_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that the scheduler lists now, without reading any; none where an engine refuses itself."""

    def gpus(self, tell: Callable[[str], object]) -> Snapshot:
        """Return a snapshot with its GPUs, read by this process where no scheduler reads them; `tell` as below."""

    def with_gpus(self, snapshot: Snapshot, tell: Callable[[str], object], probe: GpuProbe | None = None) -> Snapshot:
        """Return the snapshot with readings by this process of the GPUs that no scheduler reads.

        `tell` is called with a sentence for each node whose GPUs could not be read; `probe` reads already.
        """


class CommandLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A command of our own thin client, which the owner runs for its caller."""

    version: str
    """Version of the client's gputui: another one is refused with 421, and the client runs the command itself."""
    argv: tuple[str, ...]
    cwd: str
    width: int = 0
    """Columns of the terminal; 0: standard output is none."""
    ttys: int = 0
    """Sum of the standard streams that are terminals: 1 input, 2 output, 4 errors."""
    umask: int = 0o022
    limits: Mapping[str, int] = {}
    """Soft limits of the client, by their names in lower case without RLIMIT_; -1: none."""
    environ: Mapping[str, str] = {}
    """Variables of the client, of which only those that commands read."""
    config: str = ""
    """Personal settings file of the client, if there is one. The owner does not open it: it compares the name."""


OUT, ERR, UNPRINTED = 1, 2, 3
"""Kinds of what a command says: on standard output, on stderr, and on stderr if the output before cannot be printed."""


class CommandResult(Struct, frozen=True):
    """Result of a command: its exit code, and what its client prints, in order."""

    code: int
    said: tuple[tuple[int, bytes], ...] = ()

    def encoded(self) -> bytes:
        """Return the result for a client that knows neither JSON nor msgspec: lines `CODE`, `KIND LENGTH` and data."""
        return b"%d\n" % self.code + b"".join(b"%d %d\n%b" % (kind, len(data), data) for kind, data in self.said)


RunCommand: TypeAlias = Callable[[Caller, CommandLine], CommandResult]
"""Runs a command for its caller; raises ParseLocallyError, before anything is done, if its client must run it."""
