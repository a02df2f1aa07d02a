"""Progress of jobs as bars, and their states in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.job import ArrayRef, Job
from gputui.domain.state import JobState
from gputui.domain.text import format_limit
from gputui.tui.present.cells import Cell, width_of
from gputui.tui.present.job import ArrayCounts, JobContext, array_progress, elapsed_words, job_cells
from gputui.tui.widgets.queue_rows import ChosenColumns, array_counts, job_loads, varied_columns
from tests.cases import cases
from tests.factories import NOW, job, running, sample, view

WIDE = JobContext(NOW, room={"state": 9, "progress": 27})


def text(cell: Cell) -> str:
    return "".join(words for words, _ in cell)


def shown(column: str, one: Job, context: JobContext = WIDE) -> str:
    return text(job_cells(one, column, context))


def ran(seconds: float, limit: timedelta | None = timedelta(minutes=16)) -> Job:
    return running(1, time_limit=limit).evolve(started_at=NOW - timedelta(seconds=seconds))


@cases(
    ("taken", "limit", "words"),
    [
        (timedelta(seconds=42), timedelta(minutes=16), "0:42 / 16m"),
        (timedelta(hours=2, minutes=14), timedelta(hours=12), "2h14m / 12h"),
        (timedelta(minutes=59, seconds=59), timedelta(hours=2, minutes=30), "59:59 / 2h30m"),
        (timedelta(days=1, hours=4), timedelta(days=3), "1d04h / 3d"),
        (timedelta(seconds=5), None, "0:05"),
    ],
)
def test_elapsed_time_is_shown_against_the_limit(taken: timedelta, limit: timedelta | None, words: str) -> None:
    assert elapsed_words(taken, limit) == words


def test_a_limit_has_no_units_that_are_zero() -> None:
    limits = [timedelta(seconds=45), timedelta(minutes=10), timedelta(minutes=10, seconds=20), timedelta(days=2)]
    assert [format_limit(limit) for limit in limits] == ["45s", "10m", "10m20s", "2d"]


def test_a_bar_precedes_the_text_if_there_is_room() -> None:
    assert shown("progress", ran(8 * 60)) == "━━━━━━────── 8:00 / 16m"
    assert shown("progress", ran(8 * 60), JobContext(NOW)) == "8:00 / 16m"
    assert shown("progress", ran(100, None)) == "1:40"
    assert shown("progress", job(1, time_limit=timedelta(hours=4))) == "limit 4h"
    assert shown("progress", job(1)) == ""


def test_a_pull_has_a_bar_and_words_in_the_last_column() -> None:
    pulling = replace(WIDE, progress={1: "pulling vit:2, 45 %"})
    starting = job(1, image="vit:2").evolve(state=JobState.CONFIGURING)
    assert shown("progress", starting, pulling) == "━━━━━╸────── 45 %"
    assert shown("why", starting, pulling) == "pulling vit:2"
    creating = replace(WIDE, progress={1: "creating the container"})
    assert shown("progress", starting, creating) == "creating"


def test_elements_of_an_array_are_a_bar_of_done_running_and_failed() -> None:
    counts = ArrayCounts(done=7, running=2, failed=1, others=10)
    cell = array_progress(counts, 27)
    assert text(cell) == "▰▰▰▰▰▰▱▱▱▱ 7/20 ✗1"
    assert text(array_progress(ArrayCounts(others=100_000), 13)) == "▱▱▱ 0/100,000"
    for room in range(8, 40):
        assert width_of(array_progress(counts, room)) <= room


def test_states_are_words_where_there_is_room_and_short_elsewhere() -> None:
    assert [shown("state", job(1, held=held)) for held in (False, True)] == ["waiting", "held"]
    assert shown("state", job(1, held=True), JobContext(NOW)) == "PDh"
    for state in JobState:
        assert len(shown("state", job(1).evolve(state=state))) <= 9


def test_wide_screens_show_more_columns_by_themselves() -> None:
    usual = [column.key for column in ChosenColumns().columns(120)]
    wide = [column.key for column in ChosenColumns().columns(200)]
    assert [key for key in wide if key not in usual] == ["left", "user", "image", "command"]
    assert [column.key for column in ChosenColumns(("id", "why")).columns(200)] == ["id", "why"]


def test_elements_of_an_array_in_the_history_count_as_done() -> None:
    """The ids of an array follow one another: ids that are missing before the last one have left the queue file."""
    left = [job(number).evolve(array=ArrayRef(4, number - 4)) for number in (7, 9)]
    counts = array_counts(left)[4]
    assert (counts.total, counts.past, counts.others) == (6, 4, 2)
    assert text(array_progress(counts, 13)).endswith("4/6")
    assert array_counts([job(1)]) == {}


def test_the_command_is_shown_by_the_name_of_its_program() -> None:
    one = job(1, image=None, command=("/opt/venv/bin/python3", "/data/train.py", "--lr", "1e-3"))
    assert shown("command", one) == "train.py --lr 1e-3"
    assert shown("command", job(1, command=("python", "-u", "-m", "torch.distributed.run", "x"))).startswith("torch.")
    assert shown("command", job(1, command=("/usr/bin/python3.11", "-c", "1"))) == "python3.11 -c 1"
    assert shown("command", job(1, command=("/bin/sleep", "60"))) == "sleep 60"
    assert shown("image", one) == ""
    assert shown("command", job(1, command=())) == ""


def test_wide_screens_leave_out_columns_that_are_alike_in_all_rows() -> None:
    alice, bob = job(1, image="a", command=("x",)), job(2, image="a", command=("y",)).evolve(submitted_by="bob")
    assert varied_columns([]) == varied_columns([alice, alice]) == frozenset()
    assert varied_columns([alice, alice, bob]) == {"user", "command"}
    keys = [column.key for column in ChosenColumns().columns(200, {"user"})]
    assert {"user", "left"} <= set(keys)
    assert not {"image", "command"} & set(keys)
    own = ChosenColumns(("id", "image")).columns(200, ())
    assert [column.key for column in own] == ["id", "image"]


def test_a_row_shows_the_utilisation_that_its_gpus_have_now() -> None:
    def read(*values: float, stale: bool = False) -> Mapping[int, int]:
        return job_loads(
            view(number, sample=sample(number, utilization=value), job_id=3, job_ids=(3,), stale=stale)
            for number, value in enumerate(values)
        )

    assert read(0.97, 0.95) == {3: 96}
    assert read(0.97, 0.94) == {3: 96}
    assert read(0.96, 0.94) == {3: 95}
    assert read(0.90, stale=True) == {}
    one = running(3, on=["a"])
    names = dict.fromkeys(one.gpus, "0")
    assert text(job_cells(one, "why", JobContext(NOW, gpu_names=names, loads={3: 96}))) == "GPU 0 · 96%"
