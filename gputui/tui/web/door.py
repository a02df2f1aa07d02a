"""Who is let in: whoever brings the link that was printed, once, and from then on that browser."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from hmac import compare_digest
from urllib.parse import urlsplit

_BYTES = 32
_SAME = frozenset({"same-origin", "none"})
"""What a browser says of a request that no other site made it send."""


class Door:
    """Compares every secret in constant time, and names and origins by what the browser itself says."""

    def __init__(self, host: str) -> None:
        self.token = _secret()
        """What the next link carries; each opens once."""
        self.path = f"/{secrets.token_hex(_BYTES // 2)}/"
        """Below it is everything. Cookies are kept by path, not by port: elsewhere on this host nobody may get ours."""
        self._sessions: set[str] = set()
        self._names = {"localhost", host.lower()}
        self._is_loopback = is_loopback(host)
        if not self._is_loopback:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def admit(self, token: str) -> str | None:
        """The secret of a new session, if this is the token; from then on there is another token."""
        if not _same(token, self.token):
            return None
        self.token, session = _secret(), _secret()
        self._sessions.add(session)
        return session

    def knows(self, session: str) -> bool:
        """Whether that is the secret of a session."""
        return sum(_same(session, known) for known in self._sessions) > 0  # all are compared: no sooner for any

    def is_for_us(self, host: str) -> bool:
        """Whether the name in the browser's address line may be ours: one by which another site came here is not."""
        name = _name_of(host)
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not self._is_loopback)

    def is_from_us(self, host: str, origin: str | None, site: str | None) -> bool:
        """Whether no page of another site made the browser ask: `site` is what Sec-Fetch-Site says."""
        if site is not None and site not in _SAME:
            return False
        return origin is None or _netloc_of(origin) == host.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def url_host(host: str) -> str:
    """The host as an address line has it."""
    return f"[{host}]" if ":" in host else host


def _name_of(host: str) -> str:
    """The name of a Host header, without its port: a tunnel may have another one."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc_of(origin: str) -> str:
    """Return host and port of an Origin header; empty for one that is none."""
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
