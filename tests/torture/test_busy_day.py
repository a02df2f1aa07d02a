"""Five minutes of a busy day, as operators at terminals of three sizes see it: real jobs, scheduler, consoles.

No operator touches a key. `tests/tui/test_busy_day.py` does the same in seconds, with a clock that is turned.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.engine.leadership import current_leader
from gputui.store import TinyJobStore
from tests import leftovers
from tests.e2e.site import submit_directly
from tests.e2e.terminal import Terminal
from tests.tui.frames import Frame, Watch

pytestmark = [pytest.mark.tmux, pytest.mark.torture, pytest.mark.long, pytest.mark.timeout(1800)]

SECONDS = 15.0
"""Seconds of frames for each unit of `--torture`: `--torture 20` takes five minutes."""
SIZES = ((80, 24), (120, 36), (200, 50))
JOBS, WAITING = 30, 16
"""Number of jobs that come whenever none is left, and of those that wait all the time where there are always more."""
SURE = 3
"""Number of looks at the queue, a second apart, that a state must have lasted to be known to every console."""


class Day:
    """Server whose host jobs take 5 to 20 seconds, a third of which fail."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.environ = {"GPUTUI_CONFIG": "/dev/null", "TMPDIR": str(directory), "TERM": "xterm-256color"}
        options = ["--state", str(self.state), "--runtime", "process", "--probe", "sim:8"]
        self.command = [sys.executable, "-m", "gputui", *options]
        self.store = TinyJobStore(self.state, StoreSettings())
        self._me = pwd.getpwuid(os.getuid())
        self._looks: deque[dict[int, JobState]] = deque(maxlen=SURE)
        self._submitted = 0

    @contextmanager
    def served(self) -> Iterator[None]:
        with subprocess.Popen([*self.command, "serve"], env={**os.environ, **self.environ}) as serving:
            while current_leader(self.state) is None:  # else a console would schedule
                assert serving.poll() is None
                time.sleep(0.05)
            yield
            serving.terminate()
        self.store.close()
        leftovers.end(self.state)

    def submit(self, number: int) -> None:
        for _ in range(number):
            self._submitted += 1
            script = f"echo start; sleep {5 + self._submitted * 7 % 16}; exit {3 * (self._submitted % 3 == 0)}"
            name, gpus = f"train-{self._submitted}", GpuRequest(1, 1)
            spec = JobSpec(command=("sh", "-c", script), name=name, tenant=self._me.pw_name, gpus=gpus)
            assert submit_directly(self.state, [spec]) == (self._submitted,)

    def look(self) -> Counter[JobState]:
        """Note the state of each job; return how many are in each, without those that have ended."""
        self._looks.append({job.id: job.state for job in self.store.jobs().values()})
        return Counter(state for state in self._looks[-1].values() if not state.is_terminal)

    def surely(self, state: JobState) -> frozenset[int]:
        """Return the jobs that were in this state at each of the last looks."""
        sets = [{job for job, found in look.items() if found is state} for look in self._looks]
        return frozenset(set.intersection(*sets)) if len(sets) == SURE else frozenset()


@pytest.mark.parametrize("is_steady", [False, True], ids=["waves", "always-more"])
def test_what_counts_stays_in_sight_and_in_place(tmp_path: Path, torture: float, is_steady: bool) -> None:
    day = Day(tmp_path)
    watches = [Watch(f"{columns}x{lines}") for columns, lines in SIZES]
    with day.served(), ExitStack() as stack:
        terminals = [stack.enter_context(Terminal(day.command, day.environ, *size)) for size in SIZES]
        for terminal, watch in zip(terminals, watches, strict=True):
            shown = terminal.until_that(lambda seen: "H100" in seen and "0 run" in seen)
            watch.look(Frame("quiet", tuple(shown.splitlines())))
        began = time.monotonic()
        for number in range(round(SECONDS * torture)):
            time.sleep(max(0.0, began + number - time.monotonic()))
            live = day.look()
            day.submit(max(0, WAITING - live[JobState.PENDING]) if is_steady else JOBS * (not live.total()))
            seen = [terminal.text for terminal in terminals]
            day.look()
            sure = day.surely(JobState.RUNNING), day.surely(JobState.PENDING)
            for watch, text in zip(watches, seen, strict=True):
                watch.look(Frame(f"{watch.name}, second {number}", tuple(text.splitlines()), *sure))
        for terminal in terminals:
            terminal.press("q")
            terminal.until("EXIT 0")
    print(*watches, sep="\n\n")
    print(*(watch.shares for watch in watches), sep="\n")
    assert [watch.name for watch in watches if not watch.is_right] == []
