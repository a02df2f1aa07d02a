"""GPUs of another machine, where an engine runs: the probe there, from source that is sent over its stdin.

By ssh it is run by python3 of that machine; without one, and for an engine behind TCP, by that of a small container.
Either ends with its stdin, and by itself after `PATIENCE` seconds in which nobody has spoken to it.
"""

from __future__ import annotations

import importlib.util
import math
import select
import shlex
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Protocol

from msgspec import Struct, field

from gputui.domain.errors import GputuiError
from gputui.domain.gpu import ProbeCode
from gputui.domain.settings import GpuSettings
from gputui.gpus.probe.calls import UNSHARED
from gputui.gpus.readings import AgainError, CallLine, Facts, ProbeFault, Sweep
from gputui.gpus.supervisor import NvmlProbe, ProbeProcess, Probing
from gputui.gpus.untrusted import ALIVE_EVERY, SSH_FAILED, CheckedLines, ProcessStream
from gputui.ports import Clock

BEGINS_WITHIN = 30.0
"""Seconds until the first line."""
SILENT_AFTER = 10.0
"""Seconds without a line, which comes every second also while the driver hangs, after which the connection is lost."""
PATIENCE = 60
PAUSES = (0.1, 1.0, 2.0, 5.0)
"""Seconds before restarts; short, as connections have pauses of their own."""
_ASKED_EVERY = 1.0
"""Seconds after which it is asked again whether a connection that was lost is back."""
_PROBE = "gputui.gpus.probe"
_OLD = "its python3 is older than 3.8"
_STUB = (
    f'import sys,zlib;sys.version_info<(3,8)and sys.exit("{_OLD}");'
    "f=sys.stdin.buffer;exec(zlib.decompress(f.read(int(f.readline()))))"
)
PYTHON = ("python3", "-ISBc", _STUB)
"""Command that runs what `source` returns, in no more than the standard library; no shell reads a sign of it as its own
within single quotes."""


@cache
def _sources() -> tuple[str, dict[str, str]]:
    """Return the loader, and the source of the modules by name."""
    found = importlib.util.find_spec("pynvml")
    assert found is not None
    assert found.origin is not None
    modules = {"gputui": "", "gputui.gpus": "", _PROBE: "", "pynvml": Path(found.origin).read_text(encoding="utf-8")}
    here = files(_PROBE)
    for name in ("calls", "host", "nvml", "__main__"):
        modules[f"{_PROBE}.{name}"] = here.joinpath(f"{name}.py").read_text()
    return here.joinpath("loader.py").read_text(), modules


def source(settings: GpuSettings, skipped: Sequence[str]) -> bytes:
    """Return what PYTHON reads: the length, then as much; the probe makes none of the calls in `skipped`."""
    intervals = (settings.sample_interval, settings.process_interval, settings.slow_interval)
    arguments = [*(str(each.total_seconds()) for each in intervals), "", str(PATIENCE), UNSHARED, ",".join(skipped)]
    loader, modules = _sources()
    code = zlib.compress(f"{loader}\nbegin({modules!r}, {arguments!r})\n".encode())
    return b"%d\n%b" % (len(code), code)


class ProbeStream(Protocol):
    """Input and output of a probe elsewhere. Only `end_words` may wait, for a moment."""

    @property
    def ends(self) -> tuple[int, ...]:
        """File descriptors that become readable when `take` has something."""

    @property
    def is_over(self) -> bool: ...

    def take(self) -> bytes | None:
        """Return new output: empty without any, None at its end."""

    def send(self, data: bytes) -> None: ...

    def close(self) -> None:
        """End its input and output, at which the probe ends."""

    def kill(self) -> None:
        """End it in any case."""

    def end_words(self) -> str:
        """Return why it ended, as far as it told."""


class Machine(Protocol):
    """Machine of an engine. Methods block, and raise GputuiError; `is_here` comes first."""

    @property
    def name(self) -> str:
        """Name that it has for itself; that in its address until it has told it."""

    def is_here(self) -> bool:
        """Return whether it is this machine."""

    def shell(self, command: str) -> Sequence[str] | None:
        """Return words that run a command of a shell there; None if there is no way to do so."""

    def container(
        self, command: Sequence[str], tell: Callable[[str], None], closed: Event
    ) -> tuple[ProbeStream, tuple[str, ...]]:
        """Run a command in a container that sees all GPUs; return its stream, and sentences on what it cannot see.

        `tell` is called with what takes long. If `closed` is set nobody wants it any more.
        """


class RemoteProcess:
    """Probe process of another machine, whose output is not trusted."""

    def __init__(
        self, stream: ProbeStream, source: bytes, notes: tuple[str, ...], unfit: Callable[[str], bool]
    ) -> None:
        """`unfit` is told why it ended before it began; it returns whether there is another way to try."""
        self._stream = stream
        self.notes = notes
        self._unfit = unfit
        self._lines = CheckedLines()
        self.calls = (0, "")
        self._is_abandoned = False
        self._heard_at = self._told_at = time.monotonic()
        stream.send(source)

    @property
    def pid(self) -> int:
        return 0

    @property
    def is_stuck(self) -> bool:
        return self._is_abandoned and not self._stream.is_over

    def send(self, command: str) -> None:
        if self._lines.has_begun:  # before, it would stand in the middle of the source
            self._stream.send(command.encode() + b"\n")

    def lines(self, wake: int, seconds: float) -> Iterator[Facts | Sweep]:
        until, is_heard = time.monotonic() + max(0.0, seconds), False
        while not is_heard:
            now = time.monotonic()
            if now - self._told_at > ALIVE_EVERY:
                self._told_at = now
                self.send("alive")
            if (data := self._stream.take()) is None:
                raise self._fault(self._stream.end_words())
            for line in self._lines.take(data, now):
                self._heard_at = now
                if isinstance(line, CallLine):
                    self.calls = line.done + 1, line.call  # that it began counts as an answer
                else:
                    is_heard = True
                    yield line
            if not data and self._is_over(wake, until):
                return

    def _is_over(self, wake: int, until: float) -> bool:
        """Wait for output; return whether it was long enough, or for `wake`. What connects has a time of its own."""
        now, has_begun = time.monotonic(), self._lines.has_begun
        patience = SILENT_AFTER if has_begun else BEGINS_WITHIN
        if (left := self._heard_at + patience - now) <= 0:
            raise self._fault(f"no answer within {patience:.0f} s")
        if has_begun and now >= until:
            return True
        ready, _, _ = select.select([*self._stream.ends, wake], [], [], min(left, until - now) if has_begun else left)
        return wake in ready

    def _fault(self, words: str) -> Exception:
        if not self._lines.has_begun and self._unfit(words):
            return AgainError(ProbeCode.UNREACHABLE, words)
        return ProbeFault(ProbeCode.UNREACHABLE, words)

    def kill(self) -> None:
        self._stream.kill()

    def abandon(self) -> None:
        """Close the stream; one that a call holds in the driver stays, so that it counts as stuck."""
        self._is_abandoned = True
        self._stream.close()
        if not self.calls[1]:
            self._stream.kill()


class Elsewhere(Struct, eq=False):
    """Starts probes on the machine of an engine, once it is known which one that is."""

    _machine: Machine
    closed: Event = field(default_factory=Event)
    """Set once nobody wants readings any more."""
    tell: Callable[[str], None] = lambda words: None
    _is_here: bool = False
    _unfit: str = ""
    """Why no probe runs over ssh; empty: one does, or it was not tried."""

    def name(self) -> str:
        """Return the machine's name; empty if it is this one."""
        return "" if self._is_here else self._machine.name

    def __call__(self, settings: GpuSettings, skipped: Sequence[str]) -> Probing:
        try:
            self._is_here = self._machine.is_here()
            if self._is_here:
                return ProbeProcess(settings, skipped)
            words = None if self._unfit else self._machine.shell(f"exec {shlex.join(PYTHON)}")
        except GputuiError as error:
            raise _unreachable(error, again_within=_ASKED_EVERY) from error
        code = source(settings, skipped)
        return self._in_container(code) if words is None else self._over_ssh(words, code)

    def _over_ssh(self, words: Sequence[str], code: bytes) -> Probing:
        stream, name = ProcessStream(words, "python3", room=len(code)), self._machine.name

        def unfit(words: str) -> bool:
            self._unfit = "" if stream.code == SSH_FAILED else words
            return bool(self._unfit)

        return RemoteProcess(stream, code, (f"the GPUs of {name} are read by its python3, over ssh",), unfit)

    def _in_container(self, code: bytes) -> Probing:
        before, self._unfit = self._unfit, ""  # if this fails too, both are tried again
        try:
            stream, notes = self._machine.container(PYTHON, self.tell, self.closed)
        except GputuiError as error:
            raise _unreachable(error, before and f"; and over ssh: {before}") from error
        self._unfit = before
        return RemoteProcess(stream, code, notes, lambda words: False)


def _unreachable(error: GputuiError, more: str = "", again_within: float = math.inf) -> ProbeFault:
    return ProbeFault(ProbeCode.UNREACHABLE, f"{error.without_hint}{more}", error.hint or "", again_within)


def remote_probe(machine: Machine, settings: GpuSettings, clock: Clock) -> NvmlProbe:
    """Return a probe of the GPUs of that machine, which may turn out to be this one."""
    spawn = Elsewhere(machine)
    probe = NvmlProbe(settings, clock, pauses=PAUSES, spawn=spawn, machine=spawn.name, closed=spawn.closed)
    spawn.tell = probe.announce
    return probe
