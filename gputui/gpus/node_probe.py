"""Probe of one node of a cluster: a process such as ssh, whose output is trusted no more than any node's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from gputui.domain.gpu import ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.text import plain
from gputui.gpus import wire
from gputui.gpus.health import describe_failure
from gputui.gpus.reading_assembler import ReadingAssembler
from gputui.gpus.untrusted import MOST_GPUS, UntrustedError, checked_facts, checked_sweep

MOST_OF_A_LINE = 2 * 1024**2
"""Maximum number of bytes of a line."""
MOST_WITHIN = 8 * 1024**2
"""Maximum number of bytes within `WINDOW`."""
WINDOW = 10.0
"""Seconds."""
_GARBLED = 20
"""Maximum number of lines before the first of the probe that are none of it: a login shell may write some."""
_COMPLAINT = 500
_CODES = {str(code): code for code in ProbeCode}
NodeCommand = Callable[[str, timedelta], Sequence[str]]
"""Returns the command that runs the probe on a node, which reads once in that time; raises GputuiError."""


class ProbeFault(Exception):  # noqa: N818 - most are faults of the node
    """Reason why the process of a probe is of no more use."""

    def __init__(self, code: ProbeCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class NodeProcess:
    """Process that reads a node, in a session of its own. Only `wait` blocks."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out, self.err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._in = self._process.stdin.fileno()
        for pipe_end in (self.out, self.err, self._in):
            os.set_blocking(pipe_end, False)
        self.complaints = b""

    def send(self, command: str) -> None:
        """Send the probe a command, from any thread; it is dropped if the process has ended or does not read."""
        with self._lock, contextlib.suppress(OSError):
            if not self._is_closed:
                os.write(self._in, command.encode() + b"\n")

    def read_complaints(self) -> bool:
        """Keep the end of what it writes on stderr; return False at its end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.err, 65536)
            self.complaints = (self.complaints + data)[-_COMPLAINT:]
            return bool(data)
        return True

    def read(self) -> bytes | None:
        """Return new output; None at its end."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.out, 1 << 18) or None
        return b""

    def wait(self, seconds: float) -> None:
        """Wait for its end, no longer than that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    @property
    def code(self) -> int | None:
        """Exit code; None while it lives."""
        return self._process.poll()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the process and its children."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Close its pipes, at which a probe ends by itself."""
        with self._lock:
            self._is_closed = True
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class NodeOutput:
    """Makes readings of the output of a node's probes. Keeps what it read while one follows the other."""

    def __init__(self, now: datetime) -> None:
        self.status = ProbeStatus(ProbeCode.STARTING, "no readings yet: connecting", now)
        self.has_begun = False
        """True once the present process has sent a sweep."""
        self._readings = ReadingAssembler()
        self._known: frozenset[str] = frozenset()
        self._buffer = b""
        self._garbled = 0
        self._window, self._bytes = 0.0, 0

    @property
    def reading(self) -> ProbeReading:
        """Return the latest reading."""
        return self._readings.reading(self.status)

    def begin(self) -> None:
        """Expect the output of another process."""
        self.has_begun, self._buffer, self._garbled, self._bytes = False, b"", 0, 0

    def take(self, data: bytes, now: datetime, seconds: float) -> bool:
        """Take output at a time, also given in seconds; return whether it has a new reading. Raises ProbeFault."""
        if seconds - self._window > WINDOW:
            self._window, self._bytes = seconds, 0
        self._bytes += len(data)
        if self._bytes > MOST_WITHIN:
            raise ProbeFault(ProbeCode.UNREACHABLE, "no readings: it sends too much")
        *lines, self._buffer = (self._buffer + data).split(b"\n") if b"\n" in data else (self._buffer + data,)
        if max(map(len, (*lines, self._buffer))) > MOST_OF_A_LINE:
            raise ProbeFault(ProbeCode.UNREACHABLE, "no readings: it sends too long a line")
        found = [self._take_line(line, now) for line in lines if line.strip()]
        return any(found)

    def fail(self, fault: ProbeFault, now: datetime) -> None:
        """Note why there are no new readings."""
        text = str(fault)
        if (fault.code, text) != (self.status.code, self.status.text):
            self.status = ProbeStatus(fault.code, text, now)

    def _take_line(self, data: bytes, now: datetime) -> bool:
        try:
            line = wire.DECODER.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            self._garbled += 1
            if self.has_begun or self._garbled > _GARBLED:
                shown = plain(data[:80].decode(errors="replace"), 60)
                raise ProbeFault(ProbeCode.UNREACHABLE, f"no readings: it sends {shown!r}") from None
            return False
        try:
            return self._ingest(line, now)
        except UntrustedError as error:
            raise ProbeFault(ProbeCode.UNREACHABLE, f"no readings: {error}") from None

    def _ingest(self, line: wire.Facts | wire.Sweep | wire.Failed, now: datetime) -> bool:
        if isinstance(line, wire.Failed):
            code = _CODES.get(line.code, ProbeCode.FAILED)
            raise ProbeFault(code, f"no readings: {describe_failure(code, plain(line.text[:400], 100))}")
        if isinstance(line, wire.Facts):
            self._readings.ingest(checked_facts(line), now)
            self._known = frozenset(gpu.uuid for gpu in line.gpus)
            if len(self._readings.gpus) > MOST_GPUS:  # lost ones are kept; these are invented
                self._readings, self._known = ReadingAssembler(), frozenset()
                raise UntrustedError("its GPUs change all the time")
            return False
        self._readings.ingest(checked_sweep(line, self._known), now)
        if line.samples:
            self.has_begun = True
            self.status = self.status if self.status.code is ProbeCode.OK else ProbeStatus(ProbeCode.OK, "", now)
        return bool(line.samples)
