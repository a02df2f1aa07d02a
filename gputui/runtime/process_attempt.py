"""The directory of one attempt: what is to run, who runs it, how it ended, and its output.

```
attempts/<name>/          0700, the name is Launch.name and the container id
  launch.json             what gputui needs to know again (Manifest)
  plan                    what the wrapper is to do, secrets included: 0600
  state                   two sectors the wrapper overwrites: who it is, how the command ended
  claim                   locked by the wrapper as long as it lives
  output.log              standard output and error
```
It is made aside and renamed into place, so that it is there whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gputui.domain.container import Launch
from gputui.runtime.process_session import Identity
from gputui.runtime.wrapper import SECTOR

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
    """The wrapper's first record."""

    leader: Identity
    at: datetime


@dataclass(frozen=True)
class End:
    """The wrapper's second record."""

    code: int
    at: datetime
    oom_kills: int
    refusal: str = ""
    """`STEP ERRNO` when the command could not be run."""


def parse_name(name: str, store_id: str) -> tuple[int, int] | None:
    """Job and attempt of a name of this store's; None for any other."""
    match = _NAME.fullmatch(name)
    return (int(match[2]), int(match[3])) if match and match[1] == store_id else None


@dataclass(frozen=True)
class AttemptFolder:
    """One attempt on disk."""

    path: Path

    @property
    def log(self) -> Path:
        """The file its output goes to."""
        return self.path / "output.log"

    def manifest(self) -> Manifest | None:
        """What was remembered; None when it cannot be read."""
        try:
            return msgspec.json.decode((self.path / "launch.json").read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def records(self) -> tuple[bytes, bytes]:
        """The wrapper's two records, raw; empty ones were not written yet. Raises OSError."""
        descriptor = os.open(self.path / "state", os.O_RDONLY | os.O_CLOEXEC)
        try:
            both = os.read(descriptor, 2 * SECTOR)
        finally:
            os.close(descriptor)
        return both[:SECTOR].strip(), both[SECTOR:].strip()

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Hold the lock that a living wrapper has; False when one has it."""
        descriptor = os.open(self.path / "claim", os.O_RDWR | os.O_CLOEXEC)
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
    """The first record; None when it is damaged."""
    try:
        pid, ticks, boot, at = record.decode("ascii").split()
        return Start(Identity(int(pid), int(ticks), boot), _time(at))
    except ValueError:
        return None


def parse_end(record: bytes) -> End | None:
    """The second record; None when it is damaged."""
    try:
        code, at, oom_kills, *refusal = record.decode("ascii").split(maxsplit=3)
        return End(int(code), _time(at), int(oom_kills), "".join(refusal))
    except ValueError:
        return None


def prepare(root: Path, launch: Launch, manifest: Manifest, plan: bytes) -> Path:
    """Make the attempt's directory aside, durably; `put` brings it into place."""
    root.mkdir(mode=0o700, exist_ok=True, parents=True)
    aside = root / f".{launch.name}.{secrets.token_hex(4)}.new"
    aside.mkdir(mode=0o700)
    try:
        _write(aside / "launch.json", msgspec.json.encode(manifest))
        _write(aside / "plan", plan)
        _write(aside / "state", b" " * (2 * SECTOR))
        for name in ("claim", "output.log"):
            os.close(os.open(aside / name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
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


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, made with its mode
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
