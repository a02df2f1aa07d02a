"""The host an ssh:// address names."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from gputui.domain.errors import RuntimeUnavailableError

REMOTE_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class Target:
    """Parts of an ssh:// URL, as written."""

    host: str
    user: str | None = None
    port: str | None = None
    socket: str = REMOTE_SOCKET

    @classmethod
    def of(cls, url: str) -> Target:
        """Return the parts of `ssh://[user@]host[:port][/path/of/docker.sock]`. Raises RuntimeUnavailableError."""
        place, slash, path = url.removeprefix("ssh://").partition("/")
        user, at, rest = place.rpartition("@")
        if rest.startswith("["):
            host, _, tail = rest[1:].partition("]")
            port = tail.removeprefix(":")
        else:
            host, _, port = rest.partition(":")
        is_sound = host and not host.startswith("-") and not user.startswith("-") and ":" not in user
        if not is_sound or (port and not port.isdigit()):
            raise RuntimeUnavailableError(f"{url!r} is no ssh address", hint="use ssh://user@host")
        socket = slash + path if path.strip("/") else REMOTE_SOCKET
        return cls(host, unquote(user) if at else None, port or None, unquote(socket))

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments that name it to ssh. Without a port in the URL the user's configuration gives it."""
        user = ("-l", self.user) if self.user else ()
        port = ("-p", self.port) if self.port else ()
        return (*user, *port, "--", self.host)

    @property
    def command(self) -> str:
        """The ssh command a user types to try it."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}{self.user + '@' if self.user else ''}{self.host}"
