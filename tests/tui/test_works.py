"""Long tasks show their progress, and Escape aborts them without partial effects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.domain.action import Action, Cancel, Hold, SetPriority
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.ports.backend import Progress
from gputui.tui import progress
from gputui.tui.actions import ActionRequested, ExitChoice
from gputui.tui.progress import LongTask, TaskCancelledError, work_cell
from gputui.tui.screens.log_pane import save_log
from gputui.tui.screens.main import Main
from gputui.tui.widgets.queue_tabs import GIVEN_UP
from tests.factories import ACTOR, NOW, job
from tests.tui import sample
from tests.tui.console import Console, on_screen, until
from tests.tui.test_log_pane import follower_of

SIZE = (120, 36)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show every task as long from its begin."""
    monkeypatch.setattr(progress, "LONG", 0.0)


class Slow:
    """A task that continues only when the test lets it."""

    def __init__(self, console: Console) -> None:
        self.may_go_on = threading.Semaphore(0)
        self._act = console.actions.act
        console.actions.act = self.act  # type: ignore[method-assign]

    def act(self, action: Action, *, server: str = "", on_progress: Progress | None = None) -> Done:
        assert on_progress is not None
        for number in range(10_000):
            on_progress(number, 10_000)
            if number == 4210:
                self.may_go_on.acquire(timeout=60)
        return self._act(action, server=server)


def shows_line(console: Console) -> bool:
    return "Esc cancels" in console.screen_text


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def seen(console: Console, pilot: Pilot[ExitChoice], words: str) -> None:
    def is_there() -> bool:
        console.app.works.look()
        return words in console.screen_text

    await until(pilot, is_there)


async def gone(console: Console, pilot: Pilot[ExitChoice]) -> None:
    def is_gone() -> bool:
        console.app.works.look()
        return not shows_line(console)

    await until(pilot, is_gone)


@pytest.mark.usefixtures("at_once")
class TestActions:
    async def test_progress_is_shown_until_the_task_is_done(self) -> None:
        console = Console()
        slow = Slow(console)
        async with on_screen(console, SIZE) as (_, pilot):
            console.app.post_message(ActionRequested(Hold((107,))))
            await seen(console, pilot, "4,210 of 10,000 jobs")
            assert "Esc cancels" in console.screen_text
            slow.may_go_on.release()
            await console.settle(pilot)
            await gone(console, pilot)
            assert console.told == ["job 107 is held: r releases it"]
            assert console.store.get(107).held

    async def test_escape_aborts_the_task(self) -> None:
        console = Console()
        slow = Slow(console)
        async with on_screen(console, SIZE) as (_, pilot):
            console.app.post_message(ActionRequested(Hold((107,))))
            await seen(console, pilot, "4,210 of 10,000 jobs")
            await pilot.press("escape")
            await seen(console, pilot, "cancelling …")
            slow.may_go_on.release()
            await console.settle(pilot)
            await gone(console, pilot)
            assert console.told == ["Cancelled; nothing was changed"]
            assert not console.store.get(107).held

    async def test_progress_is_shown_on_every_screen(self) -> None:
        console = Console()
        slow = Slow(console)
        async with on_screen(console, SIZE) as (_, pilot):
            console.app.post_message(ActionRequested(Hold((107,))))
            await seen(console, pilot, "4,210 of 10,000 jobs")
            await pilot.press("question_mark")
            await seen(console, pilot, "4,210 of 10,000 jobs")
            assert not isinstance(console.app.screen, Main)
            slow.may_go_on.release()
            await console.settle(pilot)
            await gone(console, pilot)
            await pilot.press("escape")
            assert isinstance(console.app.screen, Main)
            assert not shows_line(console)

    async def test_an_aborted_undo_can_be_repeated(self) -> None:
        async with on_screen(Console(), SIZE) as (console, pilot):
            console.app.post_message(ActionRequested(Hold((107,))))
            await console.settle(pilot)
            gate = threading.Semaphore(0)
            undo = console.actions.undo

            def slow(changes: object, on_progress: Progress) -> object:
                gate.acquire(timeout=60)
                return undo(changes, on_progress)  # type: ignore[arg-type]

            console.actions.undo = slow  # type: ignore[assignment, method-assign]
            await pilot.press("u")
            await seen(console, pilot, "Esc cancels")
            await pilot.press("escape")
            gate.release()
            await console.settle(pilot)
            assert console.store.get(107).held
            gate.release()
            await console.press(pilot, "u")
            assert not console.store.get(107).held


async def test_quick_tasks_are_not_shown_and_escape_keeps_its_meaning() -> None:
    async with on_screen(Console(), SIZE) as (console, pilot):
        await pilot.press("slash", "b", "o", "b", "enter")
        await console.press(pilot, "h")
        console.app.works.look()
        assert not shows_line(console)
        await pilot.press("escape")
        assert not console.app.screen_stack[0].queue.rows.filter  # type: ignore[attr-defined]


def test_an_action_on_many_jobs_is_complete_or_absent() -> None:
    console = Console(sample.empty_queue())
    ids = console.store.submit([job() for _ in range(350)], actor=ACTOR)
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done == 200:
            raise TaskCancelledError("given up")

    calls: list[Callable[[], object]] = [
        lambda: console.actions.act(Hold(ids), on_progress=stop),
        lambda: console.actions.act(SetPriority(ids, 10, relative=True), on_progress=stop),
        lambda: console.actions.act(Cancel(ids), on_progress=stop),
    ]
    before = dict(console.store.jobs())
    for call in calls:
        told.clear()
        with pytest.raises(TaskCancelledError):
            call()
        assert told == [(0, 350), (100, 350), (200, 350)]
        assert dict(console.store.jobs()) == before


@pytest.mark.usefixtures("at_once")
class TestLogs:
    async def test_saving_a_log_shows_its_progress_and_can_be_aborted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        gate = threading.Semaphore(0)

        def lines() -> Iterator[bytes]:
            yield from (b"x" for _ in range(3000))
            gate.acquire(timeout=60)
            yield from (b"x" for _ in range(3000))

        async with on_screen(Console(), SIZE) as (console, pilot):
            console.logs.lines = {101: lines()}
            console.app.screen.query("#log").first().focus()
            await pilot.press("S")
            await pilot.press("enter")
            await seen(console, pilot, "3,000 lines")
            await pilot.press("escape")
            gate.release()
            await until(pilot, lambda: any("no file was written" in told for told in console.told))
            await gone(console, pilot)
            assert console.app.works.timer is None, "nothing is looked at for ever"
        assert files(tmp_path) == []

    def test_an_aborted_save_leaves_no_file(self, tmp_path: Path) -> None:
        work = LongTask("saving", "lines")
        work.give_up()
        with pytest.raises(TaskCancelledError):
            save_log(
                follower_of([b"x"] * 3000), tmp_path / "x", overwrite=False, is_wanted=lambda: True, step=work.step
            )
        assert files(tmp_path) == []


@pytest.mark.usefixtures("at_once")
async def test_a_read_of_the_history_shows_progress_and_can_be_aborted_and_continued() -> None:
    gate = threading.Semaphore(0)
    asked: list[datetime | None] = []

    def history(since: datetime | None) -> Iterator[Job]:
        asked.append(since)
        for number in range(1, 400):
            if number == 250:
                gate.acquire(timeout=60)
            at = NOW - timedelta(hours=1)
            yield job(number, name=f"old-{number}").evolve(state=JobState.COMPLETED, ended_at=at, exit_code=0)

    async with on_screen(Console(replace(sample.empty_queue(), jobs=()), past=history), SIZE) as (console, pilot):
        await pilot.press("2")
        await seen(console, pilot, "200 jobs")
        await pilot.press("escape")
        gate.release()
        await seen(console, pilot, "cancelling")
        await seen(console, pilot, GIVEN_UP)
        gate.release()
        await pilot.press("2")
        await seen(console, pilot, "old-399")
        assert len(asked) == 2
        assert asked[0] == asked[1]


async def test_a_history_that_is_not_whole_says_so_and_is_read_again() -> None:
    faults = iter([GputuiError("it does not answer", where="b")])

    def history(since: datetime | None) -> Iterator[Job]:
        del since
        yield job(1, name="of-a").evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(hours=1), exit_code=0)
        if (fault := next(faults, None)) is not None:
            raise fault
        yield job(2, name="of-b").evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(hours=2), exit_code=0)

    async with on_screen(Console(replace(sample.empty_queue(), jobs=()), past=history), SIZE) as (console, pilot):
        await pilot.press("2")
        await seen(console, pilot, "the history is not whole: b: it does not answer")
        await seen(console, pilot, "of-a")
        await pilot.press("2")
        await seen(console, pilot, "of-b")


def test_the_progress_line_has_count_and_bar() -> None:
    now = iter([10.0, 12.5])
    work = LongTask("Saving job-1.log", "lines", clock=lambda: next(now))
    assert work.took == 0.0
    work.begin()
    assert work.took == 2.5
    work.step(1_234_567)
    assert "1,234,567 lines" in "".join(text for text, _ in work_cell(work, 0))
    work.step(50, 100)
    text = "".join(text for text, _ in work_cell(work, 0))
    assert "━━━━━━━━━━──────────" in text
    assert "50 of 100 lines" in text
