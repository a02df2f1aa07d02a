"""A queue for programs: `from gputui import Client, AsyncClient`.

The owner of the queue is asked, with the rights of this program's account. Calls raise `GputuiError`, and block for as
long as the owner needs; a call that changes something is carried out once, also if the owner is killed meanwhile.
Times are aware and in UTC, durations seconds, sizes bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

import msgspec
from msgspec import Struct, field

from gputui.api.client import ApiClient, Reply, new_key
from gputui.api.http import OWN, AboutView, Acted, ChangeNumber, NewIds, Undone, UndoRequest
from gputui.api.wire import Wire
from gputui.client_values import (
    EVENTS,
    ArrayPlace,
    AttemptInfo,
    Because,
    Beginning,
    Command,
    Event,
    GpuEvent,
    GpuInfo,
    JobEvent,
    JobInfo,
    JobOptions,
    NoticeEvent,
    WaitInfo,
    submission,
)
from gputui.config import Options, Sockets, resolve
from gputui.domain import action as actions
from gputui.domain.action import Action
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, InputError, NoOwnerError
from gputui.domain.job_spec import Submission
from gputui.domain.runs import Run
from gputui.domain.settings import ServerSettings
from gputui.domain.state import TERMINAL, JobState
from gputui.domain.text import plural

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "ArrayPlace",
    "AsyncClient",
    "AttemptInfo",
    "Because",
    "Beginning",
    "Client",
    "Event",
    "GpuEvent",
    "GpuInfo",
    "GputuiError",
    "JobEvent",
    "JobInfo",
    "JobOptions",
    "NoticeEvent",
    "WaitInfo",
]


_CLOSED = "the client was closed"


class JobListener(Struct, eq=False):
    """Events for one call that waits."""

    _deadline: float | None
    """Time of the monotonic clock."""
    _heard: SimpleQueue[Event | Exception] = field(default_factory=SimpleQueue)

    def tell(self, event: Event | Exception) -> None:
        self._heard.put(event)

    def next(self) -> Event:
        """Return the next event; raises TimeoutError, and GputuiError when there will be none."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            event = self._heard.get(timeout=left)
        except Empty:
            raise TimeoutError from None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        """End the wait, from any thread."""
        self.tell(GputuiError(_CLOSED))


class SharedEvents(Struct, eq=False):
    """Reads the events in a thread of its own, for as long as somebody listens."""

    _branch: Callable[[], Client]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listeners: set[JobListener] = field(default_factory=set)
    _source: Client | None = None
    _has_begun: bool = False

    @contextmanager
    def listening(self, deadline: float | None) -> Iterator[JobListener]:
        """Yield a listener, who hears of a beginning first, and of all that happens after it."""
        mine = JobListener(deadline)
        with self._lock:
            self._listeners.add(mine)
            if self._source is None:
                self._source, self._has_begun = self._branch(), False
                threading.Thread(target=self._run, args=(self._source,), name="gputui", daemon=True).start()
            elif self._has_begun:
                mine.tell(Beginning())
        try:
            yield mine
        finally:
            with self._lock:
                self._listeners.discard(mine)
                unheard = None if self._listeners else self._source
                if unheard is not None:
                    self._source = None
            if unheard is not None:
                unheard.close()

    def _run(self, source: Client) -> None:
        last: Exception = GputuiError(_CLOSED)
        try:
            for event in source.events("job"):
                self._tell(source, event)
        except Exception as error:  # noqa: BLE001 - a border: those who wait raise it
            last = error
        self._tell(source, last)

    def _tell(self, source: Client, event: Event | Exception) -> None:
        with self._lock:
            if self._source is not source:
                return
            self._has_begun = True
            if isinstance(event, Exception):
                self._source = None
            for each in self._listeners:
                each.tell(event)


T = TypeVar("T")

TIMEOUT = 60.0
KEEP = 25.0
"""Seconds for which an idle connection serves the next request; the server closes it after 30."""
_SINGLY = 20
"""Number of jobs that are looked at one by one."""
_AT_A_TIME = 4
"""Requests: the owner lets an account have a few connections."""
_RUNS = frozenset({JobState.RUNNING, JobState.COMPLETING})


class _StoredEntry(Struct, frozen=True):
    """Part of a stored job that tells whether it has ended."""

    id: int
    state: str
    requeue_requested: bool = False
    runs: tuple[Run, ...] = ()

    @property
    def live(self) -> Iterable[int]:
        """Numbers of the jobs that it stands for, if they have not ended."""
        if self.state in TERMINAL and not self.requeue_requested:
            return ()
        return (each for run in self.runs for each in run.ids) if self.runs else (self.id,)


class Client:
    """Asks the owner of a queue. Methods may be called from any thread."""

    def __init__(
        self, where: str | None = None, *, timeout: float = TIMEOUT, tell: Callable[[str], None] | None = None
    ) -> None:
        """`where` is a socket, `ssh://[user@]host[:port]`, or a server of the settings; None: what commands ask.

        An answer may take `timeout` seconds, also that of a new owner in place of one that has ended. `tell` gets a
        sentence about an owner who is slow; by default it is logged.
        """
        self._api, self._is_here = _opened(where, timeout, tell or logging.getLogger(__name__).warning)
        self._turn = threading.Semaphore(_AT_A_TIME)
        self._streams: set[Any] = set()
        """Streams and waits under way, which end when the client is closed."""
        self._is_closed = False
        self._is_branch = False
        self._events = SharedEvents(self.branch)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End what goes on: iterations end, a call that waits raises GputuiError or ends with its answer."""
        self._is_closed = True
        for stream in tuple(self._streams):
            stream.close()
        if not self._is_branch:
            self._api.close()

    def _keep(self, stream: Any) -> None:
        """Have what goes on end with the client."""
        self._streams.add(stream)
        if self._is_closed:  # meanwhile
            stream.close()

    def branch(self) -> Client:
        """Return a client of the same connections; closed, it ends only what itself has begun."""
        made = object.__new__(type(self))
        made._api, made._is_here, made._turn, made._events = self._api, self._is_here, self._turn, self._events
        made._streams, made._is_closed, made._is_branch = set(), self._is_closed, True
        return made

    def ask(
        self, method: str, path: str, body: Any = None, /, *, key: str = "", result: Any = Any, **query: object
    ) -> Any:
        """Return the answer of any route of docs/api.md, decoded as `result`."""
        with self._turn:
            return self._api.ask(method, path, body, result=result, query=query, key=key)

    def _asked(self, method: str, path: str, result: type[T], body: Any = None, **query: Any) -> T:
        answer: T = self.ask(method, path, body, result=result, key=new_key() if method == "POST" else "", **query)
        return answer

    def about(self) -> AboutView:
        """Return what the owner tells of the queue, of itself, and of who asks."""
        return self._asked("GET", "/v1/about", AboutView)

    # submitting

    def submit(self, command: Command, **options: Unpack[JobOptions]) -> int:
        """Put a job into the queue, and return its number."""
        return self._submitted(command, options, {})[0]

    def sweep(
        self,
        command: Command,
        values: Mapping[str, Iterable[object]],
        *,
        at_most: int | None = None,
        **options: Unpack[JobOptions],
    ) -> list[int]:
        """Submit a job for each combination of values, at most so many at a time; return their numbers in order.

        In command, name and environment `{lr}` stands for the value of `lr`; the last name varies fastest.
        """
        from gputui.domain import sweep

        pairs = [(name, sweep.quoted_list(map(str, each))) for name, each in values.items()]
        request = {"array": range(sweep.size(tuple(pairs))), "array_limit": at_most}
        return self._submitted(command, options, request, sweep=pairs)

    def _submitted(self, command: Command, options: JobOptions, request: dict[str, Any], **spec: object) -> list[int]:
        key, anyway = options.pop("key", ""), options.pop("anyway", False)
        made = submission(command, dict(options), self._is_here)
        made["spec"] |= spec
        return self.submit_all([{**made, **request}], key=key, anyway=anyway)

    def submit_all(
        self, jobs: Iterable[Submission | Mapping[str, Any]], *, key: str = "", anyway: bool = False
    ) -> list[int]:
        """Put jobs into the queue, all or none, each as `Submission` of openapi.json has it; return their numbers."""
        body, key = {"jobs": tuple(jobs)}, key or new_key()
        found: NewIds = self.ask("POST", "/v1/jobs", body, key=key, result=NewIds, anyway=anyway)
        return list(found.ids)

    def expected_start(self, command: Command, **options: Unpack[JobOptions]) -> datetime | None:
        """Return when a job would start that is not submitted; None: nobody can tell, or never."""
        given = {name: value for name, value in options.items() if name not in {"key", "anyway"}}
        jobs = {"jobs": [submission(command, given, self._is_here)]}
        return self._asked("POST", "/v1/jobs", NewIds, jobs, dry_run=True).expected[0]

    # looking

    def jobs(
        self, *states: str, tenant: str | None = None, matching: str | None = None, ended: bool = False
    ) -> list[JobInfo]:
        """Return the jobs in the order of the queue: those in these states, of a tenant, that match a filter.

        The filter is that of `gputui queue --filter`. With `ended`, those that have ended lately come behind.
        """
        query = {"state": ",".join(states) or None, "tenant": tenant, "filter": matching, "all": ended}
        return list(self._pages("/v1/jobs", "after", query))

    def history(self, since: datetime | None = None) -> Iterator[JobInfo]:
        """Yield jobs that have ended and are no longer in the queue, the latest month first."""
        query = {"since": since.isoformat() if since else None, "limit": 5000}  # each page costs a month's reading
        return self._pages("/v1/history", "cursor", query)

    def _pages(self, path: str, place: str, query: Mapping[str, object]) -> Iterator[JobInfo]:
        at: str | None = None
        while True:
            with self._turn:
                reply: Reply = self._api.request("GET", path, query={**query, place: at})
            yield from _read(reply.body, tuple[JobInfo, ...])
            if (at := reply.headers.get("next")) is None:
                return

    def job(self, job: int) -> JobInfo:
        """Return a job, waiting, running or ended, with its specification."""
        return self._asked("GET", f"/v1/jobs/{job:d}", JobInfo)

    def explain(self, job: int) -> WaitInfo:
        """Return why a job waits, and when it starts."""
        return self._asked("GET", f"/v1/jobs/{job:d}/explain", WaitInfo)

    def gpus(self) -> list[GpuInfo]:
        """Return the GPUs and the jobs on them."""
        return self._asked("GET", "/v1/gpus", list[GpuInfo])

    # acting

    def act(self, action: Action) -> Acted:
        """Carry out an action of `gputui.domain.action`, for all of its jobs or none."""
        return self._asked("POST", "/v1/actions", Acted, action)

    def cancel(self, *jobs: int) -> Acted:
        """End jobs, or take them out of the queue."""
        return self.act(actions.Cancel(jobs))

    def hold(self, *jobs: int) -> Acted:
        """Keep waiting jobs from starting."""
        return self.act(actions.Hold(jobs))

    def release(self, *jobs: int) -> Acted:
        return self.act(actions.Release(jobs))

    def requeue(self, *jobs: int) -> Acted:
        """Run jobs again; running ones are stopped first."""
        return self.act(actions.Requeue(jobs))

    def set_priority(self, value: int, *jobs: int) -> Acted:
        return self.act(actions.SetPriority(jobs, value))

    def undo(self, changes: Iterable[ChangeNumber]) -> list[str]:
        """Undo changes of an `Acted`, as long as the same owner lives; return why one was not, empty if it was."""
        body = UndoRequest(tuple(each.number for each in changes))
        return list(self._asked("POST", "/v1/undo", Undone, body).why)

    # waiting

    def wait(self, job: int, *, timeout: float | None = None) -> JobInfo:
        """Return a job once it has ended, and will not run again. Raises TimeoutError after so many seconds."""
        return next(self.as_ended([job], timeout=timeout))

    def wait_all(self, jobs: Iterable[int], *, timeout: float | None = None) -> list[JobInfo]:
        """Return these jobs, in this order, once all have ended. Raises TimeoutError."""
        wanted = tuple(jobs)
        found = {job.id: job for job in self.as_ended(wanted, timeout=timeout)}
        return [found[each] for each in wanted]

    def as_ended(self, jobs: Iterable[int], *, timeout: float | None = None) -> Iterator[JobInfo]:
        """Yield these jobs as they end. Raises TimeoutError if one has not after so many seconds."""
        return self._when(set(jobs), lambda job: job.has_ended, timeout)

    def _when(self, waiting: set[int], is_there: Callable[[JobInfo], bool], timeout: float | None) -> Iterator[JobInfo]:
        """Yield the jobs of these numbers once each is there; those that have ended are."""
        if not waiting:
            return
        with self._events.listening(None if timeout is None else time.monotonic() + timeout) as listener:
            self._keep(listener)
            try:
                while waiting:
                    event = listener.next()
                    if isinstance(event, JobEvent) and not (event.job.array and event.job.array.count > 1):
                        jobs: Iterable[JobInfo] = (event.job,) if event.id in waiting else ()
                    else:  # at the beginning, and where it is about many, all are looked at
                        jobs = self._looked_at(waiting)
                    for job in jobs:
                        if job.has_ended or is_there(job):
                            waiting.discard(job.id)
                            yield job
            except TimeoutError:
                raise TimeoutError(f"{plural(len(waiting), 'job')} not there after {timeout} s") from None
            finally:
                self._streams.discard(listener)

    def _looked_at(self, wanted: Collection[int]) -> Iterator[JobInfo]:
        """Yield jobs as they are now; of many, only those that have ended or are not in the queue."""
        left = set(wanted)
        if len(left) > _SINGLY:
            query = {"all": True, "limit": 100_000}
            kind, headers = tuple[_StoredEntry, ...], {"Accept": OWN}
            entries = self._api.ask("GET", "/v1/jobs", result=kind, query=query, headers=headers)
            left.difference_update(each for entry in entries for each in entry.live)
        return map(self.job, sorted(left))

    def events(self, *kinds: str) -> Iterator[Event]:
        """Yield what happens from now on: `job`, `gpu` and `notice`, or some of them. Close the client to end it."""
        from gputui.api.streams import events_of, open_events

        last = ""
        while not self._is_closed:
            stream = open_events(self._api, last, ",".join(kinds or EVENTS))
            self._keep(stream)
            try:
                for name, number, data in events_of(stream):
                    if (kind := EVENTS.get(name)) is not None:
                        yield _read(data, kind)
                    elif name == "reset" or not last:  # some were missed, or it is the first message
                        yield Beginning()
                    last = number or last
            finally:
                self._streams.discard(stream)
                stream.close()

    def logs(
        self,
        job: int,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> Iterator[str]:
        """Yield the lines of an attempt's output, the latest by default, without their ends.

        With `follow`, wait for its start, and go on to its end. `stamped` lines begin with their times, if known.
        Raises GputuiError if the output is not complete.
        """
        from gputui.api.streams import StreamClient
        from gputui.ports.backend import LogRequest

        if follow and attempt is None:
            for _ in self._when({job}, lambda found: found.state in _RUNS, None):
                pass
        stream = StreamClient(self._api).log(job, LogRequest(attempt, tail, stamped, follow))
        self._keep(stream)
        try:
            for line in stream:
                yield line.decode(errors="replace")
        finally:
            self._streams.discard(stream)
            stream.close()


def _opened(where: str | None, timeout: float, tell: Callable[[str], None]) -> tuple[ApiClient, bool]:
    """Return who asks the owner, and whether his jobs see the files of this machine."""
    from gputui.bootstrap.owner import client_of, own_options, to_owner

    if where is not None and ("/" not in where or where.startswith("ssh://")):
        from gputui.bootstrap.servers import chosen_servers, dial_of

        server, *others = chosen_servers([where], resolve().settings)
        if others:
            raise InputError("a client asks one server", where=where)
        name = f"gputui on {server.name}", f"look there: ssh {server.name}"
        api = ApiClient(dial_of(server), patience=timeout, tell=tell, name=lambda _: name, absence=timeout, keep=KEEP)
        return api, not server.address
    if where is not None:
        path = Path(where).expanduser().absolute()
        options = Options(path.parent, asked=Sockets((str(path),)))
    else:
        options = own_options()
    dial = to_owner(options)
    has_told = False

    def connected(seconds: float) -> Wire:
        """Connect to the owner; where nobody owns the queue, to a process of this user that opens it."""
        nonlocal has_told
        with suppress(NoOwnerError):
            return dial(seconds)
        from gputui.bootstrap.servers import LOCAL, dial_of

        if not has_told:
            has_told = True
            tell("nobody schedules in this queue: jobs start once `gputui` or `gputui serve` runs")
        return dial_of(ServerSettings(LOCAL))(seconds)

    way = connected if where is None and options.sockets.in_process else dial
    return client_of(options, way, tell, patience=timeout, absence=timeout, keep=KEEP), True


def _read(data: bytes, kind: type[T]) -> T:
    try:
        return decode_json(data, kind)
    except msgspec.MsgspecError as error:
        raise GputuiError(f"an answer of the owner cannot be read: {error}") from error


P = ParamSpec("P")

_AHEAD = 1000
"""Results that wait for a task."""


class AsyncClient:
    """`Client` for tasks of asyncio: calls run in threads of their own. A cancelled task ends what it waits for."""

    def __init__(
        self, where: str | None = None, *, timeout: float = TIMEOUT, tell: Callable[[str], None] | None = None
    ) -> None:
        """Take the arguments of `Client`; reads the settings of this user."""
        self._client = Client(where, timeout=timeout, tell=tell)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    @staticmethod
    def _later(
        method: Callable[Concatenate[Client, P], T],
    ) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(client: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
            branch = client._client.branch()
            async with aclosing(_results((method(branch, *args, **options) for _ in "1"), branch.close)) as found:
                return await anext(found)

        return call

    @staticmethod
    def _each(
        method: Callable[Concatenate[Client, P], Iterator[T]],
    ) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]]:
        @wraps(method)
        async def iterate(client: AsyncClient, /, *args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
            branch = client._client.branch()
            async with aclosing(_results(method(branch, *args, **options), branch.close)) as found:
                async for each in found:
                    yield each

        return iterate

    ask = _later(Client.ask)
    about = _later(Client.about)
    submit = _later(Client.submit)
    sweep = _later(Client.sweep)
    submit_all = _later(Client.submit_all)
    expected_start = _later(Client.expected_start)
    jobs = _later(Client.jobs)
    history = _each(Client.history)
    job = _later(Client.job)
    explain = _later(Client.explain)
    gpus = _later(Client.gpus)
    act = _later(Client.act)
    cancel = _later(Client.cancel)
    hold = _later(Client.hold)
    release = _later(Client.release)
    requeue = _later(Client.requeue)
    set_priority = _later(Client.set_priority)
    undo = _later(Client.undo)
    wait = _later(Client.wait)
    wait_all = _later(Client.wait_all)
    as_ended = _each(Client.as_ended)
    events = _each(Client.events)
    logs = _each(Client.logs)


async def _results(source: Iterator[T], stop: Callable[[], object]) -> AsyncGenerator[T, None]:
    """Yield what an iterator yields in a thread of its own; `stop` ends what that waits for."""
    import asyncio

    loop, room, is_over = asyncio.get_running_loop(), threading.Semaphore(_AHEAD), threading.Event()
    found: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()

    def put(each: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(found.put_nowait, each)

    def run() -> None:
        try:
            for each in source:
                room.acquire()
                if is_over.is_set():
                    return
                put((each,))
        except BaseException as error:  # noqa: BLE001 - a border: the task raises it
            put(error)
        else:
            put(None)

    threading.Thread(target=run, name="gputui", daemon=True).start()
    try:
        while (each := await found.get()) is not None:
            if isinstance(each, BaseException):
                raise each
            room.release()
            yield each[0]
    finally:
        is_over.set()
        room.release()
        stop()
