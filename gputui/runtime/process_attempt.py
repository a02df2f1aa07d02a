"""The directory of one attempt: what is to run, who runs it, how it ended, and its output.

```
attempts/<name>/          the name is Launch.name and the container id
  launch.json             what gputui needs to know again (Manifest)
  plan                    what the wrapper is to do, secrets included: 0600
  state                   four sectors the wrapper overwrites: its keeper, the end, its runner, the command's pid
  claim                   locked by keeper and runner as long as one of them lives
  output.log              standard output and error
```
It is made aside and renamed into place, so that it is there whole or not at all.

In a shared state directory others may make such directories too, and swap the ones above. So files are opened below the
directory's descriptor and never through links; a wrapper runs the plan of a directory that only its own user may write;
and what a directory says reaches the processes of its owner alone, or none where others may write there (`reach_of`).
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gputui.domain.container import Launch
from gputui.runtime.process_session import Identity
from gputui.runtime.wrapper import SECTOR, STATE_SIZE, unsealed

_LOOKS = 10
"""How often a record is read that seems damaged, a millisecond apart: it may be half written."""
NOBODY = -1
"""No user's uid."""
_NAME = re.compile(r"gputui-([a-z0-9]+)-(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """What is remembered about a launch."""

    gpus: tuple[str, ...]
    tag: str
    command: str
    """The first word of its command, for sentences."""
    cgroups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Start:
    """Start record of the wrapper."""

    leader: Identity
    """The keeper, which leads the session."""
    at: datetime


@dataclass(frozen=True)
class End:
    """End record of the wrapper."""

    code: int
    at: datetime
    oom_kills: int
    refusal: str = ""
    """`STEP ERRNO` when the command could not be run."""


@dataclass(frozen=True)
class Records:
    """The state file of an attempt, read."""

    begun: bool
    """Whether a wrapper has written anything: then no wrapper will begin the attempt again."""
    start: Start | None
    """None: not written yet, or damaged."""
    end: End | None
    runner: Identity | None
    may_have_run: bool
    """Whether the command may have run; a wrapper of gputui 0.1 did not say."""
    is_damaged: bool
    reach: int | None = None
    """User whose processes may be signalled on its word, see `reach_of`."""

    @classmethod
    def of(cls, content: bytes) -> Records:
        """Read the bytes of a state file; a file of two sectors is gputui 0.1's, without checksums."""
        sectors = [content[at : at + SECTOR] for at in range(0, STATE_SIZE, SECTOR)]
        is_old = len(content) <= 2 * SECTOR
        start, end, runner, command = (sector.strip() if is_old else unsealed(sector) for sector in sectors)
        began, ended = parse_start(start), parse_end(end)
        parsed = (began, ended) if is_old else (began, ended, runner, command)
        return cls(
            begun=any(sector.strip() for sector in sectors[:2]),
            start=began,
            end=ended,
            runner=parse_identity(runner),
            may_have_run=is_old or bool(command),
            is_damaged=any(sector.strip() and not found for sector, found in zip(sectors, parsed, strict=False)),
        )


def parse_name(name: str, store_id: str) -> tuple[int, int] | None:
    """Job and attempt of a name of this store's; None for any other."""
    match = _NAME.fullmatch(name)
    return (int(match[2]), int(match[3])) if match and match[1] == store_id else None


def reach_of(status: os.stat_result) -> int | None:
    """Return the uid whose processes may be signalled on the word of a directory; None: any that we may signal.

    In a shared state directory members move directories that root made for the group to write, and make their own.
    """
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return NOBODY
    return None if status.st_uid in {0, os.geteuid()} else status.st_uid


@dataclass(frozen=True)
class AttemptFolder:
    """One attempt on disk."""

    path: Path

    def log(self) -> int:
        """Open the file that its output goes to; raises OSError."""
        return self.opened("output.log")

    def opened(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open one of its files, never through a link; raises OSError."""
        return self._opened(name, flags)[0]

    def _opened(self, name: str, flags: int = os.O_RDONLY) -> tuple[int, int | None]:
        """Open one of its files; return whose processes the file may speak of, too.

        Both are of the same directory, whatever is swapped meanwhile.
        """
        folder = self._held()
        try:
            reach = reach_of(os.fstat(folder))
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            status = os.fstat(file)
            if (status.st_nlink > 1 and reach is not None) or not stat.S_ISREG(status.st_mode):
                os.close(file)
                raise OSError(errno.ELOOP, "it is a link, or no file", str(self.path / name))
            return file, reach
        finally:
            os.close(folder)

    def _held(self) -> int:
        """Open the directory, through no link below the state directory; raises OSError."""
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        parent = os.open(self.path.parent, os.O_PATH | flags)
        try:
            return os.open(self.path.name, os.O_RDONLY | flags, dir_fd=parent)
        finally:
            os.close(parent)

    def is_ours(self) -> bool:
        """Whether this process's user made it, and nobody else may write there."""
        status = self.path.stat(follow_symlinks=False)
        return status.st_uid == os.geteuid() and reach_of(status) is None

    def manifest(self) -> Manifest | None:
        """What was remembered; None when it cannot be read."""
        return self._manifest()[0]

    def cgroups(self) -> tuple[str, ...]:
        """Its control groups; none where another user could name any."""
        manifest, reach = self._manifest()
        return manifest.cgroups if manifest is not None and reach is None else ()

    def _manifest(self) -> tuple[Manifest | None, int | None]:
        try:
            descriptor, reach = self._opened("launch.json")
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                return msgspec.json.decode(file.read(), type=Manifest), reach
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None, NOBODY

    def records(self) -> Records:
        """Return the wrapper's records; one that is just being written is awaited for a moment. Raises OSError."""
        for _ in range(_LOOKS):
            content, reach = self._state()
            found = replace(Records.of(content), reach=reach)
            if not found.is_damaged:
                break
            time.sleep(0.001)
        return found

    def _state(self) -> tuple[bytes, int | None]:
        descriptor, reach = self._opened("state")
        try:
            return os.read(descriptor, STATE_SIZE), reach
        finally:
            os.close(descriptor)

    def is_watched(self) -> bool | None:
        """Return whether keeper or runner lives; None for users who may not look."""
        try:
            descriptor = self.opened("claim")
        except PermissionError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Hold the lock that a living wrapper has; False when one has it."""
        descriptor = self.opened("claim", os.O_RDWR)
        try:
            yield _lock(descriptor)
        finally:
            os.close(descriptor)

    def move_away(self) -> None:
        """Remove it: first from sight, at once, then from the disk."""
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.gone")
        self.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def parse_start(record: bytes) -> Start | None:
    """Return the start record; None when it is damaged."""
    identity, _, at = record.rpartition(b" ")
    leader = parse_identity(identity)
    try:
        return Start(leader, _time(at.decode("ascii"))) if leader else None
    except (ValueError, OverflowError):
        return None


def parse_identity(record: bytes) -> Identity | None:
    """Return the process that `PID TICKS BOOT` names; None when that is damaged."""
    try:
        pid, ticks, boot = record.decode("ascii").split()
        return Identity(int(pid), int(ticks), boot)
    except ValueError:
        return None


def parse_end(record: bytes) -> End | None:
    """Return the end record; None when it is damaged."""
    try:
        code, at, oom_kills, *refusal = record.decode("ascii").split(maxsplit=3)
        return End(int(code), _time(at), int(oom_kills), "".join(refusal))
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Access:
    """Modes of the attempts of a state directory: its submitters are to read what their jobs print."""

    root: int
    folder: int
    shown: int
    """Mode of files for everybody who may read the state directory."""
    owner: int

    @classmethod
    def of(cls, state: Path) -> Access:
        """Return the modes for attempts that this process makes."""
        status = state.stat()
        if status.st_mode & stat.S_IWGRP:  # whoever leads may make attempts; sticky: but not touch another's
            shared = stat.S_ISVTX | stat.S_IMODE(status.st_mode)
            return cls(shared, stat.S_ISGID | 0o750, 0o640, os.geteuid())
        if status.st_uid != os.geteuid():  # root in a user's own directory, which is closed to others
            return cls(0o700, 0o755, 0o644, status.st_uid)
        return cls(0o700, 0o700, 0o600, status.st_uid)


@contextmanager
def attempts_in(root: Path) -> Iterator[tuple[int, Access]]:
    """Open `attempts/`, made if need be; yield its descriptor and the modes. Raises OSError."""
    root.parent.mkdir(mode=0o700, exist_ok=True, parents=True)
    access = Access.of(root.parent)
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid():
            if stat.S_IMODE(status.st_mode) != access.root:
                os.fchmod(descriptor, access.root)
            if access.owner != status.st_uid:
                os.fchown(descriptor, access.owner, -1)
        yield descriptor, access
    finally:
        os.close(descriptor)


def prepare(root: int, access: Access, launch: Launch, manifest: Manifest, plan: bytes) -> str:
    """Make the attempt's directory aside, durably; return its name there. `put` brings it into place.

    `root` may be another member's, who can then swap what is made in it at any moment.
    """
    aside = f".{launch.name}.{secrets.token_hex(4)}.new"
    os.mkdir(aside, 0o700, dir_fd=root)
    try:
        folder = _just_made(aside, root)
        try:
            _write(folder, "launch.json", msgspec.json.encode(manifest), access.shown)
            _write(folder, "plan", plan, 0o600)
            _write(folder, "state", b" " * STATE_SIZE, access.shown)
            _write(folder, "claim", b"", 0o600)
            _write(folder, "output.log", b"", access.shown)
            os.fchmod(folder, access.folder)
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        _discard(root, aside)
        raise
    return aside


def _just_made(name: str, root: int) -> int:
    """Open a directory that was just made; raises OSError where another was put in its place."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(folder)
        raise OSError(errno.EPERM, "somebody else put another directory in its place", name)
    return folder


def put(root: int, aside: str, name: str) -> bool:
    """Rename what was prepared into place, durably; False, and it is thrown away, when something is there."""
    try:
        os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)  # onto a directory that is not empty it fails
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


def sweep(root: Path, now: datetime) -> None:
    """Remove what a crash left half made or half removed more than an hour ago."""
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


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _time(nanoseconds: str) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) / 1e9, UTC)
