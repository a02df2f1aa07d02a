"""Rights and records: callers and their roles, the audit log, idempotency keys.

The kernel tells who asks (credentials of a Unix socket, or of this process); nothing that a user can write decides it.

A request that is repeated with the same key, as its answer was lost, is carried out once. A key is chosen by its user,
and known for that user alone. It is stored with what was done, in the same line of the journal: `KEY.DIGEST`, with a
digest of the request, since another request may not have the same key. A further action of the same request, as some
commands have, is stored as `KEY~1.DIGEST`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from gputui.domain.errors import AccessError, InputError
from gputui.domain.job_spec import JobId

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.domain.settings import Settings


class Actor(Struct, frozen=True):
    """User on whose behalf something is done."""

    uid: int
    user: str
    via: str = ""
    """Program that asks for the user; empty: a command or console of his own."""


class AuditEntry(Struct, frozen=True):
    """Entry of the audit log: one action, as it was written to the store."""

    at: datetime
    uid: int
    user: str
    verb: str
    """submit, cancel, hold, release, requeue, priority, top, drain, resume, pause, unpause, reserve, unreserve,
    standing, tenant, migrate; about processes and containers of others signal, stop-container; of recurring jobs add,
    remove, pause, resume, fire, skip; by the scheduler itself preempt; what a rule forbade refused."""
    target: str
    """`job 17`, `array 5`, `GPU-…`, `recurring 7`, `reservation r1`, `tenant bob`, `scheduler`, `pid 4711` or
    `container jupyter`."""
    before: str
    after: str
    via: str = ""
    """Program that asked for the user, such as `mcp`, or `sudo`; empty: a command or console of his own."""
    key: str = ""
    """Idempotency key of the request."""


def targets_of(job: Job) -> tuple[str, ...]:
    return (f"job {job.id}", f"array {job.array.id}") if job.array else (f"job {job.id}",)


def job_of(target: str) -> JobId | None:
    kind, _, number = target.partition(" ")
    return int(number) if kind in {"job", "array"} and number.isdigit() else None


EVERYBODY = "*"
"""Name in `access.users` that stands for every account of the machine."""
AGENT = "mcp"
"""Program that asks for agents, as `Caller.via` names it."""
OWN_JOBS = "own-jobs"
"""Rule by which users act on their own jobs only."""
Resolve: TypeAlias = Callable[[str], tuple[int | None, bool]]
"""Returns the id of a name of the settings, `alice` or `@group`, and whether it is a group's; None: unknown."""
HOW_TO_USE = "an operator lets you use the queue by the setting access.users"


class Role(IntEnum):
    """Rights of a caller; each role may do all that those below it may."""

    VIEWER = 0
    """Sees GPUs, the queue and reports; of jobs neither environment, mounts nor logs."""
    USER = 1
    """Submits as himself, and acts on his own jobs."""
    OPERATOR = 2
    """May do everything: root, the owner of the state directory, and the users of `policy.operators`."""


class Caller(Struct, frozen=True):
    """User of one request."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """Supplementary groups, as the kernel knows them: `newgrp` counts, and no database of accounts is asked."""
    user: str
    role: Role
    pid: int = 0
    job: JobId | None = None
    """Job in whose container or processes the caller runs; it then has the rights of the job's submitter at most."""
    via: str = ""
    """Program that asks for the user, such as `mcp`, or `sudo`: then `user` is who called that, and `uid` is root's."""
    key: str = ""
    """Idempotency key of the request as it is stored with new jobs and in the audit log."""

    @property
    def actor(self) -> Actor:
        return Actor(self.uid, self.user, self.via)

    @property
    def operates(self) -> bool:
        return self.role is Role.OPERATOR

    def is_one_of(self, names: Iterable[str], resolve: Resolve) -> bool:
        return is_one_of(self.uid, (self.gid, *self.groups), names, resolve)

    def owns(self, job: Job) -> bool:
        """Return whether the job was submitted by this user, as the kernel told at its submission."""
        return job.submitted_uid is not None and job.submitted_uid == self.uid

    def may_act_on(self, job: Job) -> bool:
        return self.operates or (self.role >= Role.USER and self.owns(job))


def others_job(job: Job, what: str) -> AccessError:
    """Return the refusal of what the submitter of a job and operators alone may do; `what` as in `suspend it`."""
    who = f"{job.submitted_by}, who submitted it," if job.submitted_by else "its submitter"
    return AccessError(f"job {job.shown_id}: only {who} and operators may {what}", rule=OWN_JOBS)


def is_agents(via: str) -> bool:
    """Return whether a program asked for a user by `gputui mcp`, and says so: no user needs that, nor gains by it."""
    return AGENT in via.split()


def role_of(uid: int, groups: Iterable[int], owner: int, settings: Settings, resolve: Resolve) -> Role:
    """Return the role of a user; `owner` is the uid of the state directory."""
    if uid in {0, owner}:
        return Role.OPERATOR
    mine = frozenset(groups)
    if is_one_of(uid, mine, settings.policy.operators, resolve):
        return Role.OPERATOR
    users = settings.access.users
    return Role.USER if EVERYBODY in users or is_one_of(uid, mine, users, resolve) else Role.VIEWER


def is_one_of(uid: int, groups: Collection[int], names: Iterable[str], resolve: Resolve) -> bool:
    """Return whether one of the names is this user's, or `@group` one of these groups."""
    for name in names:
        number, is_group = resolve(name)
        if number is not None and (number in groups if is_group else number == uid):
            return True
    return False


_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_STORED = re.compile(r"[A-Za-z0-9_-]{1,64}(~\d{1,9})?\.[0-9a-f]{16}", re.ASCII)


def stored_key(key: str, method: str, path: str, query: Mapping[str, str], body: bytes) -> str:
    """Return the key of a request as it is stored; raises InputError for what is none.

    One as stored, of a request that another process passes on, stays.
    """
    if _STORED.fullmatch(key):
        return key
    if not _KEY.fullmatch(key):
        raise InputError("it is no key", where="Idempotency-Key", hint="1 to 64 letters, digits, - and _")
    words = "&".join(f"{name}={value}" for name, value in sorted(query.items()))
    return f"{key}.{digest(f'{method} {path}?{words} '.encode(errors='surrogateescape') + body)}"


def digest(data: bytes) -> str:
    from hashlib import blake2b  # loads OpenSSL, which most commands do without

    return blake2b(data, digest_size=8).hexdigest()


def further_key(stored: str, number: int) -> str:
    """Return the key of the action of that number, from 0, of one request."""
    name, _, rest = stored.partition(".")
    return f"{name}~{number}.{rest}" if number else stored


def name_of_key(stored: str) -> str:
    return stored.partition(".")[0]


def check_same(stored: str, known: str) -> None:
    """Raise InputError if two stored keys are of different requests."""
    if stored != known:
        hint = "take a new key for each request"
        raise InputError("this key was used for another request", where="Idempotency-Key", hint=hint)


def requests_of(
    uid: int, jobs: Iterable[Job], entries: Iterable[AuditEntry] = ()
) -> Iterator[tuple[str, tuple[JobId, ...]]]:
    """Yield the requests of a user that these jobs and audit entries know: the key as stored, and the jobs in order.

    The jobs of an action are those of its entries, which stand for single jobs.
    """
    found: dict[str, list[JobId]] = {}
    for job in jobs:
        if job.key and job.submitted_uid == uid:
            found.setdefault(job.key, []).extend(job.ids)
    for ids in found.values():
        ids.sort()
    submitted = frozenset(found)
    for entry in entries:
        if entry.key and entry.uid == uid and entry.key not in submitted:
            kind, _, number = entry.target.partition(" ")
            found.setdefault(entry.key, []).extend([int(number)] if kind == "job" and number.isdigit() else ())
    for key, ids in found.items():
        yield key, tuple(ids)
