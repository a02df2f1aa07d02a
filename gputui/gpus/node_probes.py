"""Probes of the nodes of a cluster, all read by one thread. They end with stdin: a killed console leaves none.

The process of a probe is one such as ssh, whose output is trusted no more than any node's."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_msgpack, msgpack_decoder
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.text import last_line, plain
from gputui.gpus.readings import INVENTED, MOST_GPUS, CallLine, ProbeFault, ReadingAssembler, Sweep
from gputui.gpus.untrusted import ALIVE_EVERY, CheckedLines, ProcessStream
from gputui.ports import Clock, NodeProbes
from gputui.threads import Watcher, fault_words

log = logging.getLogger(__name__)

NodeCommand = Callable[[str, timedelta], Sequence[str]]
"""Returns the command that runs the probe on a node, which reads once in that time; raises GputuiError."""


class NodeOutput:
    """Makes readings of the output of a node's probes. Keeps what it read while one follows the other."""

    def __init__(self, now: datetime) -> None:
        self.status = ProbeStatus(ProbeCode.STARTING, "no readings yet: connecting", now)
        self.lines = CheckedLines()
        self._readings = ReadingAssembler()

    @property
    def reading(self) -> ProbeReading:
        return self._readings.reading(self.status)

    def take(self, data: bytes, now: datetime, seconds: float) -> bool:
        """Take output at a time, also given in seconds; return whether it has a new reading. Raises ProbeFault."""
        is_new = False
        for line in self.lines.take(data, seconds):
            if isinstance(line, CallLine):
                continue
            if isinstance(line, Sweep):
                line.host = None  # the console shows no hosts of a cluster
            self._readings.ingest(line, now)
            if len(self._readings.gpus) > MOST_GPUS:  # lost ones are kept; these are invented
                self._readings, self.lines = ReadingAssembler(), CheckedLines()
                raise ProbeFault(ProbeCode.UNREACHABLE, INVENTED)
            if isinstance(line, Sweep) and line.samples:
                is_new = True
                self.status = self.status if self.status.code is ProbeCode.OK else ProbeStatus(ProbeCode.OK, "", now)
        return is_new

    def fail(self, fault: ProbeFault, now: datetime) -> None:
        text = f"no readings: {fault}"
        if (fault.code, text) != (self.status.code, self.status.text):
            self.status = ProbeStatus(fault.code, text, now)


PAUSES = (1.0, 5.0, 15.0, 60.0, 120.0)
"""Seconds before the first consecutive restart of a node's probe, the second, and so on."""
MOST_STARTING = 8
"""Maximum number of nodes that are connected to at a time."""
ANSWER_WITHIN = 30.0
"""Seconds until the first reading after a start."""
SILENT_AFTER = timedelta(seconds=15)
"""Time without a reading, beyond the interval, after which a probe is started anew."""
STEADY_AFTER = 60.0
"""Seconds of life after which the next end starts the count of restarts again."""
USUAL_NODES = 32
"""Number of nodes above which each is read less often."""
_KILL_AFTER = 2.0


class _Followed(Struct, eq=False):
    """A node, and its present process."""

    name: str
    output: NodeOutput
    process: ProcessStream | None = None
    began_at: float = 0.0
    heard_at: float = 0.0
    due_at: float = 0.0
    """Second at which the next process may be started."""
    failures: int = 0

    @property
    def is_starting(self) -> bool:
        return self.process is not None and not self.output.lines.has_begun


class SshNodeProbes:
    """NodeProbes over one process for each node. Times are seconds of the monotonic clock unless they say otherwise."""

    def __init__(
        self,
        command: NodeCommand,
        clock: Clock,
        interval: timedelta,
        *,
        pauses: tuple[float, ...] = PAUSES,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changed` is called from the probes' thread after each new reading or fault."""
        self._command = command
        self._clock = clock
        self._least = interval
        self._pauses = pauses
        self._changed = changed
        self._lock = threading.Lock()
        self._wanted: tuple[str, ...] = ()
        self._focus: tuple[str | None, str | None] = (None, None)
        self._nodes: dict[str, _Followed] = {}
        self._latest: dict[str, ProbeReading] = {}
        self._ending: list[tuple[ProcessStream, float]] = []
        self._told_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def interval(self) -> timedelta:
        return interval_of(self._least, len(self._wanted))

    def follow(self, nodes: Iterable[str]) -> None:
        wanted = tuple(dict.fromkeys(nodes))
        with self._lock:
            if self._closed or (wanted == self._wanted and self._thread is not None):
                return
            self._wanted = wanted
            self._latest = {name: reading for name, reading in self._latest.items() if name in wanted}
            for name in wanted:
                self._latest.setdefault(name, NodeOutput(self._clock.now()).reading)
            if self._thread is None:

                def woken() -> None:
                    with contextlib.suppress(OSError):
                        os.read(self._wake_out, 1024)

                def anew(error: Exception) -> None:  # all nodes: it is not known which of them the error is about
                    for node in tuple(self._nodes.values()):
                        self._fail(node, ProbeFault(ProbeCode.FAILED, fault_words(error)))

                self._selector.register(self._wake_out, selectors.EVENT_READ, woken)
                self._thread = Watcher("node-probes", self._run, anew)
                self._thread.start()
        self._wake()

    def readings(self) -> Mapping[str, ProbeReading]:
        with self._lock:
            return MappingProxyType({name: self._latest[name] for name in self._wanted})

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        with self._lock:
            if (node, uuid) == self._focus:
                return
            before, self._focus = self._focus, (node, uuid)
            processes = {name: self._nodes[name].process for name in (before[0], node) if name in self._nodes}
        for name, process in processes.items():
            if process is not None:
                process.send(f"pcie {uuid or '-'}\n".encode() if name == node else b"pcie -\n")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed, thread = True, self._thread
        if thread is None:
            self._close_pipes()
            return
        self._wake()
        if thread is not threading.current_thread():
            thread.join(2 * _KILL_AFTER)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b"x")

    # the thread of the probes

    def _run(self) -> None:
        while not self._closed:
            wanted = self._wanted
            for name in self._nodes.keys() - set(wanted):
                self._stop(self._nodes[name])
                with self._lock:
                    del self._nodes[name]
            for name in wanted:
                if name not in self._nodes:
                    with self._lock:
                        self._nodes[name] = _Followed(name, NodeOutput(self._clock.now()))
            waiting = sorted((node for node in self._nodes.values() if not node.process), key=lambda node: node.due_at)
            now = time.monotonic()
            due = [node for node in waiting if node.due_at <= now]
            for node in due[: max(0, self._room())]:
                self._start(node, now)
            # until something is due without output
            now = time.monotonic()
            at = min((node.due_at for node in self._nodes.values() if node.process is None), default=math.inf)
            soon = max(0.05, min(5.0, at - now)) if self._room() > 0 else 5.0
            for key, _ in self._selector.select(min(soon, 0.5 if self._ending else 5.0)):
                key.data()
            self._check(time.monotonic())
        for node in self._nodes.values():
            self._stop(node)
        deadline = time.monotonic() + _KILL_AFTER
        while (left := [each for each, _ in self._ending if each.code is None]) and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in left:
            process.end(signal.SIGKILL)
        self._close_pipes()

    def _room(self) -> int:
        return MOST_STARTING - sum(node.is_starting for node in self._nodes.values())

    def _check(self, now: float) -> None:
        """Give up probes that are silent, kill processes that do not end, and tell the others that they are read."""
        silent = (self.interval + SILENT_AFTER).total_seconds()
        for node in list(self._nodes.values()):
            patience = max(ANSWER_WITHIN, silent) if node.is_starting else silent
            if node.process is not None and now - node.heard_at > patience:
                last = last_line(node.process.complaints)
                words = f"no answer within {patience:.0f} s" + (f": {last}" if last else "")
                self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, words))
        if now - self._told_at > ALIVE_EVERY:
            self._told_at = now
            for node in self._nodes.values():
                if node.process is not None:
                    node.process.send(b"alive\n")
        for process, since in self._ending:
            if now - since > _KILL_AFTER:
                process.end(signal.SIGKILL)
        self._ending = [(process, since) for process, since in self._ending if process.code is None]

    def _start(self, node: _Followed, now: float) -> None:
        node.began_at = node.heard_at = now
        node.output.lines.begin()
        try:
            process = ProcessStream(self._command(node.name, self.interval))
        except (GputuiError, OSError) as error:
            words = str(error)
            if isinstance(error, OSError):
                words = f"{error.filename or 'its command'}: {error.strerror}"
            self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, words))
            return

        def read_complaints() -> None:
            if node.process is not None and not node.process.read_complaints():
                self._selector.unregister(node.process.err)

        node.process = process
        self._selector.register(process.out, selectors.EVENT_READ, lambda: self._read(node))
        self._selector.register(process.err, selectors.EVENT_READ, read_complaints)
        if node.name == self._focus[0]:
            process.send(f"pcie {self._focus[1] or '-'}\n".encode())

    def _read(self, node: _Followed) -> None:
        if (process := node.process) is None:
            return
        data = process.read()
        if data is None:
            process.read_complaints()
            self._fail(node, ProbeFault(ProbeCode.UNREACHABLE, process.end_words()))
            return
        now = time.monotonic()
        try:
            is_new = node.output.take(data, self._clock.now(), now)
        except ProbeFault as fault:
            self._fail(node, fault)
            return
        except Exception as error:  # a border: the other nodes are read on, whatever this one sends
            log.exception("what node %s sends cannot be taken", plain(node.name, 60))
            self._fail(node, ProbeFault(ProbeCode.FAILED, fault_words(error)))
            return
        if is_new:
            node.heard_at = now
            if now - node.began_at > STEADY_AFTER:
                node.failures = 0
            self._publish(node)

    def _fail(self, node: _Followed, fault: ProbeFault) -> None:
        """End the process of a node, and note when to try again."""
        self._stop(node)
        pause = self._pauses[min(node.failures, len(self._pauses) - 1)]
        node.failures += 1
        node.due_at = time.monotonic() + pause
        if f"no readings: {fault}" != node.output.status.text:
            log.warning("node %s: %s", plain(node.name, 60), fault)
        node.output.fail(fault, self._clock.now())
        self._publish(node)

    def _stop(self, node: _Followed) -> None:
        process, node.process = node.process, None
        if process is None:
            return
        for pipe in (process.out, process.err):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(pipe)
        process.close()
        process.end()
        self._ending.append((process, time.monotonic()))

    def _publish(self, node: _Followed) -> None:
        with self._lock:
            if node.name in self._latest:
                self._latest[node.name] = node.output.reading
        self._changed()

    def _close_pipes(self) -> None:
        self._selector.close()
        os.close(self._wake_out)
        os.close(self._wake_in)


def interval_of(least: timedelta, nodes: int) -> timedelta:
    return least * max(1.0, nodes / USUAL_NODES)


LOOKS_LAST = 30.0
"""Seconds for which readings are written after another process has last looked."""
NEWS_LAST = 10.0
"""Seconds after which the files count as left behind by a process that has ended."""
_FOCUS_LASTS = 5.0
_TOUCH_EVERY = 1.0


_ENCODER = msgspec.msgpack.Encoder(enc_hook=dict)
"""Encoder that writes frozen mappings as others."""


class ProbeTurn(Protocol):
    """Lock that one process holds at a time."""

    def take(self) -> bool:
        """Take the lock if it is free; return whether this process has it. Raises OSError if there can be none."""

    def release(self) -> None: ...


class _Published(Struct):
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
        if self._mine is None and not self._is_closed:
            try:
                has_turn = self._turn.take()
            except OSError:  # nothing can be shared: a full or read-only disk
                has_turn = True
            if has_turn:

                def published() -> None:
                    if self._mine is not None:
                        self._files.publish(self._mine.readings())
                    self._changed()

                self._mine = self._make(published)
        if self._mine is None:
            self._files.touch("looks")
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
            self._files.touch("looks")
            found = self._files.readings(self._wanted)
            starting = NodeOutput(self._clock.now()).reading
            return {name: found.get(name, starting) for name in self._wanted}
        mine, known = self._mine.readings(), self._files.known
        return {
            name: known.get(name, reading) if reading.status.code is ProbeCode.STARTING else reading
            for name, reading in mine.items()
        }

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        self._focus = _Focus(node, uuid)
        if self._mine is not None:
            self._mine.want_pcie(node, uuid)
        elif node is not None:
            self._files.ask(self._focus)

    def close(self) -> None:
        self._is_closed = True
        if self._mine is not None:
            self._mine.close()
        self._turn.release()


class _Files(Struct, eq=False):
    """Directory with a file for each node. What cannot be written or read is not shared."""

    _directory: Path
    _wall: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[str, ProbeReading] = field(default_factory=dict)
    _touched: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    known: dict[str, ProbeReading] = field(default_factory=dict)
    """Readings of another process, by node."""

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
            self.touch("news")

    def readings(self, nodes: Iterable[str]) -> Mapping[str, ProbeReading]:
        """Return the readings of these nodes by another process; the last ones known if it does not answer."""
        with contextlib.suppress(OSError):
            for node in nodes if self._age("news") <= NEWS_LAST else ():
                path = self._directory / _file_of(node)
                with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                    status = path.stat()
                    version = status.st_ino, status.st_mtime_ns, status.st_size
                    if self._seen.get(node) == version:
                        continue
                    found = _DECODER.decode(path.read_bytes())
                    if found.node == node:
                        self._seen[node], self.known[node] = version, found.reading
        return self.known

    def ask(self, focus: _Focus) -> None:
        """Request details of a GPU of the process that has the nodes read."""
        with contextlib.suppress(OSError):
            self._replace("focus", _ENCODER.encode(focus))
            os.utime(self._directory / "focus", (self._wall(), self._wall()))

    def asked(self) -> _Focus:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if self._age("focus") <= _FOCUS_LASTS:
                return decode_msgpack((self._directory / "focus").read_bytes(), _Focus)
        return _Focus()

    def touch(self, name: str) -> None:
        now = self._wall()
        if abs(now - self._touched.get(name, 0.0)) < _TOUCH_EVERY:
            return
        self._touched[name] = now
        with contextlib.suppress(OSError):
            path = self._directory / name
            path.touch(0o600)
            os.utime(path, (now, now))

    def _age(self, name: str) -> float:
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
