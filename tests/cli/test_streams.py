"""Commands with an unwritable standard output: a completed action is not reported as a failure."""

from __future__ import annotations

import shlex
import subprocess
import sys
from itertools import cycle
from pathlib import Path

from gputui.store import TinyJobStore
from tests.cases import cases

HOST = "submit --host --hold -- true"
ACTS = {
    HOST: "job 1 is in the queue",
    f"{HOST[:-7]} --array 1-3 -- true": "jobs 1-3 are in the queue",
    "submit --json --host --hold -- true": "job 1 is in the queue",
    "cron add '0 3 * * *' -- --host -- true": "recurring job 1 is added",
    "reserve add --gpus 1 --start 2030-01-01T00:00Z --for 1h": "added reservation r1",
}
STREAMS = {"> /dev/full": "no space left on device", ">&-": "bad file descriptor", "| true": "broken pipe"}


def shell(state: Path, line: str) -> subprocess.CompletedProcess[str]:
    program = f"{shlex.quote(sys.executable)} -m gputui --state {state} --probe sim:2 --runtime process"
    script = f"set -o pipefail; {program} {line}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)


@cases(("act", "stream"), [(HOST, ">&-"), *zip(ACTS, cycle(["> /dev/full", ">&-"]))])
def test_the_confirmation_goes_to_stderr(tmp_path: Path, act: str, stream: str) -> None:
    done = shell(tmp_path / "state", f"{act} {stream}")
    assert (done.returncode, done.stdout) == (0, "")
    said = f"gputui: {ACTS[act]}; this could not be printed on standard output: {STREAMS[stream]}\n"
    assert done.stderr.splitlines(keepends=True)[-1] == said


def test_a_confirmation_into_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    done = shell(tmp_path / "state", f"{HOST} | sleep 0.01")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_submit_with_all_streams_closed_works_and_overwrites_no_file(tmp_path: Path) -> None:
    assert shell(tmp_path / "state", f"{HOST} <&- >&- 2>&-").returncode == 0
    store = TinyJobStore(tmp_path / "state")
    assert list(store.jobs()) == [1]
    store.close()


@cases("stream", ["> /dev/full", ">&-"])
def test_an_unwritable_stdout_fails_a_listing(tmp_path: Path, stream: str) -> None:
    done = shell(tmp_path / "state", f"queue {stream}")
    assert done.returncode == 1
    assert done.stderr.startswith("gputui: error: ")
    assert done.stderr.lower().endswith(f"{STREAMS[stream]}\n")
