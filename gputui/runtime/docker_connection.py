"""Clients that speak to the engine from many threads, over few connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.deadlines import DEADLINES
from gputui.runtime.docker_endpoint import Endpoint, find_endpoint
from gputui.runtime.docker_faults import fault, unavailable
from gputui.runtime.ssh_tunnel import TUNNELS, Tunnel

if TYPE_CHECKING:
    from docker import APIClient

    from gputui.runtime.docker_transport import EngineClient

T = TypeVar("T")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds between two tries to reach an engine that does not answer."""
MOST_IDLE = 4
IDLE_FOR = 45.0
"""At most so many unused clients are kept, each for so many seconds."""


def _knock(endpoint: Endpoint) -> None:
    """Raise OSError when nobody listens on the engine's socket: sooner and clearer than a request would."""
    if endpoint.socket_path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            with suppress(BlockingIOError):  # so many callers wait that it must be there
                probe.connect(endpoint.socket_path)


@dataclass
class _Idle:
    """A client that nobody uses."""

    client: EngineClient
    since: float
    """Monotonic seconds."""


class Connection:
    """Clients of one engine, borrowed by whoever calls.

    A requests session is not made for several threads at once, so each call has a client of its own for as long as
    it lasts. A few idle ones are kept for a while. A stream keeps its client until it is closed.
    """

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._endpoint: Endpoint | None = None
        self._tunnel: Tunnel | None = None
        self._tunnel_url = ""
        self._api_version: str | None = None
        self._era = 0
        self._pause = 0.0
        self._closed_until = 0.0
        self._last_error: RuntimeUnavailableError | None = None
        self._is_near = False

    @property
    def where(self) -> str:
        """The engine's address, for sentences."""
        return self._endpoint.url if self._endpoint else (self._settings.docker_host or "its address")

    @property
    def endpoint(self) -> Endpoint | None:
        """The engine's address, once it was asked for."""
        return self._endpoint

    @property
    def tunnel(self) -> Tunnel | None:
        """The ssh connection by which the engine is reached, if it is."""
        return self._tunnel

    @property
    def client_url(self) -> str | None:
        """Address at which other programs of this machine reach the engine over the same ssh connection."""
        return f"unix://{self._tunnel.socket_path()}" if self._tunnel else None

    @property
    def longest_pause(self) -> float:
        """Seconds between two tries: to knock at a local socket costs nothing."""
        return 1.0 if self._is_near else LONGEST_PAUSE

    def call(self, ask: Callable[[APIClient], T], *, patient: bool = True, is_long: bool = False) -> T:
        """Return what `ask` returns, given a client. Raises RuntimeFault or RuntimeUnavailableError.

        While a remote engine does not answer, calls fail at once until the back-off is over; an impatient one tries.
        A call that takes longer than the setting docker_timeout as a whole is cut off, unless it is a long one.
        """
        within = None if is_long else self._timeout
        with self.borrowed(patient=patient) as client, self.translated():
            return _in_time(client, ask, within)

    @property
    def _timeout(self) -> float:
        return self._settings.docker_timeout.total_seconds()

    @contextmanager
    def borrowed(self, *, patient: bool = True) -> Iterator[EngineClient]:
        """Yield a client, and take it back afterwards."""
        era = self._era
        client = self._take(patient)
        try:
            yield client
        except RuntimeFault as error:  # an answer, if not the one hoped for: the client is well
            if isinstance(error, RuntimeUnavailableError):
                client.close()
            else:
                self._give_back(client, era)
            raise
        except BaseException:
            client.close()
            raise
        self._give_back(client, era)

    def open(self, *, patient: bool = False) -> EngineClient:
        """Return a client to keep, for a stream; close it."""
        return self._take(patient)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of docker-py inside as ours."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        since = time.monotonic()
        try:
            yield
        except APIError as error:
            raise fault(_explanation(error), status=error.status_code) from error
        except (DockerException, RequestException, OSError) as error:
            raise self.lost(error, since) from error

    def lost(self, error: BaseException, since: float | None = None) -> RuntimeUnavailableError:
        """Note that the engine does not answer; return the error to raise."""
        found = self._why(error, time.monotonic() if since is None else since)
        with self._lock:
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self._closed_until = time.monotonic() + self._pause
            self._last_error = found
        self.forget()
        return found  # another thread may have connected since, and have cleared `_last_error`

    def _why(self, error: BaseException, since: float) -> RuntimeUnavailableError:
        """Return the error for an engine that does not answer, in ssh's words where ssh failed."""
        if isinstance(error, RuntimeUnavailableError):
            return error
        said = self._tunnel.fault(since) if self._tunnel else None
        return said or unavailable(self.where, error)

    def forget(self) -> None:
        """Drop all idle clients and what was negotiated: the next call starts anew."""
        with self._lock:
            dropped, self._idle = self._idle, []
            self._era += 1
            self._api_version = None
        _close(dropped)

    def close(self) -> None:
        """Drop all idle clients, and the ssh connection unless others use it."""
        self.forget()
        with self._lock:
            url, self._tunnel, self._tunnel_url = self._tunnel_url, None, ""
        if url:
            TUNNELS.give_back(url)

    def _take(self, patient: bool) -> EngineClient:
        with self._lock:
            if patient and self._last_error and not self._is_near and time.monotonic() < self._closed_until:
                raise type(self._last_error)(self._last_error.what, hint=self._last_error.hint)
            kept = self._idle.pop().client if self._idle else None
        return self._still_answering(kept) if kept else self._connect()

    def knock(self) -> None:
        """Raise RuntimeUnavailableError when the engine takes no new callers: it is going, and still answers old ones.

        Only one behind a socket of this machine can be asked so cheaply; of another nothing is said.
        """
        try:
            if self._endpoint:
                _knock(self._endpoint)
        except OSError as error:
            raise self.lost(error) from error

    def _still_answering(self, kept: EngineClient) -> EngineClient:
        """Return the kept client, if the engine still listens."""
        try:
            self.knock()
        except RuntimeUnavailableError:
            kept.close()
            raise
        return kept

    def _connect(self) -> EngineClient:
        from gputui.runtime.docker_transport import EngineClient

        with self._reached() as endpoint:
            # never pinned: new engines refuse old versions and old ones new; asked once, then kept
            version = self._api_version or _version(endpoint, self._timeout)
            client = EngineClient(endpoint, timeout=self._timeout, version=version)
        with self._lock:
            self._api_version = version
            self._pause, self._last_error = 0.0, None
        return client

    @contextmanager
    def _reached(self) -> Iterator[Endpoint]:
        """Yield where to connect to; what fails inside means that the engine does not answer."""
        since = time.monotonic()
        try:
            # never changed: after `docker context use` all containers would seem to be lost
            self._endpoint = self._endpoint or find_endpoint(self._settings)
            self._is_near = self._endpoint.socket_path is not None
            _knock(self._endpoint)
            yield self._tunnelled(self._endpoint) if self._endpoint.is_ssh else self._endpoint
        # docker-py raises bare Exceptions of many kinds for a bad TLS file or address
        except Exception as error:
            raise self.lost(error, since) from error

    def _tunnelled(self, endpoint: Endpoint) -> Endpoint:
        """Return the socket of this machine that leads to an engine behind ssh."""
        with self._lock:
            if self._tunnel_url != endpoint.url:
                before, self._tunnel_url = self._tunnel_url, endpoint.url
                self._tunnel = TUNNELS.take(endpoint.url)
                if before:
                    TUNNELS.give_back(before)
            tunnel = self._tunnel
        assert tunnel is not None
        return Endpoint(f"unix://{tunnel.socket_path()}", None, endpoint.source)

    def _give_back(self, client: EngineClient, era: int) -> None:
        """Keep the client for the next call, and close those that nobody used for a while."""
        now = time.monotonic()
        with self._lock:
            known = [*self._idle, _Idle(client, now)]
            young = [each for each in known if now - each.since < IDLE_FOR]
            self._idle = young[-MOST_IDLE:] if era == self._era else self._idle
            dropped = [each for each in known if each not in self._idle]
        _close(dropped)


def _in_time(client: EngineClient, ask: Callable[[APIClient], T], within: float | None) -> T:
    """Return what `ask` returns; raises TimeoutError when it takes too long as a whole."""
    with DEADLINES.within(within, client.shut_down) as deadline:
        try:
            return ask(client)
        except Exception as error:
            if deadline and deadline.passed.is_set():
                raise TimeoutError(f"timed out after {within:g} s") from error
            raise


def _version(endpoint: Endpoint, timeout: float) -> str:
    """Ask the engine for the version of its API."""
    from gputui.runtime.docker_transport import EngineClient

    asking = EngineClient(endpoint, timeout=timeout)
    try:
        return _in_time(asking, lambda _: asking.server_version(), timeout)
    finally:
        asking.close()


def _close(dropped: list[_Idle]) -> None:
    for each in dropped:
        with suppress(Exception):  # closing a broken session may raise anything; it is gone either way
            each.client.close()


def _explanation(error: BaseException) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error)
