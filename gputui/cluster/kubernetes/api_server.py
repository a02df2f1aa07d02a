"""Connections and requests to the API server of Kubernetes, and its answers that go on: watches, logs, websockets."""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

import msgspec
import urllib3
from msgspec import Struct
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError
from urllib3.util import Url, make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from gputui.cluster.kubernetes.kubeconfig import ClusterEntry, Headers, KubePlace, Login, place_of, read_either
from gputui.cluster.kubernetes.objects import one_line
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, LostAnswerError, install_line

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection
    from websocket import WebSocket

Query = Mapping[str, str]
T = TypeVar("T")
MERGE_PATCH = "application/merge-patch+json"
_MOST_IDLE = 8
"""Number of connections that are kept: watches have one each."""
_CONNECT = 5.0
"""Seconds in which a connection has to be made."""
_UNKNOWN_USER = 401
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_RIGHTS = "gputui cluster rbac prints the rights that gputui needs"
_MOST_WORDS = 400
_short = partial(one_line, most=_MOST_WORDS)
_CONNECTION = re.compile(r"^\w*Connection(Pool)?\([^)]*\): ")
"""Words of urllib3 for the connection of which it tells."""


def connect(
    context: str | None, environ: Mapping[str, str], timeout: float, *, account: Path | None = None
) -> ApiServer:
    """Return the server of a context, or of the pod in which this runs; raises ClusterUnavailableError."""
    if any(find_spec(name) is None for name in ("websocket", "yaml")):
        raise ClusterUnavailableError(
            "packages for Kubernetes are not installed", hint=_installed("gputui[kubernetes]")
        )
    place = place_of(context, environ, account)
    login = Login(place, environ, lambda: place_of(context, environ, account))
    return ApiServer(place, login, environ, timeout)


def _installed(package: str) -> str:
    return install_line([package], sys.prefix, has_pip=find_spec("pip") is not None)


_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"', re.ASCII)


class StatusCause(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class StatusDetails(Struct, frozen=True):
    causes: tuple[StatusCause, ...] | None = None


class StatusAnswer(Struct, frozen=True):
    """Last message of the server about a command."""

    status: str = ""
    message: str = ""
    details: StatusDetails | None = None

    @property
    def exit_code(self) -> int | None:
        if self.status == "Success":
            return 0
        causes = (self.details.causes if self.details else None) or ()
        codes = (each.message for each in causes if each.reason == "ExitCode")
        return next((int(code) for code in codes if code.isdigit()), None)


class ApiRefusedError(ClusterRefusedError):
    """The server refused a request, with this status of HTTP."""

    def __init__(self, what: str, status: int, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


class ApiStream(Struct, eq=False):
    """Lines of an answer that goes on until the server ends it, or `close` does, from any thread."""

    _response: urllib3.BaseHTTPResponse
    _place: str
    _is_closed: bool = False

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
        self._is_closed = True
        try:
            self._response.shutdown()
        except (OSError, ValueError):  # it has ended
            self._response.close()


class _Connections:
    """Ways to a server, by TLS and proxies, with the user's certificate; from any thread."""

    def __init__(self, cluster: ClusterEntry, login: Login, environ: Mapping[str, str]) -> None:
        has_tls = bool(
            cluster.certificate_authority or cluster.certificate_authority_data or cluster.insecure_skip_tls_verify
        )
        address = cluster.server if "://" in cluster.server else f"http{'s' if has_tls else ''}://{cluster.server}"
        try:
            found = parse_url(address)
        except urllib3.exceptions.LocationParseError:
            found = Url()
        if not found.host or found.scheme not in {"http", "https"}:
            raise ClusterUnavailableError(f"the kubeconfig has a server without an address: {cluster.server!r}")
        self.address = address.rstrip("/")
        self._login = login
        self._cluster = cluster
        self._proxy = cluster.proxy_url or _proxy_in(environ, parse_url(self.address))
        self._lock = Lock()
        self._made: tuple[bytes, urllib3.PoolManager] | None = None

    def pool(self) -> urllib3.PoolManager:
        certificate = self._login.certificate()
        with self._lock:
            if self._made is None or self._made[0] != certificate:
                self._made = certificate, self._pool(certificate)
            return self._made[1]

    def dial(self, path: str, headers: Headers, seconds: float) -> WebSocket:
        """Open a websocket at a path, by the same TLS and proxy as requests."""
        from websocket import WebSocket

        manager, target = self.pool(), parse_url(self.address)
        like, place = manager.connection_from_url(self.address), manager.proxy or target
        made = cast(
            "HTTPConnection",
            like.ConnectionCls(host=place.host or "", port=_port(place), timeout=seconds, **like.conn_kw),
        )
        if isinstance(manager, urllib3.ProxyManager):
            made.set_tunnel(target.host or "", _port(target), manager.proxy_headers, place.scheme or "http")
        made.connect()
        opened = WebSocket()
        opened.connect(  # type: ignore[no-untyped-call]
            f"ws{self.address.removeprefix('http')}{path}",
            socket=made.sock,
            header=[f"{name}: {value}" for name, value in headers],
            redirect_limit=0,  # nobody else gets the token
        )
        opened.settimeout(None)
        return opened

    def close(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made[1].clear()

    def _pool(self, certificate: bytes) -> urllib3.PoolManager:
        options: dict[str, Any] = {"maxsize": _MOST_IDLE, "retries": False}
        if self.address.startswith("https"):
            options["ssl_context"] = self._tls(certificate)
            if self._cluster.tls_server_name:
                options["server_hostname"] = self._cluster.tls_server_name
        if not self._proxy:
            return urllib3.PoolManager(**options)
        if self._proxy.startswith("socks"):
            if find_spec("socks") is None:
                what = "the way to Kubernetes is a SOCKS proxy, and PySocks is not installed"
                raise ClusterUnavailableError(what, where=self._proxy, hint=_installed("PySocks"))
            from urllib3.contrib.socks import SOCKSProxyManager

            return SOCKSProxyManager(self._proxy.replace("socks5:", "socks5h:"), **options)
        auth = parse_url(self._proxy).auth
        return urllib3.ProxyManager(
            self._proxy, proxy_headers=make_headers(proxy_basic_auth=auth) if auth else None, **options
        )

    def _tls(self, certificate: bytes) -> ssl.SSLContext:
        cluster, context = self._cluster, create_urllib3_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # clusters make authorities that it does not like
        if cluster.insecure_skip_tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user asked for it
        authority = read_either(
            cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority"
        )
        try:
            if authority:
                # comments may be in any language
                context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
            elif not cluster.insecure_skip_tls_verify:
                context.load_default_certs()
        except (ssl.SSLError, ValueError) as error:
            where = cluster.certificate_authority or None
            raise ClusterUnavailableError("the certificate-authority is no certificate", where=where) from error
        if certificate:
            try:
                _load(context, certificate)
            except (ssl.SSLError, OSError, ValueError) as error:
                why = getattr(error, "reason", None) or str(error)
                raise ClusterUnavailableError(f"the user's certificate and key do not serve: {why}") from error
        return context


class ApiServer:
    def __init__(self, place: KubePlace, login: Login, environ: Mapping[str, str], timeout: float) -> None:
        self.place = place.name
        """Name for people."""
        self.namespace = place.namespace
        """The user's own."""
        self._is_verbatim = place.cluster.disable_compression
        self._login = login
        self._ways = _Connections(place.cluster, login, environ)
        self.address = self._ways.address
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
            what = f"what answers is no API server of Kubernetes: {_short(data[:80].decode(errors='replace'))}"
            raise ClusterUnavailableError(what, where=self.place) from error

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Query | None = None,
        kind: str = "application/json",
    ) -> bytes:
        return self._answer(method, path, query, json.dumps(body).encode(), kind).data

    def try_out(self, path: str, body: Mapping[str, Any], query: Query) -> tuple[str, ...]:
        """Ask whether an object would be created; return what the server warns of. Raises as `send`."""
        answer = self._answer("POST", path, {**query, "dryRun": "All"}, json.dumps(body).encode())
        found = (_WARNING.match(each) for each in answer.headers.getlist("Warning"))
        return tuple(_short(each[1].replace("\\", "")) for each in found if each)

    def stream(self, path: str, query: Query, patience: float | None) -> ApiStream:
        """Return an answer line by line; it is lost if nothing comes for `patience` seconds."""
        return ApiStream(self._answer("GET", path, query, patience=patience, is_read=False), self.place)

    def socket(self, path: str, query: Sequence[tuple[str, str]], protocols: str) -> WebSocket:
        """Open a websocket; raises as requests do."""
        from websocket import WebSocketBadStatusException, WebSocketException

        def ask(login: Headers) -> WebSocket:
            try:
                return self._ways.dial(
                    f"{path}?{urlencode(query)}", (*login, ("Sec-WebSocket-Protocol", protocols)), _CONNECT
                )
            except WebSocketBadStatusException as error:
                raise self._refused(error.status_code or 0, error.resp_body or b"") from error
            except (WebSocketException, HTTPError, OSError) as error:
                raise self._silent(error) from error

        return self._logged_in(ask)

    def close(self) -> None:
        self._ways.close()

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
            if is_read and not self._is_verbatim:  # what is long becomes a tenth; what goes on comes line by line
                headers["Accept-Encoding"] = "gzip"
            if body is not None:
                headers["Content-Type"] = kind
            more: dict[str, Any] = {"body": body, "headers": headers, "timeout": wait, "preload_content": is_read}
            send = partial(self._ways.pool().request, method, url, retries=False, **more)
            try:
                response = send()
            except ProtocolError:  # the server may have closed an idle connection: all requests may be repeated
                response = send()
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

    def _logged_in(self, ask: Callable[[Headers], T]) -> T:
        """Return what `ask` gets by the login, or by a new one if the server does not know the first any more."""
        sent = self._login.headers()
        try:
            return ask(sent)
        except ApiRefusedError as error:
            if error.status != _UNKNOWN_USER or not self._login.renew(sent):
                raise
            return ask(self._login.headers())

    def _silent(self, error: Exception) -> ClusterUnavailableError:
        kind = LostAnswerError if isinstance(error, ReadTimeoutError | ProtocolError) else ClusterUnavailableError
        return kind(f"Kubernetes does not answer: {_words(error)}", where=self.place)

    def _refused(self, status: int, data: bytes, reason: str = "") -> ClusterRefusedError | ClusterUnavailableError:
        try:  # other fields may have other types: a gateway in front of the server refuses in its own way
            words = _short(str(decode_json(data, dict[str, Any]).get("message") or ""))
        except (msgspec.DecodeError, ValueError):
            words = _short(data[:_MOST_WORDS].decode(errors="replace"))
        words = words or reason or "no reason given"
        if status in _BUSY:
            return ClusterUnavailableError(f"Kubernetes does not answer: {words} ({status})", where=self.place)
        if status == _UNKNOWN_USER:
            hint = "kubectl auth whoami; log in anew"
            return ApiRefusedError(f"Kubernetes does not know this user: {words}", status, where=self.place, hint=hint)
        if status == 403:
            return ApiRefusedError(f"access denied: {words}", status, hint=_RIGHTS)
        return ApiRefusedError(words, status)


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return _short(_CONNECTION.sub("", str(reason or error))) or type(error).__name__


def _load(context: ssl.SSLContext, certificate: bytes) -> None:
    """Load certificate and key from memory: OpenSSL reads files only, and the key is not for a disk."""

    def password() -> str:
        raise ValueError("the key is encrypted")

    place = os.memfd_create("client-certificate")
    try:
        os.write(place, certificate)
        context.load_cert_chain(f"/proc/self/fd/{place}", password=password)
    finally:
        os.close(place)


def _port(place: Url) -> int:
    return place.port or (443 if place.scheme == "https" else 80)


def _proxy_in(environ: Mapping[str, str], target: Url) -> str:
    """Return the proxy that the environment names for an address; empty for none."""
    name = f"{target.scheme}_proxy"
    proxy = environ.get(name) or environ.get(name.upper()) or ""
    if not proxy or is_direct(target, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def is_direct(target: Url, words: str) -> bool:
    """Return whether the words of NO_PROXY, or the address itself, rule a proxy out: by name, domain, or network."""
    import ipaddress  # few have proxies

    host = (target.host or "").strip("[]").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for word in words.lower().replace(" ", "").split(","):
        name = word.removesuffix(f":{_port(target)}")
        if name == "*" or (name and (host == name or host.endswith(f".{name.lstrip('.')}"))):
            return True
        try:
            if address is not None and address in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
