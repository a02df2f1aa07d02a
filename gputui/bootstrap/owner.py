"""Ways to the process that owns this machine's queue: its socket, and what to do if it does not answer."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui import bootstrap, thin
from gputui.api.backend import ApiBackend
from gputui.api.callers import SUDO_UID, VIA
from gputui.api.client import TELL_AFTER, ApiClient, cure_of, plain_name
from gputui.api.messages import AboutView
from gputui.api.wire import Dial, Server, Wire, to_sockets
from gputui.config.options import present_directory
from gputui.domain.access import AGENT
from gputui.domain.container import Shell
from gputui.domain.errors import CapabilityError, NoOwnerError
from gputui.domain.job import check_running

if TYPE_CHECKING:
    from gputui.config import Options
    from gputui.domain.job import Job
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
    sockets = options.sockets
    dial, is_free = to_sockets(map(Path, sockets.paths)), sockets.in_process
    try:
        dial(TELL_AFTER).close()
    except NoOwnerError:
        if is_free:
            return None
        raise unanswered(sockets.paths[0]) from None
    except TimeoutError:  # its backlog is full: requests wait, and tell so
        pass
    return api_backend(options, dial, waiting, instead)


def about(options: Options) -> AboutView:
    """Return what the owner of the queue tells of itself and of who asks; raises NoOwnerError and GputuiError."""
    client = client_of(options, to_sockets(map(Path, options.sockets.paths)), patience=LOOK_WITHIN)
    try:
        found: AboutView = client.ask("GET", "/v1/about", result=AboutView)
        return found
    finally:
        client.close()


def unanswered(path: str) -> NoOwnerError:
    """Return the error for a service that has the queue, and at whose socket this user finds nobody."""
    if Path(path).exists() and not os.access(path, os.W_OK, effective_ids=True):
        name = bootstrap.user_name(os.geteuid())
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
    """Return the queue of the owner at the other end of these connections."""
    may_read = options.sockets.in_process and os.access(options.state, os.R_OK | os.X_OK)
    waited = thin.waited()
    client = client_of(options, dial, waiting, absence=0.0 if may_read else NEXT_WITHIN, waited=waited)
    reader = client_of(options, dial, waiting, patience=TELL_AFTER, waited=waited) if may_read else None
    return ApiBackend(
        client,
        reader=reader,
        instead=(instead or partial(bootstrap.open_backend, options, waiting)) if may_read else None,
        home=str(present_directory() or ""),
        shell=partial(_shell, options),
    )


def agents_client(options: Options) -> ApiClient:
    """Return a client for an agent, which has less patience than a command: its own client gives it up sooner.

    Raises CapabilityError where an engine has the queue: it has no owner.
    """
    if options.in_cluster:
        hint = "let the agent use the commands: gputui submit, queue, show, logs"
        raise CapabilityError("an engine has this queue, and agents have no tools for that", hint=hint)
    return client_of(options, to_owner(options), patience=AGENTS_PATIENCE, absence=NEXT_WITHIN, via=AGENT)


def to_owner(options: Options) -> Dial:
    """Return what connects to the owner; its NoOwnerError says what helps where the service alone has the queue."""
    sockets = options.sockets
    connect = to_sockets(map(Path, sockets.paths))

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
    return ApiClient(
        dial,
        patience=limit,
        tell=tell,
        name=partial(_name, options),
        headers=_headers() | ({VIA: via} if via else {}),
        absence=absence,
        waited=waited,
        keep=keep,
    )


def _headers() -> dict[str, str]:
    sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {SUDO_UID: sudo} if sudo.isascii() and sudo.isdigit() and len(sudo) < 11 else {}


def _name(options: Options, server: Server) -> tuple[str, str]:
    """Return the name of the owner for a sentence, and what helps if it hangs; its lock file tells who may read it."""
    from gputui.engine.files.leadership import current_leader

    leader = current_leader(options.state) if options.sockets.in_process else None
    if leader is None or not leader.pid:
        return plain_name(server)
    return f"{leader.kind} of {leader.user} (pid {leader.pid})", cure_of(leader.pid)


def _shell(options: Options, job: Job) -> Shell:
    check_running(job)
    words = (sys.executable, "-P", "-m", "gputui", *options.arguments(), "exec", "-it", str(job.id), "sh")
    place = "this host, with the job's environment, directory and limits" if job.spec.is_host else "the job's container"
    return Shell(words, place)
