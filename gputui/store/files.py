"""A state directory and its files: modes and owners, and how files are opened, replaced and appended to.

The directory is created on first use, refused on network file systems, and closed to other users.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

from gputui.domain.errors import (
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreOwnedError,
)

FILE_MODE = 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FileAccess(Struct, frozen=True):
    """Owner and mode of the files, independent of the umask."""

    uid: int | None = None
    """Owner of new files when root works in another user's directory; None: the user who creates them."""

    def apply_to_file(self, fd: int) -> None:
        """Set mode and owner of an open file, if this user may."""
        status = os.fstat(fd)
        if os.geteuid() not in {0, status.st_uid}:
            return
        if self.uid is not None and status.st_uid != self.uid:
            os.fchown(fd, self.uid, -1)
        if stat.S_IMODE(status.st_mode) != FILE_MODE:
            os.fchmod(fd, FILE_MODE)


def access_for(directory: Path) -> FileAccess:
    """Return the access rights of an existing directory; raises StoreAccessError if others than its owner write it."""
    status = directory.stat()
    if status.st_mode & OTHERS_WRITE:
        text, own = "others than its owner may write there, and change every job", shlex.quote(str(directory))
        hint = f"chmod go-w {own}; one that a group shared: sudo gputui --state {own} install --users --convert"
        raise StoreAccessError(text, where=str(directory), hint=hint)
    return FileAccess(uid=status.st_uid if os.geteuid() == 0 and status.st_uid != 0 else None)


_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_REFUSED_KINDS = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a FIFO or a socket", errno.EISDIR: "a directory"}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
FileStamp = tuple[int, int, int]
"""Inode, modification time in nanoseconds and size of a file; differs after it was replaced or written."""
PutInPlace: TypeAlias = Callable[[Path, Path, FileStamp], None]
"""Callback that renames a new file, with that stamp, into place."""
_STEP = 1 << 16
_PIECE = 1 << 20


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor, closed on exec. Never blocks.

    Raises StoreAccessError for a link, a FIFO and other kinds of file, and OSError.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        kind = _REFUSED_KINDS.get(error.errno or 0)
        if kind is None:
            raise
        raise _not_regular(path, kind) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise _not_regular(path, next((name for is_so, name in _KINDS if is_so(mode)), "no regular file"))


def _not_regular(path: Path, kind: str) -> StoreAccessError:
    return StoreAccessError(f"it is {kind}; gputui needs a regular file here", where=str(path), hint="move it away")


@contextmanager
def closed_after(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


MAX_READ = 1024**3
"""Maximum size in bytes of a file that is read as a whole: that of some millions of jobs."""


def read_file(path: Path, size: int = -1) -> tuple[bytes, os.stat_result]:
    """Return the first `size` bytes of a regular file (-1: all) and its status; raises StoreFormatError."""
    with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        whole = os.fstat(file.fileno()).st_size if size < 0 else size
        if whole > MAX_READ:
            hint = "find out who wrote it; restore the file from a backup, or move it away if it is none of gputui's"
            raise StoreFormatError(f"has {whole:,} bytes, more than gputui writes", where=str(path), hint=hint)
        data = file.read(size)
        return data or b"", os.fstat(file.fileno())


def is_same_file(path: Path, fd: int) -> bool:
    try:
        there, here = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors of the block as StoreErrors with advice."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error


def store_error(error: OSError, path: Path) -> StoreError:
    what = (error.strerror or str(error)).lower()
    if isinstance(error, UndoError):
        kind = StoreFullError if error.errno in _FULL else StoreError
        return kind(
            f"{what}, and it could not be undone: it is unknown whether this was stored; earlier data is intact",
            where=str(path),
            hint="check `gputui queue` before you try again",
        )
    if error.errno in _FULL:
        return StoreFullError(
            f"{what}; nothing was stored, and earlier data is intact", where=str(path), hint="make room, then try again"
        )
    if error.errno in _REFUSED:
        return StoreAccessError(what, where=str(path), hint="check its owner and your permission to write there")
    return StoreError(what, where=str(path))


def stamp_of(status: os.stat_result) -> FileStamp:
    return (status.st_ino, status.st_mtime_ns, status.st_size)


@contextmanager
def _replacement(path: Path, access: FileAccess, place: PutInPlace | None = None) -> Iterator[int]:
    """Yield a new file, which takes the place of the one at the path when the block ends, atomically and durably."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with os_errors(path):
        temporary.unlink(missing_ok=True)  # left by a killed process, or planted
        try:
            with closed_after(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)) as fd:
                access.apply_to_file(fd)
                yield fd
                os.fsync(fd)
                stamp = stamp_of(os.fstat(fd))
            if place is None:
                temporary.replace(path)
            else:
                place(temporary, path, stamp)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def write_whole(path: Path, data: bytes, access: FileAccess, place: PutInPlace | None = None) -> FileStamp:
    """Replace the file with `data`, atomically and durably; `place` renames it. Return its new stamp."""
    with _replacement(path, access, place) as fd:
        write_all(fd, data)
        return stamp_of(os.fstat(fd))


def sync_directory(directory: Path) -> None:
    """Sync the directory, so that names of new files survive a power loss."""
    with closed_after(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


class UndoError(OSError):
    """A failed write that could not be undone, and may be read later."""


def append(fd: int, line: bytes) -> int:
    """Append and sync a line; return the new length. On failure the file is as before, or UndoError is raised."""
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        write_all(fd, line)
        os.fdatasync(fd)
    except BaseException as error:
        # also on KeyboardInterrupt: an unacknowledged line must not be read later
        try:
            os.ftruncate(fd, start)
        except OSError as failure:
            code = error.errno if isinstance(error, OSError) else failure.errno
            raise UndoError(code, os.strerror(code or 0)) from error
        raise
    return start + len(line)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes: a signal or a nearly full disk may shorten a single write."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def append_lines(path: Path, data: bytes, access: FileAccess) -> None:
    """Append complete lines durably, after cutting off a torn last line that a crash left."""
    with os_errors(path):
        with closed_after(_open_locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)) as fd:
            access.apply_to_file(fd)
            cut_torn(fd, whole_lines(fd))
            append(fd, data)
        sync_directory(path.parent)  # also if the file is there: who made it may have been killed before this


def cut_torn(fd: int, length: int) -> None:
    """Cut off what a crash left behind the last line, durably: else a power loss could mix it with the next line."""
    if os.fstat(fd).st_size > length:
        os.ftruncate(fd, length)
        os.fdatasync(fd)


def _open_locked(path: Path, flags: int) -> int:
    """Open and lock the file that has the name then: another process may put a shorter one in its place."""
    while True:
        fd = open_file(path, flags, FILE_MODE)
        fcntl.flock(fd, fcntl.LOCK_EX)  # for as long as an append or a copy takes
        if is_same_file(path, fd):
            return fd
        os.close(fd)


def keep_ranges(path: Path, ranges: Iterable[tuple[int, int | None]], access: FileAccess) -> None:
    """Keep these bytes of a file of lines, from first to end (None: to its end), and no others.

    A shorter copy takes its place, durably: after a crash there is either file. Appends wait meanwhile.
    """
    with (
        os_errors(path),
        closed_after(_open_locked(path, os.O_RDWR)) as fd,
        _replacement(path, access) as copy,
    ):
        before, now = os.fstat(fd), os.fstat(copy)
        if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
            with suppress(PermissionError):  # as far as this user may
                os.fchown(copy, before.st_uid, before.st_gid)
        for start, end in ranges:
            at = start
            while data := os.pread(fd, _PIECE if end is None else min(_PIECE, end - at), at):
                write_all(copy, data)
                at += len(data)


def remove_lines(path: Path) -> None:
    """Remove a file of lines; a line appended at the same moment starts a new file."""
    with os_errors(path):
        with closed_after(_open_locked(path, os.O_RDWR)):
            path.unlink()
        sync_directory(path.parent)


def whole_lines(fd: int) -> int:
    """Return the length of the file up to the end of its last complete line."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _STEP)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


MOUNTINFO = Path("/proc/self/mountinfo")
_SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda"}
    | {"ceph", "lustre", "beegfs", "gpfs", "glusterfs", "ocfs2", "gfs2", "pvfs2", "orangefs"}
    | {"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fuse"}
    | {"overlay", "overlayfs", "aufs"}
)
"""File systems on which flock or rename behave differently from a local disk."""
QUEUE = "queue.json"


def check_file_system(directory: Path, *, mountinfo: Path | None = None) -> str | None:
    """Return the kernel's name of the file system of the directory; None if /proc does not show it.

    Raises StoreAccessError for a network, FUSE or overlay file system.
    """
    try:
        lines = (mountinfo or MOUNTINFO).read_bytes().decode(errors="surrogateescape").split("\n")
    except OSError:
        return None
    place = directory.resolve()
    best: tuple[int, str] | None = None
    for line in filter(None, lines):
        before, _, after = line.partition(" - ")  # see proc(5)
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4]))
        # of two mounts on one point the later hides the earlier
        if place.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split(" ")[0])
    kind = best[1] if best else None
    if kind is not None and (kind in _SHARED or kind.startswith("fuse.")):
        raise StoreAccessError(
            f"it is on {kind}, where locks and renames are not reliable enough for a queue",
            where=str(directory),
            hint="set --state or GPUTUI_STATE to a directory on a local disk (ext4, xfs, btrfs, zfs) or tmpfs",
        )
    return kind


def open_directory(directory: Path) -> FileAccess:
    """Create the directory if it is missing, and return the access rights of its files; one that exists keeps its mode.

    Raises StoreAccessError for one that others may write.
    """
    check_file_system(directory)
    with os_errors(directory):
        if not directory.exists() and directory.is_symlink():
            raise StoreAccessError("it is a dangling symbolic link", where=str(directory))
        if not directory.is_dir() and _make(directory):
            directory.chmod(0o700)  # whatever the umask
        return access_for(directory)


def _make(directory: Path) -> bool:
    """Create the directory and its parents, durably; return whether it is new."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise StoreAccessError("it is not a directory", where=str(directory)) from None
        return False
    except FileNotFoundError:
        if directory.parent.exists():
            raise
        _make(directory.parent)
        return _make(directory)
    sync_directory(directory.parent)
    return True


PATIENCE = 60.0
"""Seconds to wait for other writers, unless the settings say otherwise."""
TELL_AFTER = 2.0
"""Seconds of waiting after which a message is shown."""
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02
_ASK_EVERY = 0.2
"""Seconds between two looks whether who holds the lock answers requests."""
PROC = Path("/proc")
_LONGEST = 60
"""Characters of a command in messages."""


def holder_of(fd: int) -> str:
    """Return a phrase for the process that has locked the open file: `process 4711 (rsync …)`."""
    inode, pid = str(os.fstat(fd).st_ino), 0
    with suppress(OSError):
        for words in map(str.split, (PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines()):
            # "7: FLOCK ADVISORY WRITE 4711 08:01:131 0 EOF"; those who wait have "->" behind the number
            if len(words) > 5 and words[1] == "FLOCK" and words[5].split(":")[-1] == inode:
                pid = int(words[4]) if words[4].isdigit() else 0
                break
    if pid <= 0:  # the kernel does not show it
        return "another process"
    notes = []
    with suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        text = " ".join(word.decode(errors="replace") for word in command if word)
        notes.append(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
    with suppress(OSError):
        status = (PROC / str(pid) / "stat").read_text(errors="replace")
        notes.append("stopped" if status.rpartition(")")[2].split()[:1] in (["T"], ["t"]) else "")
    told = ", ".join(filter(None, notes))
    return f"process {pid} ({told})" if told else f"process {pid}"


def log_waiting(sentence: str) -> None:
    import logging  # rarely needed

    logging.getLogger(__name__).warning("%s", sentence)


class StoreLock(Struct, eq=False):
    """Re-entrant flock on a side file, not on the data, whose inode changes with every rename.

    The kernel releases it when its holder dies. The descriptor is closed on exec: a child that inherited it would
    keep the lock.
    """

    _path: Path
    _access: FileAccess
    _patience: float = PATIENCE
    """Seconds to wait for others."""
    _waiting: Callable[[str], None] = log_waiting
    """Called with a sentence when a wait takes long."""
    _hurry: threading.local = field(default_factory=threading.local)
    _threads: Any = field(default_factory=threading.RLock)
    _depth: int = 0
    _owner: int | None = None
    """Identifier of the thread that holds the lock."""
    _fd: int | None = None
    keeps: bool = False
    """True if the file stays locked after a block: this process owns the queue."""
    _is_locked: bool = False
    served: Callable[[], bool] = bool
    """Returns whether a process that owns the queue answers requests; asked while this one waits for the lock."""

    @property
    def fd(self) -> int:
        """Descriptor of the side file, created on first use."""
        if self._fd is None:
            with os_errors(self._path):
                self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
                self._access.apply_to_file(self._fd)
        return self._fd

    @property
    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()

    @contextmanager
    def lock_timeout(self, seconds: float) -> Iterator[None]:
        """Within the block, limit each wait of this thread for the lock to that many seconds."""
        before, self._hurry.seconds = getattr(self._hurry, "seconds", None), seconds
        try:
            yield
        finally:
            self._hurry.seconds = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raises StoreBusyError when others keep it for too long."""
        hurry = getattr(self._hurry, "seconds", None)
        patience = self._patience if hurry is None else min(hurry, self._patience)
        deadline = time.monotonic() + patience
        if not self._threads.acquire(timeout=patience):
            raise self._busy("another thread of this process", patience)
        try:
            if self._depth == 0:
                self._acquire_file(deadline, patience)
                self._owner = threading.get_ident()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._owner = None
                    self._let_go()
        finally:
            self._threads.release()

    def release(self) -> None:
        """Keep the file locked no longer."""
        with self._threads:
            self.keeps = False
            self._let_go()

    def _let_go(self) -> None:
        """Unlock the file unless it is to be kept, or a block of this thread needs it."""
        if self._fd is not None and self._is_locked and not self.keeps and self._depth == 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._is_locked = False

    def close(self) -> None:
        with self._threads:
            if self._fd is not None:
                os.close(self._fd)
                self._fd, self._is_locked = None, False

    def _acquire_file(self, deadline: float, patience: float) -> None:
        """Lock the file that currently has the name: a removed file would keep no one out."""
        if self._is_locked and self._fd is not None and is_same_file(self._path, self._fd):
            return
        begun, pause = time.monotonic(), _FIRST_PAUSE
        tell_at, ask_at = begun + TELL_AFTER, begun + _ASK_EVERY
        while True:
            fd = self.fd
            with os_errors(self._path):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_locked = True
                except BlockingIOError:
                    is_locked = False
                if not is_same_file(self._path, fd):
                    self.close()
                elif is_locked:
                    self._is_locked = True
                    return
            now = time.monotonic()
            if now >= ask_at:
                if self.served():
                    raise StoreOwnedError(f"{holder_of(self.fd)} owns it; nothing was stored", where=str(self._path))
                ask_at = now + _ASK_EVERY
            if now >= tell_at:
                self._waiting(f"waiting for {self._path}, which is locked by {holder_of(self.fd)}")
                tell_at = float("inf")
            if now >= deadline:
                raise self._busy(holder_of(self.fd), patience)
            time.sleep(min(pause, max(0.0, deadline - now)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _busy(self, holder: str, patience: float) -> StoreBusyError:
        return StoreBusyError(
            f"it has been locked for {patience:.0f} s by {holder}; nothing was stored",
            where=str(self._path),
            hint="end that process or wait for it; store.lock_timeout sets how long gputui waits",
        )
