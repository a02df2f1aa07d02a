"""Agenda below the timeline: soonest first, as much as fits, with omissions counted."""

from __future__ import annotations

from gputui.domain.policy.whatif import timeline
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.timeline import LEAST, agenda_lines
from gputui.tui.widgets.line_table import CellLines
from tests.cases import cases
from tests.factories import NOW
from tests.tui import plans, sample
from tests.tui.console import on_screen
from tests.tui.foresight import timeline_of, watched


def agenda(picture: Snapshot, most: int) -> list[str]:
    """Return the lines of the agenda as text."""
    made = timeline(picture, Settings(policy=plans.KEPT), NOW)
    lines = agenda_lines(made, picture, Labels.of(picture), NOW, most)
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_ends_starts_and_windows_are_in_order_of_time() -> None:
    heading, *lines = agenda(plans.contended(), 30)
    assert heading == "Coming next"
    assert [line.split()[4] for line in lines[:6]] == ["#102", "#108", "#103", "#107", "#101", "#106"]
    assert "in 1h30m   ■ #102 vit-pretrain     ends, by its limit: GPU 2-3" in lines[0]
    assert "in 1h30m   ▶ #108 segformer-city   starts on GPU 2-3 until" in lines[1]
    assert "#106 llama-70b-eval   starts on GPU 0-3" in lines[5]
    assert lines[5].endswith("promised to it")
    assert "exam week" in lines[6]
    assert "kept on GPU 4-6 until" in lines[6]


def test_jobs_without_a_start_are_listed_with_the_reason() -> None:
    assert agenda(plans.contended(), 30)[-1].split() == ["no", "start", "·", "#109", "nightly-bench", "held"]


def test_an_overrun_job_has_no_expected_end() -> None:
    assert not any("#104" in line for line in agenda(plans.contended(), 30))


def test_an_empty_agenda_says_so() -> None:
    picture = sample.empty_queue()
    [heading] = agenda_lines(timeline(picture, Settings(), NOW), picture, Labels.of(picture), NOW, 30)
    told = "".join(text for text, _ in heading)
    assert told == "Coming next  nothing: no job waits, and no running job has a known end"


@cases("most", range(14))
def test_the_agenda_fits_its_space_and_counts_omissions(most: int) -> None:
    lines = agenda(plans.contended(), most)
    assert len(lines) <= most
    if most < LEAST:
        assert lines == []
        return
    told = sum(word.startswith("#") for line in lines for word in line.split()) + sum("exam" in line for line in lines)
    left_out = sum(int(word) for word in lines[0].split() if word.isdigit())
    assert told + left_out == 10, "nine jobs with a start or an end in sight or held, and a window"
    assert any("#109" in line for line in lines), "jobs without a start keep some of the room"


async def test_the_agenda_fills_the_space_left_by_the_gpus() -> None:
    async with on_screen(watched(), (110, 40)) as (console, pilot):
        screen = await timeline_of(console, pilot)
        assert screen.query_one("#agenda", CellLines).size.height == 40 - 6 - 1 - 8
        assert "Coming next" in console.screen_text
        await console.resize(pilot, 110, 16)
        assert "Coming next" not in console.screen_text
        assert ["7"] in [line.split()[:1] for line in console.screen_text.splitlines()], "no GPU makes way for it"
