"""Pictures of bad days: on the main screen, on the screens concerned, and on terminals too small for any."""

from __future__ import annotations

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
from tests.cases import cases
from tests.tui import days, plans, sample
from tests.tui.console import Console, until
from tests.tui.foresight import watched
from tests.tui.pictures import SIZES, Look, looks_as_it_did, quiet, sizes_of, text_of
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
    await until(pilot, lambda: "error 1 of 4" in console.screen_text)
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


MAIN = {day.__name__: Look(Main, day=day) for day in days.THAT_CHANGE_PANES}
ELSEWHERE = {
    "gpu-xid": Look(GpuDetailScreen, ("shift+tab", *"jjj", "i"), days.sick),
    "gpu-not-supported": Look(GpuDetailScreen, ("i",), days.not_supported),
    "gpu-cut": Look(GpuDetailScreen, ("shift+tab", "i"), days.instances),
    "job-gone": Look(Detail, ("a", "a", "2", "enter"), days.gone),
    "log-of-failed": Look(Main, ("2", "j", "e"), make=with_failed_log, then=at_its_error),
    "timeline-sick": Look(TimelineScreen, ("T",), days.plan_sick, watched),
    "timeline-empty": Look(TimelineScreen, ("T",), sample.empty_queue),
    "read-only": Look(Main, make=looking_on),
}
"""Bad days on the screens where they matter most."""
IN_WORDS = (
    (
        Look(GpuDetailScreen, ("shift+tab", "G", "i", "left"), days.drained),
        (
            "state       drained",
            "drained     by alice on 2026-03-02 12:00: driver update at 18:00, ticket 4711",
            "d resume",
        ),
    ),
    (
        Look(GpuDetailScreen, ("shift+tab", "i"), days.shared),
        ("state       shared", "#104 notebook-104 carol, 1m, counts 20G, container c104"),
    ),
    (
        Look(Main, ("tab",), make=without_log(REMOVED)),
        ("The log cannot be read: the output of attempt 1 of job 101 was removed with",),
    ),
    (
        Look(LogsScreen, ("L",), make=without_log(NO_ENGINE)),
        ("The log cannot be read: Docker does not run at unix:///var/run/docker.sock", "(`systemctl start docker`)"),
    ),
    (Look(ProcessesScreen, ("X",), make=inside(None), then=over), ("PROCESSES", "It has ended: FAILED.")),
    (
        Look(ProcessesScreen, ("X",), make=inside(NO_ENGINE)),
        ("Docker does not run at unix:///var/run/docker.sock (`systemctl start docker`)",),
    ),
    (
        Look(Submit, ("s",), sample.no_docker, then=needs_a_gpu),
        ("no forecast: no permission to speak to Docker at unix:///var/run/dock…",),
    ),
    (
        Look(Submit, ("s",), sample.no_gpu, then=needs_a_gpu),
        ("this server has none", "Can never start: needs 1 GPU, no GPU is known here"),
    ),
    (
        Look(TimelineScreen, ("T",), sample.no_gpu),
        ("There is no GPU to show a plan of.", "2 run, 0 planned, 5 unplanned", "ends, by its limit: 2 GPUs"),
    ),
    (
        Look(TimelineScreen, ("T",), days.plan_paused, watched),
        ("4 run, 0 planned, 6 unplanned │ PAUSED: nothing starts", "3 without a start not listed"),
    ),
    (
        Look(Detail, ("enter",), days.vanished),
        ("GPU gone    GPU-00000000-0000-4000-8000-000000000000 is no longer listed",),
    ),
    (
        Look(WhatIf, (*"jjjj", "plus"), days.plan_paused, watched),
        ("‖ PAUSED", "No other job is delayed, while the scheduler is paused"),
    ),
    (
        Look(Main, then=refused, has_message=True),
        ("✗ /var/lib/gputui/queue.json: no space is left on the device (free so…  !: all",),
    ),
    (
        Look(Main, day=days.docker_hung, has_message=True),
        ("│ ✗ docker down", "✗ Docker at unix:///var/run/docker.sock did not answer in time (`syst…  !: all"),
    ),
    (Look(Main, day=days.late, has_message=True), ("! this view is 3m00s old: no news from the scheduler since",)),
    (
        Look(Main, day=days.unreadable, has_message=True),
        ("✗ /var/lib/gputui/queue.json: not a queue of gputui: Expecting ',' de…  !: all",),
    ),
    (
        Look(Main, day=sample.no_docker, has_message=True),
        ("│ ✗ docker down", "✗ no permission to speak to Docker at unix:///var/run/docker.sock (us…  !: all"),
    ),
    (
        Look(Main, day=sample.paused, has_message=True),
        ("‖ PAUSED", '! paused by alice: "kernel update at 14:00". Running jobs continue; n…  !: all'),
    ),
    (
        Look(Main, day=sample.disk_full, has_message=True),
        ("✗ no space is left in /var/lib/gputui: nothing was lost, but no job c…  !: all",),
    ),
)
"""Bad days that change a line of a screen, and the words by which they are known."""
MAIN_IN_WORDS: tuple[tuple[Callable[[], Snapshot], tuple[str, ...]], ...] = (
    (
        days.no_gpus,
        ("No GPU to show: the driver works, but it lists no GPU. `lspci | grep -i",),
    ),
    (days.clock_back, ("<1m/8h", " 0:00 / 8h")),
    (days.disk_low, ("│ ✗ GPU 7 lost  and 2 more: !",)),
    (days.damaged, ("│ ✗ GPU 7 lost  and 2 more: !",)),
    (days.all_held, ("PDh", "WAIT 1")),
    (days.vanished, ("2/6 free", "HELD BY · 6x H100 80GB HBM3", "6 GPUs 26%")),
    (sample.viewer, ("◐ serve",)),
    (sample.warned, ("◐ serve", "│ ✗ GPU 7 lost")),
    (
        sample.nobody_leads,
        ("○ nobody", "✗ no scheduler runs, so nothing starts: run `gputui serve`"),
    ),
)
"""The same for the main screen."""
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


@pytest.mark.usefixtures("drawn")
@cases(("look", "words"), IN_WORDS)
async def test_a_bad_day_is_told_in_words(look: Look, words: tuple[str, ...]) -> None:
    text = await text_of(look)
    assert [each for each in words if each not in text] == [], text


async def test_bad_days_of_the_main_screen_are_told_in_words() -> None:
    console = Console()
    async with console.app.run_test(size=(80, 24), notifications=True) as pilot:
        await console.begin(pilot)
        for day, words in MAIN_IN_WORDS:
            await console.show(pilot, day())
            await quiet(console, pilot)
            assert [each for each in words if each not in console.screen_text] == [], console.screen_text
