"""A console over several servers: its rows, what it asks for, and what it refuses."""

from __future__ import annotations

from gputui.domain.cluster import Capability, Caps
from gputui.domain.job_spec import server_of
from gputui.domain.state import JobState
from gputui.ports.backend import About
from gputui.tui.screens.dialogs import Choose, Confirm
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.main import Main
from gputui.tui.screens.what_if import WhatIf
from tests.cases import cases
from tests.tui.console import Console, on_screen, until
from tests.tui.pictures import SIZES, Look, looks_as_it_did, sizes_of
from tests.tui.servers import one_silent, two_servers
from tests.tui.test_pictures import Compare

PENDING = JobState.PENDING
LOOKS = {
    "both": Look(Main, day=two_servers),
    "one-silent": Look(Main, day=one_silent),
    "choice": Look(Choose, ("s",), day=two_servers),
}


@sizes_of(LOOKS)
def test_servers_look_as_they_did(snap_compare: Compare, name: str, size: str) -> None:
    assert looks_as_it_did(snap_compare, LOOKS[name], SIZES[size])


async def test_ids_and_gpus_have_their_server() -> None:
    async with on_screen(Console(two_servers()), (200, 50)) as (console, _):
        shown = console.screen_text
        assert "SERVER" in shown
        assert "gpu1:0" in shown
        assert "gpu2:1" in shown
        assert "2 servers" in shown


async def test_the_form_is_for_the_chosen_server() -> None:
    async with on_screen(Console(two_servers()), (120, 36)) as (console, pilot):
        await console.press(pilot, "s")
        assert isinstance(console.app.screen, Choose)
        assert list(console.app.screen.texts) == ["gpu1", "gpu2"]
        await console.press(pilot, "down", "enter")
        assert isinstance(console.app.screen, Submit)
        assert "Submit a job on gpu2" in console.screen_text


async def test_the_effects_on_one_server_are_shown() -> None:
    async with on_screen(Console(two_servers(), what_if="always"), (120, 36)) as (console, pilot):
        waiting = next(job for job in console.snapshot.jobs if server_of(job.id) == "gpu2" and job.name == "distill")
        main = console.app.screen
        assert isinstance(main, Main)
        main.queue.move_to(list(main.queue.keys).index(waiting.id))
        await console.press(pilot, "c")
        assert isinstance(console.app.screen, WhatIf)
        assert "gpu2:4 distill" in console.screen_text


async def test_a_job_of_a_cluster_among_the_servers_has_only_what_its_engine_has() -> None:
    console = Console(two_servers(), what_if="always")
    lacking = {Capability.WHAT_IF: "it plans itself", Capability.RAISE_PRIORITY: "Lab fixes priorities"}
    console.backend.of_servers["gpu2"] = About("lab", "alice", "", Caps("Lab", lacking, {"retries": "it runs once"}))
    async with on_screen(console, (200, 50)) as (_, pilot):
        main = console.app.screen
        assert isinstance(main, Main)
        for server, is_offered in (("gpu1", True), ("gpu2", False)):
            job = next(job for job in console.snapshot.jobs if server_of(job.id) == server and job.state is PENDING)
            main.queue.move_to(list(main.queue.keys).index(job.id))
            await console.press(pilot, "plus")
            assert isinstance(console.app.screen, WhatIf) is is_offered
            await console.press(pilot, "escape")
        assert console.told[-1].endswith("Not in this cluster: Lab fixes priorities.")
        assert "3 recurring" in console.screen_text
        await console.press(pilot, "c")
        assert isinstance(console.app.screen, Confirm)
        await console.press(pilot, "escape", "C")
        assert "retries" not in console.screen_text


async def test_there_is_no_forecast_for_jobs_of_two_servers() -> None:
    async with on_screen(Console(two_servers(), what_if="always"), (200, 50)) as (console, pilot):
        await console.press(pilot, "asterisk")
        await console.press(pilot, "c")
        assert isinstance(console.app.screen, WhatIf)
        await pilot.pause()
        await until(pilot, lambda: "No forecast: each server has a queue of its own" in console.screen_text)


@cases("silent", [False, True])
async def test_a_silent_server_is_told(silent: bool) -> None:
    async with on_screen(Console(one_silent() if silent else two_servers()), (200, 50)) as (console, _):
        assert ("gpu2 does not answer: ssh: connect" in console.screen_text) is silent
        assert ("1 of 2 servers" in console.screen_text) is silent
