"""`gputui api-stdio`: the interface of the owner of a queue on stdin and stdout; without an owner this process's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from gputui import bootstrap, thin
from gputui.config.options import present_directory
from gputui.domain import frames
from gputui.domain.errors import GputuiError, NoOwnerError, StoreBusyError
from gputui.domain.snapshot import Leader, Notice
from gputui.ports.backend import FollowLog
from gputui.threads import Watcher

if TYPE_CHECKING:
    from gputui.api.client import Dial
    from gputui.api.handlers import OwnerServices
    from gputui.api.http import Peer
    from gputui.config import Options
    from gputui.domain.access import Caller
    from gputui.domain.job_spec import JobId
    from gputui.domain.snapshot import Snapshot
    from gputui.ports.backend import DirectBackend, StreamRequest

CONNECT_WITHIN = 10.0
"""Seconds for an owner to accept the connection."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a queue that nobody owns, and at its socket."""
STOP_WITHIN = 5.0
"""Seconds that a request has to end when an owner has come."""


def serve_stdio(options: Options, source: int = 0, target: int = 1) -> None:
    """Serve the queue on these descriptors until either ends; raises NoOwnerError if the service alone may do that."""
    if options.in_cluster:
        _serve_here(options, source, target)
        return
    from gputui.bootstrap.owner import to_owner

    try:
        link = to_owner(options)(CONNECT_WITHIN).detach()
    except NoOwnerError:
        if not options.sockets.in_process:
            raise
        _serve_here(options, source, target)
    except TimeoutError:
        raise StoreBusyError("the owner of the queue accepts no connection", hint="look whether it hangs") from None
    else:
        thin.pass_on(link, source, target)


def _serve_here(options: Options, source: int, target: int) -> None:
    """Serve the queue in this process, until an owner comes."""
    from gputui.api.events import EventHub
    from gputui.api.handlers import Handlers, Router
    from gputui.api.server import DoorServer

    ours, theirs = socket.socketpair()
    with closing(bootstrap.open_backend(options)) as backend:
        looker = _Looker(options, backend)
        services = _services(options, backend, looker)
        # nobody's ticks are waited for
        events = EventHub(services.latest, services.subscribe, services.visibility, patience=float("inf"))
        handle = Router(services, Handlers(services, events))
        server = DoorServer([], handle, given=[theirs], is_operator=lambda uid: True)
        looker.start(lambda: server.stop(STOP_WITHIN))
        server.start()
        thin.pass_on(ours, source, target)
        looker.close()
        server.stop(0)


class _Looker:
    """Looks at a queue that nobody owns, as long as its events are followed, and sees when an owner has come."""

    def __init__(self, options: Options, backend: DirectBackend) -> None:
        from gputui.bootstrap.owner import sockets_of
        from gputui.engine.feed import Feed

        self._feed = Feed()
        self._followers = 0
        self._snapshots = backend.snapshots()
        self._dial: Dial | None = None if options.in_cluster else sockets_of(options)
        self._is_over = threading.Event()
        self._looking = threading.Lock()
        self._version: object = None

    def start(self, owned: Callable[[], object]) -> None:
        """Begin; `owned` is called once an owner has come."""
        Watcher("looker", partial(self._run, owned)).start()

    def latest(self) -> Snapshot:
        """Return the present snapshot."""
        self._look()
        return self._feed.latest

    def subscribe(self, tell: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `tell` with each snapshot from now on; return a function that ends that."""
        self._followers += 1
        unsubscribe = self._feed.subscribe(tell)

        def end() -> None:
            self._followers -= 1
            unsubscribe()

        return end

    def _run(self, owned: Callable[[], object]) -> None:
        while not self._is_over.wait(LOOK_EVERY):
            if self._is_owned():
                owned()
                return
            if self._followers:
                self._look()

    def close(self) -> None:
        self._is_over.set()

    def _is_owned(self) -> bool:
        if self._dial is not None:
            with suppress(GputuiError, OSError):
                self._dial(LOOK_EVERY).close()
                return True
        return False

    def _look(self) -> None:
        with self._looking:
            try:
                if (version := self._snapshots.version()) == self._version:
                    return
                self._version = version
                self._feed.publish(self._snapshots.read())
            except Exception as error:  # noqa: BLE001 - a border: consoles show it, and the next look may succeed
                text = str(error) if isinstance(error, GputuiError | OSError) else f"{type(error).__name__}: {error}"
                self._feed.publish(replace(self._feed.latest, notices=(Notice("error", text, halts=True),)))
                self._version = None


class _Shared:
    """A backend that stays open when a request closes it."""

    def __init__(self, backend: DirectBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """Do nothing."""


def _services(options: Options, backend: DirectBackend, looker: _Looker) -> OwnerServices:
    """Return what the handlers need, with the rights of this process's user; each write locks the queue for itself."""
    from gputui.api.handlers import OwnerServices
    from gputui.api.rights import Visibility, via_of
    from gputui.bootstrap.backend import LocalBackend

    who, began_at = bootstrap.caller(), bootstrap.clock().now()
    me = Leader(os.getpid(), socket.gethostname(), who.user, "api-stdio", began_at, uid=os.geteuid())

    def backend_of(caller: Caller) -> DirectBackend:
        return cast("DirectBackend", _Shared(backend)) if options.in_cluster else LocalBackend(options, caller=caller)

    def caller_of(peer: Peer, headers: Mapping[str, str]) -> Caller:
        del peer
        return replace(who, via=f"{who.via} {via_of(headers)}".strip())

    def stream(caller: Caller, job_id: JobId, request: StreamRequest, link: socket.socket, early: bytes) -> None:
        del early
        threading.Thread(target=_send_log, args=(backend_of(caller), job_id, request, link), daemon=True).start()

    return OwnerServices(
        settings=options.settings,
        store_id=backend.queue.store_id,
        leader=lambda: me,
        caller_of=caller_of,
        backend=backend_of,
        latest=looker.latest,
        visibility=Visibility(options.settings.access),
        subscribe=looker.subscribe,
        refused=lambda caller, rule, asked: None,
        focus=lambda gpu: None,
        stream=stream,
        home=lambda uid: str(present_directory() or ""),
    )


def _send_log(backend: DirectBackend, job_id: JobId, request: StreamRequest, link: socket.socket) -> None:
    """Send the output of a job; the other streams need an owner. This process ends with the connection."""
    from gputui.bootstrap.stream import send_log
    from gputui.engine.process.streams import greeting

    with link, closing(backend), suppress(OSError):  # the client may hang up
        link.sendall(greeting(job_id, request))
        if isinstance(request, FollowLog):
            found = partial(backend.log, job_id, request.attempt)
            opened = partial(found, tail=request.tail, follow=request.follow, stamped=request.stamped)
            send_log(opened, request, link)
        else:
            link.sendall(frames.frame(frames.REFUSED, b"no scheduler runs: nobody owns this queue"))
        link.shutdown(socket.SHUT_WR)  # closed alone it would stay open as long as a thread waits for its end
