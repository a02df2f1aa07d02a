"""Owners of one state directory, one after another, and commands beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gputui.api.client import ApiClient
from gputui.api.http import AboutView
from gputui.api.wire import to_sockets
from gputui.domain.errors import GputuiError

PATIENCE = 60.0


class Owners:
    """Owners of a state directory, each a `gputui serve`."""

    def __init__(self, state: Path, *options: str, settings: str = "") -> None:
        self.state = state
        self.socket = state / "api.sock"
        config = state.with_name(f"{state.name}.toml")
        config.write_text(settings)
        self.environ = {
            **os.environ,
            "GPUTUI_STATE": str(state),
            "GPUTUI_CONFIG": str(config),
            "GPUTUI_PROBE": "sim:1:A100",
            "GPUTUI_RUNTIME": "process",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def begin(self, stage: str = "", count: float = 0) -> None:
        """Begin one, which dies when it comes to the stage for the COUNT-th time; see `faulty_owner`."""
        program = ["tests.torture.faulty_owner", stage, str(count)] if stage else ["gputui"]
        command = [sys.executable, "-P", "-m", *program, "serve"]
        self.process = subprocess.Popen(command, env=self.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def client(self, patience: float = PATIENCE) -> ApiClient:
        return ApiClient(to_sockets([self.socket]), patience=patience)

    def until_it_answers(self) -> AboutView:
        """Return what the present owner tells of itself."""
        client, deadline = self.client(), time.monotonic() + PATIENCE
        while True:
            try:
                found: AboutView = client.ask("GET", "/v1/about", result=AboutView)
            except GputuiError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                if found.owner.pid == self.pid:
                    client.close()
                    return found

    def until_dead(self) -> None:
        assert self.process is not None
        assert self.process.wait(2 * PATIENCE) < 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.until_dead()

    def stop(self) -> None:
        """Stop it, as a debugger or Ctrl-Z does."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def run(self, *words: str, program: str = "gputui") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", program, *words],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
        )

    def told(self, *words: str) -> str:
        """Return what a command prints that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
