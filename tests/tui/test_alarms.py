"""The key that leads from an alarm to the job, process or GPU."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.gpu import GpuState, Holder
from gputui.domain.snapshot import Snapshot
from gputui.tui.screens.pages import Detail
from gputui.tui.screens.process_view import GpuProcessesScreen, GpuProcessTable
from tests.factories import NOW, snapshot
from tests.tui.console import Console, on_screen, until
from tests.tui.occupied import FOREIGN, occupied, occupied_console
from tests.tui.test_process_view import shows


def with_idle() -> Snapshot:
    """Return job 101 with an idle GPU since 40 minutes, and a foreign process with one since 7."""
    base = occupied()
    views = list(base.nodes[0].gpus)
    views[0] = replace(views[0], job_ids=(101,), idle_since=NOW - timedelta(minutes=40))
    eve = Holder("process", "python eval.py", "bob", FOREIGN)
    views[4] = replace(views[4], state=GpuState.FOREIGN, holders=(eve,), idle_since=NOW - timedelta(minutes=7))
    jobs = tuple(job for job in base.jobs if not job.state.is_terminal)
    return replace(base, nodes=(replace(base.nodes[0], gpus=(views[0], views[4])),), jobs=jobs)


async def test_one_key_leads_to_the_job_and_again_to_the_process() -> None:
    async with on_screen(occupied_console(with_idle()), (120, 36)) as (console, pilot):
        assert shows(console, "2 GPUs idle 40m: #101, pid 300 bob")
        await pilot.press("F")
        await until(pilot, lambda: isinstance(console.app.screen, Detail))
        assert shows(console, "101")
        await pilot.press("F")
        await until(pilot, lambda: isinstance(console.app.screen, GpuProcessesScreen))
        table = console.app.screen.query_one(GpuProcessTable)
        await until(pilot, lambda: table.row is not None)
        assert table.row is not None
        assert table.row.pid == FOREIGN
        await pilot.press("F")  # after the last one the first
        await until(pilot, lambda: isinstance(console.app.screen, Detail))
        await pilot.press("escape")
        await until(pilot, lambda: len(console.app.screen_stack) == 1)


async def test_without_an_alarm_the_key_says_so() -> None:
    async with on_screen(Console(snapshot(gpus=2)), (100, 30)) as (console, pilot):
        await pilot.press("F")
        await until(pilot, lambda: "no job, process or GPU needs attention" in console.told)


async def test_the_filter_shows_jobs_that_leave_gpus_idle() -> None:
    async with on_screen(occupied_console(with_idle()), (120, 36)) as (console, pilot):
        await pilot.press("slash", *"is:idle", "enter")
        await until(pilot, lambda: shows(console, "is:idle"))
        assert shows(console, "! GPU 0 idle 40m")
        assert not shows(console, "#102")
