"""How to reach the engine: where it is, and clients that speak to it from many threads."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker_faults import fault, unavailable

if TYPE_CHECKING:
    from docker import APIClient
    from docker.context import Context
    from docker.tls import TLSConfig

T = TypeVar("T")

DEFAULT_URL = "unix:///var/run/docker.sock"
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds between two tries to reach an engine that does not answer."""


@dataclass(frozen=True)
class Endpoint:
    """Where the engine is."""

    url: str
    tls: TLSConfig | None = None
    source: str = ""
    """Who said so, in words."""

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine."""
        return self.url.startswith(("unix://", "http+unix://"))


def find_endpoint(settings: RuntimeSettings) -> Endpoint:
    """Where the engine is: by the settings, else DOCKER_HOST, else the docker context, as the docker command does."""
    from docker.utils import kwargs_from_env

    from_env = kwargs_from_env()
    tls: TLSConfig | None = from_env.get("tls")
    if settings.docker_host:
        over_tcp = settings.docker_host.startswith(("tcp://", "https://"))
        return Endpoint(settings.docker_host, tls if over_tcp else None, "the setting docker_host")
    if os.environ.get("DOCKER_HOST"):
        return Endpoint(os.environ["DOCKER_HOST"], tls, "DOCKER_HOST")
    return _of_context(os.environ.get("DOCKER_CONTEXT"))


def _of_context(name: str | None) -> Endpoint:
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name

    name = name or get_current_context_name()
    if name == "default":
        return Endpoint(DEFAULT_URL, None, "the default")
    context: Context | None = ContextAPI.get_context(name)  # the stubs forget that there may be none
    if context is None or not context.Host:
        raise RuntimeUnavailableError(f"there is no docker context {name!r}", hint="see `docker context ls`")
    return Endpoint(context.Host, context.TLSConfig, f"docker context {name!r}")


def _knock(endpoint: Endpoint) -> None:
    """Raise OSError when nobody listens on a local socket: sooner and clearer than docker-py, which leaks one then."""
    if endpoint.is_local:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(endpoint.url.removeprefix("http+").removeprefix("unix://"))


class Connection:
    """Clients of one engine, borrowed by whoever calls.

    A requests session is not made for several threads at once, so each call has a client of its own for as long as
    it lasts, and idle ones are kept: there are as many as ever called at the same time. A stream keeps its client
    until it is closed.
    """

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[APIClient] = []
        self._endpoint: Endpoint | None = None
        self._api_version: str | None = None
        self._era = 0
        self._pause = 0.0
        self._closed_until = 0.0
        self._last_error: RuntimeUnavailableError | None = None
        self.is_local = False
        """Whether the engine runs on this machine, as far as is known."""

    @property
    def where(self) -> str:
        """The engine's address, for sentences."""
        return self._endpoint.url if self._endpoint else (self._settings.docker_host or "its address")

    @property
    def longest_pause(self) -> float:
        """Seconds between two tries: to knock at a local socket costs nothing."""
        return 1.0 if self.is_local else LONGEST_PAUSE

    def call(self, ask: Callable[[APIClient], T], *, patient: bool = True) -> T:
        """What `ask` returns, given a client; errors come out as RuntimeFault or RuntimeUnavailableError.

        While a remote engine does not answer, calls fail at once until the back-off is over; an impatient one tries.
        """
        with self.borrowed(patient=patient) as client, self.translated():
            return ask(client)

    @contextmanager
    def borrowed(self, *, patient: bool = True) -> Iterator[APIClient]:
        """A client, given back afterwards."""
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

    def open(self, *, patient: bool = False) -> APIClient:
        """A client to keep, for a stream; close it."""
        return self._take(patient)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of docker-py inside come out as ours."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            yield
        except APIError as error:
            raise fault(_explanation(error), status=error.status_code) from error
        except (DockerException, RequestException, OSError) as error:
            raise self.lost(error) from error

    def lost(self, error: BaseException) -> RuntimeUnavailableError:
        """Note that the engine does not answer; return the error to raise."""
        found = unavailable(self.where, error)
        with self._lock:
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self._closed_until = time.monotonic() + self._pause
            self._last_error = found
        self.forget()
        return found  # another thread may have connected since, and have cleared `_last_error`

    def forget(self) -> None:
        """Drop all idle clients and what was negotiated: the next call starts anew."""
        with self._lock:
            dropped, self._idle = self._idle, []
            self._era += 1
            self._api_version = self._endpoint = None
        for client in dropped:
            with suppress(Exception):  # closing a broken session may raise anything; it is gone either way
                client.close()

    def _take(self, patient: bool) -> APIClient:
        with self._lock:
            if patient and self._last_error and not self.is_local and time.monotonic() < self._closed_until:
                raise RuntimeUnavailableError(self._last_error.what, hint=self._last_error.hint)
            kept = self._idle.pop() if self._idle else None
        return self._still_answering(kept) if kept else self._connect()

    def knock(self) -> None:
        """Raise RuntimeUnavailableError when the engine takes no new callers: it is going, and still answers old ones.

        Only one on this machine can be asked so cheaply; of another nothing is said.
        """
        try:
            if self._endpoint:
                _knock(self._endpoint)
        except OSError as error:
            raise self.lost(error) from error

    def _still_answering(self, kept: APIClient) -> APIClient:
        """The kept client, if the engine still listens: it would connect again by itself, and leak when it cannot."""
        try:
            self.knock()
        except RuntimeUnavailableError:
            kept.close()
            raise
        return kept

    def _connect(self) -> APIClient:
        from docker import APIClient

        with self._found() as endpoint:
            self.is_local = endpoint.is_local
            _knock(endpoint)
            client = APIClient(
                base_url=endpoint.url,
                # never pinned: new engines refuse old versions and old ones new; asked once, then kept
                version=self._api_version or "auto",
                timeout=int(self._settings.docker_timeout.total_seconds()),
                tls=endpoint.tls or False,
                use_ssh_client=shutil.which("ssh") is not None,
            )
        with self._lock:
            self._api_version = client.api_version
            self._pause, self._last_error = 0.0, None
        return client

    @contextmanager
    def _found(self) -> Iterator[Endpoint]:
        """The engine's address; what fails inside means that it does not answer."""
        try:
            self._endpoint = self._endpoint or find_endpoint(self._settings)
            yield self._endpoint
        except RuntimeUnavailableError:
            raise
        # docker-py raises bare Exceptions of many kinds for a bad context, TLS file, ssh host or address
        except Exception as error:
            raise self.lost(error) from error

    def _give_back(self, client: APIClient, era: int) -> None:
        with self._lock:
            if era == self._era:
                self._idle.append(client)
                return
        client.close()


def _explanation(error: BaseException) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error)
