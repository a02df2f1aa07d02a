"""Ways to the process that owns this machine's queue: its socket, its events, and what to do if it does not answer."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gputui import bootstrap, thin
from gputui.api.backend import ApiBackend
from gputui.api.client import TELL_AFTER, ApiClient, cure_of, plain_name
from gputui.api.http import AboutView
from gputui.api.rights import SUDO_UID, VIA
from gputui.api.wire import Dial, Server, Wire, to_sockets
from gputui.config import Options, present_directory, resolve
from gputui.domain.access import AGENT
from gputui.domain.container import Shell
from gputui.domain.errors import CapabilityError, NoOwnerError
from gputui.domain.job import check_running
from gputui.domain.snapshot import EMPTY, Notice
from gputui.domain.text import user_name

if TYPE_CHECKING:
    from gputui.api.streams import Follower
    from gputui.domain.job import Job
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.feed import Feed
    from gputui.ports.backend import DirectBackend

log = logging.getLogger(__name__)

LOOK_WITHIN = 5.0
"""Seconds to wait for the answer to `about`."""
NEXT_WITHIN = 10.0
"""Seconds for which a user who cannot read the files waits for the next owner."""
AGENTS_PATIENCE = 25.0
"""Seconds for which the owner may let an agent wait for an answer."""


def open_api(
    options: Options,
    waiting: Callable[[str], None] | None = None,
    instead: Callable[[str], DirectBackend] | None = None,
) -> ApiBackend | None:
    """Return the queue of the owner, if somebody listens; None if this process may open the files itself.

    `instead` is for `ApiBackend`, by default `bootstrap.open_backend`.

    Raises NoOwnerError if nobody listens where the service alone has the queue.
    """
    dial = sockets_of(options)
    try:
        dial(TELL_AFTER).close()
    except NoOwnerError:
        if options.sockets.in_process:
            return None
        raise unanswered(options.sockets.paths[0]) from None
    except TimeoutError:  # its backlog is full: requests wait, and tell so
        pass
    return api_backend(options, dial, waiting, instead)


def about(options: Options) -> AboutView:
    """Return what the owner of the queue tells of itself and of who asks; raises NoOwnerError and GputuiError."""
    with closing(client_of(options, sockets_of(options), patience=LOOK_WITHIN)) as client:
        return client.ask("GET", "/v1/about", result=AboutView)


def unanswered(path: str) -> NoOwnerError:
    """Return the error for a service that has the queue, and at whose socket this user finds nobody."""
    if Path(path).exists() and not os.access(path, os.W_OK, effective_ids=True):
        name = user_name(os.geteuid())
        what = f"the service of this machine does not admit {name}: the socket is closed to this account"
        hint = f"ls -l {path}    # an operator adds accounts to its group; log in again afterwards"
        return NoOwnerError(what, where=path, hint=hint)
    hint = "sudo systemctl start gputui.socket gputui.service    # a queue of your own: gputui --state DIRECTORY …"
    return NoOwnerError("the service of this machine does not run", where=path, hint=hint)


def api_backend(
    options: Options,
    dial: Dial,
    waiting: Callable[[str], None] | None = None,
    instead: Callable[[str], DirectBackend] | None = None,
) -> ApiBackend:
    may_read = options.sockets.in_process and os.access(options.state, os.R_OK | os.X_OK)
    waited = thin.waited()

    def shell(job: Job) -> Shell:
        check_running(job)
        words = (*options.program(), "exec", "-it", str(job.id), "sh")
        of_host = "this host, with the job's environment, directory and limits"
        return Shell(words, of_host if job.spec.is_host else "the job's container")

    client = client_of(options, dial, waiting, absence=0.0 if may_read else NEXT_WITHIN, waited=waited)
    reader = client_of(options, dial, waiting, patience=TELL_AFTER, waited=waited) if may_read else None
    return ApiBackend(
        client,
        reader=reader,
        instead=(instead or partial(bootstrap.open_backend, options, waiting)) if may_read else None,
        home=str(present_directory() or ""),
        shell=shell,
    )


def own_options() -> Options:
    """Return the options of this user; raises CapabilityError where an engine has the queue: it has no owner."""
    options = resolve()
    if options.in_cluster:
        hint = "use its own commands, or gputui's: gputui submit, gputui queue --json"
        raise CapabilityError("the queue of a cluster has no owner who could be asked", hint=hint)
    return options


def agents_client(options: Options) -> ApiClient:
    """Return a client for an agent, which has less patience than a command: its own client gives it up sooner.

    Raises CapabilityError where an engine has the queue: it has no owner.
    """
    if options.in_cluster:
        hint = "let the agent use the commands: gputui submit, queue, show, logs"
        raise CapabilityError("an engine has this queue, and agents have no tools for that", hint=hint)
    return client_of(options, to_owner(options), patience=AGENTS_PATIENCE, absence=NEXT_WITHIN, via=AGENT)


def sockets_of(options: Options) -> Dial:
    return to_sockets(map(Path, options.sockets.paths))


def to_owner(options: Options) -> Dial:
    """Return what connects to the owner; its NoOwnerError says what helps where the service alone has the queue."""
    sockets, connect = options.sockets, sockets_of(options)

    def dial(seconds: float) -> Wire:
        try:
            return connect(seconds)
        except NoOwnerError:
            if sockets.in_process:
                raise
            raise unanswered(sockets.paths[0]) from None

    return dial


def client_of(
    options: Options,
    dial: Dial,
    waiting: Callable[[str], None] | None = None,
    *,
    patience: float | None = None,
    absence: float = 0.0,
    waited: float = 0.0,
    keep: float = 1.0,
    via: str = "",
) -> ApiClient:
    """Return a client of the owner; times in seconds as for `ApiClient`, `patience` by default `store.lock_timeout`.

    `via` is the program that asks for this process's user.
    """
    limit = options.settings.store.lock_timeout.total_seconds() if patience is None else patience
    tell = waiting or log.warning
    sudo = bootstrap.sudo_uid() if os.geteuid() == 0 else None
    headers = {} if sudo is None else {SUDO_UID: str(sudo)}

    def name(server: Server) -> tuple[str, str]:
        """Return the owner's name for a sentence, and what helps if it hangs; its lock file tells who may read it."""
        from gputui.engine.leadership import current_leader

        leader = current_leader(options.state) if options.sockets.in_process else None
        if leader is None or not leader.pid:
            return plain_name(server)
        return f"{leader.kind} of {leader.user} (pid {leader.pid})", cure_of(leader.pid)

    return ApiClient(
        dial,
        patience=limit,
        tell=tell,
        name=name,
        headers=headers | ({VIA: via} if via else {}),
        absence=absence,
        waited=waited,
        keep=keep,
    )


def ask_again(
    path: str, body: bytes, key: str, options: Options, tell: Callable[[str], None], waited: float
) -> bytes | None:
    """Send the request of a command again, until its owner or the next one answers, and return the answer's body.

    None: nobody owns the queue now, and this process may open it. Raises NoOwnerError if it may not, StoreBusyError for
    an owner who does not answer, and the error that the answer tells. `waited` are the seconds since the first try.
    """
    may_open = options.sockets.in_process
    absence = 0.0 if may_open else NEXT_WITHIN
    with closing(client_of(options, to_sockets([Path(path)]), tell, absence=absence, waited=waited)) as client:
        try:
            return client.request("POST", "/v1/cli", body, key=key).body
        except NoOwnerError:
            if may_open:
                return None
            raise unanswered(path) from None


PATIENCE = 5.0
"""Seconds for which a console waits for an answer of the process that it follows."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries to connect, at most."""


class OwnerEvents(Struct, eq=False):
    """Follows the owner of a state directory; see `engine.host.FollowPort`. `next` is for one thread."""

    _options: Options
    _follower: Follower | None = None
    _seen: int = 0

    @property
    def answers(self) -> bool:
        follower = self._follower
        return follower is not None and not follower.problem

    @property
    def about(self) -> AboutView | None:
        return None if self._follower is None else self._follower.about

    def next(self, seconds: float, gpu: str | None) -> tuple[Snapshot, float] | None:
        follower = self._follower
        if follower is None:
            from gputui.api.streams import Follower

            client = client_of(self._options, sockets_of(self._options), patience=PATIENCE)
            self._follower = follower = Follower(client, longest_pause=LONGEST_PAUSE)
            self._seen = 0
            follower.start()
        if follower.is_owned is not False:
            follower.wait(self._seen, seconds)
        self._seen = follower.number
        if follower.is_owned is False or not follower.has_snapshot:
            return None
        if not follower.problem:
            follower.look_at(gpu)
        return follower.snapshot, follower.age

    def stop(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()


class OwnerBehind(Struct, eq=False):
    """Source of snapshots for a console that may only ask the owner of a queue; see `hosting.Behind`."""

    leads = False
    _options: Options
    _feed: Feed
    _backend: ApiBackend | None
    """Is told how the owner describes himself, which another one may do differently."""
    _wanted: str | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    def want_pcie(self, uuid: str | None) -> None:
        self._wanted = uuid

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        import asyncio  # the loop that runs this has loaded it; commands and programs do without

        from gputui.threads import DaemonExecutor

        threads, events = DaemonExecutor(1, "owner"), OwnerEvents(self._options)
        try:
            await asyncio.get_running_loop().run_in_executor(threads, self._publish, events)
        finally:
            events.stop()
            threads.shutdown()

    def _publish(self, events: OwnerEvents) -> None:
        """Publish what the owner tells, or the last again if there is none, until stopped."""
        from gputui.engine.tick import snapshot_builder

        last, heard_at = EMPTY, time.monotonic()
        while not self._stopped.is_set():
            now = bootstrap.clock().now()
            found = events.next(1.0, self._wanted)
            if found is not None:
                last, heard_at = found[0], time.monotonic() - found[1]
                if self._backend is not None and (about := events.about) is not None:
                    self._backend.described = about
                self._feed.publish(snapshot_builder.as_told(*found, self._options.settings, now))
                continue
            where = " and ".join(self._options.sockets.paths)
            notice = Notice("error", f"no scheduler answers at {where}; this is what it said last", True, "no answer")
            silence = time.monotonic() - heard_at
            old = snapshot_builder.as_told(last, silence, self._options.settings, now)
            self._feed.publish(replace(old, notices=(notice,)))
            self._stopped.wait(LONGEST_PAUSE)
