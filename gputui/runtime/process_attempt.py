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
and what another user's directory says reaches that user's processes alone (`is_trusted`).
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gputui.domain.container import Launch
from gputui.runtime.process_session import Identity
from gputui.runtime.wrapper import SECTOR, STATE_SIZE, unsealed

_LOOKS = 10
"""How often a record is read that seems damaged, a millisecond apart: it may be half written."""
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


@dataclass(frozen=True)
class AttemptFolder:
    """One attempt on disk."""

    path: Path

    def log(self) -> int:
        """Open the file that its output goes to; raises OSError."""
        return self.opened("output.log")

    def opened(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open one of its files, never through a link; raises OSError."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            status = os.fstat(file)
            is_planted = status.st_nlink > 1 and os.fstat(folder).st_uid not in {0, os.geteuid()}
            if is_planted or not stat.S_ISREG(status.st_mode):
                os.close(file)
                raise OSError(errno.ELOOP, "it is a link, or no file", str(self.path / name))
            return file
        finally:
            os.close(folder)

    def owner(self) -> int:
        """The uid of who made it: who scheduled then, or somebody who may write into attempts/."""
        return self.path.stat(follow_symlinks=False).st_uid

    def is_trusted(self) -> bool:
        """Whether what it says may be acted upon with all of this process's rights."""
        return self.owner() in {0, os.geteuid()}

    def manifest(self) -> Manifest | None:
        """What was remembered; None when it cannot be read."""
        try:
            with open(self.opened("launch.json"), "rb") as file:  # noqa: PTH123 - a descriptor
                return msgspec.json.decode(file.read(), type=Manifest)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def cgroups(self) -> tuple[str, ...]:
        """Its control groups; none where another user could name any."""
        manifest = self.manifest()
        return manifest.cgroups if manifest is not None and self.is_trusted() else ()

    def records(self) -> Records:
        """Return the wrapper's records; one that is just being written is awaited for a moment. Raises OSError."""
        for _ in range(_LOOKS):
            found = Records.of(self._state())
            if not found.is_damaged:
                break
            time.sleep(0.001)
        return found

    def _state(self) -> bytes:
        descriptor = self.opened("state")
        try:
            return os.read(descriptor, STATE_SIZE)
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
    except ValueError:
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
    except ValueError:
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
def attempts_in(root: Path) -> Iterator[tuple[Path, Access]]:
    """Open `attempts/`, made if need be; yield a path to it that nobody can swap, and the modes. Raises OSError."""
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
        yield Path(f"/proc/self/fd/{descriptor}"), access
    finally:
        os.close(descriptor)


def prepare(root: Path, access: Access, launch: Launch, manifest: Manifest, plan: bytes) -> Path:
    """Make the attempt's directory aside, durably; `put` brings it into place."""
    aside = root / f".{launch.name}.{secrets.token_hex(4)}.new"
    aside.mkdir(mode=0o700)
    try:
        _write(aside / "launch.json", msgspec.json.encode(manifest), access.shown)
        _write(aside / "plan", plan, 0o600)
        _write(aside / "state", b" " * STATE_SIZE, access.shown)
        _write(aside / "claim", b"", 0o600)
        _write(aside / "output.log", b"", access.shown)
        aside.chmod(access.folder)
        _sync_folder(aside)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return aside


def put(aside: Path, place: Path) -> bool:
    """Rename what was prepared into place, durably; False, and it is thrown away, when something is there."""
    try:
        aside.rename(place)  # onto a directory that is not empty it fails
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if place.is_dir():
            return False
        raise
    _sync_folder(place.parent)
    return True


def sweep(root: Path, now: datetime) -> None:
    """Remove what a crash left half made or half removed more than an hour ago."""
    for left in (*root.glob(".gputui-*.new"), *root.glob(".gputui-*.gone")):
        try:
            is_old = now.timestamp() - left.stat().st_mtime > 3600
        except OSError:
            continue
        if is_old:
            shutil.rmtree(left, ignore_errors=True)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, made with its mode
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _time(nanoseconds: str) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) / 1e9, UTC)
