"""Two servers that schedule simulated GPUs, behind an sshd of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.settings import ServerSettings
from tests.runtime.sshd import Sshd
from tests.servers.connections import Connections

PATIENCE = 90.0


class Gpus:
    """A server: its state directory and its scheduler."""

    def __init__(self, directory: Path, machine: int) -> None:
        self.state = directory / f"state{machine}"
        options = ["--state", str(self.state), "--probe", f"sim:2:A100@{machine}", "--runtime", "process"]
        self.program = [sys.executable, "-P", "-m", "gputui", *options]
        words = [*self.program, "serve"]
        with (directory / f"serve{machine}").open("wb") as errors:
            self.scheduler = subprocess.Popen(words, stdout=errors, stderr=errors, start_new_session=True)

    def run(self, *words: str) -> str:
        """Return the output of a command on this server."""
        return subprocess.run([*self.program, *words], check=True, capture_output=True, text=True, timeout=60).stdout

    def submit(self, *words: str) -> int:
        return int(self.run("submit", "--host", *words))

    def close(self) -> None:
        if jobs := [number.split(",")[0].strip() for number in self.run("queue", "--json").split('"id":')[1:]]:
            self.run("cancel", "-q", *jobs)
        deadline = time.monotonic() + 20
        while '"RUNNING"' in self.run("queue", "--json") and time.monotonic() < deadline:
            time.sleep(0.2)
        self.scheduler.send_signal(signal.SIGTERM)
        self.scheduler.wait(30)


class Site(Connections):
    """Two servers, and a console's connections to them."""

    def __init__(self, directory: Path, sshd: Sshd) -> None:
        self.sshd = sshd
        self.gpus = [Gpus(directory, 1), Gpus(directory, 2)]
        self.settings = [
            ServerSettings(f"gpu{number}", "ssh://lab", " ".join(server.program))
            for number, server in enumerate(self.gpus, 1)
        ]
        super().__init__(self.settings, PATIENCE)

    def close(self) -> None:
        self.there.close(10)
        for server in self.gpus:
            server.close()


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    server = Sshd()
    yield server
    server.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sshd: Sshd) -> Iterator[Site]:
    before = os.environ["PATH"]
    os.environ["PATH"] = sshd.path
    made = Site(tmp_path_factory.mktemp("servers"), sshd)
    made.start()
    yield made
    made.close()
    os.environ["PATH"] = before
