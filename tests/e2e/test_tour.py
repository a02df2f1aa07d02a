"""docs/tour.md, as a new operator walks it: a real terminal, a real engine, five keys at most for each task."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.site import Site
from tests.e2e.terminal import Terminal
from tests.e2e.test_console import CONSOLE
from tests.runtime.dockerd import IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.tmux]

FAILS = (
    'for i in $(seq 300); do echo "step $i"; done; echo "Traceback (most recent call last):"; '
    'echo "torch.cuda.OutOfMemoryError: CUDA out of memory"; for i in $(seq 60); do echo "cleanup $i"; done; exit 1'
)
RUNS = 'trap "echo got-usr1" USR1; while true; do sleep 0.2; done'
MOST_KEYS = 5


class Operator:
    """Presses keys, and counts those that are not just words typed."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.pressed = 0

    def press(self, *keys: str) -> Operator:
        self.pressed += len(keys)
        self._terminal.press(*keys)
        return self

    def click(self, word: str, *, times: int = 1) -> Operator:
        """Click on a word; a double click is one gesture."""
        self.pressed += 1
        self._terminal.click(word, times=times)
        return self

    def right_click(self, word: str) -> Operator:
        """Open the menu of a row."""
        self.pressed += 1
        self._terminal.click(word, button=2)
        return self

    def resize(self, columns: int, lines: int) -> None:
        self._terminal.resize(columns, lines)

    def type(self, text: str) -> None:
        self._terminal.press("-l", text)

    def sees(self, *wanted: str) -> str:
        return self._terminal.until(*wanted)

    def sees_that(self, condition: Callable[[str], bool]) -> str:
        return self._terminal.until_that(condition)

    def sees_no_more(self, word: str) -> None:
        self._terminal.until_gone(word)

    def is_back(self) -> None:
        """Return to the main screen; the next task's keys are counted from zero."""
        assert self.pressed <= MOST_KEYS
        self.sees_that(_is_main)
        self.pressed = 0


def _is_main(shown: str) -> bool:
    """Whether the main screen is there and nothing lies on it: what it shows is seen beside a dialog, too."""
    return all(word in shown for word in (" ID ST", "s submit", "q quit")) and "╭" not in shown


@contextmanager
def opened(site: Site, columns: int, lines: int) -> Iterator[Operator]:
    """A console beside somebody else's container, with a failed job and one that runs."""
    carol = ("--name", "jupyter-carol", "--network", "none", "--stop-timeout", "0", "--gpus", '"device=5"')
    site.engine.docker("run", "-d", *carol, IMAGE, "sleep", "600")
    site.shell(FAILS, "--gpus", "1", "--name", "bad-run")
    site.shell(RUNS, "--gpus", "4", "--name", "big", "--time-limit", "2h")
    site.config.write_text('[scheduler]\nhand_over = "never"\n[console]\ntoast = "none"\n')
    with Terminal(CONSOLE, site.environ, columns, lines) as terminal:
        found = Operator(terminal)
        found.sees(" 1 run", "1 failed")
        yield found
        terminal.press("q")
        terminal.until("EXIT 0")


@pytest.fixture
def operator(site: Site) -> Iterator[Operator]:
    with opened(site, 120, 30) as found:
        yield found


def test_each_task_takes_five_keys_at_most(operator: Operator, site: Site) -> None:
    # which container sits on GPU 5: no key, it is there
    shown = operator.sees("foreign jupyter-carol").splitlines()
    assert any(line.split()[:2] == ["5", "H100"] and "foreign jupyter-carol" in line for line in shown)

    # the error in a failed job's log
    operator.press("g", "e")
    operator.sees("Traceback (most recent call last):", "CUDA out of memory")
    operator.press("1")
    operator.is_back()

    # three jobs, each from the docker run line that one had anyway
    for number, gpus in enumerate((3, 4, 3), 3):
        operator.press("s")
        operator.sees("Submit a job")
        operator.type(f"docker run --network none --gpus {gpus} {IMAGE} sleep 600")
        operator.press("Enter")
        operator.sees("image       gputui-test", "command     sleep 600")
        operator.press("Enter")
        site.until(lambda wanted=number: wanted in site.jobs())  # type: ignore[misc]
        operator.is_back()
    site.until_state(3, "RUNNING")

    # one above another: the change is shown before it is made
    operator.press("G", "+")
    operator.sees("What if", "priority 50 -> 60", "earlier")
    operator.press("Enter")
    site.until(lambda: site.jobs()[5]["priority"] == 60)
    operator.is_back()

    # why the third waits
    operator.press("j", "Enter")
    operator.sees("Priority: 1 job ahead of it; needs 4 GPUs: 0 free", "starts")
    operator.press("Escape")
    operator.is_back()


def test_everyday_tasks_take_five_keys_at_most(site: Site) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        with opened(site, 200, 50) as operator:
            operator.sees("GPU 5 in foreign use")
            site.gpus.change(f"gpu 6 process {other.pid} 5000 C")
            by_keys(operator)
            by_mouse(operator, other)
    finally:
        other.kill()
        other.wait()


def by_keys(operator: Operator) -> None:
    # the load of all GPUs, and which job failed why: no key
    operator.sees("8 GPUs  0%", "torch.cuda.OutOfMemoryError: CUDA out of memory", "in foreign use")

    # more time for a running job
    operator.press("G", "e")
    operator.sees("Edit job #2 big")
    operator.type("+2h")
    operator.press("Enter")
    operator.sees("What if")
    operator.press("Enter")
    operator.sees(" / 4h")
    operator.is_back()

    # a signal for it
    operator.press("I", "Enter")
    operator.sees("got-usr1")
    operator.is_back()

    # suspended, and on again
    operator.press("Z")
    operator.sees("2 suspended")
    operator.press("Z")
    operator.sees("2 running")
    operator.is_back()

    # a shell in it
    operator.press("x")
    operator.sees("brings the console back")
    operator.type("exit")
    operator.press("Enter")
    operator.is_back()

    # its log stays while the cursor moves, until that of another job is pinned
    operator.press("p", "g")
    operator.sees("LOG #2 big", "pinned")
    operator.press("p")
    operator.sees("LOG #1 bad-run  ● pinned")
    operator.is_back()

    # a container of others is stopped
    operator.press("U")
    operator.sees("2 foreign", "jupyter-carol", "sleep 600")
    operator.press("X")
    operator.sees("Stop container jupyter-carol")
    operator.press("y")
    operator.sees("1 foreign")
    operator.press("Escape")
    operator.is_back()


def by_mouse(operator: Operator, other: subprocess.Popen[bytes]) -> None:
    operator.sees(" ID STATE ")
    operator.sees_no_more("L shows pinned logs")  # a message over rows that are clicked on
    operator.resize(80, 24)
    operator.sees_that(lambda shown: " ID ST " in shown and " 50 big" in shown and "q quit" in shown)

    # more time for a running job, by the menu of its row
    operator.right_click(" 50 big").click("edit")
    operator.sees("Edit job #2 big")
    operator.type("+1h")
    operator.sees("+1h")
    operator.click(" save")
    operator.sees("What if")
    operator.click("commit")
    operator.sees(" / 5h")
    operator.is_back()

    # suspended, and on again
    operator.right_click(" 50 big").click("suspend")
    operator.sees("2 S ")
    operator.right_click(" 50 big").click("unsuspend")
    operator.sees("2 R ")
    operator.is_back()

    # a log is let go, and pinned again, by a click on its title
    operator.click("LOG #1 bad-run")
    operator.sees("LOG #1 bad-run  ended")
    operator.click("LOG #1 bad-run")
    operator.sees("LOG #1 bad-run  ● pinned")
    operator.is_back()

    # a process of others is ended, by the page of its GPU
    operator.click(" 6 H100", times=2).click("GPU users")
    operator.sees("sleep 600", "send TERM")
    operator.click("send TERM").click("yes")
    assert other.wait(60) == -signal.SIGTERM
    assert operator.pressed <= MOST_KEYS
    operator.pressed = 0
    operator.click("back")
    operator.sees("next GPU")
    operator.click("back")
    operator.is_back()
