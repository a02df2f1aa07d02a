"""Directory of one host attempt: its plan, the wrapper's records, and its output.

```
attempts/<name>/          the name is Launch.name and the container id
  launch.json             facts about the launch for later (Manifest)
  plan                    instructions for the wrapper, with secrets: 0600
  state                   four sectors that the wrapper overwrites: keeper, end, runner, the command's pid
  claim                   locked by keeper and runner while one of them lives
  output.log              standard output and error
```
It is prepared under another name and renamed, so that it exists completely or not at all.

Root may schedule in a directory of another user, who may create such directories and swap directories above. So files
are opened relative to the directory's descriptor and never through links; a wrapper runs only plans from a directory
that no other user may write; and signals on the word of a directory reach only its owner's processes, or none if others
may write there (`reach_of`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, Launch
from gputui.domain.decoding import decode_json
from gputui.domain.errors import PART_OUT_OF_MEMORY, Cause, CauseCode, cause_of_exit
from gputui.runtime import cgroups, host_processes
from gputui.runtime.host_processes import ProcessIdentity
from gputui.runtime.process.log import sync_folder
from gputui.runtime.process.wrapper import SECTOR, STATE_SIZE, unsealed

_LOOKS = 10
"""Number of reads of a damaged record, a millisecond apart, since it may be half written."""
NOBODY = -1
"""Uid of no user."""
_NAME = re.compile(r"gputui-([a-z0-9]+)-(\d+)-(\d+)", re.ASCII)

_SUSPENDED = "suspended"
"""File that exists while the attempt is suspended."""


class Manifest(Struct, frozen=True):
    """Facts about a launch, kept in launch.json."""

    gpus: tuple[str, ...]
    tag: str
    command: str
    """First word of its command, for messages."""
    cgroups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    submitter: int | None = None
    """Uid of its proven submitter; None: not recorded, as by gputui 0.1."""


class Start(Struct, frozen=True):
    leader: ProcessIdentity
    """Keeper, which leads the session."""
    at: datetime


class End(Struct, frozen=True):
    code: int
    at: datetime
    oom_kills: int
    refusal: str = ""
    """`STEP ERRNO` if the command could not be run."""


class Records(Struct, frozen=True):
    begun: bool
    """True if a wrapper has written anything; then no other wrapper starts the attempt."""
    start: Start | None
    """Start record; None: not written yet, or damaged."""
    end: End | None
    runner: ProcessIdentity | None
    may_have_run: bool
    """True if the command may have run; True for wrappers of gputui 0.1, which did not record it."""
    is_damaged: bool
    reach: int | None = None
    """Uid whose processes may be signalled according to the directory, see `reach_of`."""

    @classmethod
    def parse(cls, content: bytes) -> Records:
        """Parse a state file; one of two sectors is from gputui 0.1, without checksums."""
        sectors = [content[at : at + SECTOR] for at in range(0, STATE_SIZE, SECTOR)]
        is_old = len(content) <= 2 * SECTOR
        start, end, runner, command = (sector.strip() if is_old else unsealed(sector) for sector in sectors)
        began, ended = None, None
        with suppress(ValueError, OverflowError):
            identity, _, at = start.rpartition(b" ")
            leader = parse_identity(identity)
            began = Start(leader, _time(at)) if leader else None
        with suppress(ValueError, OverflowError):
            code, at, oom_kills, *refusal = end.split(maxsplit=3)
            ended = End(int(code), _time(at), int(oom_kills), b"".join(refusal).decode("ascii"))
        parsed = (began, ended) if is_old else (began, ended, runner, command)
        return cls(
            begun=any(sector.strip() for sector in sectors[:2]),
            start=began,
            end=ended,
            runner=parse_identity(runner),
            may_have_run=is_old or bool(command),
            is_damaged=any(sector.strip() and not found for sector, found in zip(sectors, parsed, strict=False)),
        )


def parse_identity(record: bytes) -> ProcessIdentity | None:
    """Return the process of a record `PID TICKS BOOT`; None when it is damaged."""
    try:
        pid, ticks, boot = record.decode("ascii").split()
        return ProcessIdentity(int(pid), int(ticks), boot)
    except ValueError:
        return None


def _time(nanoseconds: bytes) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) / 1e9, UTC)


def parse_name(name: str, store_id: str) -> tuple[int, int] | None:
    match = _NAME.fullmatch(name)
    return (int(match[2]), int(match[3])) if match and match[1] == store_id else None


def reach_of(status: os.stat_result) -> int | None:
    """Return the uid whose processes may be signalled according to a directory; None: all that we may signal.

    The owner of the state directory can move directories and create his own.
    """
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return NOBODY
    return None if status.st_uid in {0, os.geteuid()} else status.st_uid


@contextmanager
def closed_after(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


class AttemptFolder(Struct, frozen=True):
    """Directory of one attempt on disk."""

    path: Path

    def log(self) -> int:
        return self.open_file("output.log")

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        return self._open_with_reach(name, flags)[0]

    def _open_with_reach(self, name: str, flags: int = os.O_RDONLY) -> tuple[int, int | None]:
        """Open one of its files; return the descriptor and the directory's reach.

        Both come from the same directory, even if directories are swapped meanwhile.
        """
        with closed_after(self.open_directory()) as folder:
            reach = reach_of(os.fstat(folder))
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            status = os.fstat(file)
            if (status.st_nlink > 1 and reach is not None) or not stat.S_ISREG(status.st_mode):
                os.close(file)
                raise OSError(errno.ELOOP, "it is a link, or no file", str(self.path / name))
            return file, reach

    def open_directory(self) -> int:
        """Open the directory without following links below the state directory; raises OSError."""
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closed_after(os.open(self.path.parent, os.O_PATH | flags)) as parent:
            return os.open(self.path.name, os.O_RDONLY | flags, dir_fd=parent)

    def held_open(self) -> OpenFolder:
        return OpenFolder(self.path, self.open_directory())

    def status(self) -> os.stat_result:
        return self.path.stat(follow_symlinks=False)

    def is_ours(self) -> bool:
        """Return whether this process's user created it and no other user may write there."""
        status = self.status()
        return status.st_uid == os.geteuid() and reach_of(status) is None

    def manifest(self) -> Manifest | None:
        return self._manifest()[0]

    def cgroups(self) -> tuple[str, ...]:
        """Return its control groups; empty if another user could have written them."""
        manifest, reach = self._manifest()
        return manifest.cgroups if manifest is not None and reach is None else ()

    def _manifest(self) -> tuple[Manifest | None, int | None]:
        try:
            descriptor, reach = self._open_with_reach("launch.json")
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                return decode_json(file.read(), Manifest), reach
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None, NOBODY

    def records(self) -> Records:
        """Return the wrapper's records, after waiting briefly for one that is being written. Raises OSError."""
        for _ in range(_LOOKS):
            descriptor, reach = self._open_with_reach("state")
            with closed_after(descriptor):
                content = os.read(descriptor, STATE_SIZE)
            found = replace(Records.parse(content), reach=reach)
            if not found.is_damaged:
                break
            time.sleep(0.001)
        return found

    def is_watched(self) -> bool | None:
        """Return whether keeper or runner lives; None if this user has no right to know."""
        try:
            descriptor = self.open_file("claim")
        except PermissionError:
            return None
        with closed_after(descriptor):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Try to hold the wrapper's lock; yield False if a living wrapper has it."""
        with closed_after(self.open_file("claim", os.O_RDWR)) as descriptor:
            is_ours = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_ours = False
            yield is_ours

    def is_suspended(self) -> bool:
        return (self.path / _SUSPENDED).exists()

    def set_suspended(self, *, is_suspended: bool) -> None:
        if is_suspended:
            os.close(os.open(self.path / _SUSPENDED, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        else:
            (self.path / _SUSPENDED).unlink(missing_ok=True)

    def move_away(self) -> None:
        """Remove the directory: rename it first, then delete it."""
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.gone")
        self.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


class OpenFolder(AttemptFolder, frozen=True):
    """Directory of one attempt, held open: it stays the same one if directories above it are swapped."""

    place: int

    def open_directory(self) -> int:
        return os.dup(self.place)

    def status(self) -> os.stat_result:
        return os.fstat(self.place)

    def submitter(self) -> int | None:
        """Return the uid of the attempt's proven submitter; None if its record could be another user's."""
        manifest, reach = self._manifest()
        return manifest.submitter if manifest is not None and reach is None else None

    def close(self) -> None:
        os.close(self.place)


@contextmanager
def attempts_in(root: Path) -> Iterator[tuple[int, bool]]:
    """Open `attempts/`, created if missing; yield its descriptor, and whether it is in another user's directory.

    Such a directory is closed to others, and attempts that root makes there are readable for its owner.
    Raises OSError.
    """
    root.parent.mkdir(mode=0o700, exist_ok=True, parents=True)
    owner = root.parent.stat().st_uid
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
        sync_folder(root.parent)
    with closed_after(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid():
            if stat.S_IMODE(status.st_mode) != 0o700:
                os.fchmod(descriptor, 0o700)
            if owner != status.st_uid:
                os.fchown(descriptor, owner, -1)
        yield descriptor, owner != os.geteuid()


def prepare(root: int, launch: Launch, manifest: Manifest, plan: bytes, *, is_readable: bool) -> str:
    """Create the attempt's directory under a temporary name, durably, and return that; `publish` renames it.

    `root` may belong to another user, who can then swap its contents at any moment.
    """
    aside = f".{launch.name}.{secrets.token_hex(4)}.new"
    shown = 0o644 if is_readable else 0o600
    os.mkdir(aside, 0o700, dir_fd=root)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closed_after(os.open(aside, flags, dir_fd=root)) as folder:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise OSError(errno.EPERM, "another user replaced it by another directory", aside)
            _write(folder, "launch.json", msgspec.json.encode(manifest), shown)
            _write(folder, "plan", plan, 0o600)
            _write(folder, "state", b" " * STATE_SIZE, shown)
            _write(folder, "claim", b"", 0o600)
            _write(folder, "output.log", b"", shown)
            os.fchmod(folder, 0o755 if is_readable else 0o700)
            os.fsync(folder)
    except OSError:
        _discard(root, aside)
        raise
    return aside


def publish(root: int, aside: str, name: str) -> bool:
    """Rename a prepared directory into place, durably; discard it and return False when the name is taken."""
    try:
        os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)  # fails onto a directory that is not empty
    except OSError:
        _discard(root, aside)
        with suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
                return False
        raise
    os.fsync(root)
    return True


def _discard(root: int, name: str) -> None:
    shutil.rmtree(f"/proc/self/fd/{root}/{name}", ignore_errors=True)


def remove_stale(root: Path, now: datetime) -> None:
    """Remove directories that a crash left half created or half removed more than an hour ago."""
    for left in (*root.glob(".gputui-*.new"), *root.glob(".gputui-*.gone")):
        try:
            is_old = now.timestamp() - left.stat().st_mtime > 3600
        except OSError:
            continue
        if is_old:
            shutil.rmtree(left, ignore_errors=True)


def _write(folder: int, name: str, content: bytes, mode: int) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, made with its mode
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


REFUSALS = frozenset(
    {CauseCode.COMMAND_NOT_FOUND, CauseCode.COMMAND_NOT_EXECUTABLE, CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR}
)
_STEPS = {"workdir": "its working directory", "user": "the change to its user", "ulimit": "one of its ulimits"}
Stamp: TypeAlias = tuple[int, int]
"""Inode and change time of an attempt's directory."""


class AttemptIndex(Struct, eq=False):
    """Index of the attempts of one store; final states are read once."""

    _store_id: str
    _root: Path
    _manifests: dict[str, tuple[Stamp, Manifest]] = field(default_factory=dict)
    """Manifests with the stamp of their directory, which changes if it is replaced."""
    _ended: dict[str, tuple[Stamp, ContainerRecord]] = field(default_factory=dict)

    def all(self) -> tuple[ContainerRecord, ...]:
        try:
            names = [each.name for each in self._root.iterdir()]
        except FileNotFoundError:
            return ()
        found = [self.find(name) for name in names]
        return tuple(sorted((each for each in found if each), key=lambda each: (each.job_id, each.attempt)))

    def find(self, name: str) -> ContainerRecord | None:
        place = parse_name(name, self._store_id)
        if place is None:
            return None
        folder = AttemptFolder(self._root / name)
        try:
            status = folder.path.stat()
            stamp = status.st_ino, status.st_ctime_ns
            known = self._ended.get(name)
            return known[1] if known and known[0] == stamp else self._read(folder, stamp, *place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # an unreadable directory of another user must not hide all others
            if error.errno == errno.EACCES and os.access(self._root, os.X_OK):
                return ContainerRecord(name, *place, ContainerState.RUNNING)  # assumed, so that it is not run again
            if error.errno == errno.ELOOP:  # gputui creates no links
                return None
            raise

    def forget(self, name: str) -> None:
        self._manifests.pop(name, None)
        self._ended.pop(name, None)

    def reach(self, name: str) -> tuple[tuple[int, ...], int | None]:
        """Return the pids of its processes without the wrapper's, and the uid whose may be signalled (None: any)."""
        folder = AttemptFolder(self._root / name)
        records = folder.records()
        return self._members(folder, records), records.reach

    def awaited(self, record: ContainerRecord) -> tuple[int, ...]:
        """Return the pids whose end may end the attempt: the runner's, else the keeper's, else all members'."""
        records = AttemptFolder(self._root / record.id).records()
        for who in (records.runner, records.start.leader if records.start else None):
            if who is not None and host_processes.is_alive(who):
                return (who.pid,)
        return self.reach(record.id)[0]

    def _read(self, folder: AttemptFolder, stamp: Stamp, job_id: int, attempt: int) -> ContainerRecord:
        """Read the state: from the end record if there is one, else from the lock of its possible writers."""
        records = folder.records()
        manifest = self._manifest(folder, stamp)
        gpus = manifest.gpus if manifest else ()
        if not records.begun:
            return ContainerRecord(folder.path.name, job_id, attempt, ContainerState.CREATED, gpus)
        is_running = False
        if records.end is None:
            is_watched = folder.is_watched()
            if is_watched is None:
                wrapper = (records.start.leader if records.start else None, records.runner)
                is_watched = any(who is not None and host_processes.is_alive(who) for who in wrapper)
            is_running = is_watched or bool(self._members(folder, records))
            if not is_running:  # it may have ended between the two reads
                records = folder.records()
        start = records.start
        record = ContainerRecord(
            folder.path.name,
            job_id,
            attempt,
            ContainerState.RUNNING if is_running else ContainerState.EXITED,
            gpus,
            started_at=start.at if start else None,
            pid=start.leader.pid if start else None,
        )
        if is_running:
            return replace(record, is_suspended=folder.is_suspended())
        used = cgroups.read_files(cgroups.files_in(folder.cgroups()))  # before they are removed with its directory
        used = used and replace(used, memory=None)  # which is page cache, if any
        record = replace(_ended(record, records, manifest), consumption=used)
        self._ended[folder.path.name] = (stamp, record)
        return record

    def _manifest(self, folder: AttemptFolder, stamp: Stamp) -> Manifest | None:
        known = self._manifests.get(folder.path.name)
        if known and known[0] == stamp:
            return known[1]
        manifest = folder.manifest()
        if manifest is not None:
            self._manifests[folder.path.name] = (stamp, manifest)
        return manifest

    def _members(self, folder: AttemptFolder, records: Records) -> tuple[int, ...]:
        leader = records.start.leader if records.start else ProcessIdentity(-1, 0, host_processes.boot_id())
        grouped = cgroups.members(folder.cgroups())
        job_id, attempt = parse_name(folder.path.name, self._store_id) or (0, 0)
        tag = f"{self._store_id}:{job_id}:{attempt}"
        return host_processes.attempt_members(leader, records.runner, tag, grouped)


def _ended(record: ContainerRecord, records: Records, manifest: Manifest | None) -> ContainerRecord:
    """Return the record of an ended attempt; without an end record it matters whether the command may have run."""
    start, end = records.start, records.end
    if end is None:
        if start is not None and start.leader.boot != host_processes.boot_id():
            lost = Cause(CauseCode.CONTAINER_LOST, "the machine was restarted while it ran")
        elif not records.may_have_run and not records.is_damaged:
            lost = Cause(CauseCode.CONTAINER_LOST, "its wrapper was killed before its command began")
        else:
            why = "its record is damaged" if start is None or records.is_damaged else "its wrapper was killed"
            text = f"{why}, so its end is unknown: it may have finished its work"
            lost = Cause(CauseCode.END_UNKNOWN, text)
        return replace(record, cause=lost)
    if end.refusal:
        cause: Cause | None = _refusal_cause(end.refusal, manifest.command if manifest else "")
    else:
        cause = cause_of_exit(end.code, oom_killed=end.oom_kills > 0)
    notes = (PART_OUT_OF_MEMORY,) if end.oom_kills > 0 and cause is None else ()
    return replace(record, ended_at=end.at, exit_code=end.code, cause=cause, notes=notes)


def _refusal_cause(refusal: str, command: str) -> Cause:
    """Return the cause of a refusal `STEP ERRNO` of the wrapper."""
    step, _, number = refusal.partition(" ")
    code = int(number) if number.isdigit() else 0
    words = os.strerror(code) if code else "not possible"
    if step == "runner":
        return Cause(CauseCode.RUNTIME_ERROR, "its runner was killed before the command began")
    if step in _STEPS:
        return Cause(CauseCode.BAD_SPEC, f"{_STEPS[step]} was refused: {words}")
    if step != "command":
        return Cause(CauseCode.RUNTIME_ERROR, f"the host could not run it ({step}): {words}")
    if code in {errno.ENOENT, errno.ENOTDIR}:
        return Cause(CauseCode.COMMAND_NOT_FOUND, f"the command {command} was not found on this host")
    return Cause(CauseCode.COMMAND_NOT_EXECUTABLE, f"the command {command} could not be executed: {words}")
