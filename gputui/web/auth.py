"""Access control: each printed link admits one browser, once; a session cookie admits that browser from then on."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from hmac import compare_digest
from urllib.parse import urlsplit

_BYTES = 32
_SAME = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for requests not caused by another site."""


class AccessControl:
    """Checks tokens and sessions in constant time, and host names and origins from the browser's own headers."""

    def __init__(self, host: str) -> None:
        self.token = _secret()
        """Token of the next link; valid once."""
        self.path = f"/{secrets.token_hex(_BYTES // 2)}/"
        """Secret path prefix. Cookies are kept by path, not by port: other servers on this host must not get ours."""
        self._sessions: set[str] = set()
        self._names = {"localhost", host.lower()}
        self._is_loopback = is_loopback(host)
        if not self._is_loopback:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def admit(self, token: str) -> str | None:
        """Return the secret of a new session if the token is right, and replace the token; else None."""
        if not _same(token, self.token):
            return None
        self.token, session = _secret(), _secret()
        self._sessions.add(session)
        return session

    def knows(self, session: str) -> bool:
        return sum(_same(session, known) for known in self._sessions) > 0  # all are compared: no sooner for any

    def is_for_us(self, host: str) -> bool:
        """Return whether the Host header may name this server: a foreign name means DNS rebinding by another site."""
        name = _name_of(host)
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not self._is_loopback)

    def is_from_us(self, host: str, origin: str | None, site: str | None) -> bool:
        """Return whether the request was not caused by another site's page; `site` is the value of Sec-Fetch-Site."""
        if site is not None and site not in _SAME:
            return False
        return origin is None or _netloc_of(origin) == host.lower()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to the address."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def url_host(host: str) -> str:
    """Return the host in the notation of URLs: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _name_of(host: str) -> str:
    """Return the name in a Host header without its port, which differs behind a tunnel."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc_of(origin: str) -> str:
    """Return host and port of an Origin header; empty if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _same(one: str, other: str) -> bool:
    return compare_digest(one.encode(errors="replace"), other.encode())


def _secret() -> str:
    return secrets.token_urlsafe(_BYTES)
