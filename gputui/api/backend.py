"""The queue of an owner as a backend, with the rights that the owner gives this process's user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from msgspec import Struct

from gputui.api.client import VERSIONS, ApiClient, new_key
from gputui.api.http import JOBS, OWN, RECORDS, AboutView, Acted, ChangeNumber, NewJobs, Undone, UndoRequest, own_json
from gputui.api.streams import SUBMIT, EventWatch, Follower, StreamClient
from gputui.domain.access import HOW_TO_USE, AuditEntry, job_of, stored_key, targets_of
from gputui.domain.accounting import JobRecord
from gputui.domain.action import Action
from gputui.domain.arrays import Entries, places_of
from gputui.domain.cluster import GPUTUI, Capability, Caps
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.decoding import decode_json, json_decoder
from gputui.domain.errors import GputuiError, NoOwnerError, NotFoundError, StoreBusyError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls, Node, Snapshot, Unreadable
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.domain.telemetry_series import Measured
from gputui.ports.backend import WHOLE_LOG, About, AwaitedChannel, DirectBackend, Entry, LogRequest, Progress

if TYPE_CHECKING:
    from gputui.domain.gpu import Gpu
    from gputui.ports import Channel, GpuProbe, LogStream
    from gputui.ports.store import Queue, StoreWatch

T = TypeVar("T")

_SILENCE = 60.0
"""Seconds without a part of the history after which it is cut."""
_FRESH = 0.1
"""Seconds for which a picture serves all reads of a command; changes by the command itself end it."""
_AUDIT = 100_000
_OWN = {"Accept": OWN}


class NumberedChange(Struct, frozen=True):
    """A change by the owner of the queue, which is undone by its number."""

    owner: str
    """The owner who numbered it."""
    note: ChangeNumber

    @property
    def done(self) -> str:
        return self.note.done

    def subject(self, indices: Mapping[str, str]) -> str:
        return self.note.subject


class ApiBackend:
    """A queue that its owner serves. Methods may be called from any thread."""

    def __init__(
        self,
        client: ApiClient,
        *,
        reader: ApiClient | None = None,
        instead: Callable[[str], DirectBackend] | None = None,
        home: str | None = None,
        shell: Callable[[Job], Shell] | None = None,
    ) -> None:
        """`reader` asks for what the files of the queue tell too, with less patience; None: `client` does.

        `instead` opens the queue in this process, for a key under which a request was sent already, or for ''; what was
        carried out with that key it does not carry out again. It is used once nobody owns the queue any more, and to
        read beside an owner who hangs. `home` is where relative paths of jobs begin, if not where they do for the
        owner. `shell` returns the command that opens a shell in a job.
        """
        self._client = client
        self._reader = reader or client
        self._instead = instead
        self._home = home
        self._shell = shell
        self.next_key: Callable[[], str] = new_key
        """Returns the key of the next action."""
        self.described: AboutView | None = None
        """How the owner describes himself; None: he is asked, as after another one may have begun."""
        self.local: DirectBackend | None = None
        """The queue as this process reads and writes it, once its owner has ended or hangs."""
        self._opening = threading.Lock()
        self._streams: WeakSet[Any] = WeakSet()
        self._picture: tuple[float, Snapshot] | None = None
        self._follower: Follower | None = None
        self._watches: WeakSet[EventWatch] = WeakSet()
        self._queue = ApiQueue(self)
        self._job_streams = StreamClient(client)

    # in place of an owner

    def _backend_instead(self, error: GputuiError) -> DirectBackend:
        """Return the queue as this process opens it; raises the error if it may not."""
        with self._opening:
            if self.local is None:
                if self._instead is None:
                    raise error
                self.local = self._instead("")
            return self.local

    def read_by(self, ask: Callable[[ApiClient], T], read: Callable[[DirectBackend], T]) -> T:
        """Return what the owner answers; beside one who hangs, or without one, what this process reads itself."""
        if self.local is None:
            try:
                return ask(self._reader)
            except (NoOwnerError, StoreBusyError) as error:
                self._backend_instead(error)
        assert self.local is not None
        return read(self.local)

    # what the queue is

    def view(self, client: ApiClient | None = None) -> AboutView:
        """Return the owner's own description: of the one that is followed, else of the first that was asked."""
        if (follower := self._follower) is not None and not follower.problem and follower.about is not None:
            self.described = follower.about  # of the present owner, who may have other settings than the one before
        if self.described is None:
            self.described = (client or self._client).ask("GET", "/v1/about", result=AboutView)
        return self.described

    def ask(self, path: str, result: type[T], read: Callable[[DirectBackend], T], **query: object) -> T:
        """Return what the owner answers at a path in his own form; without him, what this process reads itself."""
        return self.read_by(lambda client: client.ask("GET", path, result=result, query=query, headers=_OWN), read)

    def about(self, server: str = "") -> About:
        def described(client: ApiClient) -> About:
            view = self.view(client)
            return about_of(view, view.home if self._home is None else self._home)

        return self.read_by(described, lambda local: local.about())

    def snapshots(self) -> ApiBackend:
        return self

    @property
    def queue(self) -> Queue:
        return self._queue if self.local is None else self.local.queue

    def follow(self) -> Follower:
        with self._opening:
            if self._follower is None:
                self._follower = Follower(self._client, self._tell)
                self._follower.start()
            return self._follower

    def _tell(self) -> None:
        for watch in tuple(self._watches):
            watch.tell()

    def watch(self) -> EventWatch:
        """Return a descriptor that becomes readable with each news."""
        self.follow()
        watch = EventWatch()
        self._watches.add(watch)
        return watch

    def version(self) -> object:
        """Return the number of the last news, if the owner is followed; else a new token each time."""
        if self.local is not None:
            return self.local.snapshots().version()
        return object() if self._follower is None else self._follower.number

    def read(self) -> Snapshot:
        return self.read_by(_snapshot, lambda local: local.snapshots().read())

    def picture(self) -> Snapshot:
        """Return a snapshot that is no older than what this backend has changed, and than a moment."""
        known, now = self._picture, time.monotonic()
        if known is not None and now - known[0] < _FRESH:
            return known[1]
        follower = self._follower
        if follower is not None and follower.has_snapshot and not follower.problem and self.local is None:
            return follower.snapshot
        found = self.read()
        self._picture = (now, found)
        return found

    # changes

    def act(self, action: Action, /, *, server: str = "", on_progress: Progress | None = None) -> Done:
        if self.local is not None:
            return self.local.act(action)
        key, body = self.next_key(), own_json(action)
        try:
            view = self.view()
            acted = self._client.ask("POST", "/v1/actions", body, result=Acted, key=key, headers=_OWN)
        except NoOwnerError:
            if self._instead is None:
                raise
            return self._act_here(action, stored_key(key, "POST", "/v1/actions", {}, body))
        finally:
            self._picture = None
        changes = tuple(NumberedChange(_name(view), note) for note in acted.changes)
        return Done(acted.ids, changes, acted.window)

    def _act_here(self, action: Action, key: str) -> Done:
        """Carry out an action in this process, unless the owner has done so before he ended; `key` is as stored."""
        assert self._instead is not None
        self.local = self._instead(key)
        return self.local.act(action)

    def foresee(self, action: Action, /) -> Done:
        def asked(client: ApiClient) -> Done:
            acted = self._client.ask(
                "POST", "/v1/actions", action, result=Acted, query={"dry_run": True}, key=new_key(), headers=_OWN
            )
            return Done(acted.ids, (), acted.window, tuple(decode_json(each, Job) for each in acted.jobs))

        return self.read_by(asked, lambda local: local.foresee(action))

    def undo(self, changes: Iterable[Any], on_progress: Progress | None = None) -> Sequence[tuple[Any, str]]:
        wanted = tuple(changes)
        if not wanted or not isinstance(wanted[0], NumberedChange):
            return self.local.undo(wanted) if self.local is not None else ()
        owner = _name(self._client.ask("GET", "/v1/about", result=AboutView))
        if any(change.owner != owner for change in wanted):
            return [(change, "was changed by an owner of the queue who has ended") for change in wanted]
        try:
            body = UndoRequest(tuple(change.note.number for change in wanted))
            undone = self._client.ask("POST", "/v1/undo", body, result=Undone, key=new_key())
        finally:
            self._picture = None
        return list(zip(wanted, undone.why, strict=True))

    # jobs

    def job(self, job_id: JobId) -> Job:
        return self.ask(f"/v1/jobs/{job_id}", Job, lambda local: local.job(job_id))

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        return self.read_by(lambda client: _past(client, since, JOBS, Job), lambda local: iter(local.history(since)))

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        def ask(client: ApiClient) -> Iterator[JobRecord]:
            return _past(client, since, RECORDS, JobRecord)

        return self.read_by(ask, lambda local: local.queue.records(since))

    def log(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        stream: LogStream = self.read_by(
            lambda client: StreamClient(client).log(job_id, request),
            lambda local: local.log(job_id, request),
        )
        self._streams.add(stream)
        return stream

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        try:
            return self._job_streams.enter(job_id, request)
        except NoOwnerError as error:
            return self._backend_instead(error).enter(job_id, request)

    def submit_attached(self, submission: Submission, detach_keys: str = "") -> tuple[JobId, AwaitedChannel | None]:
        key, query = new_key(), {"detach_keys": detach_keys, "anyway": "true"}
        jobs = own_json(NewJobs((submission,)))
        try:
            return self._job_streams.submit(jobs, query, key)
        except NoOwnerError:
            if self._instead is None:
                raise
            done = self._act_here(SubmitJobs((submission,)), stored_key(key, "POST", SUBMIT, query, jobs))
            return done.ids[0], None
        finally:
            self._picture = None

    def output(self, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
        return self._job_streams.output(job.id, attempt.number)

    def await_start(self, job_id: JobId, detach_keys: str = "") -> AwaitedChannel | None:
        try:
            return self._job_streams.await_start(job_id, detach_keys)
        except (NoOwnerError, StoreBusyError):  # nothing starts jobs now
            return None

    def shell(self, job_id: JobId) -> Shell:
        job = self.job(job_id)
        if self._shell is None:
            raise NotFoundError("there is no terminal for a shell here")
        return self._shell(job)

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        path = f"/v1/jobs/{job_id}/processes"
        return self._client.ask("GET", path, result=tuple[ProcessRow, ...], headers=_OWN)

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        path = f"/v1/jobs/{job_id}/telemetry"
        return self.ask(path, dict[int, Measured], lambda local: dict(local.measured(job_id)))

    def why_unread(self, job: Job) -> Mapping[int, str]:
        return {}

    def images(self, server: str = "") -> Iterable[str]:
        with suppress(GputuiError):
            return self._client.ask("GET", "/v1/images", result=list[str])
        return ()

    # GPUs

    def is_scheduled(self) -> bool:
        return self.local is None or self.local.is_scheduled()

    def known_gpus(self) -> tuple[Gpu, ...]:
        def asked(client: ApiClient) -> tuple[Gpu, ...]:
            nodes = client.ask("GET", "/v1/gpus", result=tuple[Node, ...], headers=_OWN)
            return tuple(view.gpu for node in nodes for view in node.gpus)

        return self.read_by(asked, lambda local: local.known_gpus())

    def gpus(self, tell: Callable[[str], object]) -> Snapshot:
        return self.read_by(_snapshot, lambda local: local.gpus(tell))

    def with_gpus(self, snapshot: Snapshot, tell: Callable[[str], object], probe: GpuProbe | None = None) -> Snapshot:
        return snapshot if self.local is None else self.local.with_gpus(snapshot, tell, probe)

    def close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        if self._follower is not None:
            self._follower.close()
        self._client.close()
        self._reader.close()
        if self.local is not None:
            self.local.close()


class ApiQueue(Struct, eq=False):
    """Reading side of a queue that its owner serves."""

    _backend: ApiBackend
    _entries: tuple[tuple[Job, ...], Entries] | None = None

    @property
    def store_id(self) -> str:
        return self._backend.read_by(
            lambda client: self._backend.view(client).store, lambda local: local.queue.store_id
        )

    def jobs(self) -> Entries:
        jobs = self._backend.picture().jobs
        if self._entries is None or self._entries[0] is not jobs:
            self._entries = (jobs, Entries({job.id: job for job in jobs}))
        return self._entries[1]

    def whole_id(self, number: JobId) -> JobId:
        return number

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        return places_of(self.jobs().values())

    def get(self, job_id: JobId) -> Job:
        return self._backend.job(job_id)

    def controls(self) -> Controls:
        return self._backend.picture().controls

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {each.id: each for each in self._backend.picture().recurring}

    def version(self) -> object:
        return self._backend.version()

    def watch(self) -> StoreWatch | None:
        return self._backend.watch()

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        return self._backend.history(since)

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        return self._backend.records(since)

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        job_id = None if target is None else job_of(target)
        entries = self._audit(job_id)
        if target is not None and job_id is not None and target not in targets_of(self._backend.job(job_id)):
            entries = self._audit(None)
        return (entry for entry in entries if target is None or entry.target == target)

    def _audit(self, job_id: JobId | None) -> tuple[AuditEntry, ...]:
        def own(local: DirectBackend) -> tuple[AuditEntry, ...]:
            return tuple(local.queue.audit_log())

        return self._backend.ask("/v1/audit", tuple[AuditEntry, ...], own, job=job_id, limit=_AUDIT)

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        return iter(())

    def check(self) -> None:
        """Do nothing: the owner's snapshot has a notice of what is missing."""

    def unread(self) -> tuple[str, ...]:
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return self._backend.picture().unreadable


def _past(client: ApiClient, since: datetime | None, content_type: str, kind: type[T]) -> Iterator[T]:
    """Ask for the whole history; return what yields it as it comes."""
    query = {"since": None if since is None else since.isoformat()}
    stream = client.stream("/v1/history", query=query, headers={"Accept": content_type}, silence=_SILENCE)
    if stream.exchange.headers.get("content-type") != content_type:
        stream.close()
        raise GputuiError("the owner of the queue does not send its history whole", hint=VERSIONS)

    def jobs() -> Iterator[T]:
        decoder, rest, last = json_decoder(tuple[kind, ...]), b"", True  # type: ignore[valid-type]
        for part in stream:
            whole, _, rest = (rest + part).rpartition(b"\n")
            for found in decoder.decode_lines(whole):
                yield from found
                last = bool(found)
        if last:
            raise GputuiError("the connection was cut before the whole history came", hint="ask again")

    return jobs()


def _snapshot(client: ApiClient) -> Snapshot:
    return client.ask("GET", "/v1/snapshot", result=Snapshot)


def about_of(view: AboutView, home: str) -> About:
    names = {str(each): each for each in Capability}
    lacking = {names[name]: why for name, why in view.lacking.items() if name in names}
    caps = Caps(view.engine, lacking, view.lacking_options, runs_jobs=view.engine == GPUTUI)
    own_uid = None if view.caller.role == "operator" else view.caller.uid
    only_looks = HOW_TO_USE if view.caller.role == "viewer" else ""
    return About(view.host, view.caller.user, home, caps, view.scheduler, view.policy, own_uid, only_looks)


def _name(view: AboutView) -> str:
    return f"{view.owner.pid} {view.owner.since}"
