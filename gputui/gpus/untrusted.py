"""Probes of other machines: the process that brings their output, which is trusted no more than any other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from gputui.domain.gpu import DiskUse, GpuProcess, Link, ProbeCode
from gputui.domain.telemetry import Consumption
from gputui.domain.text import last_line, plain
from gputui.gpus.readings import (
    CODES,
    DECODER,
    MOST_BYTES,
    MOST_GPUS,
    RESTART,
    AgainError,
    CallLine,
    Facts,
    Failed,
    HostReading,
    ProbeFault,
    Sweep,
    bounded,
    describe_failure,
    within,
)

MOST_OF_A_LINE = 2 * 1024**2
"""Maximum number of bytes of a line."""
MOST_WITHIN = 8 * 1024**2
"""Maximum number of bytes within `WINDOW`."""
WINDOW = 10.0
"""Seconds."""
MOST_GARBLED = 10_000
"""Maximum number of lines before the first of the probe that are none of it: a login shell may write some."""
ALIVE_EVERY = 20.0
"""Seconds after which probes are told that somebody reads them."""
_COMPLAINT = 500
NOT_FOUND = 127
SSH_FAILED = 255


class ProcessStream:
    """Stream of a process such as ssh, in a session of its own. Only `end_words` waits, for half a second at most."""

    def __init__(self, command: Sequence[str], program: str = "gputui", room: int = 0) -> None:
        """`program` is what the command runs elsewhere; `room` is how much its stdin takes at once, 0: a command.

        A user may enlarge some 170 pipes, so those of a cluster's nodes are not.
        """
        self._program = program
        pipe = subprocess.PIPE
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = subprocess.Popen(  # noqa: S603 - the settings name it, or ssh with its host
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out, self.err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._in = self._process.stdin.fileno()
        if room:
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, room)
        for pipe_end in (self.out, self.err, self._in):
            os.set_blocking(pipe_end, False)
        self.complaints = b""
        self._has_complaints = True

    def send(self, data: bytes) -> None:
        """Write to its stdin; what does not fit at once is dropped, which no command ever is."""
        with self._lock, contextlib.suppress(OSError):
            if not self._is_closed:
                os.write(self._in, data)

    def read_complaints(self) -> bool:
        """Keep the end of what it writes on stderr; return False at its end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.err, 65536)
            self.complaints = (self.complaints + data)[-_COMPLAINT:]
            return bool(data)
        return True

    def read(self) -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.out, 1 << 18) or None
        return b""

    @property
    def ends(self) -> tuple[int, ...]:
        """File descriptors that become readable when `take` has something."""
        return (self.out, self.err) if self._has_complaints else (self.out,)

    def take(self) -> bytes | None:
        """Return new output: empty without any, None at its end."""
        self._has_complaints = self._has_complaints and self.read_complaints()
        return self.read()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def is_over(self) -> bool:
        return self.code is not None

    def kill(self) -> None:
        self.end(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
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

    def end_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code, last = self.code, last_line(self.complaints)
        if code == NOT_FOUND:
            return f"{self._program} is not installed there ({last or 'exit code 127'})"
        if code == 2 and "No such command" in last:
            return f"gputui there is too old: {last}"
        if code == SSH_FAILED:
            return last or "the ssh connection was lost"
        return last or ("the connection was closed" if not code else f"its command ended with exit code {code}")


class CheckedLines(Struct, eq=False):
    """Lines of a probe of another machine, each checked. Keeps the GPUs that it knows for the process that follows."""

    has_begun: bool = False
    """True once the present process has written what only a probe writes."""
    _known: frozenset[str] = frozenset()
    _buffer: bytes = b""
    _garbled: int = 0
    _window: float = 0.0
    _bytes: int = 0

    def begin(self) -> None:
        """Begin the output of another process."""
        self.has_begun, self._buffer, self._garbled, self._bytes = False, b"", 0, 0

    def take(self, data: bytes, seconds: float) -> Iterator[Facts | Sweep | CallLine]:
        """Yield the lines of output that came at that second; raises ProbeFault, also for a failure that it tells."""
        for each in filter(bytes.strip, self._split(data, seconds)):
            try:
                line = DECODER.decode(each)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                self._garbled += 1
                if self.has_begun or self._garbled > MOST_GARBLED:
                    shown = plain(each[:80].decode(errors="replace"), 60)
                    raise ProbeFault(ProbeCode.UNREACHABLE, f"it sends {shown!r}") from None
                continue
            try:
                yield self._checked(line)
            except UntrustedError as error:
                raise ProbeFault(ProbeCode.UNREACHABLE, str(error)) from None

    def _split(self, data: bytes, seconds: float) -> list[bytes]:
        if seconds - self._window > WINDOW:
            self._window, self._bytes = seconds, 0
        self._bytes += len(data)
        if self._bytes > MOST_WITHIN:
            raise ProbeFault(ProbeCode.UNREACHABLE, "it sends too much")
        *lines, self._buffer = (self._buffer + data).split(b"\n") if b"\n" in data else (self._buffer + data,)
        if max(map(len, (*lines, self._buffer))) > MOST_OF_A_LINE:
            if self.has_begun:
                raise ProbeFault(ProbeCode.UNREACHABLE, "it sends too long a line")
            self._buffer = self._buffer[-MOST_OF_A_LINE:]  # a login shell writes it, of which nothing is read
            lines = [line for line in lines if len(line) <= MOST_OF_A_LINE]
        return lines

    def _checked(self, line: Facts | Sweep | Failed | CallLine) -> Facts | Sweep | CallLine:
        if isinstance(line, Failed):
            if line.code == RESTART:
                raise AgainError(ProbeCode.UNREACHABLE, "it asks to be started again")
            code = CODES.get(line.code, ProbeCode.FAILED)
            raise ProbeFault(code, describe_failure(code, plain(line.text[:400], 100)))
        if isinstance(line, CallLine):
            self.has_begun = True
            call = line.call if _CALL.fullmatch(line.call) else ""
            return CallLine(within(line.done, 2**63) or 0, call)
        if isinstance(line, Facts):
            found = checked_facts(line)
            self._known = frozenset(gpu.uuid for gpu in found.gpus)
            return found
        found_sweep = checked_sweep(line, self._known)
        self.has_begun = self.has_begun or bool(found_sweep.samples)
        return found_sweep


MOST_PROCESSES = 512
"""Maximum number of processes on a GPU that are kept."""
_MOST_LINKS = MOST_GPUS
_MOST_XIDS = 100
_HIGHEST_XID = 1000
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_PID = 2**22
_USED: Mapping[str, float] = {
    "cpu": 1e12,
    "memory": MOST_BYTES,
    "memory_peak": MOST_BYTES,
    "io_read": 2**60,
    "io_written": 2**60,
}
"""Highest value of each count of a control group."""
_MOST_AGE = 60.0
"""Highest age of such a reading, in seconds."""
_HOST: Mapping[str, float] = {
    "cpu": 1.0,
    "cores": 10**5,
    "load": 1e6,
    "memory_total": MOST_BYTES,
    "memory_used": MOST_BYTES,
    "swap_total": MOST_BYTES,
    "swap_used": MOST_BYTES,
    "received": 1e13,
    "sent": 1e13,
}
"""Highest value of each figure of a host."""
_MOST_DISKS, _MOST_DISK = 16, 2**60
_CALL = re.compile(r"[A-Za-z0-9_]{1,80}( [0-9m]{0,8})?", re.ASCII)


class UntrustedError(ValueError):
    """A line that no probe would write."""


def checked_facts(facts: Facts) -> Facts:
    """Return the facts with figures and texts that do no harm; raises UntrustedError."""
    if len(facts.gpus) > MOST_GPUS:
        raise UntrustedError(f"it lists {len(facts.gpus)} GPUs")
    gpus = []
    for gpu in facts.gpus:
        if not _UUID.fullmatch(gpu.uuid) or not 0 <= gpu.index < MOST_GPUS:
            raise UntrustedError(f"it lists a GPU {_short(gpu.uuid, 20)!r} with index {gpu.index}")
        if gpu.mig_parent is not None and not _UUID.fullmatch(gpu.mig_parent):
            raise UntrustedError("it lists an instance of no GPU")
        links = gpu.links[:_MOST_LINKS]
        clean = replace(
            gpu,
            error=_short(gpu.error, 100),
            model=_text(gpu.model, 60),
            mig_profile=_text(gpu.mig_profile, 16),
            pci_bus_id=_text(gpu.pci_bus_id, 20),
            mig_index=within(gpu.mig_index, MOST_GPUS),
            links=tuple(Link(each.peer[:100], _short(each.kind, 8), within(each.lanes, 1000) or 0) for each in links),
        )
        gpus.append(clean)
    facts.gpus = tuple(gpus)
    if len({gpu.uuid for gpu in facts.gpus}) != len(facts.gpus):
        raise UntrustedError("it lists a GPU twice")
    facts.driver = _text(facts.driver, 40)
    return facts


def checked_sweep(sweep: Sweep, known: Collection[str]) -> Sweep:
    """Return the sweep without readings of unknown GPUs, and with figures and texts that do no harm."""
    samples = []
    for reading in sweep.samples[:MOST_GPUS]:
        if reading.uuid not in known:
            continue
        processes = reading.processes
        if isinstance(processes, tuple):
            processes = tuple(map(_checked_process, processes[:MOST_PROCESSES]))
        error, unidentified = _short(reading.error, 100), _short(reading.unidentified, 100)
        samples.append(replace(reading, error=error, unidentified=unidentified, processes=processes))
    sweep.samples = tuple(samples)
    sweep.xids = tuple(
        (uuid, code)
        for uuid, code in sweep.xids[:_MOST_XIDS]
        if 0 < code < _HIGHEST_XID and (uuid is None or uuid in known)
    )
    sweep.host = sweep.host and _checked_host(sweep.host)
    return sweep


def _checked_host(host: HostReading) -> HostReading:
    disks = host.disks
    if disks is not UNSET:
        disks = tuple(
            DiskUse(
                _short(disk.mount, 200),
                tuple(_short(role, 20) for role in disk.roles[:4]),
                within(disk.total, _MOST_DISK) or 0,
                within(disk.free, _MOST_DISK) or 0,
            )
            for disk in disks[:_MOST_DISKS]
        )
    return replace(bounded(host, _HOST), disks=disks)


def _checked_process(process: GpuProcess) -> GpuProcess:
    is_container = process.container_id is not None and _CONTAINER.fullmatch(process.container_id)
    used, began = process.used, process.started_at
    if used is not None:
        used = Consumption(**{name: within(getattr(used, name), most) for name, most in _USED.items()})
    return replace(
        process,
        pid=within(process.pid, _MOST_PID) or 0,
        user=_text(process.user, 40),
        command=_text(process.command, 200),
        container_id=process.container_id if is_container else None,
        session=None,
        attempt=None,
        ticks=None,
        started_at=began if began and began.tzinfo else None,
        used=used,
        used_age=within(process.used_age, _MOST_AGE) or 0.0,
    )


def _text(text: str | None, most: int) -> str | None:
    return None if text is None else _short(text, most) or None


def _short(text: str, most: int) -> str:
    return plain(text[: 4 * most], most)  # cut first: making a long text plain takes long
