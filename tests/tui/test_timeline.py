"""The timeline: GPUs down, time across; the selection is described, and Enter opens it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.gpu import GpuState
from gputui.domain.policy.whatif import BarKind, Timeline
from gputui.domain.settings import PolicySettings
from gputui.tui.progress import Throttle
from gputui.tui.screens import timeline as module
from gputui.tui.screens.main import Main
from gputui.tui.screens.pages import Detail
from gputui.tui.screens.timeline import TimelineScreen, TimelineTable
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.log_follower import LogOf
from tests.cases import cases
from tests.domain.policy.test_sharing import row, sharing
from tests.factories import NOW, job, running, uuid, view
from tests.tui import plans, sample
from tests.tui.console import Console, on_screen, until
from tests.tui.foresight import opened, timeline_of, watched

SIZE = (110, 30)
HOUR = timedelta(hours=1)


def rows(console: Console) -> list[str]:
    """Return the rows of the GPUs."""
    return console.screen_text.splitlines()[2:10]


def shown(console: Console) -> type:
    """Return the kind of the topmost screen."""
    return type(console.app.screen)


def table(screen: TimelineScreen) -> TimelineTable:
    return screen.query_one(TimelineTable)


async def test_the_timeline_shows_running_and_planned_jobs_and_reservations() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        heading = console.screen_text.splitlines()[0]
        drawn = rows(console)
        legend = console.screen_text.splitlines()[-3]
        plan = screen.timeline
    assert "4 run, 5 planned, 1 unplanned │ head #106 17:45 GPU 0-3" in heading
    assert drawn[0].count("101 llama-7b-sft━") == 1
    assert "┫" in drawn[0], "a limit is an end"
    assert "103 resnet-ablation╍" in drawn[4], "a guess is not"
    assert "104 forgotten-notebook≈" in drawn[5], "it has outrun what was planned"
    assert "╞106 llama" in drawn[2]
    assert "exam week ░" in drawn[4]
    assert "drained: fan noise, ticket 812 ×" in drawn[6]
    assert "used by jupyter-bob ▒" in drawn[7]
    assert "━┫ runs to limit  ╍╍╍ guessed end  ├── planned  ╞══ head's reservation" in legend
    assert plan is not None
    assert plan.promise is not None
    assert plan.promise.job_id == 106


async def test_the_timeline_selects_the_job_of_the_main_screen_and_enter_opens_it() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(108)
        screen = await timeline_of(console, pilot)
        assert table(screen).picked == 108
        assert "#108 segformer-city  alice, priority 50, 2 GPUs" in console.screen_text
        assert "planned to start 13:30 (in 1h30m) on GPU 2-3, until 17:30" in console.screen_text
        await pilot.press("enter")
        assert shown(console) is Detail
        await pilot.press("escape", "escape")
        assert shown(console) is Main


async def test_arrow_keys_go_from_bar_to_bar() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        seen = []
        for key in ("g", "right", "right", "left", "j", "down", "l", "k", "G"):
            await pilot.press(key)
            seen.append(table(screen).picked)
    assert seen == [101, 106, 111, 106, 106, 106, 110, 111, None]


async def test_each_kind_of_bar_has_its_words() -> None:
    async with on_screen(watched(), (160, 30)) as (console, pilot):
        screen = await timeline_of(console, pilot)
        for job_id, words in (
            (101, "runs on GPU 0-1 for 2h15m, ended by its limit 17:45 (in 5h45m)"),
            (103, "runs on GPU 4 for 22h00m, expected to end by the longest time allowed 14:00 (in 2h00m)"),
            (104, "runs on GPU 5 for 1d06h, longer than planned: expected until Tue 06:00 (in 18h00m), nothing"),
            (106, "starts 18:30 (in 6h30m) on GPU 0-3, until 20:30 by its limit; promised GPU 0-3 at 17:45"),
        ):
            table(screen).select(job_id)
            await pilot.pause()
            assert words in console.screen_text
        await pilot.press("G", "k")
        assert "GPU 6  drained: fan noise, ticket 812" in console.screen_text
        assert "reserved: exam week 19:00 to 22:00 for tenant ci" in console.screen_text


async def test_one_job_without_a_limit_leaves_room_for_the_next_minutes() -> None:
    """Its end is assumed a day ahead: the scale shows an hour of that."""
    async with on_screen(Console(sample.rich_snapshot(jobs=(running(1, on=(uuid(0),)),), order=())), SIZE) as (
        console,
        pilot,
    ):
        screen = await timeline_of(console, pilot)
        assert table(screen).scale.step <= timedelta(minutes=2)


async def test_keys_zoom_and_scroll() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        whole = table(screen).scale
        await pilot.press("i")
        assert table(screen).scale.step < whole.step
        assert f"{int(table(screen).scale.step.total_seconds() // 60)}m/cell" in console.screen_text
        await pilot.press("o", "o")
        assert table(screen).scale.step > whole.step
        await pilot.press("0")
        assert table(screen).scale == whole
        await pilot.press("greater_than_sign")
        assert table(screen).scale.start - whole.start >= whole.step * (whole.cells // 2 - 1)
        await pilot.press("shift+left")
        assert abs(table(screen).scale.start - whole.start) <= whole.step
        await pilot.press("less_than_sign", "0")
        assert table(screen).scale == whole


async def test_the_selection_is_scrolled_into_view() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot, "g", "i", "i", "i", "i", "i", "right")
        bar, scale = table(screen).bar, table(screen).scale
        assert bar is not None
        assert (bar.job_id, 0 <= scale.cell(bar.start) < scale.cells) == (106, True)
        assert "╞106 llama-70b-eval" in rows(console)[0]


async def test_time_advances_by_whole_cells() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        before = table(screen).scale
        for _ in range(3):
            console.clock.advance(before.step.total_seconds() / 3)
            screen.tick()
        await pilot.pause()
        after = table(screen).scale
        assert after.start - before.start in {before.step, timedelta(0)}
        assert after.cell(console.clock.now()) - before.cell(NOW) in {0, 1}


async def test_a_new_snapshot_is_planned_again() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        screen.pace = Throttle(rest=0)
        fewer = tuple(job for job in console.snapshot.jobs if job.id != 106)
        await console.show(pilot, replace(console.snapshot, jobs=fewer))
        await until(pilot, lambda: screen.timeline is not None and 106 not in screen.timeline.starts)
        await pilot.pause()
        assert "106 llama" not in console.screen_text
        first = screen.timeline
        await console.show(pilot, replace(console.snapshot, jobs=fewer, taken_at=NOW + timedelta(seconds=1)))
        assert not screen.pace.waits
        assert screen.timeline is first


async def test_an_action_on_the_selected_job_shows_its_effect() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        screen = await timeline_of(console, pilot)
        assert table(screen).picked == 111
        await opened(console, pilot, "plus", "plus")
        assert "priority 50 -> 70 (+20)" in console.screen_text
        await console.press(pilot, "enter")
        assert console.audited() == [("priority", "job 111")]
        assert console.app.screen is screen
        await pilot.press("T")
        assert isinstance(console.app.screen, Main)


async def test_sixty_four_gpus_scroll_at_80x24() -> None:
    async with on_screen(watched(plans.large()), (80, 24)) as (console, pilot):
        screen = await timeline_of(console, pilot)
        assert "node1:0" in console.screen_text
        assert "of 64 GPUs" in console.screen_text
        await pilot.press("G")
        assert "node2:63" in console.screen_text
        assert "fell off the bus (Xid 79)" in console.screen_text
        await pilot.press("pageup", "pageup", "pageup", "pageup")
        assert table(screen).top == 0
        table(screen).select(305)
        await pilot.pause()
        assert "on GPU node1:20-27" in console.screen_text


async def test_a_preempted_job_has_two_selectable_bars() -> None:
    low = running(1, on=(uuid(0), uuid(1)), name="low", priority=0, preemptible=True, time_limit=5 * HOUR)
    jobs = (plans.since(low, HOUR), job(2, name="high", gpus=2, priority=90, time_limit=HOUR))
    rows_ = tuple(view(i, GpuState.ALLOCATED, job_id=1) for i in range(2))
    node = replace(plans.contended().nodes[0], gpus=rows_)
    policy = PolicySettings(predict=False, preemption=True)
    async with on_screen(
        Console(plans.contended(nodes=(node,), jobs=jobs, order=(2,)), what_if="always", policy=policy), SIZE
    ) as (console, pilot):
        screen = await timeline_of(console, pilot, "g")
        seen = []
        for key in ("left", "right", "right", "right"):
            await pilot.press(key)
            bar = table(screen).bar
            assert bar is not None
            seen.append((bar.job_id, bar.kind))
            if key == "left":
                assert "runs on GPU 0-1 for 1h00m, makes way for job 2 12:01" in console.screen_text
    running_, planned = BarKind.RUNNING, BarKind.PLANNED
    assert seen == [(1, running_), (2, BarKind.HEAD), (1, planned), (1, planned)]


async def test_jobs_that_share_a_gpu_have_a_line_each() -> None:
    first = sharing(running(1, on=(uuid(0),), name="first", time_limit=2 * HOUR), 10)
    second = sharing(running(2, on=(uuid(0),), name="second", time_limit=3 * HOUR), 10)
    node = replace(plans.contended().nodes[0], gpus=(row(0, [first, second], {}), view(1)))
    policy = PolicySettings(predict=False, share=("all",))
    async with on_screen(
        Console(plans.contended(nodes=(node,), jobs=(first, second), order=()), what_if="always", policy=policy), SIZE
    ) as (console, pilot):
        screen = await timeline_of(console, pilot, "g", "j")
        assert ["1 first━" in rows(console)[0], "2 second━" in rows(console)[1]] == [True, True]
        assert [line[:5].strip("▌ ") for line in rows(console)[:3]] == ["0", "", "1"]
        assert table(screen).picked == 2
        await pilot.press("escape")
        console.app.screen.query_one(GpuGrid).focus()
        await opened(console, pilot, "d")
        assert "jobs 1, 2 keep running" in console.screen_text


async def test_the_gpu_of_the_row_is_drained_and_resumed() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        await timeline_of(console, pilot, "g", "j")
        await opened(console, pilot, "d", *"hot")
        assert "Drain GPU 1: no new jobs" in console.screen_text
        await console.press(pilot, "enter")
        assert console.store.controls().drains[uuid(1)].reason == "hot"
        await pilot.press("G", "k")
        await opened(console, pilot, "d")
        assert "Resume GPU 6: jobs may start there again" in console.screen_text


async def test_a_click_selects_a_bar_and_a_second_one_opens_it() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        screen = await timeline_of(console, pilot)
        x = rows(console)[2].index("108 segformer")
        await pilot.click("#rows", offset=(x + 4, 3))
        assert table(screen).picked == 108
        await pilot.click("#rows", offset=(x + 4, 3), times=2)
        assert isinstance(console.app.screen, Detail)


async def test_the_log_of_the_selected_job_is_followed_on_the_main_screen() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(102)
        await timeline_of(console, pilot, "f")
        assert isinstance(console.app.screen, Main)
        assert console.app.screen.logs.followed == LogOf(102)
        await timeline_of(console, pilot, "enter", "f")
        await pilot.pause()
        assert isinstance(console.app.screen, Main)


async def test_the_rows_are_there_before_the_plan_and_a_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Timeline:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "timeline", broken)
    async with on_screen(watched(), SIZE) as (console, pilot):
        await pilot.press("T")
        assert "drained: fan noise" in console.screen_text
        await until(pilot, lambda: "The forecast failed: ZeroDivisionError: oops" in console.screen_text)


@cases("day", [sample.no_gpu, sample.stale, sample.empty_queue, sample.paused])
async def test_strange_snapshots_are_drawn(day: object) -> None:
    assert callable(day)
    async with on_screen(watched(day()), (80, 24)) as (console, pilot):
        screen = await timeline_of(console, pilot, "j", "right", "i", "greater_than_sign")
        assert console.app.screen is screen
        text = console.screen_text
    words = {"no_gpu": "There is no GPU", "stale": "?", "empty_queue": "0 run, 0 planned", "paused": "PAUSED"}
    assert words[day.__name__] in text  # type: ignore[attr-defined]


async def test_strange_names_are_text() -> None:
    async with on_screen(watched(sample.strange_names()), (120, 30)) as (console, pilot):
        await timeline_of(console, pilot)
        text = console.screen_text
        assert "[red]mallory" in text or "escape" in text
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
        assert not isinstance(console.app.screen, WhatIf)


async def test_a_plan_that_comes_before_the_widget_has_its_size_does_not_move_the_present() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(107)
        screen = await timeline_of(console, pilot)
        await until(pilot, lambda: table(screen).picked == 107 and any("107" in row for row in rows(console)))
        scale, drawn = table(screen).scale, rows(console)
        early = TimelineTable(id="rows", now=console.clock.now())
        early.show(screen.view, console.clock.now())
        early.select(107)
        await table(screen).remove()
        await screen.mount(early, after="#heading")
        early.focus()
        await console.show(pilot, console.snapshot)
        await until(pilot, lambda: rows(console) == drawn)
        assert early.scale == scale
        assert early.picked == 107
