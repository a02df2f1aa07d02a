"""Connections to the API server: addresses, TLS, proxies, and websockets."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import urllib3
from urllib3.util import Url, make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from gputui.cluster.kubernetes.login import Headers, read_either
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.installing import install_line

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection
    from websocket import WebSocket

    from gputui.cluster.kubernetes.kubeconfig import ClusterEntry
    from gputui.cluster.kubernetes.login import Login

_MOST_IDLE = 8
"""Number of connections that are kept: watches have one each."""


class Connection:
    """Ways to a server, and what authenticates there."""

    def __init__(self, cluster: ClusterEntry, login: Login, environ: Mapping[str, str]) -> None:
        self.login = login
        self.address = _address(cluster)
        self._cluster = cluster
        self._proxy = cluster.proxy_url or _proxy_in(environ, parse_url(self.address))
        self._lock = Lock()
        self._made: tuple[bytes, urllib3.PoolManager] | None = None

    def pool(self) -> urllib3.PoolManager:
        """Return the connections of the user's present certificate; raises ClusterUnavailableError."""
        certificate = self.login.certificate()
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
                hint = install_line(["PySocks"], sys.prefix, has_pip=find_spec("pip") is not None)
                raise ClusterUnavailableError(what, where=self._proxy, hint=hint)
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
                context.load_verify_locations(
                    cadata=authority.decode("ascii", "ignore")
                )  # comments may be in any language
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


def _address(cluster: ClusterEntry) -> str:
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
    return address.rstrip("/")


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
