"""Ids of jobs on several servers: unique in one console, although each server counts its jobs from 1.

Such an id has the server's number and name in front of the id that the server gave. Python's integers have no upper
bound, so the name can be read from the id alone, wherever it is displayed.
"""

from __future__ import annotations

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
