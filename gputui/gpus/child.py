"""One probe process and the pipes to it. Nothing here waits for it to die: it may be stuck in the kernel."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from gputui.domain.settings import GpuSettings

_MOST_OF_A_LINE = 64 * 1024**2


class Child:
    """A probe process that runs, or ran."""

    def __init__(self, settings: GpuSettings) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._buffer = b""
        self._complaints = b""
        intervals = (settings.sample_interval, settings.process_interval, settings.slow_interval)
        # -P: a json.py in the directory where gputui was started is not to be imported instead of Python's own
        command = [sys.executable, "-P", "-m", "gputui.gpus.probe", *(str(i.total_seconds()) for i in intervals)]
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C and a closed terminal are the supervisor's affair
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._in, self._out, self._err = stdin.fileno(), stdout.fileno(), stderr.fileno()
        os.set_blocking(self._in, False)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_stuck(self) -> bool:
        """Whether it was killed and has not died of it yet."""
        return self._closed and self._process.returncode is None

    def send(self, command: str) -> None:
        """Write a command, unless it is gone or does not read."""
        with self._lock, suppress(OSError):
            if not self._closed:
                os.write(self._in, command.encode() + b"\n")

    def lines(self, wake: int, seconds: float) -> list[bytes] | None:
        """Lines that came within the time, none when it went by or `wake` became readable; None at the end."""
        ready, _, _ = select.select([self._out, self._err, wake], [], [], max(0.0, seconds))
        if self._err in ready:
            self._complaints = (self._complaints + os.read(self._err, 65536))[-2000:]
        if self._out not in ready:
            if self._err in ready and not self._complaints:
                return None  # both ends closed, and the other is about to be seen
            return []
        data = os.read(self._out, 1 << 20)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return lines if data and len(self._buffer) < _MOST_OF_A_LINE else None

    def epitaph(self) -> str:
        """How it ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.returncode
        how = "closed its output" if code is None else _exit_words(code)
        last = self._complaints.decode(errors="replace").strip().rpartition("\n")[2]
        return f"{how}: {last}" if last else how

    def kill(self) -> None:
        """Send SIGKILL, which a process stuck in the kernel does not feel before it is out again."""
        with suppress(OSError):
            self._process.kill()

    def abandon(self) -> None:
        """Kill it and let go of it. A thread that may take for ever collects it, so that it leaves no zombie."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.kill()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        threading.Thread(target=self._process.wait, name="gpu-probe-undertaker", daemon=True).start()


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
