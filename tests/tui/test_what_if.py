"""What-if panel: shows the effect of an action before it is written; Enter writes it, Escape cancels it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from gputui import bootstrap
from gputui.cli import start_times
from gputui.cli.main import run
from gputui.domain.action import DrainGpus, SetPriority
from gputui.domain.gpu import Drain
from gputui.domain.policy import whatif as policy
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import Bar, BarKind, Comparison, Timeline, change_of, compared
from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Controls, Snapshot
from gputui.tui.present.timeline import Outlook, Subject, scale_of, what_if_lines
from gputui.tui.progress import Throttle
from gputui.tui.proposals import JobProposal, WindowProposal
from gputui.tui.screens import what_if as module
from gputui.tui.screens.main import Main
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.line_table import CellLines
from tests.cases import cases
from tests.factories import NOW, job, uuid
from tests.tui import plans, sample
from tests.tui.console import Console, on_screen, until
from tests.tui.foresight import opened, watched
from tests.waiting import PATIENCE

SIZE = (100, 30)
SETTINGS = replace(Settings(), policy=plans.KEPT)


def ended(snapshot: Snapshot, job_id: int) -> Snapshot:
    """Return the snapshot without that job."""
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id != job_id))


def panel_of(
    proposal: JobProposal | WindowProposal,
    settings: Settings,
    snapshot: Snapshot | None = None,
    size: tuple[int, int] = (110, 20),
) -> list[str]:
    """Return the panel's lines for a proposal on the full node."""
    shown = snapshot or plans.contended()
    found = compared(shown, proposal.change(NOW), settings, NOW)
    subject = Subject("x", proposal.job_ids, doubt=proposal.doubt(shown), fate=proposal.fate())
    lines = what_if_lines(subject, Outlook(shown, NOW, found, is_current=True), *size)
    return ["".join(text for text, _ in line) for line in lines]


def test_cancelled_or_held_jobs_are_not_counted_as_never_starting() -> None:
    for verb, said, word in (("cancel", "Removes", "cancelled"), ("hold", "Holds", "held")):
        lines = panel_of(JobProposal(107, verb, others=(108, 111)), SETTINGS)
        assert lines[4].startswith(f"{said} 3 waiting jobs; "), lines
        assert "never" not in "\n".join(lines)
        assert sum(line.rstrip().endswith(word) for line in lines) == 3
    last = panel_of(JobProposal(111, "cancel"), SETTINGS)
    assert "no other job is delayed" in last[2]


def test_the_priority_of_a_job_that_runs_says_when_it_counts() -> None:
    runs = next(each.id for each in plans.contended().jobs if each.state.is_active)
    text = "\n".join(panel_of(JobProposal(runs, "raise"), SETTINGS))
    assert "It runs already: its priority counts only if it is preempted or run again." in text


def test_the_change_itself_comes_before_delayed_jobs() -> None:
    lines = panel_of(JobProposal(111, "top"), SETTINGS)
    own = next(i for i, line in enumerate(lines) if line.lstrip("▲ ").startswith("111 "))
    told = next(i for i, line in enumerate(lines) if "delays " in line)
    assert lines[1].startswith("It moves from place ")
    assert 1 < own < told
    assert re.search(r"▼ delays \d+ jobs? by (up to )?\d", lines[told])
    others = [line[0] for line in lines[told + 1 :] if line[:2] in {"▲ ", "▼ ", "+ ", "✗ "}]
    assert others == sorted(others, key="✗▼+▲".index)


@cases(
    ("job_id", "verb", "was", "then"),
    [(111, "top", "GPU 0-1", "GPU 2 "), (202, "requeue", "GPU node1:8-11", "GPU node1:16-19")],
)
def test_a_small_panel_charts_where_its_job_would_run_before_and_after(
    job_id: int, verb: str, was: str, then: str
) -> None:
    shown = plans.large() if job_id == 202 else plans.contended()
    lines = panel_of(JobProposal(job_id, verb), SETTINGS, shown, (76, 11))
    before, after = (next(i for i, line in enumerate(lines) if line.startswith(gpus)) for gpus in (was, then))
    assert str(job_id) in lines[before]
    assert str(job_id) in lines[after + 1]


def starting(*starts: datetime) -> Timeline:
    """Return a plan in which jobs from 7 on start then, for an hour each."""
    hour = timedelta(hours=1)
    bars = (
        Bar(7 + i, BarKind.PLANNED, (uuid(i),), start, start + hour, DurationSource.LIMIT)
        for i, start in enumerate(starts)
    )
    return Timeline(at=NOW, bars=tuple(bars))


def test_the_timeline_shows_the_time_of_the_change() -> None:
    far = NOW + timedelta(hours=20)
    before, after = starting(far, far + timedelta(minutes=10)), starting(far + timedelta(minutes=20), far)
    shifts = Comparison(before, after).shifts
    scale = scale_of(Comparison(before, after), shifts, (), 80)
    assert NOW < scale.start < far
    assert scale.end > far + timedelta(minutes=20)
    assert scale.step * 80 < timedelta(hours=2)
    soon, late = starting(NOW + timedelta(minutes=5)), starting(NOW + timedelta(minutes=50))
    assert scale_of(Comparison(soon, late), Comparison(soon, late).shifts, (), 80).start == NOW


def test_a_move_in_the_queue_is_shown_before_the_delayed_jobs() -> None:
    lines = panel_of(JobProposal(108, "raise", delta=10), SETTINGS)
    place = next(i for i, line in enumerate(lines) if "moves from place" in line)
    assert lines[place].startswith("It moves from place 3 to ")
    assert all(place < i for i, line in enumerate(lines) if "later" in line and "shift" not in line)
    far = replace(plans.contended(), jobs=tuple(job(i, gpus=8, age=100.0 - i) for i in range(1, 5)), order=(1, 2, 3, 4))
    alone = panel_of(JobProposal(3, "top"), SETTINGS, far)
    assert any(line.startswith("It moves from place 3 to 1 of 4 in the queue, now before job 1") for line in alone)


def test_a_reservation_of_tomorrow_is_visible_and_warns_of_a_job_without_a_limit() -> None:
    tomorrow = Window("exam", NOW + timedelta(days=1), NOW + timedelta(days=1, hours=4), gpus=(uuid(4),), tenant="ci")
    lines = panel_of(WindowProposal(tomorrow), Settings(policy=PolicySettings(max_time=timedelta(days=1))))
    assert lines[1].startswith("! GPU 4 is held by job 103, which has no time limit")
    was = next(i for i, line in enumerate(lines) if "was  " in line)
    assert "GPU 4" in lines[was]
    assert "exam" not in lines[was]
    assert "exam" in lines[was + 1]


def _has_answer(panel: WhatIf) -> bool:
    return panel.comparison is not None


@cases(
    ("key", "job_id", "verb", "words"),
    [
        ("plus", 111, "priority", "job #111 dpo-sweep: priority 50 -> 60 (+10)"),
        ("minus", 106, "priority", "priority 50 -> 40 (-10)"),
        ("t", 111, "top", "job #111 dpo-sweep: to the head of the queue"),
        ("h", 106, "hold", "hold it until it is released"),
        ("r", 109, "release", "release it, it may start"),
        ("c", 106, "cancel", "cancel it"),
        ("R", 102, "requeue", "run it again"),
    ],
)
async def test_nothing_is_written_before_enter(key: str, job_id: int, verb: str, words: str) -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(job_id)
        panel = await opened(console, pilot, key)
        assert words in console.screen_text
        assert console.audited() == []
        assert panel.proposal.job_ids == (job_id,)
        await console.press(pilot, "enter")
        assert isinstance(console.app.screen, Main)
        assert console.audited() == [(verb, f"job {job_id}")]
        assert any(f"job {job_id}" in told for told in console.told)


async def test_shifts_are_signed_and_sorted_by_impact() -> None:
    async with on_screen(watched(), (120, 40)) as (console, pilot):
        console.select(107)
        await opened(console, pilot, "t")
        lines = [line.strip("│ ") for line in console.screen_text.splitlines() if "->" in line]
        text = console.screen_text
    own, *others = lines
    assert own.split()[:2] == ["▲", "107"]
    assert "earlier" in own
    assert {line[0] for line in others} <= {"▲", "▼", "✗", "+"}
    assert all(("later" in line) == (line[0] == "▼") for line in others if "->" in line and "start" not in line)
    assert "  was  " in text
    assert "then" in text


async def test_keys_add_up_in_the_panel_and_are_written_once() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await opened(console, pilot, "plus", "plus", "plus")
        assert "priority 50 -> 80 (+30)" in console.screen_text
        await opened(console, pilot, "minus")
        assert "priority 50 -> 70 (+20)" in console.screen_text
        await console.press(pilot, "enter")
        assert console.audited() == [("priority", "job 111")]
        assert console.store.get(111).priority == 70
        assert console.told == ["job 111: priority raised by 20"]


async def test_escape_cancels() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await pilot.press("plus", "plus")
        await console.press(pilot, "escape")
        assert isinstance(console.app.screen, Main)
        assert console.audited() == []
        await pilot.press("plus")
        assert "priority 50 -> 60 (+10)" in console.screen_text, "what was forgotten does not count"


def test_a_priority_stays_within_its_bounds() -> None:
    def pressed(verbs: str) -> str:
        proposal = JobProposal(111, "raise")
        for verb in verbs:
            proposal = proposal.further("raise" if verb == "+" else "lower", snapshot)
        assert (proposal.action() is None) == (proposal.delta == 0)
        return proposal.words(snapshot).rpartition(": ")[2]

    snapshot = plans.contended()
    assert pressed("+++++++") == "priority 50 -> 100 (+50)"
    assert pressed("+++++++-") == "priority 50 -> 90 (+40)"
    assert pressed("-------+") == "priority 50 -> 10 (-40)"
    assert pressed("++--") == "priority stays 50"


async def test_top_and_priority_replace_each_other() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await opened(console, pilot, "plus", "t")
        assert "to the head of the queue" in console.screen_text
        await opened(console, pilot, "plus")
        assert "priority 50 -> 60 (+10)" in console.screen_text
        await opened(console, pilot, "t")
        await console.press(pilot, "enter")
        assert console.audited() == [("top", "job 111")]


async def test_other_keys_do_not_change_the_subject_of_a_panel() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(106)
        await opened(console, pilot, "h", "plus", "t", "c", "r", "j")
        await console.press(pilot, "enter")
        assert console.audited() == [("hold", "job 106")]


async def test_cancelling_a_running_job_shows_the_lost_work() -> None:
    async with on_screen(watched(), (80, 24)) as (console, pilot):
        console.select(102)
        await opened(console, pilot, "c")
        assert "It is stopped: 1h30m of work on 2 GPUs is lost; its output stays." in console.screen_text
        await console.press(pilot, "n")
        assert console.audited() == []
        console.select(106)
        await opened(console, pilot, "c")
        assert "taken out of the queue" in console.screen_text
        assert "cancelled" in console.screen_text
        await console.press(pilot, "y")
        assert console.audited() == [("cancel", "job 106")]


class Slow:
    """Forecast that waits for its release, and records its callers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.threads: set[int] = set()
        self.given_up = 0
        monkeypatch.setattr(module, "timeline", self)

    def __call__(
        self, snapshot: Snapshot, settings: Settings, now: datetime, *, is_wanted: Callable[[], bool]
    ) -> Timeline:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        self.given_up += not is_wanted()
        return policy.timeline(snapshot, settings, now, is_wanted=is_wanted)


async def test_the_panel_opens_at_once_and_no_key_waits_for_the_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(monkeypatch)
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await pilot.press("plus")
        assert "priority 50 -> 60 (+10)" in console.screen_text
        assert "Working out which jobs it would delay" in console.screen_text
        await pilot.press("plus", "plus")
        assert "priority 50 -> 80 (+30)" in console.screen_text
        panel = console.app.screen
        assert isinstance(panel, WhatIf)
        assert not _has_answer(panel)
        assert slow.begun.wait(PATIENCE)
        assert threading.get_ident() not in slow.threads
        slow.go_on.set()
        await until(pilot, lambda: panel.comparison is not None)
        assert panel.comparison is not None
        shifts = compared(
            console.snapshot, change_of(SetPriority((111,), 80), NOW), Settings(policy=plans.KEPT), NOW
        ).shifts
        assert panel.comparison.shifts == shifts
        await console.press(pilot, "enter")
        assert console.store.get(111).priority == 80


async def test_enter_commits_before_the_forecast_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await pilot.press("plus")
        assert slow.begun.wait(PATIENCE)
        await console.press(pilot, "enter")
        assert console.store.get(111).priority == 60
        assert isinstance(console.app.screen, Main)
        slow.go_on.set()
        await until(pilot, lambda: slow.given_up == 1)


async def test_a_new_snapshot_gets_a_new_forecast_after_the_aged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        panel = await opened(console, pilot, "plus")
        first = panel.comparison
        slow = Slow(monkeypatch)
        console.clock.advance(7)
        console.clock.advance(60)
        panel.pace = Throttle(rest=0)
        fewer = replace(ended(console.snapshot, 107), taken_at=console.clock.now())
        await console.show(pilot, fewer)
        assert slow.begun.wait(PATIENCE)
        assert panel.comparison is first
        assert "as of 1m07s ago" in console.screen_text
        slow.go_on.set()
        await until(pilot, lambda: panel.comparison is not first)
        await pilot.pause()
        assert "as of" not in console.screen_text
        lines = panel.query_one(CellLines).lines
        assert not any("whisper-finetune" in text for line in lines for text, _ in line)
        assert panel.comparison is not None
        assert panel.comparison.before.at == console.clock.now()


async def test_an_unchanged_snapshot_costs_no_forecast() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        panel = await opened(console, pilot, "plus")
        panel.pace = Throttle(rest=0)
        console.clock.advance(1)
        await console.show(pilot, plans.contended(taken_at=console.clock.now()))
        assert not panel.pace.waits
        console.clock.advance(30)
        panel.tick()
        assert panel.pace.waits, "but time alone moves starts, too"


async def test_the_action_keeps_its_job_when_rows_move() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(106)
        await opened(console, pilot, "c")
        await console.show(pilot, ended(console.snapshot, 106))
        assert "Job 106 is no longer in the queue." in console.screen_text
        await console.press(pilot, "enter")
        assert console.audited() == [("cancel", "job 106")]


async def test_an_action_that_no_longer_applies_says_so() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(106)
        await opened(console, pilot, "h")
        held = console.snapshot.job(106)
        assert held is not None
        await console.show(pilot, sample.with_job(console.snapshot, [held.evolve(held=True)]))
        assert "It is PENDING and held now." in console.screen_text


async def to_gpu(console: Console, index: int) -> None:
    grid = console.app.screen.query_one(GpuGrid)
    grid.focus()
    grid.move_to(index)


async def test_the_panel_of_drain_asks_for_a_reason() -> None:
    async with on_screen(watched(), (80, 24)) as (console, pilot):
        await to_gpu(console, 2)
        await opened(console, pilot, "d")
        assert "Drain GPU 2: no new jobs; job 102 keeps running" in console.screen_text
        assert "delays " in console.screen_text
        await console.press(pilot, "escape")
        assert console.audited() == []
        await opened(console, pilot, "d", *"hot")
        assert console.app.screen.query_one(Input).value == "hot"
        await console.press(pilot, "enter")
        assert console.store.controls().drains[uuid(2)].reason == "hot"


async def test_resume_shows_the_reason_of_the_drain() -> None:
    console = watched()
    console.actions.act(DrainGpus((uuid(6),), "fan noise"))
    async with on_screen(console, SIZE) as (_, pilot):
        drains = {uuid(6): Drain("fan noise, ticket 812", "alice", NOW)}
        await console.show(pilot, plans.contended(controls=Controls(drains=drains)))
        await to_gpu(console, 6)
        await opened(console, pilot, "d")
        assert "Resume GPU 6: jobs may start there again (drained: fan noise, ticket 812)" in console.screen_text
        await console.press(pilot, "enter")
        assert console.store.controls().drains == {}


async def test_a_click_commits_and_a_click_cancels() -> None:
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        for words, written in (("Esc cancel", []), ("Enter commit", [("priority", "job 111")])):
            panel = await opened(console, pilot, "plus")
            bar = panel.query_one("#keys")
            line = console.screen_text.splitlines()[bar.region.y][bar.region.x :]
            await pilot.click(bar, offset=(line.index(words) + 1, 0))
            await console.settle(pilot)
            assert console.audited() == written


async def test_strange_names_are_shown_as_text() -> None:
    names = [*sample.NAMES]
    jobs = tuple(job(120 + i, name=name, tenant=name[:6], gpus=2, age=10.0) for i, name in enumerate(names))
    async with on_screen(
        watched(plans.contended(jobs=(*plans.running_jobs(), *jobs), order=tuple(j.id for j in jobs))), (120, 40)
    ) as (console, pilot):
        console.select(122)
        await opened(console, pilot, "t")
        text = console.screen_text
        assert "job #122 [bold red]not markup[/] [link=http://x]x[/link]: to the head" in text
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)


async def test_a_failed_forecast_is_reported_and_enter_still_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Timeline:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "timeline", broken)
    async with on_screen(watched(), SIZE) as (console, pilot):
        console.select(111)
        await pilot.press("plus")
        await until(pilot, lambda: "The forecast failed: ZeroDivisionError: oops" in console.screen_text)
        await console.press(pilot, "enter")
        assert console.store.get(111).priority == 60


async def test_the_panel_has_the_numbers_of_the_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    console = watched()
    (tmp_path / "config.toml").write_text("[policy]\npredict = false\nmax_time = '1d'\n")
    console.app.services = replace(console.app.services, settings=Settings(policy=replace(plans.KEPT, reservations=())))
    snapshot = plans.contended()
    monkeypatch.setattr(bootstrap, "open_store", lambda options, waiting=None: console.store)
    monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: snapshot)
    monkeypatch.setattr(bootstrap, "clock", lambda: console.clock)
    monkeypatch.setattr(console.store, "close", lambda: None)
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path))
    monkeypatch.setenv("GPUTUI_CONFIG", str(tmp_path / "config.toml"))
    assert run(["priority", "111", "+20", "--dry-run"]) == 0
    place, *printed = capsys.readouterr().out.splitlines()
    assert place == "job 111 moves from place 5 to 1 of 6 in the queue"
    async with console.app.run_test(size=SIZE) as pilot:
        await console.begin(pilot)
        console.select(111)
        panel = await opened(console, pilot, "plus", "plus")
        found = panel.comparison
        assert found is not None
        assert start_times.lines(snapshot, found.shifts) == printed
        shown = [line.strip("│ ") for line in console.screen_text.splitlines() if ":30 -> " in line]
    told = {shift.job_id: (shift.before, shift.after) for shift in found.shifts}
    assert len(printed) - 1 == len(told) == len(shown) > 2
    for line in shown:
        before, after = told[int(line.split()[1])]
        assert f"{_clock(before)} -> {_clock(after)}" in line


def _clock(at: datetime | None) -> str:
    assert at is not None
    assert at < NOW + timedelta(hours=12)
    return f"{at:%H:%M}" if at > NOW else "now"
