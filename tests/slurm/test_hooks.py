"""Hooks over a real Slurm: two processes without a screen, of which the one that runs them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.slurm.bed import PATIENCE, Bed

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

GPUTUI = [sys.executable, "-P", "-m", "gputui"]


@pytest.fixture
def environ(bed: Bed, tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of a user with hooks that write the events into a file."""
    own = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "GPUTUI_STATE")}
    hook = ["sh", "-c", f'echo "$GPUTUI_EVENT $GPUTUI_JOB_ID" >> {tmp_path}/told']
    config = Path(own["XDG_CONFIG_HOME"], "gputui", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f"[hooks]\non_job_end = {hook}\non_notice = {hook}\n")
    logs = {"GPUTUI_CLUSTER": "slurm", "GPUTUI_CLUSTER_LOG_DIRECTORY": str(bed.home("alice") / "logs")}
    return bed.environ | own | logs


@pytest.fixture
def serve(environ: Mapping[str, str]) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Yield a function that starts a process which runs hooks."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([*GPUTUI, "serve"], env=dict(environ)))  # a failed test shows its stderr
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.long
def test_each_end_is_told_once_also_after_the_process_that_tells_was_killed(
    bed: Bed, environ: Mapping[str, str], serve: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    def submit(*command: str) -> str:
        words = [*GPUTUI, "submit", "--host", "--gpus", "1", "--", *command]
        done = subprocess.run(words, env=dict(environ), capture_output=True, text=True, check=True, timeout=PATIENCE)
        return done.stdout.strip()

    def lines(name: str) -> list[str]:
        return [line for path in tmp_path.rglob(name) for line in path.read_text().splitlines()]

    def is_recorded(job: str) -> bool:
        return any(f"job-{job}-" in line for line in lines("told.jsonl"))

    first = serve()
    done = submit("true")
    bed.wait(lambda: is_recorded(done), "the first end is told and recorded")
    second = serve()
    os.kill(first.pid, signal.SIGKILL)
    failed = submit("sh", "-c", "exit 3")
    bed.wait(lambda: is_recorded(failed), "the other process tells the second end")
    # not state=down, which ends with slurmd's next answer, maybe before it was seen
    bed.run("scontrol", "update", "nodename=gpu3", "state=fail", "reason=fan")
    bed.wait(lambda: "node_down " in lines("told"), "the node that went down is told")
    bed.run("scontrol", "update", "nodename=gpu3", "state=resume")
    told = lines("told")  # also ends of jobs that ended before this test
    assert [told.count(line) for line in (f"job_completed {done}", f"job_failed {failed}", "node_down ")] == [1, 1, 1]
    assert len(told) == len(set(told))
    assert second.poll() is None
