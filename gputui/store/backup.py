"""Backups of a state directory: a compressed tar archive with a checksum of each file, and one of the whole.

Any tar reads it. The last member, `MANIFEST.json`, has the checksums. Behind the compressed data stands an empty gzip
member whose comment is the checksum of all bytes before it, so that no flipped bit goes unnoticed.

The files are those of one moment, while others go on writing. They are opened and measured at once: `queue.json` and
files that are shortened are replaced by others, and journals, history and audit log only grow. The queue is opened
first, since a job that leaves it is in history by then; a job in both counts as one of the queue.
"""

from __future__ import annotations

import fcntl
import glob
import gzip
import hashlib
import io
import os
import stat
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, cast

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreAccessError, StoreError, StoreFormatError
from gputui.domain.kept_data import Finding
from gputui.store.files import QUEUE, is_same_file, open_file, os_errors, sync_directory
from gputui.store.history import line_paths
from gputui.store.queue_files import lock_path, read_meta
from gputui.store.storage import LoadedQueue, Replica

_PIECE = 1 << 20
_TRIES = 1000


class CapturedFile(Struct):
    """Open file, of which the first `status.st_size` bytes count."""

    name: str
    fd: int
    status: os.stat_result
    content: bytes | None = None
    """Content that was read at once; None: it is read from the file when it is needed."""

    def pieces(self) -> Iterator[bytes]:
        """Yield its content; raises StoreFormatError when it has become shorter."""
        if self.content is not None:
            yield self.content
            return
        position = 0
        while position < self.status.st_size:
            data = os.pread(self.fd, min(_PIECE, self.status.st_size - position), position)
            if not data:
                raise StoreFormatError("it became shorter while it was read", where=self.name, hint="try again")
            position += len(data)
            yield data

    def lines(self) -> Iterator[bytes]:
        """Yield its whole lines, without their ends."""
        rest = b""
        for data in self.pieces():
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


@contextmanager
def captured(directory: Path) -> Iterator[list[CapturedFile]]:
    """Yield queue, journal, history and audit log as of this moment, the queue first."""
    with ExitStack() as files:
        yield [*_queue(directory, files), *(opened(path, files) for path in _records(directory))]


def _queue(directory: Path, files: ExitStack) -> list[CapturedFile]:
    """Open a queue with its journals, which fit together; the record of the last write is read before them."""
    snapshot = directory / QUEUE
    for _ in range(_TRIES):
        with ExitStack() as attempt:
            try:
                found, lock = [opened(snapshot, attempt)], lock_path(snapshot)
                if lock.exists():
                    record = opened(lock, attempt)
                    record.content = os.pread(record.fd, record.status.st_size, 0)
                    found.append(record)
                others = (
                    path for path in sorted(directory.glob(f"{QUEUE}.*")) if path.suffix not in {".tmp", lock.suffix}
                )
                found += [opened(path, attempt) for path in others]
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                _check_queue(directory)
                continue
            if is_same_file(snapshot, found[0].fd):
                files.push(attempt.pop_all())
                return found
    raise StoreError("it is replaced faster than it can be read", where=str(snapshot))


@contextmanager
def captured_queue(directory: Path) -> Iterator[tuple[LoadedQueue, list[CapturedFile]]]:
    """Yield the queue, read, and history and audit log, as of this moment; raises StoreDamagedError for a loss."""
    _check_queue(directory)
    with closing(Replica(directory / QUEUE)) as replica, ExitStack() as files:
        state = replica.refresh()
        if replica.loss is not None:
            raise replica.loss.error
        yield state, [opened(path, files) for path in _records(directory)]


def _check_queue(directory: Path) -> None:
    if not (directory / QUEUE).exists():
        raise StoreFormatError("there is no queue", where=str(directory), hint="name its directory by --state")


def _records(directory: Path) -> list[Path]:
    return [*sorted(directory.glob("history-????-??.json")), *line_paths(directory)]


def opened(path: Path, files: ExitStack) -> CapturedFile:
    """Open and measure a file; one of lines when none is being appended. It is closed with `files`."""
    with os_errors(path):
        fd = open_file(path, os.O_RDONLY)
        files.callback(os.close, fd)
        if path.suffix == ".jsonl":
            fcntl.flock(fd, fcntl.LOCK_SH)
            status = os.fstat(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)
        else:
            status = os.fstat(fd)
        return CapturedFile(path.name, fd, status)


MANIFEST = "MANIFEST.json"
FORMAT = 1
_LEFT_OUT = frozenset(
    {"api.sock", "scheduler.lock", "scheduler.waiting", "scheduler.wanted", "live.json", "last-backup.json"}
    | {"gpus.jsonl", "gpu-focus", "relay", "input", "viewers", "attempts", "serve.err"}
)
"""Names of files that belong to running processes, or may be lost at any time."""
_SEAL = b"\x1f\x8b\x08\x10\0\0\0\0\0\xffgputui sha256 %s\0\x03\0\0\0\0\0\0\0\0\0"
_SEAL_SIZE = len(_SEAL % (b"0" * 64))
_UNREADABLE = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError),
    *(ValueError, OverflowError, KeyError, IndexError, StoreAccessError, FileExistsError, NotADirectoryError),
)
"""Errors of a file that is not as it was written."""


_PATTERN = "gputui-*.tar.gz"
"""Names of the backups in a directory."""
_ABANDONED = 60.0
"""Seconds after its last change from which a partial file that no process locks is removed."""


class Sums(Struct):
    size: int
    sha256: str


class BackupManifest(Struct):
    """Content of a backup."""

    gputui: str
    store_id: str
    made_at: datetime
    format: int = FORMAT
    files: dict[str, Sums] = field(default_factory=dict)


# writing


def write_backup(directory: Path, target: Path, now: datetime, version: str, *, with_logs: bool) -> BackupManifest:
    """Write a backup of the state directory, as of one moment, while others use it; return what is in it.

    Raises StoreAccessError where the target exists or is in the state directory.
    """
    if target.resolve().is_relative_to(directory.resolve()):
        raise StoreAccessError("it is in the state directory", where=str(target), hint="name a file elsewhere")
    with captured(directory) as files, new_private_file(target) as file:
        meta = read_meta(directory / QUEUE)
        manifest = BackupManifest(version, meta[0].store_id if meta else "", now)
        hashing = _Hashing(file)
        with (
            gzip.GzipFile("", "wb", 6, cast("Any", hashing), mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.addfile(_info(".", directory.stat(), tarfile.DIRTYPE))
            for captured_file in files:
                _add_file(archive, captured_file, manifest)
            known = {each.name for each in files}
            for entry in sorted(directory.iterdir()):
                name = entry.name
                is_left_out = name in known | _LEFT_OUT or name.startswith(".") or name.endswith(".tmp")
                is_record = name.startswith((QUEUE, "history-", "audit-"))
                if is_left_out or is_record or (name == "logs" and not with_logs):
                    continue
                with suppress(FileNotFoundError):  # removed since it was listed
                    status = entry.lstat()
                    if stat.S_ISLNK(status.st_mode) and status.st_uid in {0, os.geteuid()} and entry.is_dir():
                        _add_tree(archive, name, entry.resolve(), manifest)  # logs on another disk
                    elif stat.S_ISDIR(status.st_mode):
                        _add_tree(archive, name, entry, manifest)
                    elif stat.S_ISREG(status.st_mode):
                        _add_path(archive, name, entry, manifest)
            content = msgspec.json.format(msgspec.json.encode(manifest))
            info = tarfile.TarInfo(MANIFEST)
            info.size, info.mode, info.mtime = len(content), 0o600, int(manifest.made_at.timestamp())
            archive.addfile(info, io.BytesIO(content))
        file.write(_SEAL % hashing.sum.hexdigest().encode())
    return manifest


@contextmanager
def new_private_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a file for its owner alone, which gets its name when the block ends well.

    Raises StoreAccessError where there is one of that name.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    if target.exists() or target.is_symlink():
        raise StoreAccessError("it exists already", where=str(target), hint="name another file")
    with os_errors(target):
        partial.unlink(missing_ok=True)
        remove_abandoned(target.parent, glob.escape(target.name))
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                with suppress(OSError):  # a file system without locks; there, remains are kept
                    fcntl.flock(file, fcntl.LOCK_EX)
                yield file
                file.flush()
                os.fsync(file.fileno())
            try:
                target.hardlink_to(partial)  # unlike a rename, it replaces nothing
            except FileExistsError:
                raise StoreAccessError("it exists already", where=str(target), hint="name another file") from None
            except OSError:  # a file system without hard links
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        sync_directory(target.parent)


def remove_abandoned(folder: Path, pattern: str = _PATTERN) -> None:
    """Remove the partial files of these names that killed processes left behind."""
    for partial in folder.glob(f".{pattern}.*.part"):
        with suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process writes it
            if time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED:
                partial.unlink()


class _Hashing(Struct):
    _file: IO[bytes]
    sum: Any = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _add_tree(archive: tarfile.TarFile, name: str, top: Path, manifest: BackupManifest) -> None:
    """Add a directory and the regular files below it; follows no link."""
    for place, _, names, fd in os.fwalk(top):
        below = Path(name) / Path(place).relative_to(top)
        archive.addfile(_info(str(below), os.fstat(fd), tarfile.DIRTYPE))
        for each in sorted(names):
            with suppress(FileNotFoundError):  # removed since it was listed
                mode = os.stat(each, dir_fd=fd, follow_symlinks=False).st_mode
                if not each.startswith(".") and stat.S_ISREG(mode):
                    _add_path(archive, str(below / each), Path(f"/proc/self/fd/{fd}") / each, manifest)


def _add_path(archive: tarfile.TarFile, name: str, path: Path, manifest: BackupManifest) -> None:
    with ExitStack() as files:
        try:
            file = opened(path, files)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # removed since it was listed
                return
            raise
        file.name = name
        _add_file(archive, file, manifest)


def _add_file(archive: tarfile.TarFile, file: CapturedFile, manifest: BackupManifest) -> None:
    info = _info(file.name, file.status, tarfile.REGTYPE)
    info.size = file.status.st_size
    reader = _PieceReader(file.pieces())
    archive.addfile(info, cast("IO[bytes]", reader))
    manifest.files[file.name] = Sums(info.size, reader.sum.hexdigest())


def _info(name: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, stat.S_IMODE(status.st_mode)
    info.uid, info.gid, info.mtime = status.st_uid, status.st_gid, status.st_mtime
    return info


class _PieceReader(Struct):
    """File made of pieces, with the checksum of what was read."""

    _pieces: Iterator[bytes]
    _rest: bytes = b""
    sum: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (more := next(self._pieces, None)) is not None:
            self._rest += more
        data, self._rest = self._rest[:size], self._rest[size:]
        self.sum.update(data)
        return data


# reading


def unpack(backup: Path, into: Path | None, *, with_logs: bool = True, with_owners: bool = True) -> Iterator[Finding]:
    """Yield what is wrong with a backup; put its files into a directory, if there is one to put them into.

    Without owners they are private to this user, who then needs no right to give files away.
    """
    seal = _of_seal(backup)
    found: dict[str, Sums] = {}
    manifest: BackupManifest | None = None
    directories: list[tarfile.TarInfo] = []
    problem: Finding | None = None
    last = "its beginning"
    try:
        with gzip.open(backup, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                last = member.name
                if member.name == MANIFEST:
                    manifest = _manifest(archive, member)
                elif member.isdir():
                    directories.append(member)
                    if into is not None:
                        _inside(into, member.name).mkdir(mode=0o700, parents=True, exist_ok=True)
                else:
                    is_wanted = into is not None and (with_logs or not member.name.startswith("logs/"))
                    found[member.name] = _take(archive, member, into if is_wanted else None, with_owners=with_owners)
            while packed.read(1 << 20):  # its checksum stands behind the archive
                pass
    except _UNREADABLE as error:
        problem = Finding(backup.name, f"it cannot be read after {last}: {error}")
    if problem is not None:
        yield problem
    problems = list(_compared(manifest, found)) if problem is None else []
    yield from problems
    if seal is not None:
        yield Finding(backup.name, seal, is_harmless=problem is None and not problems)
    if into is not None and with_owners and problem is None and not problems:
        for member in reversed(directories):
            _settle(_inside(into, member.name), member)


def _of_seal(backup: Path) -> str | None:
    """Return the fault of the checksum of the whole file; None when it is right. Raises StoreError."""
    with os_errors(backup), backup.open("rb") as file:
        left = file.seek(0, os.SEEK_END) - _SEAL_SIZE
        file.seek(0)
        total = hashlib.sha256()
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            total.update(data)
            left -= len(data)
        is_right = file.read() == _SEAL % total.hexdigest().encode()
    return None if is_right else "its checksum does not match: the file was changed or cut short"


def _manifest(archive: tarfile.TarFile, member: tarfile.TarInfo) -> BackupManifest:
    file = archive.extractfile(member)
    try:
        found = decode_json(file.read() if file else b"", BackupManifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{MANIFEST}: {error}") from None
    if found.format > FORMAT:
        raise ValueError(f"it has format {found.format}; this gputui reads formats up to {FORMAT}: upgrade gputui")
    return found


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path | None, *, with_owners: bool) -> Sums:
    """Return the checksum of a file; write it into a directory if there is one.

    Raises ValueError for what no restore takes, so that a check of a backup refuses the same members.
    """
    path = _inside(into or Path(), member.name)
    source = archive.extractfile(member)
    if source is None:
        raise ValueError(f"{member.name} is no regular file")
    total = hashlib.sha256()
    with ExitStack() as files:
        copy = None
        if into is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            copy = files.enter_context(os.fdopen(os.open(path, flags, 0o600), "wb"))
        while data := source.read(1 << 20):
            total.update(data)
            if copy is not None:
                copy.write(data)
    if into is not None and with_owners:
        _settle(path, member)
    return Sums(member.size, total.hexdigest())


def _inside(into: Path, name: str) -> Path:
    """Return the path of a member; raises ValueError for one outside of the directory."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name} is outside of the directory")
    return into / name


def _settle(path: Path, member: tarfile.TarInfo) -> None:
    """Give a file its owner, mode and time: owners as far as this user may."""
    if os.geteuid() == 0:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    else:
        with suppress(PermissionError):
            os.chown(path, -1, member.gid, follow_symlinks=False)
    path.chmod(member.mode & (0o2777 if member.isdir() else 0o777))
    os.utime(path, (member.mtime, member.mtime))


def _compared(manifest: BackupManifest | None, found: dict[str, Sums]) -> Iterator[Finding]:
    if manifest is None:
        yield Finding(MANIFEST, "it is missing")
        return
    for name, sums in manifest.files.items():
        if name not in found:
            yield Finding(name, "it is missing")
        elif found[name] != sums:
            yield Finding(name, "its checksum is wrong")
    for name in found.keys() - manifest.files.keys():
        yield Finding(name, f"it is not in {MANIFEST}")


def check_is_backup(path: Path) -> None:
    """Raise StoreFormatError for a file that is no backup at all."""
    with os_errors(path), path.open("rb") as file:
        if file.read(3) != b"\x1f\x8b\x08":
            hint = "name a file that `gputui state backup` wrote"
            raise StoreFormatError("it is no backup", where=str(path), hint=hint)


LEAST = 7
"""Good backups that stay, however old they are."""
DAMAGED = ".damaged"
"""End of the name of a backup in which something cannot be read."""
MOST_DAMAGED = 3
"""Damaged backups that stay while no good one is made."""


def new_name(folder: Path, now: datetime) -> Path:
    return folder / f"gputui-{now:%Y-%m-%dT%H%M%SZ}.tar.gz"


def set_apart(backup: Path) -> Path:
    """Give a backup in which something cannot be read a name that does not count as good; return its path."""
    path = backup.with_name(backup.name + DAMAGED)
    with os_errors(path):
        backup.rename(path)
        sync_directory(path.parent)
    return path


def rotate(folder: Path, keep: timedelta, now: datetime) -> int:
    """Remove backups older than `keep`, but none of the latest good ones; return how many.

    Call it only after a good backup was made. Raises StoreError.
    """
    with os_errors(folder):
        good = sorted(folder.glob(_PATTERN), key=_modified, reverse=True)
        old = [*good[LEAST:], *folder.glob(_PATTERN + DAMAGED)]
        removed = [path for path in old if _modified(path) < (now - keep).timestamp()]
        for path in removed:
            path.unlink(missing_ok=True)
    return len(removed)


def thin_damaged(folder: Path) -> int:
    """Remove all but the latest damaged backups, so that daily ones do not fill the disk; return how many.

    Raises StoreError.
    """
    with os_errors(folder):
        old = sorted(folder.glob(_PATTERN + DAMAGED), key=_modified, reverse=True)[MOST_DAMAGED:]
        for path in old:
            path.unlink(missing_ok=True)
    return len(old)


def _modified(path: Path) -> float:
    return path.lstat().st_mtime
