"""Space on the screen: no unnecessary cuts or repetitions, and hidden parts scroll into view."""

from __future__ import annotations

from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.domain.conditions import conditions
from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import NotFoundError
from gputui.domain.gpu import GpuState, index_of
from gputui.domain.gpu_history import STEP, Step, TakenStep
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, PublishedPort
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.keys import key_name, key_of
from gputui.tui.present.cells import DIM, PLAIN, Cell, Column, lay_out, split_at_word
from gputui.tui.present.detail import job_lines
from gputui.tui.present.gpu import card_lines, holder_parts
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import status_line
from gputui.tui.screens.main import Main
from gputui.tui.widgets.queue_rows import COLUMNS, ENDED
from gputui.tui.widgets.queue_tabs import RECURRING_COLUMNS, WINDOW_COLUMNS
from gputui.tui.widgets.status_bars import FilterLine
from scripts.keys import keys_document
from tests.cases import cases
from tests.factories import NOW, running, uuid
from tests.tui import days, sample
from tests.tui.console import Console, on_screen
from tests.tui.test_queue import queue, with_array


def text(made: Cell) -> str:
    return "".join(value for value, _ in made)


@cases("columns", [RECURRING_COLUMNS, WINDOW_COLUMNS, tuple(COLUMNS[key] for key in ENDED)])
@cases("room", [80, 120, 200])
def test_the_columns_of_every_tab_end_at_the_edge_of_the_screen(columns: tuple[Column, ...], room: int) -> None:
    placed = lay_out(columns, room)
    assert placed[-1].x + placed[-1].width <= room


def test_a_column_that_is_too_wide_shrinks_before_others_are_cut() -> None:
    placed = lay_out((Column("a", "A", 10), Column("b", "B", 30, flex=1), Column("c", "C", 20, flex=1)), 40)
    assert [(one.x, one.width) for one in placed] == [(1, 10), (12, 13), (26, 13)]
    assert [one.width for one in lay_out((Column("a", "A", 10), Column("b", "B", 30, flex=1)), 12)] == [10, 6]


def test_a_line_is_broken_at_a_word_and_keeps_its_colours() -> None:
    whole: Cell = (("the driver cannot ", PLAIN), ("reach it", DIM))
    first, rest = split_at_word(whole, 21)
    assert (text(first), text(rest)) == ("the driver cannot", "reach it")
    assert rest == (("reach it", DIM),)
    assert split_at_word(whole, 40) == (whole, ())
    assert split_at_word((("x" * 30, PLAIN),), 9) == ((("x" * 30, PLAIN),), ())
    assert [text(part) for part in split_at_word((("训练大模型 第三阶段", PLAIN),), 12)] == ["训练大模型", "第三阶段"]


def test_a_drained_gpu_still_names_its_user() -> None:
    row = GpuRow(days.drained().gpus[0], sample.jobs()[3], now=NOW)
    assert [text(part) for part in holder_parts(row, 60)] == [
        "#101 llama-7b-sft alice",
        "by alice: driver update at 18:00, ticket 4711",
    ], "the state says the rest of it"
    card = ["".join(value for value, _ in line).rstrip() for line in card_lines(row, 48, 9)]
    assert card[0].endswith("drained")
    assert "#101 llama-7b-sft alice" in card[0]
    assert "by alice: driver update at 18:00, ticket 4711" in card


def test_a_problem_of_a_gpu_takes_two_lines_of_its_card() -> None:
    lost = GpuRow(days.sick().gpus[0], now=NOW)
    card = ["".join(value for value, _ in line).rstrip() for line in card_lines(lost, 40, 9)]
    assert card[1:3] == ["the driver cannot reach it; reset it or", "reboot the host"]


def test_instances_are_distinguished_and_their_gpu_is_not_counted() -> None:
    snapshot = days.instances()
    labels = [index_of(view) for view in snapshot.gpus if view.gpu.mig_parent]
    assert len(set(labels)) == len(labels) == 12
    assert labels[:3] == ["0m0", "0m1", "0m2"]
    assert "10 of 12 GPUs free" in text(status_line(snapshot, "node1"))


def test_an_engine_that_is_down_is_named_once() -> None:
    told = [condition.text for condition in conditions(days.docker_hung(), NOW) if condition.kind == "docker down"]
    assert told == [f"Docker at {days.SOCKET} did not answer in time (`systemctl status docker`)"]
    assert conditions(sample.no_docker(), NOW)[0].text.startswith("no permission to speak to Docker at ")


def test_an_engine_that_is_not_the_queues_is_not_called_silent() -> None:
    words = "this queue's jobs are on another engine: ab of gpu1 (ssh://gpu1), not cd of gpu2 (ssh://gpu2)"
    found = RuntimeStatus("docker", up=False, text=words, short="another engine")
    told = {each.short: each.text for each in conditions(sample.with_node(runtimes=(found,)), NOW)}
    assert told["another engine"] == words


def test_a_small_read_only_screen_shows_the_number_of_free_gpus() -> None:
    room = 80 - len("00:00:00") - 3
    assert " free" in text(status_line(sample.rich_snapshot(), "node1", room, read_only=True))


@cases(
    ("retries", "words"),
    [(0, "no retries"), (1, "1 retry (0 used), backoff 5s"), (2, "2 retries (0 used), backoff 5s")],
)
def test_retries_are_counted_in_words(retries: int, words: str) -> None:
    ended = sample.jobs()[1]
    made: Job = replace(ended, spec=replace(ended.spec, retries=retries))
    assert made.state is JobState.FAILED
    lines = dict(job_lines(made, JobContext(NOW)))
    assert text(lines["limits"]) == f"no time limit, {words}"
    assert text(lines["attempts"]).count("exit code 1") == 1


def test_keys_have_the_names_of_the_keyboard() -> None:
    assert (key_name("vertical_line"), key_name("asterisk")) == ("|", "*")
    assert (key_of("|"), key_of("*")) == ("vertical_line", "asterisk")
    assert all(line.replace("\\|", "").count("|") == 5 for line in keys_document().splitlines() if line[:1] == "|")


async def test_escape_leaves_an_empty_filter_line() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        await pilot.press("slash")
        await pilot.pause()
        assert "Enter keep  Esc show all" in console.screen_text
        assert "submit" not in console.screen_text.splitlines()[-1]
        await pilot.press("escape")
        await pilot.pause()
        main = console.app.screen
        assert isinstance(main, Main)
        assert not main.query_one(FilterLine).is_open
        assert main.jobs.has_focus
        assert "submit" in console.screen_text.splitlines()[-1]


async def test_a_filter_says_how_many_match() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        await pilot.press("slash", *"tenant:alice", "enter")
        await pilot.pause()
        assert "6 of 11 jobs   Esc shows all" in console.screen_text


async def test_the_cursor_is_visible_after_sorting() -> None:
    async with on_screen(Console(with_array()), (80, 24)) as (console, pilot):
        await pilot.press("S", "S")
        await pilot.pause()
        table = queue(console)
        assert table.cursor is not None
        row = list(table.keys).index(table.cursor)
        assert row in table.view.lines


async def test_the_reason_for_an_unreadable_log_is_shown_in_full() -> None:
    console = Console()
    console.logs.error = NotFoundError("the output of attempt 1 of job 101 was removed with its container")
    async with on_screen(console, (80, 24)) as (_, pilot):
        for _ in range(200):
            if "container" in console.screen_text.split("LOG #101")[1]:
                break
            await pilot.pause(0.01)
        assert "container" in console.screen_text.split("LOG #101")[1]


def test_a_free_gpu_is_called_free_once() -> None:
    free = next(view for view in sample.gpus() if view.state is GpuState.FREE)
    card = "\n".join("".join(value for value, _ in line) for line in card_lines(GpuRow(free, now=NOW), 48, 9))
    assert card.count("free") == 1


def test_parts_that_do_not_fit_on_a_card_are_left_out_whole() -> None:
    lost = replace(days.sick().gpus[0], job_id=101)
    row = GpuRow(lost, sample.jobs()[3], now=NOW)
    card = ["".join(value for value, _ in line).rstrip() for line in card_lines(row, 28, 7)]
    assert card[0] == "0 #101 llama-7b-… alice LOST"
    assert card[1:4] == ["the driver cannot reach it;", "reset it or reboot the host", "no reading"]


def test_ports_of_a_running_job_are_shown_with_their_address() -> None:
    options = ContainerOptions(publish=("auto:8888",), device=("/dev/infiniband",))
    made = running(options=options).with_attempt(ports=(PublishedPort(8888, 49153),))
    lines = {label: "".join(text for text, _ in cell) for label, cell in job_lines(made, JobContext(NOW))}
    assert lines["port"].startswith("0.0.0.0:49153 -> 8888/tcp   ssh -N -L 8888:localhost:49153 ")
    assert (lines["publish"], lines["device"]) == ("auto:8888", "/dev/infiniband")


def idle_for(minutes: int) -> list[TakenStep]:
    idle = Step(utilization=0.0, memory_used=0.0, power=70.0, temperature=35.0)
    return [TakenStep(NOW - n * STEP, {uuid(i): idle for i in range(8)}) for n in range(6 * minutes, 0, -1)]


async def recalled(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Wait until the recorded readings are on the screen."""
    while not console.app.services.gpu_history.recorded:
        await pilot.pause(0.01)
    await console.settle(pilot)


@cases("size", [(80, 24), (120, 36), (200, 50), (300, 80)])
async def test_the_screen_of_an_idle_machine_is_not_half_empty(size: tuple[int, int]) -> None:
    async with on_screen(Console(sample.empty_queue(), gpu_past=lambda: idle_for(60)), size) as (console, pilot):
        await recalled(console, pilot)
        lines = console.screen_text.splitlines()
        assert sum(bool(line.strip()) for line in lines) > size[1] / 2
        assert "gputui run -it" in console.screen_text
        assert " 1h" in console.screen_text or size[1] < 30, "graphs of the last hour"


@cases(("minutes", "span"), [(1, "UTL 2m"), (4, "UTL 2m"), (10, "UTL 10m"), (40, "UTL 1h")])
async def test_graphs_of_an_idle_machine_go_back_twice_as_far_as_is_recorded(minutes: int, span: str) -> None:
    async with on_screen(Console(sample.empty_queue(), gpu_past=lambda: idle_for(minutes)), (300, 80)) as (
        console,
        pilot,
    ):
        await recalled(console, pilot)
        assert span in console.screen_text
