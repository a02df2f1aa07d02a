"""docs/tour.md, as a new operator walks it: a real terminal, a real engine, five keys at most for each task."""

from __future__ import annotations

from collections.abc import Iterator

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

    def type(self, text: str) -> None:
        self._terminal.press("-l", text)

    def sees(self, *wanted: str) -> str:
        return self._terminal.until(*wanted)

    def is_back(self) -> None:
        """On the main screen again; the next task's keys are counted anew."""
        assert self.pressed <= MOST_KEYS
        self.sees("1 queue", "s submit")
        self.pressed = 0


@pytest.fixture
def operator(site: Site) -> Iterator[Operator]:
    site.engine.docker(
        "run", "-d", "--name", "jupyter-carol", "--network", "none", "--gpus", '"device=5"', IMAGE, "sleep", "600"
    )
    site.shell(FAILS, "--gpus", "1", "--name", "bad-run")
    site.shell("sleep 600", "--gpus", "4", "--name", "big", "--time-limit", "2h")
    site.config.write_text('[scheduler]\nhand_over = "never"\n[console]\ntoast = "none"\n')
    with Terminal(CONSOLE, site.environ, 120, 30) as terminal:
        found = Operator(terminal)
        found.sees("1 running", "1 failed")
        yield found
        terminal.press("q")
        terminal.until("EXIT 0")


def test_each_task_takes_five_keys_at_most(operator: Operator, site: Site) -> None:
    # which container sits on GPU 5: no key, it is there
    shown = operator.sees("container jupyter-carol").splitlines()
    row = next(number for number, line in enumerate(shown) if " 5 H100" in line)
    assert shown[row].index(" 5 H100") < shown[row + 1].index("jupyter-carol") < shown[row].index(" 6 H100")

    # the error in a failed job's log
    operator.press("G", "e")
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
    operator.press("G", "k", "+")
    operator.sees("What if", "priority 50 -> 60", "earlier")
    operator.press("Enter")
    site.until(lambda: site.jobs()[5]["priority"] == 60)
    operator.is_back()

    # why the third waits
    operator.press("j", "Enter")
    operator.sees("Priority: 1 job ahead of it; needs 4 GPUs: 0 free", "starts")
    operator.press("Escape")
    operator.is_back()
