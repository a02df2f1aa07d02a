"""Probes of nodes that all processes of a user on this machine share.

One process holds a lock and has the nodes read; it writes the readings into files of a directory in memory, as long as
others look. When it ends, another one takes the lock and starts probes of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from gputui.domain.decoding import decode_msgpack, msgpack_decoder
from gputui.domain.gpu import ProbeCode, ProbeReading
from gputui.gpus.node_probes import NodeOutput, interval_of
from gputui.ports import Clock, NodeProbes

LOOKS_LAST = 30.0
"""Seconds for which readings are written after another process has last looked."""
NEWS_LAST = 10.0
"""Seconds after which the files count as left behind by a process that has ended."""
_FOCUS_LASTS = 5.0
_TOUCH_EVERY = 1.0


def _plain(value: object) -> object:
    """Return a frozen mapping as one that can be encoded."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(type(value).__name__)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


class ProbeTurn(Protocol):
    """Lock that one process holds at a time."""

    def take(self) -> bool:
        """Take the lock if it is free; return whether this process has it. Raises OSError if there can be none."""
        ...

    def release(self) -> None:
        """Leave the lock to others."""
        ...


class _Published(Struct):
    """A reading in a file."""

    node: str
    reading: ProbeReading


_DECODER = msgpack_decoder(_Published)


class _Focus(Struct):
    """GPU whose details some process shows."""

    node: str | None = None
    uuid: str | None = None


class SharedNodeProbes:
    """NodeProbes that are this process's own while it has its turn, and otherwise those of another."""

    def __init__(
        self,
        directory: Path,
        turn: ProbeTurn,
        make: Callable[[Callable[[], object]], NodeProbes],
        clock: Clock,
        interval: timedelta,
        changed: Callable[[], object] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`make` returns probes of this process, given the function to call after each new reading.

        `changed` is called then too. `wall` returns the second since 1970, as files have it.
        """
        self._turn = turn
        self._make = make
        self._clock = clock
        self._least = interval
        self._changed = changed
        self._wanted: tuple[str, ...] = ()
        self._mine: NodeProbes | None = None
        self._focus = _Focus()
        self._files = _Files(directory, wall)
        self._is_closed = False

    @property
    def interval(self) -> timedelta:
        return interval_of(self._least, len(self._wanted))

    @property
    def are_mine(self) -> bool:
        return self._mine is not None

    def follow(self, nodes: Iterable[str]) -> None:
        """Read these nodes, and no others; take the turn of a process that has ended."""
        self._wanted = tuple(dict.fromkeys(nodes))
        if self._mine is None and not self._is_closed and self._has_turn():
            self._mine = self._make(self._published)
        if self._mine is None:
            self._files.look()
            if self._focus.node is not None:
                self._files.ask(self._focus)
            return
        self._mine.follow(self._wanted)
        focus = self._focus if self._focus.node is not None else self._files.asked()
        self._mine.want_pcie(focus.node, focus.uuid)
        self._files.publish(self._mine.readings())

    def readings(self) -> Mapping[str, ProbeReading]:
        """Return the latest reading of each node; those of the process before while this one connects."""
        if self._mine is None:
            self._files.look()
            found = self._files.readings(self._wanted)
            starting = NodeOutput(self._clock.now()).reading
            return {name: found.get(name, starting) for name in self._wanted}
        mine, known = self._mine.readings(), self._files.known
        return {
            name: known.get(name, reading) if reading.status.code is ProbeCode.STARTING else reading
            for name, reading in mine.items()
        }

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        """Read details of this GPU of a node, here or in the process that has the nodes read; None: of no GPU."""
        self._focus = _Focus(node, uuid)
        if self._mine is not None:
            self._mine.want_pcie(node, uuid)
        elif node is not None:
            self._files.ask(self._focus)

    def close(self) -> None:
        """End the probes of this process, and leave its turn to others."""
        self._is_closed = True
        if self._mine is not None:
            self._mine.close()
        self._turn.release()

    def _has_turn(self) -> bool:
        try:
            return self._turn.take()
        except OSError:  # nothing can be shared: a full or read-only disk
            return True

    def _published(self) -> None:
        if self._mine is not None:
            self._files.publish(self._mine.readings())
        self._changed()


class _Files:
    """Directory with a file for each node. What cannot be written or read is not shared."""

    def __init__(self, directory: Path, wall: Callable[[], float]) -> None:
        self._directory = directory
        self._wall = wall
        self._lock = threading.Lock()
        self._written: dict[str, ProbeReading] = {}
        self._touched: dict[str, float] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self.known: dict[str, ProbeReading] = {}
        """Readings of another process, by node."""

    def look(self) -> None:
        self._touch("looks")

    def publish(self, readings: Mapping[str, ProbeReading]) -> None:
        """Write the readings that are new, if anybody looks."""
        with self._lock, contextlib.suppress(OSError):
            if self._age("looks") > LOOKS_LAST:
                self._written = {}
                return
            for node, reading in readings.items():
                if self._written.get(node) is not reading:
                    self._replace(_file_of(node), _ENCODER.encode(_Published(node, reading)))
                    self._written[node] = reading
            self._touch("news")

    def readings(self, nodes: Iterable[str]) -> Mapping[str, ProbeReading]:
        """Return the readings of these nodes by another process; the last ones known if it does not answer."""
        with contextlib.suppress(OSError):
            if self._age("news") <= NEWS_LAST:
                for node in nodes:
                    self._read(node)
        return self.known

    def ask(self, focus: _Focus) -> None:
        """Request details of a GPU of the process that has the nodes read."""
        with contextlib.suppress(OSError):
            self._replace("focus", _ENCODER.encode(focus))
            os.utime(self._directory / "focus", (self._wall(), self._wall()))

    def asked(self) -> _Focus:
        """Return the GPU whose details another process shows now."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if self._age("focus") <= _FOCUS_LASTS:
                return decode_msgpack((self._directory / "focus").read_bytes(), _Focus)
        return _Focus()

    def _read(self, node: str) -> None:
        path = self._directory / _file_of(node)
        try:
            status = path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if self._seen.get(node) == version:
                return
            found = _DECODER.decode(path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return
        if found.node == node:
            self._seen[node], self.known[node] = version, found.reading

    def _touch(self, name: str) -> None:
        now = self._wall()
        if abs(now - self._touched.get(name, 0.0)) < _TOUCH_EVERY:
            return
        self._touched[name] = now
        with contextlib.suppress(OSError):
            path = self._directory / name
            path.touch(0o600)
            os.utime(path, (now, now))

    def _age(self, name: str) -> float:
        """Return the age of a file in seconds; infinite if there is none."""
        try:
            return abs(self._wall() - (self._directory / name).stat().st_mtime)
        except FileNotFoundError:
            return float("inf")

    def _replace(self, name: str, content: bytes) -> None:
        draft = self._directory / f".{name}.{os.getpid()}"
        draft.touch(0o600)
        draft.write_bytes(content)
        draft.replace(self._directory / name)


def _file_of(node: str) -> str:
    return hashlib.sha256(node.encode()).hexdigest()[:24]


def private_directory(path: Path) -> bool:
    """Make a directory for this user alone; return whether it is one."""
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and path.is_dir() and not path.is_symlink()
