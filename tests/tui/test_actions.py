"""Keys write their action for exactly the job or GPU on which they were pressed."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.domain.errors import StoreFullError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.settings import TenantSettings
from gputui.domain.snapshot import Controls
from gputui.domain.submit_action import Done
from gputui.engine.actions.actions import Actions
from gputui.tui.actions import ActionThread, ExitChoice
from gputui.tui.screens.dialogs import Confirm, Prompt
from gputui.tui.screens.main import Main
from gputui.tui.widgets.gpu_grid import GpuGrid
from tests.factories import ACTOR, NOW, FakeClock, uuid, view
from tests.memory_store import MemoryJobStore
from tests.tui import sample
from tests.tui.console import Console

SIZE = (100, 30)


def stored(console: Console, job_id: int) -> Job:
    return console.store.get(job_id)


@asynccontextmanager
async def begun(console: Console, job_id: int | None = None) -> AsyncIterator[Pilot[ExitChoice]]:
    """Run the console for the time of a block, with the cursor on that job."""
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        await pilot.press("a")
        if job_id is not None:
            console.select(job_id)
        yield pilot


WRITE = (
    ("h", 106, "hold"),
    ("r", 109, "release"),
    ("R", 101, "requeue"),
    ("R", 92, "requeue"),
    ("plus", 107, "priority"),
    ("equals_sign", 107, "priority"),
    ("minus", 107, "priority"),
    ("t", 110, "top"),
)
"""Keys on jobs, and the verbs of the actions that they write."""
DO_NOTHING = (("h", 101), ("h", 109), ("r", 106), ("R", 106), ("c", 92), ("t", 101), ("minus", 92), ("d", 106))
"""Keys that do not apply to these jobs."""


async def test_a_key_that_does_not_apply_does_nothing() -> None:
    console = Console()
    async with begun(console) as pilot:
        for key, job_id in DO_NOTHING:
            console.select(job_id)
            await console.press(pilot, key)
            assert console.audited() == [], f"{key} on job {job_id}"
            assert isinstance(console.app.screen, Main), f"{key} on job {job_id}"


async def test_cancel_asks_first() -> None:
    console = Console()
    async with begun(console, 106) as pilot:
        await pilot.press("c")
        assert isinstance(console.app.screen, Confirm)
        await console.press(pilot, "n")
        assert console.audited() == []
        await console.press(pilot, "c", "y")
        assert console.audited() == [("cancel", "job 106")]


async def test_a_question_keeps_its_job_when_rows_move() -> None:
    console = Console()
    async with begun(console, 106) as pilot:
        await pilot.press("c")
        kept = tuple(j for j in console.snapshot.jobs if j.id != 106)
        await console.show(pilot, replace(console.snapshot, jobs=kept))
        await console.press(pilot, "enter")
        assert console.audited() == [("cancel", "job 106")]


async def test_drain_asks_for_the_reason_and_d_resumes() -> None:
    console = Console()
    async with begun(console) as pilot:
        grid = console.app.screen.query_one(GpuGrid)
        grid.focus()
        grid.move_to(4)
        await pilot.press("d")
        assert isinstance(console.app.screen, Prompt)
        await console.press(pilot, *"hot", "enter")
        assert console.store.controls().drains[uuid(4)].reason == "hot"
        drained = Drain("hot", "alice", NOW)
        gpus = tuple(replace(g, drain=drained) if g.gpu.index == 4 else g for g in sample.gpus())
        await console.show(pilot, sample.with_node(gpus=gpus))
        await console.press(pilot, "d")
        assert console.store.controls().drains == {}
        assert console.audited() == [("drain", uuid(4)), ("resume", uuid(4))]


async def test_in_the_grid_a_key_acts_on_the_job_of_the_gpu() -> None:
    console = Console()
    async with begun(console) as pilot:
        grid = console.app.screen.query_one(GpuGrid)
        grid.focus()
        grid.move_to(2)
        await console.press(pilot, "R")
        assert console.audited() == [("requeue", "job 104")]


async def test_an_error_shows_problem_place_and_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()

    def full(*_: object, **options: object) -> Done:
        raise StoreFullError("no space is left [red]", where="/state/jobs", hint="free some space")

    monkeypatch.setattr(console.actions, "act", full)
    async with begun(console, 106) as pilot:
        await console.press(pilot, "h")
        newest = console.app.messages.newest
        assert newest is not None
        assert newest.severity == "error"
        assert newest.text == "/state/jobs: no space is left [red] (free some space)"
        assert "✗ /state/jobs: no space is left [red] (free some space)" in console.screen_text


async def test_an_unforeseen_error_is_shown_and_the_next_action_works(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    act = console.actions.act

    def broken(*_: object, **options: object) -> Done:
        monkeypatch.setattr(console.actions, "act", act)
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(console.actions, "act", broken)
    async with begun(console, 106) as pilot:
        await console.press(pilot, "h")
        assert "ZeroDivisionError: oops" in console.told[0]
        await console.press(pilot, "h")
        assert stored(console, 106).held


async def test_a_submit_beyond_the_tenants_cap_is_refused_with_the_reason() -> None:
    console = Console(sample.empty_queue())
    with console.store.transaction() as transaction:
        transaction.set_controls(Controls(tenants=(TenantSettings("alice", pending=0),)))
    async with begun(console) as pilot:
        await console.press(pilot, "s", *"busybox", "enter")
        assert not console.store.jobs()
        [told] = console.told
        assert told.removeprefix("submit: ").startswith(
            "tenant alice has 0 jobs waiting and may have 0: 1 more is too many"
        )


async def test_gpus_without_a_job_offer_no_job_commands() -> None:
    console = Console(sample.rich_snapshot(nodes=(sample.rich_snapshot().nodes[0],)))
    async with begun(console) as pilot:
        grid = console.app.screen.query_one(GpuGrid)
        grid.focus()
        grid.move_to(4)
        assert view(4).job_id is None
        await console.press(pilot, "c", "f")
        assert isinstance(console.app.screen, Main)
        assert console.audited() == []


async def test_an_action_that_waits_for_the_lock_names_its_holder() -> None:
    sentence = "waiting for /state/queue.json.lock, which is locked by process 7 (rsync, stopped)"
    console = Console()
    async with begun(console) as pilot:
        console.app.tell_wait(sentence)
        await pilot.pause()
        assert sentence in console.told


def test_an_answer_that_cannot_be_shown_keeps_no_later_action_back() -> None:
    told: list[object] = []
    came = threading.Event()

    def tell(answer: object) -> None:
        told.append(answer)
        if len(told) == 1:
            raise RuntimeError("the screen is gone")
        came.set()

    actions = ActionThread(Actions(MemoryJobStore(), FakeClock(), ACTOR), tell)
    actions.add(None)
    actions.add(None)
    assert came.wait(60)
    assert actions.finish(60)
