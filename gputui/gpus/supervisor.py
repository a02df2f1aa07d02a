"""Real GPUs: a supervisor of the probe process, which it restarts, and abandons when the driver hangs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from gputui.domain.gpu import ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.settings import GpuSettings
from gputui.domain.units import format_duration
from gputui.gpus import wire
from gputui.gpus.child import Child
from gputui.gpus.picture import Picture
from gputui.gpus.words import sentence
from gputui.ports import Clock

log = logging.getLogger(__name__)

PAUSES = (0.1, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the first restart after all was well, the second in a row, and so on."""
STEADY_AFTER = 3.0
"""Seconds a process must have lived for its end to count as the first in a row."""
MOST_STUCK = 3
"""Abandoned processes that did not die yet, before no new one is tried: each may sit in the driver for ever."""
_CODES = {str(code): code for code in ProbeCode}


class NvmlProbe:
    """GpuProbe over NVML. All reading happens in one daemon thread, which waits for nothing but its child's pipe."""

    def __init__(
        self,
        settings: GpuSettings,
        clock: Clock,
        *,
        pauses: Sequence[float] = PAUSES,
        spawn: Callable[[GpuSettings], Child] = Child,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pauses = pauses
        self._spawn = spawn
        self._patience = (settings.hang_after + settings.sample_interval).total_seconds()
        self._picture = Picture()
        self._status = ProbeStatus(since=clock.now())
        self._latest = ProbeReading(self._status)
        self._subscribers: tuple[Callable[[ProbeReading], None], ...] = ()
        self._pcie: str | None = None
        self._child: Child | None = None
        self._failures = 0
        self._stuck: list[Child] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_out, self._wake_in = -1, -1

    def start(self) -> None:
        """Begin to read, in the background; once."""
        with self._lock:
            if self._thread is not None or self._closed.is_set():
                return
            self._wake_out, self._wake_in = os.pipe()
            self._thread = threading.Thread(target=self._run, name="gpu-probe", daemon=True)
            self._thread.start()

    def latest(self) -> ProbeReading:
        """What is known now."""
        return self._latest

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        """Call `on_reading`, from the probe's thread, with each new reading."""
        with self._lock:
            self._subscribers = (*self._subscribers, on_reading)

    def refresh(self) -> None:
        """Ask for a whole sweep. Nothing happens while no probe process lives."""
        if child := self._child:
            child.send("refresh")

    def want_pcie(self, uuid: str | None) -> None:
        """Read PCIe throughput of this GPU alone."""
        self._pcie = uuid
        if child := self._child:
            child.send(f"pcie {uuid or '-'}")

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        """Forget older fatal Xids of these GPUs; the next sweep shows it."""
        self._picture.resumed = resumed

    def follow(self, jobs: Iterable[Job]) -> None:
        """Nothing to do: real GPUs know by themselves."""

    def close(self) -> None:
        """Stop reading; the process is killed and not waited for."""
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
        """Of the probe process that runs now."""
        child = self._child
        return child.pid if child else None

    def _run(self) -> None:
        while not self._closed.is_set():
            self._stuck = [child for child in self._stuck if child.is_stuck]
            if len(self._stuck) < MOST_STUCK:
                self._serve_one()
            pause = self._pauses[min(self._failures, len(self._pauses)) - 1]
            self._closed.wait(pause)

    def _serve_one(self) -> None:
        """Start a process and listen to it until it ends, hangs or is not wanted any more."""
        try:
            child = self._spawn(self._settings)
        except OSError as error:
            self._fail(ProbeCode.DIED, f"it cannot be started: {error.strerror}")
            return
        self._child = child
        try:
            self._listen(child)
        finally:
            self._child = None
            child.abandon()
            self._stuck.append(child)

    def _listen(self, child: Child) -> None:
        born = time.monotonic()
        deadline = born + self._patience
        while not self._closed.is_set():
            lines = child.lines(self._wake_out, deadline - time.monotonic())
            if lines is None:
                self._fail(ProbeCode.DIED, child.epitaph())
                return
            if lines:
                deadline = time.monotonic() + self._patience
            elif time.monotonic() >= deadline:
                self._hangs()
                return
            for line in lines:
                if not self._take(line, child):
                    return
            if self._failures and time.monotonic() - born > STEADY_AFTER:
                self._failures = 0

    def _take(self, data: bytes, child: Child) -> bool:
        """Add a line to the picture; False when it is the last."""
        try:
            line = wire.DECODER.decode(data)
        except msgspec.DecodeError as error:
            self._fail(ProbeCode.DIED, f"it wrote what cannot be read: {error}")
            return False
        if isinstance(line, wire.Failed):
            self._fail(_CODES.get(line.code, ProbeCode.FAILED), line.text)
            return False
        self._picture.take(line, self._clock.now())
        if isinstance(line, wire.Sweep) and line.samples:
            self._publish(ProbeCode.OK)
        else:
            if self._pcie:  # the process may be new, or have started anew, and not know
                child.send(f"pcie {self._pcie}")
            self._publish(self._status.code, self._status.text)
        return True

    def _hangs(self) -> None:
        code = ProbeCode.WEDGED if self._picture.gpus else ProbeCode.WEDGED_AT_START
        self._fail(code, format_duration(self._settings.hang_after))

    def _fail(self, code: ProbeCode, detail: str) -> None:
        self._failures += 1
        self._publish(code, sentence(code, detail))

    def _publish(self, code: ProbeCode, text: str = "") -> None:
        """Tell everybody how it stands now."""
        if (code, text) != (self._status.code, self._status.text):
            self._status = ProbeStatus(code, text, self._clock.now())
            if code is not ProbeCode.OK:
                log.warning("GPU probe: %s", text)
        self._latest = self._picture.reading(self._status)
        for tell in self._subscribers:
            try:
                tell(self._latest)
            except Exception:  # a border: one listener's trouble is not the others'
                log.exception("a listener of the GPU probe failed")
