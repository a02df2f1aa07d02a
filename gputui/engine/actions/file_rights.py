"""Files as another account may open them: the kernel decides, so groups, access lists and mounts all count.

Linux keeps the ids with which files are opened for each thread. So the work is done in a thread that ends with it; C
libraries set the groups of all threads, hence the system call.
"""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")
_SET_GROUPS: Mapping[str, int] = MappingProxyType({"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81})
_FACCESSAT2 = 439
_AT_EACCESS, _AT_EMPTY_PATH = 0x200, 0x1000


class FileAccount(Struct, frozen=True):
    """Account with its groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str


def file_account(uid: int) -> FileAccount:
    """Return the account as the database knows it, which is also how its jobs run."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return FileAccount(uid, uid, (uid,), str(uid))
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return FileAccount(uid, entry.pw_gid, tuple(groups), entry.pw_name)


def as_account(account: FileAccount, work: Callable[[], T]) -> T:
    """Do the work with the account's rights to files, in a thread of its own, and return what it returns.

    Only root can: raises PermissionError for others, and NotImplementedError on machines that are not known.
    """
    if os.geteuid() == account.uid:
        return work()
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _become(account)
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="files-of-user", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def may(fd: int, how: int) -> bool:
    """Return whether this thread may use the file or directory of that place in this way: os.R_OK, W_OK or X_OK."""
    import ctypes  # few jobs mount anything

    libc = ctypes.CDLL(None, use_errno=True)
    return not libc.syscall(_FACCESSAT2, fd, b"", how, _AT_EACCESS | _AT_EMPTY_PATH)


def _become(account: FileAccount) -> None:
    """Give this thread the account's rights to files, for good; raises OSError."""
    import ctypes  # few jobs mount anything

    number = _SET_GROUPS.get(os.uname().machine)
    if number is None:
        raise NotImplementedError(f"files cannot be opened as another user on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    groups = (ctypes.c_uint32 * len(account.groups))(*account.groups)
    if libc.syscall(number, ctypes.c_size_t(len(groups)), groups):
        raise PermissionError(ctypes.get_errno(), "only root can open files as another user")
    libc.setfsgid(ctypes.c_uint32(account.gid))
    libc.setfsuid(ctypes.c_uint32(account.uid))
    # both tell nothing but the id before: an id that is none only asks
    nobody = ctypes.c_uint32(2**32 - 1)
    if (libc.setfsgid(nobody), libc.setfsuid(nobody)) != (account.gid, account.uid):
        raise PermissionError("only root can open files as another user")
