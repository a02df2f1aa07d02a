"""Supervisor of the probe process, which it restarts when it dies and abandons when the driver hangs."""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.gpu import HealthCode, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.settings import GpuSettings
from gputui.domain.text import format_limit
from gputui.gpus.probe import calls
from gputui.gpus.readings import (
    CODES,
    DECODER,
    INVENTED,
    MOST_GPUS,
    OTHER_PIDS,
    AgainError,
    CallLine,
    Facts,
    Failed,
    ProbeFault,
    ReadingAssembler,
    Sweep,
    describe_failure,
)
from gputui.ports import Clock, GpuProbe
from gputui.threads import Watcher, fault_words

log = logging.getLogger(__name__)

_ESSENTIAL = frozenset({"", "nvmlInit", "nvmlDeviceGetCount"})
"""Calls without which nothing can be read: when one of them hangs, the driver does."""
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until a call is tried again, doubled each time that it hangs again."""
_WHOLE = 3
"""Number of hung calls to one GPU from which no call to it is made."""
_UNANSWERED = "the driver does not answer"


class HungCalls(Struct, eq=False):
    """Hung calls by name: `FUNCTION LABEL` for one GPU, `FUNCTION` for all, `* LABEL` for all calls to one GPU."""

    _entries: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds of pause and the second at which to try again, by name."""

    def add(self, call: str, now: float) -> bool:
        """Add a call that hung; return whether readings are possible without it."""
        function, _, label = call.partition(" ")
        if function in _ESSENTIAL:
            self._entries.clear()
            return False

        def skip(key: str, instead_of: Sequence[str] = ()) -> None:
            for each in instead_of:
                del self._entries[each]
            before = self._entries.get(key)
            pause = min(_LONGEST_PAUSE, 2 * before[0]) if before else _FIRST_PAUSE
            self._entries[key] = pause, now + pause

        skip(call if label else function)
        beside = [key for key in self._entries if key.partition(" ")[0] == function and key != function]
        if len(beside) > 1:  # it is not the one GPU
            skip(function, beside)
        on_gpu = [key for key in self._entries if label and key.partition(" ")[2] == label]
        if len(on_gpu) >= _WHOLE:
            skip(f"* {label}", on_gpu)
        return True

    def retry_at(self, now: float) -> float:
        """Return when the next of the skipped calls is to be tried again."""
        return min((at for _, at in self._entries.values() if now < at), default=math.inf)

    def skipped(self, now: float) -> list[str]:
        """Return the calls that are not to be made; forgets those that were tried again without hanging."""
        self._entries = {key: one for key, one in self._entries.items() if now < one[1] + _LONGEST_PAUSE}
        return [key for key, (_, at) in self._entries.items() if now < at]

    def notes(self, now: float) -> Iterator[str]:
        """Yield a sentence for each call that is skipped."""
        for key in self.skipped(now):
            function, _, label = key.partition(" ")
            where = f" for GPU {label}" if label else ""
            what = "any call" if function == "*" else function
            yield f"the driver does not answer {what}{where}: what that reads is unknown"


_MOST_OF_A_LINE = 64 * 1024**2
PAUSES = (0.1, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the first consecutive restart, the second, and so on."""
STEADY_AFTER = 3.0
"""Seconds of life after which the next end starts the count of restarts again."""
MOST_STUCK = 5
"""Number of abandoned processes still alive at which no new one is started."""


def died(detail: str) -> ProbeFault:
    return ProbeFault(ProbeCode.DIED, describe_failure(ProbeCode.DIED, detail))


class Probing(Protocol):
    """A probe process, here or elsewhere. No method blocks longer than it says."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that say which way its readings come, and what they cannot see."""

    @property
    def pid(self) -> int:
        """Process of this machine, 0 without one."""

    @property
    def is_stuck(self) -> bool:
        """Return whether it was abandoned and has not ended."""

    @property
    def calls(self) -> tuple[int, str]:
        """Number of its finished calls to the driver, and the call that it is in."""

    def send(self, command: str) -> None:
        """Send a command; it is dropped if the process has ended or does not read."""

    def lines(self, wake: int, seconds: float) -> Iterator[Facts | Sweep]:
        """Yield new lines, none after `seconds` or when `wake` becomes readable.

        Raises ProbeFault at the end and for a failure that it tells, AgainError if the next process is to follow.
        """

    def kill(self) -> None:
        """Kill it, which takes effect only when it leaves the kernel."""

    def abandon(self) -> None:
        """End it without waiting."""


class ProbeProcess:
    """Probe process and its pipes. Its end is never waited for: it may be stuck in the kernel."""

    def __init__(self, settings: GpuSettings, skipped: Sequence[str] = ()) -> None:
        """`skipped` are the calls to the driver that it does not make."""
        self._lock = threading.Lock()
        self._closed = False
        self._buffer = b""
        self._complaints = b""
        intervals = (settings.sample_interval, settings.process_interval, settings.slow_interval)
        # -P: keeps a json.py in the current directory from being imported instead of Python's own
        command = [sys.executable, "-P", "-m", "gputui.gpus.probe", *(str(i.total_seconds()) for i in intervals)]
        memory = os.memfd_create("gputui-probe")
        os.ftruncate(memory, calls.SIZE)
        self._calls = mmap.mmap(memory, calls.SIZE)
        command += ["", "0", str(memory), ",".join(skipped)]
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C and a closed terminal are handled by the supervisor
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, and our own module
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                start_new_session=True,
                pass_fds=(memory,),
            )
        finally:
            os.close(memory)
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._in, self._out, self._err = stdin.fileno(), stdout.fileno(), stderr.fileno()
        os.set_blocking(self._in, False)

    notes = ()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_stuck(self) -> bool:
        return self._closed and self._process.returncode is None

    @property
    def calls(self) -> tuple[int, str]:
        return calls.read_page(self._calls)

    def send(self, command: str) -> None:
        with self._lock, suppress(OSError):
            if not self._closed:
                os.write(self._in, command.encode() + b"\n")

    def lines(self, wake: int, seconds: float) -> Iterator[Facts | Sweep]:
        ready, _, _ = select.select([self._out, self._err, wake], [], [], max(0.0, seconds))
        if self._err in ready:
            self._complaints = (self._complaints + os.read(self._err, 65536))[-2000:]
        if self._out not in ready:
            if self._err in ready and not self._complaints:
                raise died(self._describe_end())  # stderr has ended, and stdout ends with it
            return
        data = os.read(self._out, 1 << 20)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data or len(self._buffer) >= _MOST_OF_A_LINE:
            raise died(self._describe_end())
        for each in lines:
            try:
                line = DECODER.decode(each)
            except msgspec.DecodeError as error:
                raise died(f"its output cannot be read: {error}") from None
            if isinstance(line, Failed):
                code = CODES.get(line.code, ProbeCode.FAILED)
                raise ProbeFault(code, describe_failure(code, line.text))
            if not isinstance(line, CallLine):
                yield line

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.returncode
        how = "closed its output" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by signal {-code}"
            with suppress(ValueError):
                how = f"killed by {signal.Signals(-code).name}"
        last = self._complaints.decode(errors="replace").strip().rpartition("\n")[2]
        return f"{how}: {last}" if last else how

    def kill(self) -> None:
        with suppress(OSError):
            self._process.kill()

    def abandon(self) -> None:
        """Kill the process without waiting; a thread reaps it, whenever it dies."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.kill()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        threading.Thread(target=self._process.wait, name="gpu-probe-undertaker", daemon=True).start()


Spawn = Callable[[GpuSettings, Sequence[str]], Probing]
"""Starts a probe process that does not make these calls; raises OSError, ProbeFault."""


class NvmlProbe:
    """GpuProbe over NVML. One daemon thread reads the probe process, and waits only for its pipe."""

    def __init__(
        self,
        settings: GpuSettings,
        clock: Clock,
        *,
        pauses: Sequence[float] = PAUSES,
        spawn: Spawn = ProbeProcess,
        machine: Callable[[], str] = str,
        closed: threading.Event | None = None,
    ) -> None:
        """`machine` returns the name of the machine that is read if it is another one; `closed` is set at the end."""
        self._settings = settings
        self._clock = clock
        self._pauses = pauses
        self._spawn = spawn
        self._patience = (settings.hang_after + settings.sample_interval).total_seconds()
        self.longest_silence = 2 * self._patience
        """Seconds from the driver's last answer after which a call counts as hung, at most."""
        self._machine = machine
        self._notes: tuple[str, ...] = ()
        self._readings = ReadingAssembler()
        self._status = ProbeStatus(since=clock.now())
        self._latest = ProbeReading(self._status, machine=machine())
        self._subscribers: tuple[Callable[[ProbeReading], None], ...] = ()
        self._pcie: str | None = None
        self._disks: dict[str, str] = {}
        self._shared: tuple[str, ...] = ()
        """UUIDs of the GPUs that several jobs hold."""
        self._process: Probing | None = None
        self._hung = HungCalls()
        self._answered = 0
        """Number of calls that earlier processes finished."""
        self._failures = 0
        self._stuck: list[Probing] = []
        self._closed = closed or threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_out, self._wake_in = -1, -1

    def start(self) -> None:
        with self._lock:
            if self._thread is not None or self._closed.is_set():
                return
            self._wake_out, self._wake_in = os.pipe()

            def failed(error: Exception) -> None:
                self._fail(died(f"its output cannot be taken: {fault_words(error)}"))

            self._thread = Watcher("gpu-probe", self._run, failed)
            self._thread.start()

    def latest(self) -> ProbeReading:
        return self._latest

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        with self._lock:
            self._subscribers = (*self._subscribers, on_reading)

    def refresh(self) -> None:
        """Request a complete sweep; without a probe process nothing happens."""
        if child := self._process:
            child.send("refresh")

    def want_pcie(self, uuid: str | None) -> None:
        self._pcie = uuid
        if child := self._process:
            child.send(f"pcie {uuid or '-'}")

    def watch_disks(self, paths: Mapping[str, str]) -> None:
        self._disks = dict(paths)
        if child := self._process:
            child.send(f"disks {json.dumps(self._disks)}")

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        """Ignore fatal Xids of these GPUs before the given times, from the next sweep on."""
        self._readings.resumed = resumed

    def follow(self, jobs: Iterable[Job]) -> None:
        """Read shares of processes on GPUs that several jobs hold, so that each is charged with its own."""
        held = Counter(uuid for job in jobs for uuid in job.gpus)
        shared = tuple(sorted(uuid for uuid, count in held.items() if count > 1))
        if shared != self._shared:
            self._shared = shared
            if child := self._process:
                child.send(self._shares_command)

    @property
    def _shares_command(self) -> str:
        return f"shares {' '.join(self._shared)}"

    def close(self) -> None:
        """Stop reading; the process is killed but not awaited."""
        self._closed.set()
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            with suppress(OSError):
                os.write(self._wake_in, b"x")
        if thread is not threading.current_thread():
            thread.join(2.0)
        if not thread.is_alive():
            os.close(self._wake_in)
            os.close(self._wake_out)

    @property
    def pid(self) -> int | None:
        child = self._process
        return child.pid if child else None

    @property
    def answered(self) -> int:
        """Number of calls that the driver has answered so far."""
        child = self._process
        return self._answered + (child.calls[0] if child else 0)

    def _run(self) -> None:
        """Start a process and read it until it ends, hangs or the probe is closed; then the next."""
        while not self._closed.is_set():
            self._stuck = [child for child in self._stuck if child.is_stuck]
            within = math.inf
            if len(self._stuck) < MOST_STUCK:
                try:
                    self._follow(self._spawn(self._settings, self._hung.skipped(time.monotonic())))
                except AgainError:
                    self._failures += 1  # nothing failed, but what is told again and again is no reason for haste
                except ProbeFault as fault:
                    self._fail(fault)
                    within = fault.again_within
                except OSError as error:
                    self._fail(died(f"it cannot be started: {error.strerror}"))
            if self._failures:
                self._closed.wait(min(within, self._pauses[min(self._failures, len(self._pauses)) - 1]))
        for child in self._stuck:
            child.kill()

    def _follow(self, child: Probing) -> None:
        """Read a process as long as there is something to read, then abandon it."""
        self._process, self._notes = child, child.notes
        try:
            self._listen(child)
        finally:
            self._answered, self._process = self._answered + child.calls[0], None
            self._notes = ()  # what reads no longer says nothing of how it reads
            child.abandon()
            self._stuck.append(child)

    def _listen(self, child: Probing) -> None:
        born = time.monotonic()
        deadline, answered, retry_at = born + self._patience, 0, self._hung.retry_at(born)
        while not self._closed.is_set():
            is_heard = False
            for line in child.lines(self._wake_out, deadline - time.monotonic()):
                is_heard = True
                self._ingest(line, child)
            now = time.monotonic()
            if is_heard:
                deadline = now + self._patience
            elif now >= deadline:
                before, (answered, call) = answered, child.calls
                if answered == before:
                    raise self._hang(call, now)
                deadline = now + self._patience  # the driver is slow, but it answers
            if now >= retry_at and not any(each.is_stuck for each in self._stuck):
                return  # the next process tries the skipped call again
            if self._failures and now - born > STEADY_AFTER:
                self._failures = 0

    def _hang(self, call: str, now: float) -> ProbeFault:
        """Note that the driver does not answer a call; return the fault."""
        if call and self._hung.add(call, now):
            log.warning("GPU probe: the driver does not answer %s, which is skipped from now on", call)
        self._readings.unanswered = tuple(self._hung.notes(now))
        code = ProbeCode.WEDGED if self._readings.gpus else ProbeCode.WEDGED_AT_START
        return ProbeFault(code, describe_failure(code, format_limit(self._settings.hang_after)))

    def _ingest(self, line: Facts | Sweep, child: Probing) -> None:
        self._readings.ingest(line, self._clock.now())
        if self._machine() and len(self._readings.gpus) > MOST_GPUS:  # lost ones are kept; these are invented
            before, self._readings = self._readings, ReadingAssembler()
            self._readings.resumed, self._readings.unanswered = before.resumed, before.unanswered
            raise ProbeFault(ProbeCode.UNREACHABLE, INVENTED)
        if isinstance(line, Sweep) and line.samples:
            self._publish(ProbeCode.OK)
            return
        # it is new or restarted, and lacks what the previous one was asked
        if self._pcie:
            child.send(f"pcie {self._pcie}")
        if self._shared:
            child.send(self._shares_command)
        if self._disks:
            child.send(f"disks {json.dumps(self._disks)}")
        self._publish(self._status.code, self._status.text, self._status.hint)

    def _fail(self, fault: ProbeFault) -> None:
        self._failures += 1
        machine, words = self._machine(), str(fault)
        names_it = not machine or re.match(rf"ssh\b.*\b{re.escape(machine)}\b", words)
        self._publish(fault.code, words if names_it else f"{machine}: {words}", fault.hint)

    def _publish(self, code: ProbeCode, text: str = "", hint: str = "") -> None:
        if (code, text) != (self._status.code, self._status.text):
            self._status = ProbeStatus(code, text, self._clock.now(), hint)
            if code is not ProbeCode.OK:
                log.warning("GPU probe: %s", text)
        self._latest = self._reading()
        for tell in self._subscribers:
            try:
                tell(self._latest)
            except Exception:  # an error in one listener must not affect the others
                log.exception("a listener of the GPU probe failed")

    def announce(self, text: str) -> None:
        """Say what the first reading waits for; from any thread."""
        if self._status.code is ProbeCode.STARTING:
            self._publish(ProbeCode.STARTING, text)

    def _reading(self) -> ProbeReading:
        found = self._readings.reading(self._status)
        if not (machine := self._machine()):
            return found
        notes = (*self._notes, *(note for note in found.notes if note != OTHER_PIDS))
        return replace(found, machine=machine, notes=notes)


_LONGEST = 60.0
"""Seconds for which a slow driver is waited for."""
_HANGING = frozenset({ProbeCode.WEDGED, ProbeCode.WEDGED_AT_START})


def first_reading(probe: GpuProbe, timeout: float) -> ProbeReading:
    """Start the probe, wait for a complete reading or a failure, and close it.

    Wait for `timeout` seconds, and longer as long as the driver answers calls: slowly, or after one that hung. Without
    a reading, the status is that the driver hangs, or is slow.
    """
    came = threading.Event()
    probe.subscribe(lambda reading: came.set() if _is_final(reading) else None)
    probe.start()
    try:
        begun = time.monotonic()
        if not _is_final(probe.latest()):
            answered, since, silence = 0, begun, timeout
            while time.monotonic() - since < silence and time.monotonic() - begun < _LONGEST and not came.wait(timeout):
                if isinstance(probe, NvmlProbe) and probe.answered > answered:
                    answered, since, silence = probe.answered, time.monotonic(), timeout + probe.longest_silence
        reading = probe.latest()
        if reading.status.code is not ProbeCode.STARTING:
            return reading
        took = time.monotonic() - begun if isinstance(probe, NvmlProbe) and probe.answered else 0.0
        code = ProbeCode.SLOW if took > timeout else ProbeCode.WEDGED_AT_START
        text = describe_failure(code, f"{max(took, timeout):.3g}s")
        if reading.machine and not took:
            text = f"no readings of {reading.machine} within {timeout:.3g}s: {reading.status.text}"
            code = ProbeCode.UNREACHABLE
        return replace(reading, status=ProbeStatus(code, text, reading.status.since))
    finally:
        probe.close()


def _is_final(reading: ProbeReading) -> bool:
    """Return whether nothing more will come: a call that hangs and can be skipped is followed by another try."""
    notes = [note for note in reading.notes if note.startswith(_UNANSWERED)]
    is_tried_again = reading.status.code in _HANGING and bool(notes)
    return is_whole(reading) and not is_tried_again


def is_whole(reading: ProbeReading) -> bool:
    """Return whether every readable GPU was read, processes included, or the probe reported a failure."""
    if reading.status.code is not ProbeCode.OK:
        return reading.status.code is not ProbeCode.STARTING
    missing = (HealthCode.LOST, HealthCode.UNKNOWN)
    return all(sample.processes_at or sample.health.code in missing for sample in reading.samples.values())
