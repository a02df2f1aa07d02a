"""Warrants: proof of who submitted a job, in a file that only its submitter can have written.

In a shared state directory every member of the group may write the queue, so the queue proves nothing about its
authors. The submitter therefore stores image, command and options in `warrants/UID/NAME`, a file and a directory owned
by that user and writable by no one else. The kernel guarantees the owners even if directories above are moved: another
member can neither write there nor create files of that owner. Before starting a job as its submitter, the scheduler
reads the warrant and refuses a job that differs from it.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreAccessError, WarrantError
from gputui.domain.job_spec import JobSpec
from gputui.store.codec import encode
from gputui.store.files import os_errors

FOLDER = "warrants"
KEPT = 30 * 86_400.0
"""Seconds for which an unused warrant is kept, since a finished job may be requeued."""
_NAME = re.compile(r"(\d{1,10})/([0-9a-f]{24})", re.ASCII)
_LARGEST = 16 * 1024**2
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Warrants(Struct):
    """Warrants of one state directory."""

    state: Path

    def are_needed(self) -> bool:
        """Return whether users other than the owner may write the state directory."""
        return bool(self.state.stat().st_mode & _OTHERS_WRITE)

    def owner(self) -> int:
        return self.state.stat().st_uid

    def issue(self, spec: JobSpec, store_id: str, uid: int) -> str:
        """Write a warrant as that user, durably; return its name `UID/NAME`. Only root may name another user."""
        name = os.urandom(12).hex()
        where = self.state / FOLDER / str(uid)
        with os_errors(where), self._folder(uid, make=True) as folder:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                os.fchmod(fd, 0o600)
                with os.fdopen(os.dup(fd), "wb") as file:
                    file.write(msgspec.json.encode(_content(spec, store_id)))
                if os.geteuid() != uid:
                    os.fchown(fd, uid, -1)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.fsync(folder)
        return f"{uid}/{name}"

    def issuer(self, spec: JobSpec, store_id: str) -> int:
        """Return the uid of the member who submitted exactly this spec; raises WarrantError."""
        match = _NAME.fullmatch(spec.warrant)
        if match is None:
            raise WarrantError("nothing proves who submitted it", hint="submit it again")
        uid = int(match[1])
        try:
            with self._folder(uid, make=False) as folder:
                content = _read(folder, match[2], uid)
        except PermissionError as error:
            text = f"it is a job of {name_of(uid)}: only a scheduler that runs as root can run jobs as other users"
            raise WarrantError(text, hint="let root schedule, and submit it again") from error
        except (OSError, StoreAccessError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            text = f"its warrant {spec.warrant} cannot be read: {why}"
            raise WarrantError(text, hint="submit it again") from error
        if content != _content(spec, store_id):
            raise WarrantError(f"it is not what {name_of(uid)} submitted: it was changed in the queue")
        if not self._is_member(uid):
            raise WarrantError(f"{name_of(uid)} is not in the group of the state directory")
        return uid

    def remove_unused(self, in_use: Collection[str]) -> None:
        """Remove old warrants that no job names, as far as this user may."""
        root = self.state / FOLDER
        with suppress(OSError):
            for uid in [each for each in os.listdir(root) if each.isdigit()]:  # noqa: PTH208 - names alone
                with suppress(OSError, StoreAccessError), self._folder(int(uid), make=False) as folder:
                    for name in os.listdir(folder):  # noqa: PTH208
                        age = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                        if _NAME.fullmatch(f"{uid}/{name}") and f"{uid}/{name}" not in in_use and age > KEPT:
                            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _folder(self, uid: int, *, make: bool) -> Iterator[int]:
        """Open the directory that only this user may write; raises StoreAccessError if others may."""
        shared = stat.S_ISVTX | stat.S_IMODE(self.state.stat().st_mode)
        root = _open_directory(str(self.state / FOLDER), None, shared if make else None)
        try:
            folder = _open_directory(str(uid), root, 0o700 if make else None, uid)
        finally:
            os.close(root)
        try:
            status = os.fstat(folder)
            if status.st_uid != uid or status.st_mode & _OTHERS_WRITE:
                where = str(self.state / FOLDER / str(uid))
                raise StoreAccessError(
                    f"it does not belong to {name_of(uid)} alone", where=where, hint="have root remove it"
                )
            yield folder
        finally:
            os.close(folder)

    def _is_member(self, uid: int) -> bool:
        status = self.state.stat()
        if uid == status.st_uid:
            return True
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return False
        return status.st_gid in os.getgrouplist(user.pw_name, user.pw_gid)


def _open_directory(path: str, at: int | None, mode: int | None, uid: int | None = None) -> int:
    """Open a directory; with `mode`, create it if missing."""
    is_new = False
    if mode is not None:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=at)
            is_new = True
    fd = os.open(path, _DIRECTORY, dir_fd=at)
    # a member put a directory with files, or of another owner, in its place
    is_ours = is_new and os.fstat(fd).st_uid == os.geteuid() and not os.listdir(fd)  # noqa: PTH208 - a descriptor
    if is_ours and mode is not None:
        os.fchmod(fd, mode)
        if uid is not None and uid != os.geteuid():
            os.fchown(fd, uid, -1)
    return fd


def _read(folder: int, name: str, uid: int) -> Any:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_nlink == 1
        if not is_ours or status.st_mode & _OTHERS_WRITE or status.st_size > _LARGEST:
            raise WarrantError(f"its warrant {uid}/{name} is not a file of {name_of(uid)} alone")
        try:
            return decode_json(file.read())
        except msgspec.DecodeError as error:
            raise WarrantError(f"its warrant {uid}/{name} is damaged: {error}", hint="submit it again") from error


def _content(spec: JobSpec, store_id: str) -> dict[str, Any]:
    return {"store": store_id, "runs": encode(spec.what_runs)}


def name_of(uid: int) -> str:
    """Return the user's name; the uid as text if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
