"""Accounts of attempts: the submitter's, unless root submitted the job and named another account."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode, RuntimeFault


class Account(Struct, frozen=True):
    """Entry of the account database."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str

    @property
    def is_other(self) -> bool:
        return (self.uid, self.gid) != (os.geteuid(), os.getegid())


def account_of(user: str | None, run_as: int | None) -> Account:
    """Return the account for `NAME|UID[:GROUP|GID]`, by default the submitter's; raises BAD_SPEC."""
    submitter = _account(os.geteuid() if run_as is None else run_as)
    account = submitter if user is None else _chosen(user, submitter)
    if account.is_other and os.geteuid() != 0:
        text = f"it is a job of {account.name}: only a scheduler that runs as root can run jobs as other users"
        raise refused(text)
    return account


class ContainerUser(Struct, frozen=True):
    """User of a container, in the engine's notation."""

    user: str
    groups: tuple[str, ...]
    account: Account | None = None
    """The submitter's account; None if the job names another user."""


def container_user(
    user: str | None, run_as: int, wanted: Iterable[str] = (), *, is_boxed: bool = False
) -> ContainerUser:
    """Return `UID:GID` and additional groups for a container, `wanted` included; raises BAD_SPEC.

    In a plain user's box the job may name no other account. Ids are numbers: names in the image may be other users'.
    """
    if user is not None and not is_boxed:
        return ContainerUser(user, tuple(wanted))
    submitter = _account(run_as)
    account = submitter if user is None else _chosen(user, submitter, "operators")
    groups = [str(gid) for gid in account.groups if gid != account.gid]
    for group in wanted:
        gid = _group(group) if is_boxed else group
        if is_boxed and submitter.uid != 0 and gid not in (submitter.gid, *submitter.groups):
            raise refused(f"--group-add {group!a}: {submitter.name} is not in that group")
        groups.append(str(gid))
    return ContainerUser(f"{account.uid}:{account.gid}", tuple(dict.fromkeys(groups)), account)


def account_name(uid: int) -> str:
    """Return the user's name; the uid as text if there is none."""
    return _account(uid).name


def _account(uid: int) -> Account:
    if uid == os.geteuid():
        gid, groups = os.getegid(), tuple(os.getgroups())
    else:
        gid, groups = uid, (uid,)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, groups, str(uid), "/", "/bin/sh")
    if uid != os.geteuid():
        gid, groups = entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(uid, gid, groups, entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh")


def _chosen(user: str, submitter: Account, may_name_others: str = "root") -> Account:
    """Return the requested account: any for root, else the submitter's own with one of its groups."""
    name, _, group = user.partition(":")
    if _is_id(name):
        uid = int(name)  # there may be no such account
    else:
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise refused(f"--user: this host has no user {name!a}") from None
    if uid != submitter.uid and submitter.uid != 0:
        rule = f"jobs run as their submitter, here {submitter.name}; only {may_name_others} may name another user"
        raise refused(f"--user {user!a}: {rule}")
    account = submitter if uid == submitter.uid else _account(uid)
    if not group:
        return account
    gid = _group(group)
    if submitter.uid != 0 and gid not in (submitter.gid, *submitter.groups):
        raise refused(f"--user {user!a}: {submitter.name} is not in the group {group!a}")
    return replace(account, gid=gid, groups=(gid,))


def _group(name: str) -> int:
    if _is_id(name):
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise refused(f"--user or --group-add: this host has no group {name!a}") from None


def _is_id(text: str) -> bool:
    """Return whether this is a uid or gid; the kernel takes the last one, 2^32 - 1, for "leave it as it is"."""
    return text.isascii() and text.isdigit() and len(text) < 11 and int(text) < 2**32 - 1


def refused(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, text))
