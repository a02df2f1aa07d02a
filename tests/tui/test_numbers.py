"""Each number on the screen is that of `--json` from the same snapshot, behind dialogs and on pages too."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from gputui.domain.as_json import gpu_json, job_json, json_text
from gputui.domain.snapshot import Snapshot
from gputui.tui.screens.pages import Detail, GpuDetailScreen
from gputui.tui.screens.process_view import GpuProcessesScreen
from tests.lane import in_its_lane
from tests.tui.busy_day import Day
from tests.tui.console import Console, steady, text_of
from tests.tui.every import stages_dialogs, stages_screens
from tests.tui.every.hand import Hand

MOMENTS = 20
GIB = 1024**3
HIDDEN = "?"
"""Character in place of what a dialog covers."""
Json = Mapping[str, Any]
Figures = Iterator[tuple[str, str, object]]
"""What a number is of, the number as shown, and what it should be."""
STATES = {
    "PENDING": {"PD", "waiting"},
    "CONFIGURING": {"CF", "starting"},
    "RUNNING": {"R", "running"},
    "COMPLETING": {"CG", "ending"},
    "COMPLETED": {"CD", "completed"},
    "FAILED": {"F", "failed"},
}
READINGS = {
    "utilization": (r"UTL[^?]*?(?<![?\d])(\d+)%", 0.01),
    "memory_used": (r"MEM[^?]*?(?<![?\d.])([\d.]+)/\d+G", GIB),
    "power": (r"PWR[^?]*?(?<![?\d])(\d+)/\d+W", 1),
    "temperature": (r"TMP[^?]*?(?<![?\d])(\d+)°", 1),
}
"""Each reading of a card, and the size of its unit."""
ROW = re.compile(r"^.\s*(\d) [^?]*? (\d+)% [^?]*?([\d.]+)/\d+G +(\d+)W +(\d+)°")


class Told:
    """Output of `gpus --json` and `queue --all --json` for a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.at = snapshot.taken_at
        self.gpus: list[Json] = json.loads(json_text([gpu_json(view) for view in snapshot.gpus]))
        self.jobs: dict[int, Json] = {
            job["id"]: job for job in json.loads(json_text([job_json(job, snapshot) for job in snapshot.jobs]))
        }

    def count(self, *states: str) -> int:
        return sum(job["state"] in states for job in self.jobs.values())

    def elapsed(self, job: Json) -> str:
        """Return how long it has run, as minutes and seconds."""
        end = datetime.fromisoformat(job["ended_at"]) if job["ended_at"] else self.at
        seconds = int((end - datetime.fromisoformat(job["started_at"])).total_seconds())
        return f"{seconds // 60}:{seconds % 60:02}"

    def gpu_of(self, job: Json) -> Json:
        return next(gpu for gpu in self.gpus if gpu["uuid"] in job["attempts"][-1]["gpus"])


def status_figures(lines: list[str], told: Told) -> Figures:
    if HIDDEN in lines[0]:
        return
    found = re.search(r"(\d+) run\w* +(\d+) wait\w*.*?(\d+)(?:/| of )?(\d*)(?: GPUs)? free", lines[0])
    assert found, lines[0]
    yield "running jobs", found[1], told.count("RUNNING", "CONFIGURING", "COMPLETING")
    yield "waiting jobs", found[2], told.count("PENDING")
    yield "free GPUs", found[3], sum(gpu["state"] == "FREE" for gpu in told.gpus)
    yield "GPUs", found[4] or "8", len(told.gpus)


def table_figures(lines: list[str], told: Told) -> Figures:
    for found in filter(None, map(ROW.match, lines)):
        gpu = told.gpus[int(found[1])]
        for number, (name, (_, unit)) in enumerate(READINGS.items(), 2):
            yield f"{name} of GPU {found[1]}", found[number], gpu[name] / unit


def card_figures(lines: list[str], told: Told) -> Figures:
    titles = [(at, found) for at, line in enumerate(lines) for found in re.finditer(r"(?<!\d)(\d) H100", line)]
    for at, title in titles:
        ends = [other.start() for below, other in titles if below == at and other.start() > title.start()]
        card = [line[title.start() : min(ends, default=len(line))] for line in lines[at + 1 : at + 5]]
        for line in card:
            for name, (pattern, unit) in READINGS.items():
                if found := re.match(pattern, line):
                    yield f"{name} of GPU {title[1]}", found[1], told.gpus[int(title[1])][name] / unit


def queue_figures(lines: list[str], told: Told) -> Figures:
    begins = next((at for at, line in enumerate(lines) if re.match(r"^.\s+ID ST", line)), len(lines))
    for line in lines[begins:]:
        found = re.match(r"^.\s*(\d+)\s+(\S+) .* (train-\d+) ([^?]*)", line)
        if found is None:
            continue
        job = told.jobs[int(found[1])]
        yield f"name of job {found[1]}", found[3], job["name"]
        assert found[2] in STATES[job["state"]], (line, job["state"])
        if (ran := re.search(r" (\d+:\d\d) ", found[4])) and job["started_at"]:
            yield f"time of job {found[1]}", ran[1], told.elapsed(job)
        if (where := re.search(r"GPU (\d) · (\d+)%", found[4])) and job["state"] == "RUNNING":
            gpu = told.gpu_of(job)
            yield f"GPU of job {found[1]}", where[1], str(gpu["index"])
            yield f"load of job {found[1]}", where[2], gpu["utilization"] * 100


def main_figures(lines: list[str], told: Told) -> Figures:
    """Return all numbers of the main screen."""
    yield from status_figures(lines, told)
    yield from table_figures(lines, told)
    yield from card_figures(lines, told)
    yield from queue_figures(lines, told)


def gpu_page_figures(lines: list[str], told: Told) -> Figures:
    text = "\n".join(lines)
    gpu = told.gpus[int(_found(r"GPU (\d) ", text))]
    yield "utilisation", _found(r"utilisation +(\d+)%", text), gpu["utilization"] * 100
    yield "memory", _found(r"memory +([\d.]+)/", text), gpu["memory_used"] / GIB
    yield "power", _found(r"power +(\d+)W of", text), gpu["power"]
    yield "temperature", _found(r"temperature +(\d+)°", text), gpu["temperature"]


def job_page_figures(lines: list[str], told: Told) -> Figures:
    text = "\n".join(lines)
    job = told.jobs[int(_found(r"Job #(\d+)", text))]
    yield "state", _found(r"state +([A-Z]+)", text), job["state"]
    if job["state"] == "RUNNING":
        gpu = told.gpu_of(job)
        found = re.search(r"GPU (\d) .*?(\d+)% +([\d.]+)/\d+G +(\d+)° +(\d+)W", text)
        assert found, text
        shown = ("index", 1), ("utilization", 0.01), ("memory_used", GIB), ("temperature", 1), ("power", 1)
        for number, (name, unit) in enumerate(shown, 1):
            yield name, found[number], gpu[name] / unit


def users_figures(lines: list[str], told: Told) -> Figures:
    for found in filter(None, (re.match(r"^. *(\d+) .* (\d) +#(\d+) .* ([\d.]+)G ", line) for line in lines)):
        gpu = told.gpus[int(found[2])]
        [holder] = [each for each in gpu["holders"] if each["pid"] == int(found[1])] or [None]
        yield f"job of pid {found[1]}", found[3], str(gpu["job_id"])
        if holder:
            yield f"memory of pid {found[1]}", found[4], holder["memory"] / GIB


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return found[1]


async def nothing(hand: Hand) -> None:
    """Leave the main screen as it is."""


async def job_page(hand: Hand) -> None:
    hand.main.action_detail()
    await hand.opened(Detail)


async def gpu_page(hand: Hand) -> None:
    hand.grid.focus()
    hand.grid.move_to(3)
    await hand.breathe()
    hand.main.action_gpu()
    await hand.opened(GpuDetailScreen)


async def gpu_users(hand: Hand) -> None:
    hand.app.action_gpu_processes()
    await hand.opened(GpuProcessesScreen)


Situation = tuple[Callable[[Hand], Awaitable[None]], Callable[[list[str], Told], Figures]]
SITUATIONS: tuple[Situation, ...] = (
    (nothing, main_figures),
    (stages_dialogs.help_, main_figures),
    (gpu_page, gpu_page_figures),
    (stages_dialogs.notices, main_figures),
    (job_page, job_page_figures),
    (stages_screens.form, main_figures),
    (gpu_users, users_figures),
    (stages_dialogs.themes, main_figures),
    (stages_screens.columns, main_figures),
)
"""What is open, and the numbers that can be read then."""
LEAST, LEAST_BEHIND = 40, {(80, 24): 150, (200, 50): 400}
"""Numbers on the main screen at least, and beside all dialogs together."""


def seen_of(console: Console) -> list[str]:
    """Return the lines of the screen, without what a dialog covers."""
    lines = [list(line) for line in text_of(console.app).splitlines()]
    screen: Screen[Any] = console.app.screen
    for box in screen.children if screen.is_modal else ():
        for y in box.region.line_range:
            lines[y][slice(*box.region.column_span)] = HIDDEN * box.region.width
    return ["".join(line) for line in lines]


def is_right(shown: str, true: object) -> bool:
    """Return whether a number is the true one, rounded to its last figure."""
    if not isinstance(true, float):
        return shown == str(true)
    return abs(float(shown) - true) <= 0.5 * 0.1 ** len(shown.partition(".")[2]) + 1e-9


def check(console: Console, read: Callable[[list[str], Told], Figures], told: Told) -> int:
    """Compare all numbers that can be read, and return how many they are."""
    lines = seen_of(console)
    figures = list(read(lines, told))
    wrong = [figure for figure in figures if not is_right(*figure[1:])]
    assert not wrong, f"{wrong}\n" + "\n".join(lines)
    return len(figures)


@pytest.mark.parametrize("size", [(80, 24), in_its_lane((200, 50), is_long=True)], ids=str)
async def test_each_number_on_the_screen_is_that_of_the_json(tmp_path: Path, size: tuple[int, int]) -> None:
    day, console = Day(tmp_path, seed=7), Console()

    async def second() -> Snapshot:
        snapshot = day.second(waiting=9)
        console.clock.time = snapshot.taken_at
        await console.show(pilot, snapshot)
        return snapshot

    behind = 0
    async with console.app.run_test(size=size) as pilot:
        hand = Hand(console, pilot)
        for _ in range(6):
            await second()
        for number, (open_, read) in enumerate(islice(cycle(SITUATIONS), MOMENTS)):
            await open_(hand)
            for _ in range(1 + number % 3):
                snapshot = await second()
            await steady(pilot)
            told = Told(snapshot)
            behind += check(console, read, told)
            while len(console.app.screen_stack) > 1:
                console.app.pop_screen()
                await pilot.pause()
            assert check(console, main_figures, told) >= LEAST
    assert behind >= LEAST_BEHIND[size]
