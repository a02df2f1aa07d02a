"""Measures a full-screen program in its own terminal from outside: its output and its cost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType

from gputui.domain.text import plain_bytes

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
COLOUR = re.compile(r"\x1b\[[0-9;:]*m|\s")


@dataclass(frozen=True)
class Figures:
    """Cost of one run of a program."""

    first_paint: float
    """Seconds from its start until the expected number of visible characters was written."""
    first_content: float
    """Seconds from its start until the marker was written, the content that users wait for."""
    bytes_per_second: float
    """Bytes written to the terminal per second in steady state."""
    cpu: float
    """Share of one core used by its process tree in steady state."""
    resident: int
    """Peak of the summed resident sets of the whole tree, in bytes."""
    proportional: int
    """Peak of the summed proportional sets, in which shared pages count once, in bytes."""
    wakeups: float
    """Wake-ups of the tree's threads per second in steady state."""


class Terminal:
    """Terminal of a fixed size that answers no queries, and the process in it."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], *, rows: int = 50, columns: int = 200
    ) -> None:
        self.written = 0
        self.output = bytearray()
        """Output so far."""
        self.is_over = False
        self.begun = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            _become(command, environ, rows, columns)
        os.set_blocking(self.master, False)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the whole tree, first with SIGTERM."""
        pids = tree(self.pid)
        _signal(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._is_over():
            self.read(0.05)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        while not self._is_over():
            self.read(0.05)
        os.close(self.master)

    def read(self, patience: float) -> bytes:
        """Return new output; wait for it at most that long."""
        if not select.select([self.master], [], [], max(0.0, patience))[0]:
            return b""
        try:
            raw = os.read(self.master, 1 << 16)
        except OSError:  # the other end is closed
            time.sleep(min(patience, 0.01))
            return b""
        self.written += len(raw)
        self.output += raw
        return raw

    def until_painted(self, characters: int, patience: float = 30) -> float:
        """Return the seconds from the start until that many visible characters were written."""
        while (now := time.monotonic() - self.begun) < patience:
            if self.read(0.05):
                if _visible(self.output) >= characters:
                    return time.monotonic() - self.begun
            elif self._is_over():
                raise RuntimeError(f"it ended before it painted: {self._last_words()}")
        raise TimeoutError(f"{_visible(self.output)} visible characters after {now:.1f} s: {self._last_words()}")

    def until_shown(self, marker: str, patience: float = 30) -> float:
        """Return the seconds from the start until this text was written."""
        while marker.encode() not in self.output:
            if time.monotonic() - self.begun > patience or (not self.read(0.05) and self._is_over()):
                break
        self.must_show(marker)
        return time.monotonic() - self.begun

    def must_show(self, marker: str) -> None:
        """Raise RuntimeError unless this text was written: a program that shows nothing would cost nothing."""
        if marker.encode() not in self.output:
            raise RuntimeError(f"it never showed {marker}: {self._last_words()}")

    def _last_words(self) -> str:
        return plain_bytes(bytes(self.output[-500:]))

    def pump(self, seconds: float) -> int:
        """Read output for that many seconds; return the bytes."""
        before, end = self.written, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return self.written - before

    def press(self, key: bytes, *, quiet: float = 0.08, patience: float = 5) -> float:
        """Return the seconds from a key pressed in a quiet moment to the first output after it."""
        while self.read(quiet):
            pass
        begun = time.perf_counter()
        os.write(self.master, key)
        while time.perf_counter() - begun < patience:
            if self.read(patience):
                return time.perf_counter() - begun
        raise TimeoutError(f"nothing was painted within {patience} s of {key!r}")

    def _is_over(self) -> bool:
        if not self.is_over:
            self.is_over = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self.is_over


def measure(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    seconds: float = 20,
    settle: float = 5,
    characters: int = 500,
    marker: str = "",
) -> Figures:
    """Run the program for that many seconds and measure it."""
    with Terminal(command, environ) as terminal:
        first_paint = terminal.until_painted(characters)
        first_content = terminal.until_shown(marker)
        terminal.pump(settle)
        cpu, woken, came, begun = cpu_seconds(terminal.pid), waits(terminal.pid), 0, time.monotonic()
        most = proportional = 0
        while (passed := time.monotonic() - begun) < seconds:
            came += terminal.pump(min(1.0, seconds - passed))
            pids = tree(terminal.pid)
            most = max(most, sum(map(resident, pids)))
            proportional = max(proportional, sum(map(_proportional, pids)))
        passed = time.monotonic() - begun
        used = cpu_seconds(terminal.pid) - cpu
        wakeups = (waits(terminal.pid) - woken) / passed
    return Figures(first_paint, first_content, came / passed, used / passed, most, proportional, wakeups)


def middle(figures: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    rows = zip(*map(astuple, figures), strict=True)
    paint, content, rate, cpu, resident, proportional, wakeups = (statistics.median(row) for row in rows)
    return Figures(paint, content, rate, cpu, int(resident), int(proportional), wakeups)


def tree(root: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Return the CPU time of the tree, user and system, including that of its ended children."""
    return sum(sum(map(int, fields[11:15])) for pid in tree(root) if (fields := _stat(pid))) / TICK


def waits(root: int) -> int:
    """Return the number of context switches of the tree's threads that waited."""
    return sum(_waits(task) for pid in tree(root) for task in Path(f"/proc/{pid}/task").glob("*/status"))


def machine() -> str:
    """Describe the machine of this run."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} x {models[0] if models else os.uname().machine}, load {load:.1f} at the start"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _become(command: Sequence[str], environ: Mapping[str, str], rows: int, columns: int) -> None:
    """Turn the child into the program, after setting the terminal's size."""
    try:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvpe(command[0], list(command), {**environ, "TERM": "xterm-256color", "COLORTERM": ""})
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _visible(raw: bytes | bytearray) -> int:
    lines = raw.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    return sum(len(COLOUR.sub("", plain_bytes(line.encode()))) for line in lines)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _waits(status: Path) -> int:
    try:
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(match[1]) if match else 0


def resident(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) * PAGE if fields else 0


def _proportional(pid: int) -> int:
    try:
        match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return int(match[1]) * 1024 if match else 0
