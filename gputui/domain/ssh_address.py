"""Addresses of servers and engines that are reached over ssh."""

from __future__ import annotations

import re

from msgspec import Struct

from gputui.domain.errors import InputError

_ADDRESS = (
    r"ssh://(?:([A-Za-z0-9_.][^@:/\s]*)@)?"
    r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9_.][^@:/\s\[\]]*)(?::(\d{1,5}))?/?"
)


class SshAddress(Struct, frozen=True):
    """Parts of `ssh://[user@]host[:port]`; the user's ssh configuration decides about the others."""

    host: str
    user: str = ""
    port: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        user = ("-l", self.user) if self.user else ()
        port = ("-p", str(self.port)) if self.port is not None else ()
        return (*user, *port, "--", self.host)

    @property
    def command(self) -> str:
        """The ssh command with which a user can try the address."""
        port = f"-p {self.port} " if self.port is not None else ""
        return f"ssh {port}{self.user + '@' if self.user else ''}{self.host}"


def parse_ssh_address(text: str, where: str) -> SshAddress:
    """Return the parts of an address; raises InputError. Nothing in it can become an option of ssh."""
    match = re.fullmatch(_ADDRESS, text)  # compiled here: every command loads this module
    if not match or not text.isprintable() or (match[3] and not 0 < int(match[3]) < 65536):
        raise InputError(f"{text[:60]!a} is not an ssh address", where=where, hint="write ssh://user@host:port")
    return SshAddress(match[2].strip("[]"), match[1] or "", int(match[3]) if match[3] else None)
