"""docs/tour.md: the keys of its table are pressed, at most five for a task, and have the effect that it promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual import events

from tests.cases import cases
from tests.tui.console import Console, steady
from tests.tui.every.hand import Hand
from tests.tui.every.world import Inside, world
from tests.tui.reader import NUMBERED

DOCS = Path(__file__).parents[2] / "docs"
TOUR, TOUR_ZH = DOCS / "tour.md", DOCS / "tour.zh.md"
MOST_KEYS = 5
NAMES = {"Enter": "enter", "+": "plus", "/": "slash"}
RUNNING, WAITING, FAILED = 101, 107, 92
"""Jobs of the sample."""
Truth = Callable[[Console], bool]


@dataclass(frozen=True)
class Task:
    """Words that its row leaves open, and what must be true afterwards."""

    title: str
    is_done: Truth
    words: tuple[str, ...] = ()


def rows(path: Path) -> list[tuple[str, str]]:
    """Return task and keys of each row of the table."""
    lines = [line.split("|") for line in path.read_text().splitlines() if line.startswith("| ")]
    return [(cells[1].strip(), cells[2].strip()) for cells in lines[1:]]


def steps(keys: str) -> list[str]:
    """Return the keys in order, an empty text in place of each typed word."""
    return [key for key, _ in re.findall(r"`([^`]+)`|(\*[^*]+\*)", keys)]


def shows(*words: str) -> Truth:
    return lambda console: all(word in console.screen_text for word in words)


TASKS = (
    Task("Which container sits on GPU 5?", shows("3 jupyter-bob bob")),
    Task("Submit a job", lambda console: "mine" in names(console), ("docker run --name mine --gpus 2 busybox true",)),
    Task("Raise one above another", lambda console: console.store.get(WAITING).priority == 60, ("whisper",)),
    Task("Why does it wait?", shows("Job #107", "needs "), ("whisper",)),
    Task("Where is the error in a failed job's log?", shows("▶RuntimeError: CUDA"), ("state:failed",)),
    Task(
        "Give a running job two more hours",
        lambda console: f"{console.store.get(RUNNING).spec.time_limit}" == "10:00:00",
        ("llama-7b", "+2h"),
    ),
    Task("Let it write a checkpoint", lambda console: ("signal", "job 101") in console.audited(), ("llama-7b",)),
    Task("Suspend it for a while", lambda console: console.store.get(RUNNING).suspended, ("llama-7b",)),
    Task("Open a shell in it", lambda console: ("shell", RUNNING) in inside(console).asked, ("llama-7b",)),
    Task("Keep its log in sight", shows("LOG #101", "● pinned"), ("llama-7b",)),
    Task(
        "Stop somebody else's container",
        lambda console: console.containers is not None and bool(console.containers.stopped),
        ("jupyter",),
    ),
    Task(
        "End somebody else's process",
        lambda console: console.host is not None and console.host.sent == [(22110, 15)],
        ("pid:22110",),
    ),
)


def names(console: Console) -> set[str | None]:
    return {job.spec.name for job in console.store.jobs().values()}


def inside(console: Console) -> Inside:
    assert isinstance(console.inside, Inside)
    return console.inside


def test_the_tables_have_these_tasks_and_the_same_keys() -> None:
    assert [title for title, _ in rows(TOUR)] == [task.title for task in TASKS]
    assert [steps(keys) for _, keys in rows(TOUR)] == [steps(keys) for _, keys in rows(TOUR_ZH)]


@pytest.mark.usefixtures("drawn")
@cases("task", TASKS)
async def test_each_task_takes_five_keys_at_most(task: Task) -> None:
    console, words = world(what_if="always"), iter(task.words)
    console.logs.lines[FAILED] = [*NUMBERED, b"RuntimeError: CUDA out of memory", *NUMBERED]
    pressed = 0
    async with console.app.run_test(size=(120, 36)) as pilot:
        hand = Hand(console, pilot)
        await console.begin(pilot)
        for key in steps(dict(rows(TOUR))[task.title]):
            if key:
                pressed += 1
                await hand.press(NAMES.get(key, key))
            else:
                console.app.post_message(events.Paste(next(words)))
            await steady(pilot)
        await console.settle(pilot)
        await hand.until(lambda: task.is_done(console), task.title)
    assert pressed <= MOST_KEYS
    assert next(words, None) is None
