"""Pictures of every screen and every dialog."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.screen import Screen

import gputui.tui
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.tui.actions import ExitChoice
from gputui.tui.screens.dialogs import Choose, ColumnChooser, Confirm, CopyDialog, LeaveDialog, Prompt, Themes
from gputui.tui.screens.forms import Reserve, Submit
from gputui.tui.screens.help import Help, Notices
from gputui.tui.screens.log_pane import LogPrompt
from gputui.tui.screens.logs import LogsScreen
from gputui.tui.screens.main import Main
from gputui.tui.screens.menu import CommandFinder, Menu
from gputui.tui.screens.pages import Detail, GpuDetailScreen, ProcessesScreen
from gputui.tui.screens.process_view import ContainerScreen, GpuProcessesScreen, ProcessPage
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.job_table import JobTable
from tests.cases import cases
from tests.factories import NOW, recurring
from tests.tui import plans, sample
from tests.tui.console import Console
from tests.tui.foresight import watched
from tests.tui.occupied import occupied, occupied_console
from tests.tui.pictures import SIZES, Look, looks_as_it_did, sizes_of, text_of
from tests.tui.test_commands_inside import FakeInside
from tests.tui.test_commands_notices import job_over
from tests.tui.test_pictures import Compare
from tests.tui.test_queue import ended, kept, with_array

HOUR = timedelta(hours=1)


def whole() -> Snapshot:
    """Return the usual day, with a job of which every field is known."""
    return sample.with_job(sample.rich_snapshot(), [sample.secret_job()])


def standing() -> Snapshot:
    """An array, recurring jobs, and reservations in each state."""
    views = (
        WindowView(kept(), WindowState.ACTIVE, "command", lapses_at=NOW + HOUR / 2),
        WindowView(plans.KEPT.reservations[0], WindowState.UPCOMING),
        WindowView(replace(kept(), name="demo day", end=NOW + HOUR), WindowState.RELEASED, released_at=NOW - HOUR),
    )
    return replace(with_array(), recurring=(recurring(id=7, name="nightly"),), windows=views)


def history(since: datetime | None) -> Iterator[Job]:
    return iter([ended(5, 3), ended(4, 5)])


def with_past(snapshot: Snapshot) -> Console:
    """Return a console with jobs that ended days ago."""
    return Console(snapshot, past=history)


def with_inside(snapshot: Snapshot) -> Console:
    """Return a console that can open shells in jobs."""
    return Console(snapshot, inside=FakeInside())


def with_templates(snapshot: Snapshot) -> Console:
    """A console with the templates of the directory it is in."""
    return Console(snapshot, templates=Path("templates"))


async def happened(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Open the notices after one job failed, one completed and a GPU fell sick."""
    jobs: list[Job] = [job_over(101), job_over(104)]
    lost = sample.gpus()[7]
    now = sample.with_job(replace(sample.with_node(gpus=(*sample.gpus()[:7], lost))), jobs)
    await console.show(pilot, now)
    await console.press(pilot, "exclamation_mark")


async def right_click(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """The menu of a waiting job."""
    queue = console.app.screen.query_one(JobTable)
    row = list(queue.keys).index(107)
    queue.move_to(row)
    await pilot.click(queue, offset=(20, queue.head + row - queue.top), button=3)
    await pilot.pause()


async def _shown(console: Console, pilot: Pilot[ExitChoice], text: str) -> None:
    """Wait until a text is on the screen."""
    for _ in range(1000):
        if text in console.screen_text:
            return
        await pilot.pause(0.01)
    raise AssertionError(console.screen_text)


async def process_view(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait for the processes, and select the foreign one."""
    await _shown(console, pilot, "3 processes")
    await pilot.press("G")


async def process_tree(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Show the processes as a tree."""
    await process_view(console, pilot)
    await pilot.press("t")
    await _shown(console, pilot, " 299 ")


async def process_page(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Open the page of the foreign process."""
    await process_view(console, pilot)
    await pilot.press("enter")
    await _shown(console, pilot, "WANDB_MODE")


async def signal_question(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Ask whether to kill the foreign process."""
    await process_view(console, pilot)
    await pilot.press("K")


async def container_page(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Open the page of the container."""
    await process_view(console, pilot)
    await pilot.press("k", "enter")
    await _shown(console, pilot, "/data/bob")
    await _shown(console, pilot, "kernel busy")


async def undone(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Undo an action."""
    await console.press(pilot, *"jjj", "h")
    await console.press(pilot, "u")


SCREENS = {
    "log-typed": Look(LogPrompt, ("tab", "ampersand", *"loss")),
    "reserve": Look(Reserve, ("B",)),
    "help": Look(Help, ("question_mark",)),
    "help-of-log": Look(Help, ("tab", "question_mark")),
    "menu": Look(Menu, then=right_click),
    "confirm": Look(Confirm, ("c",)),
    "prompt": Look(Prompt, ("P",)),
    "leave": Look(LeaveDialog, ("q",)),
    "copy": Look(CopyDialog, ("y",), whole),
    "columns": Look(ColumnChooser, ("vertical_line", "j", "space"), with_array),
    "edit-wrong": Look(Submit, (*"jjjjj", "e", "x")),
    "themes": Look(Themes, ("ctrl+t", "down", "down")),
    "palette": Look(CommandFinder, ("colon",)),
    "palette-typed": Look(CommandFinder, ("colon", *"pri")),
    "notices": Look(Notices, ("exclamation_mark",), sample.warned),
    "notices-before": Look(Notices, then=happened),
    "detail": Look(Detail, ("enter",), whole),
    "detail-waiting": Look(Detail, (*"jjjjj", "enter")),
    "detail-failed": Look(Detail, ("2", "j", "enter")),
    "processes": Look(ProcessesScreen, ("X",), make=with_inside),
    "gpu-free": Look(GpuDetailScreen, ("shift+tab", "G", "i", *(["left"] * 3)), sample.linked),
    "choose-template": Look(Choose, ("s", "ctrl+l"), make=with_templates),
    "logs-four": Look(LogsScreen, (*"pjpjpjp", "L"), plans.contended),
    "timeline": Look(TimelineScreen, ("T", "i", "j", "greater_than_sign"), plans.contended, watched),
    "what-if-drain": Look(WhatIf, ("shift+tab", "j", "d"), plans.contended, watched),
    "filter": Look(Main, ("slash", *"bob")),
    "filter-wrong": Look(Main, ("slash", *"gpus>=x")),
    "gpus": Look(Main, ("shift+tab", "j")),
    "log": Look(Main, ("tab", "k")),
    "zoomed-queue": Look(Main, ("z",)),
    "zoomed-gpus": Look(Main, ("shift+tab", "z")),
    "zoomed-log": Look(Main, ("tab", "z")),
    "grid-cards": Look(Main, ("v",)),
    "grid-rows": Look(Main, ("v", "v")),
    "grid-compact": Look(Main, ("v", "v", "v")),
    "marked": Look(Main, ("o", "space", "j", "space", "S", "S"), standing),
    "unfolded": Look(Main, ("O",), with_array),
    "finished": Look(Main, ("2",), standing, with_past),
    "gpu-processes": Look(GpuProcessesScreen, ("U",), occupied, occupied_console, process_view),
    "gpu-processes-tree": Look(GpuProcessesScreen, ("U",), occupied, occupied_console, process_tree),
    "gpu-process": Look(ProcessPage, ("U",), occupied, occupied_console, process_page),
    "signal": Look(Confirm, ("U",), occupied, occupied_console, signal_question),
    "container": Look(ContainerScreen, ("U",), occupied, occupied_console, container_page),
    "recurring": Look(Main, ("3",), standing),
    "reservations": Look(Main, ("4",), standing),
}
"""Screens with their pictures."""
IN_WORDS = (
    (
        Look(Help, ("question_mark", "slash", *"drain")),
        ("GPUs  ", "drain       Start no new jobs on the GPU; asks for"),
    ),
    (Look(Prompt, ("tab", "S")), ("Save the whole log", "As job-101.log unless you name another file, in /")),
    (
        Look(Prompt, ("E",)),
        (
            "Recurring job like #101",
            "Minute hour day month weekday, as in a crontab: 0 3 * * *  or  @daily",
            "Enter  OK     Esc  cancel",
        ),
    ),
    (Look(CommandFinder, ("colon", *"hold")), ("Jobs: hold", "Not now: it needs a waiting job that is not held.")),
    (
        Look(Main, ("slash", *"tenant:alice", "enter")),
        ("/tenant:alice", "6 of 11 jobs", "Esc shows all", "RUN 1 · WAIT 2"),
    ),
    (
        Look(Submit, (*"jjjjjj", "C")),
        (
            "Submit a job like #110",
            "python etl.py",
            "GPUs  none requested",
            "Start no forecast: host jobs are switched off",
        ),
    ),
    (
        Look(Submit, (*"jjjjj", "e")),
        ("Edit job #108 after-sft-eval", "Enter shows the effects before the change is made."),
    ),
    (
        Look(WhatIf, (*"jjjj", "h"), plans.contended, watched),
        (
            "job #106 llama-70b-eval: hold it until it is released",
            "18:30 -> –           held",
            "Holds 1 waiting job; no other job is delayed",
            "2h45m earlier",
        ),
    ),
    (Look(Main, (*"jjj", "h"), has_message=True), ("· job 106 is held: r releases it",)),
    (Look(Main, then=undone, has_message=True), ("· undone: job 106 may start again",)),
)
"""Screens that differ from those in a line or two, and their words."""


@sizes_of(SCREENS)
def test_every_screen_matches_its_picture(
    snap_compare: Compare, name: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # it is shown where a log may be saved
    (tmp_path / "templates").mkdir()
    for template in ("bert-large", "nightly-eval", "whisper"):
        (tmp_path / "templates" / f"{template}.toml").touch()
    if name == "choose-template":
        monkeypatch.chdir(tmp_path)
    assert looks_as_it_did(snap_compare, SCREENS[name], SIZES[size])


@pytest.mark.usefixtures("drawn")
@cases(("look", "words"), IN_WORDS)
async def test_other_variants_have_their_words(
    look: Look, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    text = await text_of(look)
    assert [each for each in words if each not in text] == [], text


def test_every_screen_has_a_picture() -> None:
    for module in pkgutil.walk_packages(gputui.tui.__path__, "gputui.tui."):
        importlib.import_module(module.name)
    ours = {screen for screen in _below(Screen) if screen.__module__.startswith("gputui.tui.")}
    last = {screen for screen in ours if not any(issubclass(other, screen) for other in ours - {screen})}
    assert last - {look.shows for look in SCREENS.values()} == set()


def test_every_picture_has_a_test() -> None:
    pictures = list(Path(__file__).parent.glob("__snapshots__/*/*.svg"))
    assert pictures
    stale = [picture for picture in pictures if picture.stem.partition("[")[0] not in _tests_of(picture.parent.name)]
    assert stale == [], "nobody compares these any more: remove them"


@cache
def _tests_of(module: str) -> frozenset[str]:
    """Return the names of tests in a module, with their class: `TestForm.test_an_empty_form_matches_its_picture`."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    inside = {f"{one.name}.{name}" for one in classes for name in _functions(one.body)}
    return frozenset(_functions(tree.body) | inside)


def _functions(body: Iterable[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _below(screen: type[object]) -> set[type[object]]:
    return {below for each in screen.__subclasses__() for below in {each, *_below(each)}}
