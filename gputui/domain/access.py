"""Callers, and their roles: what each user of one queue may do.

The kernel tells who asks (credentials of a Unix socket, or of this process); nothing that a user can write decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

from gputui.domain.audit import Actor
from gputui.domain.errors import AccessError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings

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
    """Idempotency key of the request as it is stored with new jobs and in the audit log, see `domain/keys.py`."""

    @property
    def actor(self) -> Actor:
        return Actor(self.uid, self.user, self.via)

    @property
    def operates(self) -> bool:
        return self.role is Role.OPERATOR

    def is_one_of(self, names: Iterable[str], resolve: Resolve) -> bool:
        """Return whether one of the names is the user's, or `@group` one of his groups."""
        return is_one_of(self.uid, (self.gid, *self.groups), names, resolve)

    def owns(self, job: Job) -> bool:
        """Return whether the job was submitted by this user, as the kernel told at its submission."""
        return job.submitted_uid is not None and job.submitted_uid == self.uid

    def may_act_on(self, job: Job) -> bool:
        """Return whether the caller may change the job, and read what only its submitter may read."""
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
