"""The account a host job runs under."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault


@dataclass(frozen=True)
class Account:
    """Another user than the one gputui runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str


def account_of(user: str | None) -> Account | None:
    """The account of `NAME|UID[:GROUP|GID]`; None when that is who we are already. Raises BAD_SPEC."""
    if user is None:
        return None
    name, _, group = user.partition(":")
    entry = _user(name)
    gid = _group(group) if group else (entry.pw_gid if entry else int(name))
    uid = entry.pw_uid if entry else int(name)
    if (uid, gid) == (os.geteuid(), os.getegid()):
        return None
    if os.geteuid() != 0:
        raise _refused(f"--user {user!a}: only a scheduler that runs as root can run jobs as other users")
    if entry is None:
        return Account(uid, gid, (gid,), name, "/", "/bin/sh")
    groups = (gid,) if group else tuple(os.getgrouplist(entry.pw_name, gid))
    return Account(uid, gid, groups, entry.pw_name, entry.pw_dir, entry.pw_shell)


def _user(name: str) -> pwd.struct_passwd | None:
    """The entry; None for a bare number without one."""
    is_number = _is_id(name)
    try:
        return pwd.getpwuid(int(name)) if is_number else pwd.getpwnam(name)
    except (KeyError, ValueError):
        if is_number:
            return None
        raise _refused(f"--user: this host has no user {name!a}") from None


def _group(name: str) -> int:
    if _is_id(name):
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise _refused(f"--user: this host has no group {name!a}") from None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _refused(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, text))
