"""The door of the process that owns the queue: its socket, what answers there, its passing on, and systemd's signs."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import SOCKET
from gputui.domain.errors import StoreError
from gputui.domain.snapshot import Notice
from gputui.engine.leadership import SILENT_AFTER

if TYPE_CHECKING:
    from gputui.api.connections import Listener
    from gputui.api.events import EventHub
    from gputui.api.handlers import OwnerServices
    from gputui.api.server import DoorServer
    from gputui.config import Options
    from gputui.domain.access import Caller
    from gputui.domain.job_spec import JobId
    from gputui.domain.snapshot import Leader, Snapshot
    from gputui.engine.feed import Feed
    from gputui.ports import JobStore
    from gputui.ports.backend import DirectBackend, RunCommand, StreamRequest

log = logging.getLogger(__name__)

MakeCommands: TypeAlias = (
    "Callable[[Options, Callable[[Caller], DirectBackend], Callable[[Caller, str, str], None]], RunCommand]"
)
"""Makes what runs commands of thin clients, with the backends of an owner and its audit of refusals."""

START_WITHIN = 5.0
"""Seconds for which requests wait for the first tick; then they are answered without it."""
STOP_WITHIN = 2.0
"""Seconds that requests under way have at the end."""
FIRST_TICK_WITHIN = 300.0
"""Seconds that the first tick may take, which reads a queue of any size, before the process counts as hung."""
AGAIN_AFTER = 30.0
"""Seconds after which a server that could not be made is tried again."""
SHOWN_FOR = 600.0
"""Seconds for which a fault is told that the server has survived."""
LINGER = 1.5
"""Seconds for which connections are kept waiting for a next owner who is known to be there."""
_LOOK_EVERY = 0.02

_LISTENERS: dict[Path, Listener] = {}
"""Socket of each state directory that this process owns, for the process that takes over from it."""


def passed_listener(state: Path) -> tuple[str, tuple[int, ...]]:
    """Return how a process that takes over finds the socket of this one, and the descriptors that it inherits."""
    listener = _LISTENERS.get(state)
    return ("", ()) if listener is None else (listener.passed, (listener.socket.fileno(),))


def keep_inherited() -> None:
    """Keep the sockets that systemd passed for the program that replaces this one in the same process."""
    from gputui.api.connections import keep_inherited as keep

    keep()


class Door(Struct, eq=False):
    """Socket of one state directory, open while this process owns it. No error of it ends or delays scheduling."""

    _options: Options
    _feed: Feed
    _services: Callable[[Door], OwnerServices]
    passed: str = ""
    """Name of the socket of the owner before."""
    is_service: bool = False
    """True if systemd may have passed a socket."""
    beat: Callable[[], object] = lambda: None
    """Called once a second, as long as ticks come and the server lives."""
    _opened_at: float = 0.0
    _ticked_at: float = 0.0
    _has_ticked: threading.Event = field(default_factory=threading.Event)
    _is_closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _unsubscribe: Callable[[], None] = lambda: None
    _server: DoorServer | None = None
    _events: EventHub | None = None
    _listeners: list[Listener] = []
    _fault: tuple[float, Notice] | None = None
    """Time until which a fault is told, and the fault."""
    _has_followers: bool = False

    @property
    def _path(self) -> Path:
        return self._options.state / SOCKET

    @property
    def _patience(self) -> float:
        return max(SILENT_AFTER, 3 * self._options.settings.scheduler.tick_interval.total_seconds())

    @property
    def silent_for(self) -> float:
        """Seconds without a tick, once they are more than can be expected; else 0."""
        silence = time.monotonic() - self._ticked_at if self._has_ticked.is_set() else 0.0
        return silence if silence > self._patience else 0.0

    def notices(self) -> tuple[Notice, ...]:
        fault = self._fault
        return () if fault is None or time.monotonic() > fault[0] else (fault[1],)

    def open(self) -> None:
        """Begin to listen. Requests are answered from the first tick on, or five seconds later."""
        self._opened_at = time.monotonic()
        self._has_ticked.clear()
        self._is_closing.clear()
        self._fault = None
        self._unsubscribe = self._feed.subscribe(self._hear)
        try:
            self._listen()
        except Exception as error:  # a border, as below
            log.exception("no socket is open")
            self._tell(f"commands and consoles of others cannot ask this process: {error}")
        self._thread = threading.Thread(target=self._begin, name="gputui-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no further request; those who connect wait. Called while this process is still the owner."""
        self._unsubscribe()
        self._is_closing.set()
        self._has_ticked.set()
        if self._thread is not None:
            self._thread.join()
        events, self._events = self._events, None
        server, self._server = self._server, None
        if server is not None:
            self._has_followers = server.streams > 0
        if events is not None:
            events.close()
        if server is not None:
            server.stop(STOP_WITHIN)

    def leave(self, *, is_awaited: bool) -> None:
        """Close the socket, once the next owner has his if there is one. Called when another process may own."""
        _LISTENERS.pop(self._options.state, None)
        own = [listener for listener in self._listeners if listener.file is not None]
        may_follow = self._has_followers and len(own) == len(self._listeners)  # else systemd starts the next one
        end = time.monotonic() + LINGER if is_awaited or may_follow else 0.0
        while time.monotonic() < end and any(listener.is_at(self._path) for listener in own):
            time.sleep(_LOOK_EVERY)
        for listener in self._listeners:
            listener.socket.close()
        self._listeners = []

    def _hear(self, snapshot: Snapshot) -> None:
        self._ticked_at = time.monotonic()
        self._has_ticked.set()

    def _listen(self) -> None:
        from gputui.api import connections

        passed, self.passed = connections.taken(self.passed) if self.passed else None, ""
        if passed is not None and not passed.is_at(self._path):
            passed.socket.close()
            passed = None
        try:
            passed = passed or connections.bind(self._path, 0o600)
        except OSError as error:
            self._tell(f"{self._path}: {error.strerror}; commands and consoles of others cannot ask this process")
        else:
            self._listeners.append(passed)
            _LISTENERS[self._options.state] = passed
        if self.is_service and (of_service := connections.inherited()) is not None:
            self._listeners.append(of_service)

    def _begin(self) -> None:
        """Start the server after the first tick: what it imports would delay that. If it fails, try again."""
        self._has_ticked.wait(START_WITHIN)
        while not self._is_closing.is_set():
            try:
                self._serve()
            except Exception as error:  # a border: this process schedules without it
                log.exception("no API is served")
                self._tell(f"commands and consoles of others cannot ask this process: {error}")
            else:
                return
            again = time.monotonic() + AGAIN_AFTER
            while time.monotonic() < again and not self._is_closing.wait(min(1.0, AGAIN_AFTER)):
                self._beat()

    def _serve(self) -> None:
        from gputui.api.connections import limits_for
        from gputui.api.events import EventHub
        from gputui.api.handlers import Handlers, Router
        from gputui.api.server import DoorServer

        services = self._services(self)
        events = EventHub(
            services.latest, services.subscribe, services.visibility, services.focus, patience=self._patience
        )
        self._server = DoorServer(
            [listener.socket for listener in self._listeners],
            Router(services, Handlers(services, events)),
            is_operator={0, self._options.state.stat().st_uid}.__contains__,
            limits=limits_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            beat=self._beat,
            failed=lambda error: self._tell(f"the API failed and starts again: {error}", SHOWN_FOR),
        )
        self._events = events
        self._server.start()

    def _beat(self) -> None:
        is_starting = not self._has_ticked.is_set() and time.monotonic() - self._opened_at < FIRST_TICK_WITHIN
        if is_starting or (self._has_ticked.is_set() and not self.silent_for):
            self.beat()

    def _tell(self, words: str, seconds: float = float("inf")) -> None:
        log.warning("%s", words)
        self._fault = time.monotonic() + seconds, Notice("warning", words, short="no API")


def make_services(
    options: Options,
    store: JobStore,
    feed: Feed,
    me: Leader,
    stream: Callable[[Caller, JobId, StreamRequest, socket.socket, bytes], object],
    focus: Callable[[str | None], object],
    door: Door,
    commands: MakeCommands | None = None,
    metrics: Callable[[], bytes] | None = None,
) -> OwnerServices:
    """Return what the handlers of the door need of this process; `commands` makes what runs commands for callers."""
    from gputui.api.handlers import OwnerServices
    from gputui.api.rights import AccountNames, Callers, Visibility, whereabouts_of
    from gputui.bootstrap.backend import LocalBackend, Owned

    settings, own_cgroup = options.settings, Path("/proc/self/cgroup").read_text(errors="replace")
    callers = Callers(
        settings,
        options.state.stat().st_uid,
        store.store_id,
        lambda: store.jobs().values(),
        names := AccountNames(),
        whereabouts_of(own_cgroup, store.store_id),
    )
    visibility = Visibility(settings.access)
    owned = Owned(store, lambda: feed.latest, visibility, names.number)
    refusals = Refusals(store)

    def backend(caller: Caller) -> DirectBackend:
        return LocalBackend(options, caller=caller, owned=owned)

    def backup() -> Iterator[bytes]:
        from gputui.bootstrap.upkeep import backup_parts

        return backup_parts(options, bootstrap.clock().now())

    return OwnerServices(
        settings=settings,
        store_id=store.store_id,
        leader=lambda: replace(me, silent_for=timedelta(seconds=door.silent_for)),
        caller_of=callers.caller_of,
        backend=backend,
        latest=lambda: feed.latest,
        visibility=visibility,
        subscribe=feed.subscribe,
        refused=refusals.record,
        focus=focus,
        stream=stream,
        command=commands(options, backend, refusals.record) if commands is not None else None,
        backup=backup,
        metrics=metrics,
        home=names.home,
    )


class Refusals(Struct, eq=False):
    """Writes refusals into the audit log: of each user a few at once, then one now and then, as each is a write."""

    BURST = 20
    EVERY = 3.0
    """Seconds between two of one user, beyond the first ones."""
    _store: JobStore
    _clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _spent_until: dict[int, float] = field(default_factory=dict)
    """Time by which the written ones of each user are made up for."""

    def record(self, caller: Caller, rule: str, asked: str) -> None:
        """Record that the rule refused what the caller asked for; on errors, as on a full disk, the log has it."""
        from gputui.domain.access import AuditEntry

        with self._lock:
            at = self._clock()
            spent = max(at, self._spent_until.get(caller.uid, at)) + self.EVERY
            is_written = spent - at <= self.BURST * self.EVERY
            if is_written:
                if len(self._spent_until) > 1000:
                    self._spent_until = {each: until for each, until in self._spent_until.items() if until > at}
                self._spent_until[caller.uid] = spent
        if not is_written:
            log.debug("refused to %s by %s: %s", caller.user, rule, asked)
            return
        now = bootstrap.clock().now()
        try:
            self._store.note(
                AuditEntry(now, caller.uid, caller.user, "refused", rule, "", asked[:1000], via=caller.via)
            )
        except (OSError, StoreError) as error:
            log.warning("a refusal is not in the audit log: %s", error)


class ServiceManager(Struct, eq=False):
    """The service manager of this process; tells nobody if there is none. Safe to use from any thread."""

    _address: str = field(default_factory=lambda: os.environ.get("NOTIFY_SOCKET", ""))
    _is_ready: bool = False

    def beat(self) -> None:
        """Tell that the process lives; the first time that it is ready, from when on systemd waits for the next."""
        signs = [] if self._is_ready else ["READY=1"]
        self._is_ready = True
        self._tell(*signs, "WATCHDOG=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, *signs: str) -> None:
        """Send the signs; a manager that does not take them is not waited for."""
        if not self._address.startswith(("/", "@")):
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto("\n".join(signs).encode(), address)
