"""The tests' own engine leaves nothing behind, not even when its owner is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.dockerd import IMAGE, Dockerd, processes_of

pytestmark = pytest.mark.docker


def run_one() -> tuple[subprocess.Popen[str], Path]:
    """Run an engine in another process; yield process and directory."""
    words = [sys.executable, "-m", "tests.runtime.dockerd"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        said = out.readline()
    return process, Path(said.strip().removeprefix("DOCKER_HOST=unix://")).parent


def test_dockerd_is_cleaned_up_on_sigterm() -> None:
    process, directory = run_one()
    assert (directory / "docker.sock").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not directory.exists()


def test_the_next_owner_removes_the_leftovers_of_a_killed_one() -> None:
    process, directory = run_one()
    host = {**os.environ, "DOCKER_HOST": f"unix://{directory}/docker.sock"}
    subprocess.run(["docker", "run", "-d", IMAGE, "sleep", "600"], env=host, check=True, capture_output=True)
    process.kill()
    process.wait(60)
    assert len(list(processes_of(directory))) >= 4
    after = Dockerd()
    try:
        after.start()
        assert not directory.exists()
        assert list(processes_of(directory)) == []
    finally:
        after.destroy()
