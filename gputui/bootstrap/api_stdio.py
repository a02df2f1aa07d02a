"""`gputui api-stdio`: the interface of the owner of a queue on stdin and stdout; without an owner this process's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from gputui import bootstrap
from gputui.api.stdio import pass_on
from gputui.api.wire import Dial, Server, Wire, to_sockets
from gputui.config.options import present_directory
from gputui.domain import frames
from gputui.domain.errors import GputuiError, NoOwnerError, StoreBusyError
from gputui.domain.snapshot import Leader, Notice
from gputui.ports.backend import FollowLog

if TYPE_CHECKING:
    from gputui.api.http import Peer
    from gputui.api.owner import OwnerServices
    from gputui.config import Options
    from gputui.domain.access import Caller
    from gputui.domain.job_spec import JobId
    from gputui.engine.feed import Feed
    from gputui.ports.backend import DirectBackend, StreamRequest

LOOK_EVERY = 0.5
"""Seconds between two looks at a queue that nobody owns, and at its socket."""
STOP_WITHIN = 5.0
"""Seconds that a request has to end when an owner has come."""


def serve_stdio(options: Options) -> None:
    """Serve the queue on stdin and stdout until either ends; raises NoOwnerError if the service alone may do that."""
    if options.in_cluster:
        _serve_here(options)
        return
    try:
        pass_on(to_sockets(map(Path, options.sockets.paths)), 0, 1)
    except NoOwnerError:
        if not options.sockets.in_process:
            from gputui.bootstrap.owner import unanswered

            raise unanswered(options.sockets.paths[0]) from None
        _serve_here(options)
    except TimeoutError:
        raise StoreBusyError("the owner of the queue accepts no connection", hint="look whether it hangs") from None


def _serve_here(options: Options) -> None:
    """Serve the queue in this process, until an owner comes."""
    from gputui.api.events import EventHub
    from gputui.api.handlers import Handlers
    from gputui.api.router import Router
    from gputui.api.server import DoorServer

    ours, theirs = socket.socketpair()
    with closing(bootstrap.open_backend(options)) as backend:
        looker = _Looker(options, backend)
        services = _services(options, backend, looker.feed)
        # nobody's ticks are waited for
        events = EventHub(services.latest, services.subscribe, services.visibility, patience=float("inf"))
        handle = Router(services, Handlers(services, events))
        server = DoorServer([], handle, given=[theirs], is_operator=lambda uid: True)
        looker.start(lambda: server.stop(STOP_WITHIN))
        server.start()
        pass_on(lambda seconds: Wire(ours, Server()), 0, 1)
        server.stop(0)


class _Looker:
    """Looks at a queue that nobody owns: publishes its snapshots, and sees when an owner has come."""

    def __init__(self, options: Options, backend: DirectBackend) -> None:
        from gputui.engine.feed import Feed

        self.feed = Feed()
        self._snapshots = backend.snapshots()
        self._dial: Dial | None = None if options.in_cluster else to_sockets(map(Path, options.sockets.paths))
        self._is_over = threading.Event()
        self._version: object = None

    def start(self, owned: Callable[[], object]) -> None:
        """Begin to look; `owned` is called once an owner has come."""
        self._look()
        threading.Thread(target=self._run, args=(owned,), name="looker", daemon=True).start()

    def _run(self, owned: Callable[[], object]) -> None:
        while not self._is_over.wait(LOOK_EVERY):
            if self._is_owned():
                owned()
                return
            self._look()

    def _is_owned(self) -> bool:
        if self._dial is not None:
            with suppress(GputuiError, OSError):
                self._dial(LOOK_EVERY).close()
                return True
        return False

    def _look(self) -> None:
        try:
            if (version := self._snapshots.version()) == self._version:
                return
            self.feed.publish(self._snapshots.read())
            self._version = version
        except Exception as error:  # noqa: BLE001 - a border: consoles show it, and the next look may succeed
            text = str(error) if isinstance(error, GputuiError | OSError) else f"{type(error).__name__}: {error}"
            self.feed.publish(replace(self.feed.latest, notices=(Notice("error", text, halts=True),)))
            self._version = None


class _Shared:
    """A backend that stays open when a request closes it."""

    def __init__(self, backend: DirectBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """Do nothing."""


def _services(options: Options, backend: DirectBackend, feed: Feed) -> OwnerServices:
    """Return what the handlers need, with the rights of this process's user; each write locks the queue for itself."""
    from gputui.api.callers import via_of
    from gputui.api.owner import OwnerServices
    from gputui.api.visibility import Visibility
    from gputui.bootstrap.backend import LocalBackend

    who, began_at = bootstrap.operator(), bootstrap.clock().now()
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
        latest=lambda: feed.latest,
        visibility=Visibility(options.settings.access),
        subscribe=feed.subscribe,
        refused=lambda caller, rule, asked: None,
        focus=lambda gpu: None,
        stream=stream,
        home=lambda uid: str(present_directory() or ""),
    )


def _send_log(backend: DirectBackend, job_id: JobId, request: StreamRequest, link: socket.socket) -> None:
    """Send the output of a job; the other streams need an owner. This process ends with the connection."""
    from gputui.bootstrap.stream import send_log
    from gputui.engine.process.streams import greeting

    with link, closing(backend):
        link.sendall(greeting(job_id, request))
        if not isinstance(request, FollowLog):
            link.sendall(frames.frame(frames.REFUSED, b"no scheduler runs: nobody owns this queue"))
            return
        with suppress(OSError):  # the client has hung up
            send_log(
                lambda: backend.log(
                    job_id, request.attempt, tail=request.tail, follow=request.follow, stamped=request.stamped
                ),
                request,
                link,
            )
