"""Pictures of bad days: on the main screen, on the screens concerned, and on terminals too small for any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from gputui.domain.action import Action, Hold
from gputui.domain.errors import GputuiError, NotFoundError, RuntimeUnavailableError
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import Done
from gputui.tui.actions import ActionRequested, ExitChoice
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.help import Help
from gputui.tui.screens.logs import LogsScreen
from gputui.tui.screens.main import Main
from gputui.tui.screens.pages import Detail, GpuDetailScreen, ProcessesScreen
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from tests.tui import days, plans, sample
from tests.tui.console import Console
from tests.tui.foresight import watched
from tests.tui.pictures import SIZES, Look, looks_as_it_did, sizes_of
from tests.tui.test_commands_inside import FakeInside
from tests.tui.test_logs_screen import FAILED
from tests.tui.test_pictures import Compare

NO_ENGINE = RuntimeUnavailableError(f"Docker does not run at {days.SOCKET}", hint="`systemctl start docker`")
REMOVED = NotFoundError("the output of attempt 1 of job 101 was removed with its container")
NO_GPU_FIT = {"image": "busybox", "gpus": "1"}


def without_log(error: GputuiError) -> Callable[[Snapshot], Console]:
    """Return a console whose logs cannot be read."""

    def made(snapshot: Snapshot) -> Console:
        console = Console(snapshot)
        console.logs.error = error
        return console

    return made


def with_failed_log(snapshot: Snapshot) -> Console:
    """Return a console in which job 92 failed with an error line."""
    console = Console(snapshot)
    console.logs.lines = {92: FAILED}
    return console


def inside(error: GputuiError | None) -> Callable[[Snapshot], Console]:
    """Return a console whose engine lists no processes of jobs."""

    def made(snapshot: Snapshot) -> Console:
        fake = FakeInside()
        fake.rows, fake.error = (), error
        return Console(snapshot, inside=fake)

    return made


def looking_on(snapshot: Snapshot) -> Console:
    """Return a read-only console."""
    return Console(snapshot, console=ConsoleSettings("off", read_only=True))


async def refused(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Fail to write an action."""

    def fail(action: Action, **options: object) -> Done:
        raise GputuiError("no space is left on the device", where=days.STORE, hint="free some space, then try again")

    console.actions.act = fail  # type: ignore[method-assign]
    console.app.post_message(ActionRequested(Hold((107,))))
    await pilot.pause()


async def over(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """End the job while its page is open."""
    await console.show(pilot, days.gone())


async def at_its_error(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait until the log has been read and searched for errors, and the keys are those of a search."""
    async with asyncio.timeout(60):
        while "error 1 of 4" not in console.screen_text:
            await pilot.pause(0.002)
    main = console.app.screen
    assert isinstance(main, Main)
    main.refresh_time()  # else the keys follow with the next snapshot or second
    await pilot.pause()


async def needs_a_gpu(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Request a GPU in the form."""
    form = console.app.screen
    assert isinstance(form, Submit)
    form.fill(NO_GPU_FIT)
    await pilot.pause()


MAIN = {day.__name__: Look(Main, day=day) for day in (*days.THAT_CHANGE_PANES, *days.THAT_ADD_WORDS)}
ELSEWHERE = {
    "gpu-xid": Look(GpuDetailScreen, ("shift+tab", *"jjj", "i"), days.sick),
    "gpu-not-supported": Look(GpuDetailScreen, ("i",), days.not_supported),
    "gpu-drained": Look(GpuDetailScreen, ("shift+tab", "G", "i", "left"), days.drained),
    "gpu-cut": Look(GpuDetailScreen, ("shift+tab", "i"), days.instances),
    "gpu-shared": Look(GpuDetailScreen, ("shift+tab", "i"), days.shared),
    "job-gone": Look(Detail, ("a", "a", "2", "enter"), days.gone),
    "job-on-vanished-gpu": Look(Detail, ("enter",), days.vanished),
    "log-gone": Look(Main, ("tab",), make=without_log(REMOVED)),
    "log-of-failed": Look(Main, ("2", "j", "e"), make=with_failed_log, then=at_its_error),
    "logs-gone": Look(LogsScreen, ("L",), make=without_log(NO_ENGINE)),
    "processes-over": Look(ProcessesScreen, ("X",), make=inside(None), then=over),
    "processes-refused": Look(ProcessesScreen, ("X",), make=inside(NO_ENGINE)),
    "submit-no-engine": Look(Submit, ("s",), sample.no_docker, then=needs_a_gpu),
    "submit-no-gpu": Look(Submit, ("s",), sample.no_gpu, then=needs_a_gpu),
    "timeline-paused": Look(TimelineScreen, ("T",), days.plan_paused, watched),
    "timeline-sick": Look(TimelineScreen, ("T",), days.plan_sick, watched),
    "timeline-empty": Look(TimelineScreen, ("T",), sample.empty_queue),
    "timeline-no-gpu": Look(TimelineScreen, ("T",), sample.no_gpu),
    "what-if-paused": Look(WhatIf, (*"jjjj", "plus"), days.plan_paused, watched),
    "action-refused": Look(Main, then=refused, has_message=True),
    "read-only": Look(Main, make=looking_on),
}
"""Bad days on the screens where they matter most."""
TINY = {
    "main-20x5": (Look(Main), (20, 5)),
    "main-40x10": (Look(Main, day=sample.paused), (40, 10)),
    "submit-40x10": (Look(Submit, ("s",)), (40, 10)),
    "help-40x10": (Look(Help, ("question_mark",)), (40, 10)),
    "timeline-40x10": (Look(TimelineScreen, ("T",), plans.contended, watched), (40, 10)),
    "what-if-40x10": (Look(WhatIf, (*"jjjj", "plus"), plans.contended, watched), (40, 10)),
    "gpu-40x10": (Look(GpuDetailScreen, ("i",), sample.linked), (40, 10)),
}
"""Terminals too small for the console: what fits is legible, and nothing breaks."""


@sizes_of(MAIN)
def test_the_main_screen_matches_its_picture(snap_compare: Compare, name: str, size: str) -> None:
    assert looks_as_it_did(snap_compare, MAIN[name], SIZES[size])


@sizes_of(ELSEWHERE)
def test_other_screens_match_their_pictures(snap_compare: Compare, name: str, size: str) -> None:
    assert looks_as_it_did(snap_compare, ELSEWHERE[name], SIZES[size])


@pytest.mark.parametrize("name", TINY)
def test_small_terminals_match_their_pictures(snap_compare: Compare, name: str) -> None:
    look, size = TINY[name]
    assert looks_as_it_did(snap_compare, look, size)
