"""The page of a waiting job shows its score and the certainty of its start, as `gputui explain` does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.cli.show import explained as in_words
from gputui.domain.job import Job
from gputui.domain.policy.whatif import Explanation, explain
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from gputui.tui.present.detail import ExplanationState, job_lines, standing_lines
from gputui.tui.present.job import JobContext
from gputui.tui.screens import pages
from tests.factories import NOW, uuid
from tests.tui import plans
from tests.tui.console import on_screen, until
from tests.tui.foresight import explained, watched

TERMS = ("level", "expansion", "age")


def waiting() -> tuple[Job, Explanation]:
    whole = plans.contended()
    subject = whole.job(108)
    assert subject is not None
    return subject, explain(whole, subject, replace(Settings(), policy=plans.KEPT), NOW)


def page(told: ExplanationState) -> list[str]:
    subject, _ = waiting()
    lines = job_lines(subject, JobContext(NOW), told)
    return [f"{label} {''.join(text for text, _ in cell)}" for label, cell in lines]


def test_the_page_agrees_with_the_command() -> None:
    subject, told = waiting()
    spoken = [" ".join(line.split()) for line in in_words(subject, told, NOW)]
    shown = [" ".join(line.split()) for line in page(ExplanationState(told))]
    wanted = [line for line in spoken if line.startswith((*TERMS, "how sure"))]
    assert len(wanted) == 4
    for line in wanted:
        assert line in shown


def test_a_small_screen_has_the_terms_in_one_line() -> None:
    _, told = waiting()
    (line,) = (line for line in page(ExplanationState(told, is_compact=True)) if line.startswith("score"))
    assert line == (
        f"score {told.terms.total:.3f} = expansion {told.terms.expansion:.3f} + age {told.terms.age:.3f}"
        " · number 3 of 6 waiting"
    )


def test_the_page_says_that_the_explanation_is_computed() -> None:
    assert "score being computed …" in page(ExplanationState())
    assert "score not known: ValueError: no" in page(ExplanationState(failure="ValueError: no"))


def test_the_page_names_awaited_jobs_and_neighbours_in_the_queue() -> None:
    subject, told = waiting()
    whole = plans.contended()
    context = JobContext(NOW, whole.expected_starts, reasons=whole.reasons, gpu_names={uuid(2): "2", uuid(3): "3"})
    lines = [
        (label, "".join(text for text, _ in cell))
        for label, cell in standing_lines(subject, whole, context, ExplanationState(told), 30)
    ]
    labels = [label for label, _ in lines if label]
    assert labels[0] == "waits for"
    assert lines[1][1].startswith("#102 vit-pretrain"), "the one that ends first"
    assert "GPU 2,3" in lines[1][1]
    assert "by its limit" in lines[1][1]
    for most in range(12):
        assert len(standing_lines(subject, whole, context, ExplanationState(told), most)) <= most


def test_neighbours_are_gathered_once_however_many_jobs_there_are() -> None:
    hashed = []

    class CountedId(int):
        def __hash__(self) -> int:
            hashed.append(self)
            return int(self)

    subject, told = waiting()
    whole = plans.contended()
    order = tuple(map(CountedId, whole.order))

    def hashes(others: int) -> int:
        hashed.clear()
        more = [replace(subject, id=1000 + number) for number in range(others)]
        snapshot = replace(whole, jobs=(*whole.jobs, *more), order=order)
        assert standing_lines(subject, snapshot, JobContext(NOW), ExplanationState(told), 30)
        return len(hashed)

    assert hashes(500) == hashes(0)


async def test_the_page_follows_the_job() -> None:
    async with on_screen(watched(), (120, 40)) as (console, pilot):
        console.select(108)
        text = await explained(console, pilot)
        assert "number 3 of 6 waiting" in text
        assert all(f"  {term} " in text for term in TERMS)
        raised = [one.prioritised(90) if one.id == 108 else one for one in console.snapshot.jobs]
        await console.show(pilot, replace(console.snapshot, jobs=tuple(raised)))
        await until(pilot, lambda: "number 1 of 6 waiting" in console.screen_text)
        started = [one.to(JobState.CONFIGURING, attempts=()) if one.id == 108 else one for one in console.snapshot.jobs]
        await console.show(pilot, replace(console.snapshot, jobs=tuple(started)))
        assert "how sure" not in console.screen_text
        assert "expansion" not in console.screen_text


async def test_time_changes_the_score() -> None:
    async with on_screen(watched(), (120, 40)) as (console, pilot):
        console.select(108)
        before = await explained(console, pilot)
        assert "waited 50m" in before
        console.clock.advance(3600)
        await console.show(pilot, replace(console.snapshot, taken_at=console.clock.now()))
        await until(pilot, lambda: "waited 1h50m" in console.screen_text)


async def test_errors_are_shown_in_place_of_the_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Explanation:
        raise ValueError("no such order")

    monkeypatch.setattr(pages, "explain", fails)
    async with on_screen(watched(), (80, 24)) as (console, pilot):
        console.select(108)
        assert "not known: ValueError: no such order" in await explained(console, pilot)


def test_negative_zero_is_not_shown() -> None:
    subject, told = waiting()
    assert "-0.0" not in "".join(in_words(subject, told, NOW))
