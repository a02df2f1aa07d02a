"""Consoles of users who act on their own jobs alone: what is for others is not offered, and says for whom it is."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gputui.domain.access import HOW_TO_USE, others_job
from gputui.domain.cluster import Caps
from gputui.domain.job_spec import JobId
from gputui.engine.actions.context import LACKING
from gputui.ports.backend import About
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.main import Main
from tests.cases import cases
from tests.factories import recurring
from tests.tui.console import Console, on_screen
from tests.tui.sample import rich_snapshot

BOB = 1002
SIZE = (120, 36)


def _console(*own: JobId) -> Console:
    """Return bob's console; all jobs but his own are alice's."""
    snapshot = rich_snapshot()
    jobs = (
        replace(job, submitted_by="bob" if job.id in own else "alice", submitted_uid=BOB if job.id in own else BOB - 1)
        for job in snapshot.jobs
    )
    about = About("node1", "bob", "", Caps("gputui", LACKING), own_uid=BOB)
    return Console(replace(snapshot, jobs=tuple(jobs)), about=about)


async def test_a_job_of_another_user_offers_no_key_that_changes_it() -> None:
    async with on_screen(_console(), SIZE) as (console, pilot):
        footer = console.screen_text.splitlines()[-1]
        assert "f log" in footer
        assert "submit" in footer
        assert not any(word in footer for word in ("cancel", "requeue", "prio", "pause"))
        for key in ("c", "plus", "x", "e"):
            await console.press(pilot, key)
            assert ": Only alice, who submitted job " in console.told[-1], key
            assert console.told[-1].endswith(", and operators may do that."), key
        for key, what in (("P", "pause the scheduler"), ("J", "move jobs in the queue")):
            await console.press(pilot, key)
            assert console.told[-1].endswith(f": Only operators may {what}."), key
        assert len(console.app.screen_stack) == 1
        assert console.audited() == []


async def test_ones_own_jobs_are_changed_as_ever_and_those_of_others_among_the_marked_stay() -> None:
    async with on_screen(_console(101), SIZE) as (console, pilot):
        await console.press(pilot, "asterisk", "c", "y")
        await console.settle(pilot)
        assert console.audited() == [("cancel", "job 101")]


async def test_a_viewers_console_is_read_only_and_says_who_can_change_that() -> None:
    about = About("node1", "carol", "", Caps("gputui", LACKING), own_uid=BOB, only_looks=HOW_TO_USE)
    async with on_screen(Console(about=about), SIZE) as (console, pilot):
        assert console.screen_text.startswith(" read-only │ ")
        await console.press(pilot, "s")
        assert console.told[-1].endswith(
            "is read-only. An operator lets you use the queue by the setting access.users."
        )
        assert len(console.app.screen_stack) == 1


async def test_the_log_of_another_users_job_is_no_fault() -> None:
    console = _console()
    console.logs.error = others_job(rich_snapshot().jobs[0], "read its output")
    async with on_screen(console, SIZE) as (_, pilot):
        pane = console.app.screen.query_one(LogPane)
        assert pane.follower is not None
        assert await asyncio.to_thread(pane.follower.join, 10)
        pane.tick()
        await pilot.pause()
        assert "operators may read its output" in console.screen_text
        assert "cannot be read" not in console.screen_text


@cases(("uid", "keys"), [(BOB, {"pause_recurring", "remove"}), (BOB - 1, set[str]())])
async def test_keys_for_a_recurring_job_are_offered_to_who_added_it(uid: int, keys: set[str]) -> None:
    console = _console()
    console.snapshot = replace(console.snapshot, recurring=(replace(recurring(uid=uid), id=1),))
    async with on_screen(console, SIZE) as (_, pilot):
        main = console.app.screen
        assert isinstance(main, Main)
        main.jobs.action_tab("recurring")
        await console.settle(pilot)
        assert main.jobs.table.cursor is not None
        for name in ("pause_recurring", "resume_recurring", "remove"):
            assert main.check_action(name, ()) is (name in keys), name
