"""Servers of one console: their addresses, and ids of jobs that are unique although each server counts from 1.

Such an id has the server's number and name in front of the id that the server gave. Python's integers have no upper
bound, so the name can be read from the id alone, wherever it is displayed.
"""

from __future__ import annotations

import re

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobId

_BITS = 56
"""Bits of an id on its server; Slurm's elements of arrays need 50."""
_OWN = (1 << _BITS) - 1
MOST = 255
"""Maximum number of servers."""
LONGEST = 24
"""Maximum number of bytes of a server's name; all ids have room for it, so that they are in the order of servers."""


def shared_id(number: int, name: str, own: JobId) -> JobId:
    """Return the id in this console of a job on the server with that number (1 to MOST) and name."""
    return int.from_bytes(bytes([number]) + name.encode().ljust(LONGEST, b"\0"), "big") << _BITS | own


def own_id(job_id: JobId) -> JobId:
    """Return the id that the job has on its server."""
    return job_id & _OWN if job_id > _OWN else job_id


def server_of(job_id: JobId) -> str:
    """Return the name of the job's server; empty for a job of the local queue."""
    if job_id <= _OWN:
        return ""
    return (job_id >> _BITS).to_bytes(LONGEST + 1, "big")[1:].rstrip(b"\0").decode(errors="replace")


def shown_id(job_id: JobId) -> str:
    """Return the displayed id: `17`, or `gpu1:17` for a job on the server gpu1."""
    if job_id <= _OWN:
        return str(job_id)
    return f"{server_of(job_id)}:{job_id & _OWN}"


def without_server(shown: str) -> str:
    """Return a displayed id without its server: `5_[0-9]` of `gpu1:5_[0-9]`."""
    return shown.rpartition(":")[2]


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
        """Arguments of ssh for the address."""
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
