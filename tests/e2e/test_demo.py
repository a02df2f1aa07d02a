"""The demo, as a new user sees it: the keys of docs/tour.md, pressed in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.operator import MOST_KEYS, Operator
from tests.e2e.terminal import Terminal
from tests.e2e.test_console import CONSOLE

pytestmark = pytest.mark.tmux
HINT = "Demo, simulated GPUs"


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    environ = {"GPUTUI_CONFIG": "/dev/null", "TMPDIR": str(tmp_path)}
    with Terminal([*CONSOLE, "demo"], environ, 120, 36) as terminal:
        found = Operator(terminal)
        yield found
        terminal.press("q")
        terminal.until("EXIT 0", seconds=60)
    assert list(tmp_path.iterdir()) == []


def first_rows(shown: str) -> list[str]:
    """Return the first six rows of the queue."""
    return shown.partition(" ID ST")[2].splitlines()[1:7]


def test_each_task_of_the_tour_takes_five_keys_at_most(operator: Operator) -> None:
    # the first picture: what is wrong, an hour of history, a line for newcomers
    operator.sees("jupyter-car", "drained", "1 failed in 1h", "llama-7b-sft", HINT)
    operator.sees_that(lambda shown: any(" waiting " in row for row in first_rows(shown)))

    # which container sits on GPU 5: it is there, and its page has image and user
    operator.press("BTab", "G", "Left", "Left", "i")
    shown = operator.sees("GPU 5", "container jupyter-carol", "image jupyter/pytorch", "carol")
    assert HINT not in shown
    assert operator.pressed <= MOST_KEYS
    operator.pressed = 0
    operator.leave("image jupyter/pytorch")
    operator.is_back()

    # the error in a failed job's log
    operator.press("1")
    operator.find("state:failed", "sdxl-lora-1024")
    operator.press("e")
    operator.sees("Traceback (most recent call last):", "error 1 of 2")
    operator.press("1")
    operator.is_back()
    operator.leave("Esc shows all")
    operator.pressed = 0

    # three jobs, each from a line as one would type it in a shell
    for name in ("mine-a", "mine-b", "mine-c"):
        operator.press("s")
        operator.sees("Submit a job")
        operator.type(f"gputui submit --host --gpus 3 --name {name} -- sleep 600")
        operator.press("Enter")
        operator.sees("command      sleep 600")
        operator.press("Enter")
        operator.sees_no_more("Submit a job")
        operator.is_back()

    # one above another: the change is shown before it is made
    operator.find("mine-c", "mine-c")
    operator.press("+")
    operator.sees("What if", "priority 50 -> 60")
    operator.press("Enter")
    operator.sees(" 60 mine-c")
    operator.is_back()

    # why it waits
    operator.press("Enter")
    operator.sees_that(lambda shown: re.search(r" Job #\d+ mine-c", shown) is not None)
    operator.sees("needs 3 GPUs", "1 used by others")
    operator.press("q")
    operator.is_back()
    operator.leave("Esc shows all")

    # a checkpoint of a running job, which goes on
    operator.pressed = 0
    operator.find("llama-7b-sft is:running", "llama-7b-sft")
    operator.press("I")
    operator.sees("USR1")
    operator.press("Enter")
    operator.sees("SIGUSR1 received, saving at step", "checkpoint saved")
    operator.is_back()
    operator.leave("Esc shows all")

    # somebody else's container
    operator.pressed = 0
    operator.press("U")
    operator.sees("GPU USERS", "jupyter-carol")
    operator.press("/")
    operator.type("kind:foreign")
    operator.press("Enter")
    operator.sees_that(lambda shown: "jupyter-carol" in shown and "#" not in shown)
    operator.press("X")
    operator.sees("Stop container jupyter-carol", "stop timeout")
    operator.press("y")
    operator.sees("container jupyter-carol: stopped after")
    assert operator.pressed <= MOST_KEYS
    operator.press("q")
    operator.sees_no_more("GPU USERS")
    operator.sees_no_more("jupyter-carol")


def test_nobody_is_told_about_its_jobs(tmp_path: Path) -> None:
    hook, told, mapping, config = (tmp_path / name for name in ("hook", "told", "mapping", "config.toml"))
    hook.write_text(f"#!/bin/sh\ncat >> {told}\n")
    hook.chmod(0o755)
    mapping.mkdir()
    config.write_text(
        f'[hooks]\non_job_end = ["{hook}"]\non_notice = ["{hook}"]\n'
        f'[metrics]\nenabled = true\nlisten = "127.0.0.1:1"\nhpc_job_mapping_dir = "{mapping}"\n'
        '[report]\nweekly = "Mon 00:00"\n'
        '[traces]\nenabled = true\nendpoint = "http://127.0.0.1:1/v1/traces"\n'
    )
    with Terminal([*CONSOLE, "demo"], {"GPUTUI_CONFIG": str(config), "TMPDIR": str(tmp_path)}, 120, 36) as terminal:
        operator = Operator(terminal)
        operator.sees("1 failed in 1h", "llama-7b-sft", HINT)
        terminal.press("q")
        terminal.until("EXIT 0", seconds=60)
    assert (told.exists(), list(mapping.iterdir())) == (False, [])


def test_keys_that_arrive_together_with_an_escape_act_as_if_pressed_one_by_one(tmp_path: Path) -> None:
    environ = {"GPUTUI_CONFIG": "/dev/null", "TMPDIR": str(tmp_path)}
    with Terminal([*CONSOLE, "demo"], environ, 120, 36) as terminal:
        terminal.until("llama-7b-sft", HINT)
        terminal.press("?")
        terminal.until("/ search")
        terminal.press_at_once("Escape", "s")
        terminal.until("Submit a job")
        terminal.leave("Submit a job")
        terminal.press("j", "c")  # on the first running job
        terminal.until("cancel it")
        terminal.press_at_once("Escape", "Enter")
        terminal.until_that(lambda shown: re.search(r" Job #\d+ ", shown) is not None)
        terminal.until_that(lambda shown: "cancel it" not in shown and "being cancelled" not in shown)
        terminal.press_at_once("Escape", "q")
        terminal.until("EXIT 0", seconds=60)
