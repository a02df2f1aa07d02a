"""The console and the commands over a real Slurm, as people use them: in a terminal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal
from tests.runtime.dockerd import NETWORK
from tests.slurm.bed import IMAGE, PATIENCE, Bed

pytestmark = [pytest.mark.slurm, pytest.mark.tmux, pytest.mark.xdist_group("slurm")]

GPUTUI = [sys.executable, "-P", "-m", "gputui"]


@pytest.fixture
def environ(bed: Bed, tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of an operator of the cluster, whose files lie in the test's directory."""
    own = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "GPUTUI_STATE")}
    logs = str(bed.home("alice") / "logs")
    return bed.environ | own | {"GPUTUI_CLUSTER": "slurm", "GPUTUI_CLUSTER_LOG_DIRECTORY": logs, "TZ": "UTC"}


@pytest.fixture
def console(environ: Mapping[str, str]) -> Iterator[Terminal]:
    with Terminal(GPUTUI, environ, 120, 36) as terminal:
        yield terminal


def gputui(environ: Mapping[str, str], *words: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(
        [*GPUTUI, *words], env=dict(environ), capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return done.stdout.strip()


def test_a_job_is_seen_followed_and_cancelled(bed: Bed, environ: Mapping[str, str], console: Terminal) -> None:
    console.until("● Slurm", "▾ gpu1", "no readings: no probe on this node")
    script = "echo hello from the node; sleep 600"
    job = gputui(environ, "submit", "--host", "--gpus", "1", "--name", "seen", "--", "sh", "-c", script)
    console.until(" seen ")
    console.press("/")
    console.press("-l", "name:seen")
    console.press("Enter")  # the cursor is on it, whatever other jobs there are
    console.until("1 run", "LOG #", "hello from the node")
    assert gputui(environ, "logs", job) == "hello from the node"
    console.press("c")
    console.until("Cancel job")
    console.press("y")
    console.until("0 run", "cancelled")
    bed.wait(lambda: bed.jobs()[int(job)] == "CANCELLED", "the job is cancelled")


def test_a_console_serves_metrics_of_the_cluster(bed: Bed, environ: Mapping[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Path(environ["XDG_CONFIG_HOME"], "gputui", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[metrics]\nenabled = true\nlisten = "127.0.0.1:{port}"\n')

    def nodes() -> list[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
                return re.findall(r'^gputui_node_up\{hostname="(\w+)"\} 1.0$', page.read().decode(), re.MULTILINE)
        except OSError:
            return []

    with Terminal(GPUTUI, environ, 120, 36) as console:
        console.until("● Slurm")
        bed.wait(lambda: sorted(nodes()) == ["gpu1", "gpu2", "gpu3"], "the console serves the nodes")
    [turn] = Path(environ["GPUTUI_STATE"]).rglob("metrics-*.duty")
    turn.unlink()
    with Terminal([*GPUTUI, "--read-only"], environ, 120, 36) as console:
        console.until("● Slurm", "gpu3")  # duties are taken before a snapshot is shown
        assert not turn.exists()


def test_output_is_followed_while_the_job_runs(bed: Bed, environ: Mapping[str, str]) -> None:
    script = "echo hello; sleep 600"
    job = gputui(environ, "submit", "--host", "--name", "followed", "--", "sh", "-c", script)
    words = [*GPUTUI, "logs", "-f", job]
    with subprocess.Popen(words, env=dict(environ), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "hello\n"
        assert bed.jobs()[int(job)] == "RUNNING"
        gputui(environ, "cancel", job)
        assert following.wait(PATIENCE) == 0


def test_a_job_with_a_terminal_is_left_attached_to_and_entered(environ: Mapping[str, str], console: Terminal) -> None:
    words = ["run", "-it", "--network", NETWORK, "--name", "lab", IMAGE, "sh"]
    with Terminal([*GPUTUI, *words], environ, 90, 24) as terminal:
        terminal.until("/ #")
        terminal.press("mine=kept; until stty size; do :; done", "Enter")  # docker's client sets it after the start
        terminal.until("24 90")
        terminal.press("C-p", "C-q")
        terminal.until("keeps running", "EXIT 0")
    console.until(" lab ")
    console.press("/")
    console.press("-l", "name:lab")
    console.press("Enter")  # the cursor is on it, whatever other jobs there are
    console.until_that(lambda shown: re.search(r"running +50 lab ", shown) is not None, "the job runs")
    console.press("x")
    console.until("container gputui-", "/ #")
    console.press("cat /proc/1/comm; exit", "Enter")
    console.until(" lab ", "LOG #")
    [job] = [row["id"] for row in json.loads(gputui(environ, "queue", "--json")) if row["name"] == "lab"]
    with Terminal([*GPUTUI, "attach", str(job)], environ, 90, 24) as terminal:
        terminal.until("/ #")
        terminal.press("echo $mine; exit 6", "Enter")
        terminal.until("kept", "exit code 6", "EXIT 6")
