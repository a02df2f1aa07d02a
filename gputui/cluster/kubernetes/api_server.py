"""Requests to the API server of Kubernetes, and its answers that go on: watches and followed logs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from msgspec import Struct
from urllib3.exceptions import HTTPError, ProtocolError

from gputui.cluster.kubernetes.connection import Connection
from gputui.cluster.kubernetes.kubeconfig import place_of
from gputui.cluster.kubernetes.login import Headers, Login
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError
from gputui.domain.installing import install_line
from gputui.domain.text import plain

if TYPE_CHECKING:
    from websocket import WebSocket

Query = Mapping[str, str]
T = TypeVar("T")
MERGE_PATCH = "application/merge-patch+json"
_CONNECT = 5.0
"""Seconds in which a connection has to be made."""
_UNKNOWN_USER = 401
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_RIGHTS = "gputui cluster rbac prints the rights that gputui needs"
_MOST_WORDS = 400
_CONNECTION = re.compile(r"^\w*Connection(Pool)?\([^)]*\): ")
"""Words of urllib3 for the connection of which it tells."""


def connect(
    context: str | None, environ: Mapping[str, str], timeout: float, *, account: Path | None = None
) -> ApiServer:
    """Return the server of a context, or of the pod in which this runs; raises ClusterUnavailableError."""
    if any(find_spec(name) is None for name in ("websocket", "yaml")):
        hint = install_line(["gputui[kubernetes]"], sys.prefix, has_pip=find_spec("pip") is not None)
        raise ClusterUnavailableError("packages for Kubernetes are not installed", hint=hint)
    place = place_of(context, environ, account)
    login = Login(place, environ, lambda: place_of(context, environ, account))
    way = Connection(place.cluster, login, environ)
    return ApiServer(way, place=place.name, namespace=place.namespace, timeout=timeout)


class StatusAnswer(Struct, frozen=True):
    """Answer of the server in place of an object."""

    message: str = ""
    reason: str = ""
    code: int = 0


class ApiRefusedError(ClusterRefusedError):
    """The server refused a request, with this status of HTTP."""

    def __init__(self, what: str, status: int, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


class ApiStream:
    """Lines of an answer that goes on until the server ends it, or `close` does, from any thread."""

    def __init__(self, response: urllib3.BaseHTTPResponse, place: str) -> None:
        self._response = response
        self._place = place
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines without their ends; raises ClusterUnavailableError if the connection is lost."""
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        except (HTTPError, OSError, ValueError) as error:
            if not self._is_closed:
                raise ClusterUnavailableError(f"the connection to {self._place} was lost: {_words(error)}") from error
        finally:
            self._response.close()
        if rest and not self._is_closed:
            yield rest

    def close(self) -> None:
        """End the iteration."""
        self._is_closed = True
        try:
            self._response.shutdown()
        except (OSError, ValueError):  # it has ended
            self._response.close()


class ApiServer:
    """An API server, as a user of it."""

    def __init__(self, way: Connection, *, place: str, namespace: str, timeout: float) -> None:
        """`place` is the name for people, `namespace` the user's own."""
        self.place = place
        self.namespace = namespace
        self.address = way.address
        self._way = way
        self._timeout = timeout

    def get(self, path: str, query: Query | None = None, patience: float = 0.0) -> bytes:
        """Return what is at a path; it is given up if nothing comes for `patience` seconds, 0: as long as usual."""
        return self._answer("GET", path, query, patience=patience).data

    def read(self, path: str, kind: type[T], query: Query | None = None) -> T:
        """Return what is at a path, decoded; raises ClusterUnavailableError for what is no answer of Kubernetes."""
        return self.decoded(self.get(path, query), kind)

    def decoded(self, data: bytes, kind: type[T]) -> T:
        """Return an answer, decoded; a proxy or another server may have answered instead of Kubernetes."""
        try:
            return decode_json(data, kind)
        except (msgspec.DecodeError, ValueError) as error:
            what = f"what answers is no API server of Kubernetes: {_one_line(data[:80].decode(errors='replace'))}"
            raise ClusterUnavailableError(what, where=self.place) from error

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Query | None = None,
        kind: str = "application/json",
    ) -> bytes:
        """Send an object; return the answer."""
        return self._answer(method, path, query, json.dumps(body).encode(), kind).data

    def stream(self, path: str, query: Query, patience: float | None) -> ApiStream:
        """Return an answer line by line; it is lost if nothing comes for `patience` seconds."""
        return ApiStream(self._answer("GET", path, query, patience=patience, is_read=False), self.place)

    def socket(self, path: str, query: Sequence[tuple[str, str]], protocols: str) -> WebSocket:
        """Open a websocket; raises as requests do."""
        from websocket import WebSocketBadStatusException, WebSocketException

        def ask(login: Headers) -> WebSocket:
            try:
                return self._way.dial(
                    f"{path}?{urlencode(query)}", (*login, ("Sec-WebSocket-Protocol", protocols)), _CONNECT
                )
            except WebSocketBadStatusException as error:
                raise self._refused(error.status_code or 0, error.resp_body or b"") from error
            except (WebSocketException, HTTPError, OSError) as error:
                raise self._silent(error) from error

        return self._logged_in(ask)

    def close(self) -> None:
        self._way.close()

    def _answer(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None = None,
        kind: str = "application/json",
        *,
        patience: float | None = 0.0,
        is_read: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        wait = urllib3.Timeout(connect=_CONNECT, read=self._timeout if patience == 0 else patience)

        def ask(login: Headers) -> urllib3.BaseHTTPResponse:
            headers = urllib3.HTTPHeaderDict({"Accept": "application/json", "User-Agent": "gputui"})
            headers.extend(login)
            if is_read:  # servers compress what is long, to a tenth; what goes on comes line by line
                headers["Accept-Encoding"] = "gzip"
            if body is not None:
                headers["Content-Type"] = kind
            try:
                response = self._sent(method, url, headers, body, wait, is_read=is_read)
            except ProtocolError:  # the server may have closed an idle connection: all requests may be repeated
                response = self._sent(method, url, headers, body, wait, is_read=is_read)
            if response.status < 300:
                return response
            data = b""
            with suppress(HTTPError, OSError):
                data = response.data
            raise self._refused(response.status, data, response.reason or "")

        try:
            return self._logged_in(ask)
        except (HTTPError, OSError) as error:
            raise self._silent(error) from error

    def _sent(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        wait: urllib3.Timeout,
        *,
        is_read: bool,
    ) -> urllib3.BaseHTTPResponse:
        return self._way.pool().request(
            method, url, body=body, headers=headers, timeout=wait, retries=False, preload_content=is_read
        )

    def _logged_in(self, ask: Callable[[Headers], T]) -> T:
        """Return what `ask` gets by the login, or by a new one if the server does not know the first any more."""
        sent = self._way.login.headers()
        try:
            return ask(sent)
        except ApiRefusedError as error:
            if error.status != _UNKNOWN_USER or not self._way.login.renew(sent):
                raise
            return ask(self._way.login.headers())

    def _silent(self, error: Exception) -> ClusterUnavailableError:
        return ClusterUnavailableError(f"Kubernetes does not answer: {_words(error)}", where=self.place)

    def _refused(self, status: int, data: bytes, reason: str = "") -> ClusterRefusedError | ClusterUnavailableError:
        words = _told(data) or reason or "no reason given"
        if status in _BUSY:
            return ClusterUnavailableError(f"Kubernetes does not answer: {words} ({status})", where=self.place)
        if status == _UNKNOWN_USER:
            hint = "kubectl auth whoami; log in anew"
            return ApiRefusedError(f"Kubernetes does not know this user: {words}", status, where=self.place, hint=hint)
        if status == 403:
            return ApiRefusedError(f"access denied: {words}", status, hint=_RIGHTS)
        return ApiRefusedError(words, status)


def _told(data: bytes) -> str:
    """Return the message of an answer, on one line."""
    try:
        return _one_line(decode_json(data, StatusAnswer).message)
    except (msgspec.DecodeError, ValueError):
        return _one_line(data[:_MOST_WORDS].decode(errors="replace"))


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return _one_line(_CONNECTION.sub("", str(reason or error))) or type(error).__name__


def _one_line(text: str) -> str:
    return plain(" ".join(text.split()))[:_MOST_WORDS]
