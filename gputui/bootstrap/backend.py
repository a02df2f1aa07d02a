"""The queue of this machine as a backend, and ways to logs and into jobs with the rights of a user.

`LocalBackend` opens it, for the owner or for the moment; `MovingBackend` asks the owner while there is one.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from msgspec import Struct, field
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.config import present_directory
from gputui.domain.access import HOW_TO_USE, Role
from gputui.domain.cluster import Capability, Caps
from gputui.domain.errors import AccessError, CapabilityError, NoOwnerError, StoreBusyError, StoreOwnedError
from gputui.ports.backend import WHOLE_LOG, About, LogRequest, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from gputui.api.backend import ApiBackend
    from gputui.api.rights import Visibility
    from gputui.config import Options
    from gputui.domain.access import AuditEntry, Caller, Resolve
    from gputui.domain.action import Action
    from gputui.domain.container import ExecRequest, ProcessRow, Shell
    from gputui.domain.gpu import Gpu
    from gputui.domain.job import Attempt, Job
    from gputui.domain.job_spec import JobId, JobSpec, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.submit_action import Done
    from gputui.domain.telemetry_series import Measured
    from gputui.engine.actions.admission import KnownRequests
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.engine.job_exec import Entrance
    from gputui.engine.saved_logs import Logs
    from gputui.ports import Channel, GpuProbe, JobStore, LogStream, Runtime
    from gputui.ports.backend import AwaitedChannel, DirectBackend, Entry, Performer
    from gputui.ports.machine import ForeignContainers, HostProcesses
    from gputui.ports.store import Queue


_OWNER_WITHIN = 5.0
"""Seconds within which the owner of the queue answers who can do without it."""


def _known_requests() -> KnownRequests:
    from gputui.engine.actions.admission import KnownRequests  # only requests with keys need it

    return KnownRequests()


class Owned(Struct, frozen=True):
    """Parts of the process that owns a queue, shared with the backends of its callers."""

    store: JobStore
    """Stays open when a backend is closed."""
    latest: Callable[[], Snapshot]
    """Returns the last published snapshot."""
    visibility: Visibility
    resolve: Resolve | None = None
    """Asks the account database without hanging; None: it is asked directly."""
    requests: KnownRequests = field(default_factory=_known_requests)


class LocalBackend(Struct, eq=False, dict=True):
    """The queue of this machine and its snapshots, with the rights of a caller. It never schedules."""

    _options: Options
    _waiting: Callable[[str], None] | None = None
    """Called as by `bootstrap.open_store`."""
    caller: Caller | None = None
    """None: this process's user, who can write the state directory."""
    owned: Owned | None = None
    """Given in the process that owns the queue; a backend for each request is cheap then."""
    _opening: threading.Lock = field(default_factory=threading.Lock)
    _opened: JobStore | None = None
    _streams: WeakSet[LogStream] = field(default_factory=WeakSet)
    _owner: ApiBackend | None = None
    _acted: int = 0
    """Number of actions of a request with a key."""

    @property
    def store(self) -> JobStore:
        """The store itself, for this process alone: `queue` is what the caller may see of it."""
        if self.owned is not None:
            return self.owned.store
        with self._opening:  # the threads of a console begin to use it at the same time
            if self._opened is None:
                self._opened = bootstrap.open_store(self._options, self._waiting)
            return self._opened

    @property
    def queue(self) -> Queue:
        """The store itself for operators, else what the caller may see of it."""
        return self.store if self._caller.operates else self._seen

    @cached_property
    def _caller(self) -> Caller:
        return self.caller or bootstrap.caller()

    @cached_property
    def _seen(self) -> Queue:
        from gputui.api.rights import CallerQueue

        return CallerQueue(self.store, self._caller, self._visibility)

    @cached_property
    def _visibility(self) -> Visibility:
        from gputui.api.rights import Visibility

        return self.owned.visibility if self.owned is not None else Visibility(self._options.settings.access)

    def _own(self, job_id: JobId, what: str) -> Job:
        """Return the job; raises AccessError unless the caller may act on it, NotFoundError if there is none."""
        from gputui.engine.actions.context import check_own

        job = self.store.get(job_id)
        check_own(self._caller, job, what)
        return job

    @cached_property
    def _logs(self) -> Logs:
        return open_logs(self._options, self.store)

    def about(self, server: str = "") -> About:
        return self._about

    @cached_property
    def _about(self) -> About:
        is_callers = self.owned is not None  # whose directory that of this process is not
        settings, home = self._options.settings, "" if is_callers else str(present_directory() or "")
        host = os.uname().nodename
        lacking: Mapping[Capability, str] = {}
        own_uid = None
        if not self._caller.operates:
            from gputui.engine.actions.context import LACKING

            lacking, own_uid = LACKING, self._caller.uid
        caps = Caps("gputui", lacking, runs_jobs=True)
        return About(host, self._caller.user, home, caps, settings.scheduler, settings.policy, own_uid)

    def snapshots(self) -> LocalBackend:
        return self

    def version(self) -> object:
        return self.store.version()

    def read(self) -> Snapshot:
        if self.owned is None:
            snapshot = bootstrap.current_snapshot(self._options, self.store)
        else:
            from gputui.engine.tick.snapshot_builder import renewed

            latest, now = self.owned.latest(), bootstrap.clock().now()
            snapshot = renewed(latest, self.store, self._options.settings, now)
        if self._caller.operates:
            return snapshot
        return self._visibility.snapshot(snapshot, self._caller)

    def act(self, action: Action, /, *, server: str = "", on_progress: Progress | None = None) -> Done:
        number, until = self._acted, time.monotonic() + self._options.settings.store.lock_timeout.total_seconds()
        while self._owner is None:
            try:
                asks = self._caller
                if not asks.key:
                    return self._actions_of(asks).act(action, server=server, on_progress=on_progress)
                asks = replace(asks, key=self._next_key())
                act = partial(self._actions_of(asks).act, action, server=server, on_progress=on_progress)
                requests = self.owned.requests if self.owned is not None else _known_requests()
                return requests.once(asks, self.store, act)
            except StoreOwnedError:  # a process began to own the queue after this one had looked
                if self.owned is not None or time.monotonic() >= until:
                    raise
            from gputui.bootstrap.owner import open_api

            self._acted, self._owner = number, open_api(self._options, self._waiting)  # None: it has ended already
            if self._owner is not None and self._caller.key:
                self._owner.next_key = self._next_key
        return self._owner.act(action, server=server, on_progress=on_progress)

    def _next_key(self) -> str:
        """Return the key of the next action of a request with a key, as it is stored."""
        from gputui.domain.access import further_key

        number, self._acted = self._acted, self._acted + 1
        return further_key(self._caller.key, number)

    def _actions_of(self, asks: Caller) -> Performer:
        resolve: Resolve | None = None
        machine: Callable[[], str] = partial(recorded_machine, self._options)
        if (owned := self.owned) is not None:
            resolve, machine = owned.resolve, lambda: owned.latest().jobs_machine
        return bootstrap.actions(self.store, self._options, self.known_gpus, machine, asks, resolve)

    def foresee(self, action: Action, /) -> Done:
        return self._actions_of(self._caller).foresee(action)

    def undo(self, changes: Iterable[Any], on_progress: Progress | None = None) -> Sequence[tuple[Any, str]]:
        return self._actions_of(self._caller).undo(changes, on_progress)

    def job(self, job_id: JobId) -> Job:
        return self.queue.get(job_id)

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        return self.queue.past(since)

    def log(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        self._check_log(job_id)
        stream = self._logs.open(job_id, request)
        self._streams.add(stream)
        return stream

    def _check_log(self, job_id: JobId) -> None:
        if not self._caller.operates and not self._visibility.may_read_log(self.store.get(job_id), self._caller):
            self._own(job_id, "read its output")

    @cached_property
    def _entrance(self) -> Entrance:
        def record(job: Job, verb: str, request: ExecRequest | None) -> None:
            self.store.note(entry_of(self._caller, job, verb, request))

        return entrance_for(self._options, lambda: self.store.store_id, self._caller, record)

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        return self._entrance.enter(self._own(job_id, "enter it"), request)

    def submit_attached(self, submission: Submission, detach_keys: str = "") -> tuple[JobId, AwaitedChannel | None]:
        from gputui.domain.submit_action import SubmitJobs

        (job_id,) = self.act(SubmitJobs((submission,))).ids
        return job_id, self.await_start(job_id, detach_keys)

    def output(self, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
        self._check_log(job.id)
        return output_of(
            self._options, self.store.store_id, job, attempt, lambda: self.log(job.id, LogRequest(attempt.number))
        )

    def await_start(self, job_id: JobId, detach_keys: str = "") -> AwaitedChannel | None:
        if self.owned is not None:
            return None
        from gputui.api.client import ApiClient
        from gputui.api.streams import StreamClient
        from gputui.bootstrap.owner import sockets_of

        client = ApiClient(sockets_of(self._options), patience=_OWNER_WITHIN)
        try:
            return StreamClient(client).await_start(job_id, detach_keys)
        except (NoOwnerError, StoreBusyError):  # nothing starts jobs now
            return None

    def shell(self, job_id: JobId) -> Shell:
        return self._entrance.shell(self._own(job_id, "enter it"))

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        return self._entrance.processes(self._own(job_id, "list its processes"))

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        from gputui.engine import telemetry_files

        job = self.store.get(job_id)
        return {each.number: telemetry_files.measured(self._options.state, job, each) for each in job.attempts}

    def images(self, server: str = "") -> Iterable[str]:
        if self._caller.role is Role.VIEWER:
            raise AccessError("only users of the queue may list the images of its engine", hint=HOW_TO_USE)
        found, settings = adapters.local_images(self._options), self._options.settings
        if self._caller.operates:
            return found
        from gputui.domain.policy.admission import AdmissionRules, may_run

        rules = AdmissionRules(self._caller.uid, self._caller.user, settings.admission, settings.policy.allow)
        return [image for image in found if may_run(image, rules)]

    def close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        if (entrance := self.__dict__.pop("_entrance", None)) is not None:
            entrance.close()
        if self._owner is not None:
            self._owner.close()
        if self._opened is not None:  # a thread that is opening it is not waited for
            self._opened.close()

    def is_scheduled(self) -> bool:
        return self.owned is not None or bootstrap.is_scheduled(self._options)

    def known_gpus(self) -> tuple[Gpu, ...]:
        if self.owned is not None:
            return tuple(view.gpu for view in self.owned.latest().gpus)
        return ()  # no GPU is read for this

    def gpus(self, tell: Callable[[str], object]) -> Snapshot:
        if self.owned is not None:
            return self.read()
        # this process's reading takes its place, and a plan would be made for nothing
        return self.with_gpus(bootstrap.current_snapshot(self._options, self.store, planned=False), tell)

    def with_gpus(self, snapshot: Snapshot, tell: Callable[[str], object], probe: GpuProbe | None = None) -> Snapshot:
        if not snapshot.gpus and self.owned is None:
            adapters.silence_probe_log()
            measured = adapters.measured_snapshot(self._options, self.store, probe=probe)
            snapshot = replace(measured, leader=snapshot.leader, notices=snapshot.notices)
        return snapshot

    def why_unread(self, job: Job) -> Mapping[int, str]:
        return {}


def recorded_machine(options: Options) -> str:
    """Return the name of the machine that has the queue's containers if it is another; empty: this, or not known."""
    from gputui.engine.files import ENGINE_RECORD, EngineFile

    with suppress(OSError):
        record = EngineFile(options.state / ENGINE_RECORD).read() if options.runtime == "docker" else None
        if record is not None and "unix://" not in record.address and record.machine != os.uname().nodename:
            return record.machine
    return ""


def open_logs(options: Options, store: JobStore) -> Logs:
    """Return the logs of all attempts, live or kept. Connects to a runtime only for a live one."""
    return logs_for(options, store.get, lambda: store.store_id)


def logs_for(options: Options, job_of: Callable[[JobId], Job], store_id: Callable[[], str]) -> Logs:
    from gputui.engine.saved_logs import Logs

    runtimes: dict[str, Runtime] = {}

    def find(spec: JobSpec) -> Runtime | None:
        if not runtimes:
            runtimes.update({runtime.name: runtime for runtime in adapters.make_runtimes(options, store_id())})
        return runtimes.get(spec.runtime_in(runtimes))

    return Logs(job_of, options.state, find)


def output_of(
    options: Options, store_id: str, job: Job, attempt: Attempt, lines: Callable[[], LogStream]
) -> Iterator[tuple[bool, bytes]]:
    """Yield the output of an ended attempt in pieces, each with whether it is known to be standard error.

    `lines` opens its log, which does not tell. Raises GputuiError.
    """
    from gputui.engine.saved_logs import log_path
    from gputui.runtime.process.attempt_folder import AttemptFolder
    from gputui.runtime.process.job_exec import kept_log, live_log

    if job.spec.is_host:
        name = f"gputui-{store_id}-{job.id}-{attempt.number}"
        with suppress(OSError), closing(live_log(AttemptFolder(options.state / "attempts" / name))) as log:
            yield from log.rest()
            return
        with suppress(OSError), closing(kept_log(options.state / log_path(job.id, attempt.number))) as log:
            yield from log.rest()
            return
    with closing(lines()) as stream:
        yield from ((False, line + b"\n") for line in stream)


def entrance_for(
    options: Options,
    store_id: Callable[[], str],
    caller: Caller,
    record: Callable[[Job, str, ExecRequest | None], None],
) -> Entrance:
    """Return the way into jobs that this caller may enter; `record` is called each time. It connects only on use."""
    from gputui.domain.access import others_job
    from gputui.engine.job_exec import Entrance
    from gputui.engine.telemetry_files import InputMark

    def check(job: Job, submitter: int | None) -> None:
        """Raise AccessError unless the queue and the runtime's own record, if it has one, say that it is his job."""
        is_another = submitter is not None and submitter != caller.uid and not caller.operates
        if is_another or not caller.may_act_on(job):
            raise others_job(job, "enter it")

    return Entrance(
        lambda: adapters.make_job_execs(options, store_id()),
        store_id,
        check,
        lambda job_id: InputMark(options.state, job_id).set,
        record,
        command=options.program(),
        may_try=lambda job: check(job, None),
    )


def entry_of(caller: Caller, job: Job, verb: str, request: ExecRequest | None) -> AuditEntry:
    import shlex

    from gputui.domain.access import AuditEntry

    words = shlex.join(request.command)[:1000] if request else ""
    return AuditEntry(bootstrap.clock().now(), caller.uid, caller.user, verb, job.target, "", words, caller.via)


def no_store() -> JobStore:
    """Raise CapabilityError: the service has the audit log, in which such actions are recorded before they are done."""
    hint = "as the user of the process: kill -TERM PID"
    raise CapabilityError("signals to foreign processes are for operators where a service has the queue", hint=hint)


def open_foreign_use(options: Options, store: Callable[[], JobStore], *, is_read_only: bool = False) -> ForeignUse:
    """Return actions on foreign processes and containers, with this process's rights. Connects only on use."""
    from gputui.engine.actions.foreign_use import ForeignUse

    def host() -> HostProcesses:
        from gputui.runtime.host_processes import LocalProcesses

        return LocalProcesses()

    def containers() -> ForeignContainers | None:
        from gputui.runtime.docker.runtime import DockerContainers

        if options.runtime != "docker":
            return None
        book = adapters.engine_book(options)  # who asks a service may not read its record
        return DockerContainers(
            options.settings.runtime, book if os.access(book.path, os.R_OK, effective_ids=True) else None
        )

    return ForeignUse(store, bootstrap.clock(), bootstrap.actor(), host, containers, is_read_only=is_read_only)


_ENDED = "was changed through a process that no longer schedules"
ASK_AGAIN = 5.0
"""Seconds for which an owner who has ended, or hangs, is not asked again."""


class MovingBackend:
    """Passes each call on: to the owner of the queue while there is one who answers, else to this process's backend."""

    def __init__(self, options: Options, waiting: Callable[[str], None] | None = None) -> None:
        self._options = options
        self._waiting = waiting
        self._local = LocalBackend(options, waiting)
        self._api: ApiBackend | None = None
        self._left: list[ApiBackend] = []
        self._ask_at = 0.0
        self._choosing = threading.Lock()

    @property
    def store(self) -> JobStore:
        return self._local.store

    def _present(self) -> LocalBackend | ApiBackend:
        with self._choosing:
            if self._api is not None and self._api.local is not None:
                self._left.append(self._api)  # its streams are still read
                self._api, self._ask_at = None, time.monotonic() + ASK_AGAIN
            is_due = self._api is None and time.monotonic() >= self._ask_at
            if is_due and any(map(os.path.lexists, self._options.sockets.paths)):
                from gputui.bootstrap.owner import open_api

                def instead(key: str) -> DirectBackend:  # for a key under which the owner was asked already, or for ''
                    return bootstrap.open_backend(self._options, self._waiting, key) if key else self._local

                self._api = open_api(self._options, self._waiting, instead)
            return self._api or self._local

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def undo(self, changes: Iterable[Any], on_progress: Progress | None = None) -> list[Any]:
        """Undo changes where they were made, if that is still possible."""
        from gputui.api.backend import NumberedChange

        wanted, present = tuple(changes), self._present()
        numbered = tuple(each for each in wanted if isinstance(each, NumberedChange))
        own = tuple(each for each in wanted if not isinstance(each, NumberedChange))
        done = list(self._local.undo(own, on_progress)) if own else []
        if numbered and present is self._local:
            return [*done, *((each, _ENDED) for each in numbered)]
        return [*done, *(present.undo(numbered) if numbered else ())]

    def close(self) -> None:
        for each in (self._local, self._api, *self._left):
            if each is not None:
                each.close()


class ConsoleBackend(MovingBackend):
    """The queue of a console, which may schedule itself, and whose screen waits for nobody to learn what it is."""

    def __init__(self, options: Options, waiting: Callable[[str], None] | None = None) -> None:
        super().__init__(options, waiting)
        self.leads: Callable[[], bool] = lambda: False
        """Returns whether this process schedules."""

    def _present(self) -> LocalBackend | ApiBackend:
        return self._local if self.leads() else super()._present()

    def about(self, server: str = "") -> About:
        return self._local.about(server)


def open_console_backend(options: Options, waiting: Callable[[str], None] | None = None) -> DirectBackend:
    """Return the queue of a console; raises NoOwnerError as `bootstrap.ask_backend` does."""
    if not bootstrap.has_own_queue(options):
        return bootstrap.ask_backend(options, waiting)
    return cast("DirectBackend", ConsoleBackend(options, waiting))
