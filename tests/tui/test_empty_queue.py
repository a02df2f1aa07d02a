"""A first day: an empty queue beside GPUs that other people use."""

from __future__ import annotations

import re
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.conditions import with_keys
from gputui.domain.gpu import GpuProcess, GpuState, GpuView, Holder
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Node, Snapshot
from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu import card_lines
from gputui.tui.present.gpu_rows import GpuRow, program_words
from gputui.tui.present.status import foreign_use_words
from tests.cases import cases
from tests.factories import GIB, NOW, view
from tests.factories import sample as sample_of
from tests.tui import sample
from tests.tui.console import Console, on_screen

TRAIN = GpuProcess(4242, 62 * GIB, "eve", "/opt/conda/bin/python3.11 -u /home/eve/train.py --lr 1")
SERVE = GpuProcess(77, 9 * GIB, "dave", "/usr/bin/vllm serve Qwen")


def used_by(index: int, *processes: GpuProcess) -> GpuView:
    holders = tuple(Holder("process", p.command or "", p.user, p.pid, memory=p.memory) for p in processes)
    reading = replace(sample_of(index), processes=processes)
    return view(index, GpuState.FOREIGN, sample=reading, holders=holders)


def first_day(free: int = 0) -> Snapshot:
    held = (used_by(0, TRAIN), *(used_by(n, replace(SERVE, pid=70 + n)) for n in range(1, 8 - free)))
    node = sample.empty_queue().nodes[0]
    gpus = (*held, *(view(n) for n in range(8 - free, 8)))
    return replace(sample.empty_queue(), nodes=(Node(node.name, gpus, node.probe, None, node.runtimes),))


def words(lines: tuple[Cell, ...]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@cases(
    ("command", "told"),
    [
        ("/opt/conda/bin/python3.11 -u /home/eve/train.py --lr 1", "train.py --lr 1"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run train.py"),
        ("python -c import\x20torch", "python -c import torch"),
        ("python", "python"),
        ("/bin/bash -i", "bash -i"),
        ("/usr/bin/vllm serve a/b", "vllm serve a/b"),
        ("", ""),
    ],
)
def test_a_command_is_named_by_what_it_runs(command: str, told: str) -> None:
    assert program_words(command) == told


@cases(
    ("room", "height", "last"),
    [(48, 10, "62G pid 4242"), (24, 10, "train.py --lr 1"), (24, 7, "62G pid 4242")],
)
def test_a_card_ends_with_what_its_title_lacks_of_the_process(room: int, height: int, last: str) -> None:
    told = words(card_lines(GpuRow(used_by(0, TRAIN)), room, height))
    assert ("eve train.py --lr 1 pid 4242 " if room > 40 else "0 eve train.py … foreign") in told[0]
    assert "62G pid 4242" in told
    assert told[-1] == last


def test_a_card_lists_several_processes_the_largest_first() -> None:
    row = GpuRow(used_by(0, SERVE, TRAIN))
    assert words(card_lines(row, 48, 10))[-2:] == ["eve 62G pid 4242 train.py --lr 1", "dave 9G pid 77 vllm serve Qwen"]
    assert words(card_lines(row, 48, 7))[-1] == "+1 eve 62G pid 4242 train.py --lr 1"


def test_a_card_names_the_image_of_a_container_even_without_a_process() -> None:
    holder = Holder("container", "jupyter-bob", "bob", container_id="f00d" * 16, image="jupyter:7")
    inside = replace(sample_of(0), processes=(replace(TRAIN, container_id="f00d" * 16),))
    held = view(0, GpuState.FOREIGN, sample=inside, holders=(holder,))
    assert words(card_lines(GpuRow(held), 48, 10))[-2:] == ["62G pid 4242  jupyter:7", "train.py --lr 1"]
    empty = replace(held, sample=replace(inside, processes=()))
    assert words(card_lines(GpuRow(empty), 48, 10))[-1] == "image jupyter:7, container f00df00df00d"


@cases(
    ("free", "told"),
    [
        (0, "The queue is empty. All 8 GPUs are in foreign use: jobs wait for a free one."),
        (1, "The queue is empty. 7 of 8 GPUs are in foreign use: 1 is free."),
        (8, None),
    ],
)
def test_an_empty_queue_says_who_uses_the_gpus(free: int, told: str | None) -> None:
    picture = first_day(free) if free < 8 else sample.empty_queue()
    found = [with_keys(line, lambda name: "U") for line in words(foreign_use_words(picture, 79))]
    assert (found[0] if found else None) == told
    assert all(len(line) <= 79 for line in found)
    if told:
        assert found[2].split() == ["GPU", "USER", "PID", "UTIL", "IDLE", "GPU", "MEM", "AGE", "COMMAND"]
        assert found[3].split() == ["0", "eve", "4242", "0%", "62G", "train.py", "--lr", "1"]


def test_a_process_is_listed_with_its_age_and_how_long_all_its_gpus_have_been_idle() -> None:
    picture = first_day(free=6)
    both = replace(TRAIN, started_at=NOW - timedelta(days=2, hours=4))
    held = tuple(replace(used_by(n, both), idle_since=NOW - timedelta(minutes=47 + n)) for n in range(2))
    node = picture.nodes[0]
    idle, half = (
        words(foreign_use_words(replace(picture, taken_at=NOW, nodes=(replace(node, gpus=gpus),)), 79))[3].split()
        for gpus in (held, (held[0], replace(held[1], idle_since=None)))
    )
    assert idle[:7] == ["0,1", "eve", "4242", "0%", "47m", "124G", "2d04h"]
    assert half[:6] == ["0,1", "eve", "4242", "0%", "124G", "2d04h"]


async def test_a_first_day_shows_processes_and_then_how_to_submit() -> None:
    async with on_screen(Console(first_day()), (80, 24)) as (console, pilot):
        told = console.screen_text
        assert "foreign eve train.py" in told
        assert "U opens this list of 8, to look at a process or end it" in told
        assert re.search(r"\n 0 +eve +4242 +\d+% +62G +train.py --lr 1", told)
        assert told.index("COMMAND") < told.index("s submits a job, or in any shell:")
        assert told.index("s submits a job") < told.index("gputui submit --host --gpus 1 -- python train.py")
        for _ in range(2):  # what fluctuates is told until it has been over for 10 seconds
            await console.show(pilot, replace(sample.empty_queue(), taken_at=console.clock.now()))
            console.clock.advance(10)
        assert "The queue is empty. Press s to submit a job" in console.screen_text
        assert "U opens this list" not in console.screen_text


async def test_host_jobs_are_not_offered_where_the_engine_s_machine_runs_the_jobs() -> None:
    empty = sample.empty_queue()
    elsewhere = replace(empty, nodes=(replace(empty.nodes[0], name="gpu1", is_elsewhere=True),))
    async with on_screen(Console(elsewhere), (120, 36)) as (console, _):
        assert "gputui submit --gpus 1 IMAGE" in console.screen_text
        assert "--host" not in console.screen_text


async def test_a_log_pane_without_a_log_lends_rows_to_the_list_until_there_is_a_job() -> None:
    async with on_screen(Console(first_day()), (120, 36)) as (console, pilot):
        queue, log = console.app.screen.query_one("#list"), console.app.screen.query_one("#log")
        assert all(f" {70 + n} " in console.screen_text for n in range(1, 8))
        assert "gputui submit --host --gpus 1 -- python train.py" in console.screen_text
        rows = queue.size.height, log.size.height
        await console.show(pilot, sample.rich_snapshot())
        assert queue.size.height < rows[0]
        assert log.size.height > rows[1]


async def test_rows_that_the_user_gives_to_the_log_stay_there() -> None:
    async with on_screen(Console(first_day()), (120, 36)) as (console, pilot):
        log = console.app.screen.query_one("#log")
        await pilot.press("tab")
        before = log.size.height
        await pilot.press("right_square_bracket", "right_square_bracket")
        await console.show(pilot, first_day(free=1))
        assert log.size.height == before + 2


async def test_a_read_only_console_offers_to_look_only() -> None:
    async with on_screen(Console(first_day(), console=ConsoleSettings("off", read_only=True)), (120, 36)) as (
        console,
        _,
    ):
        assert "U opens this list of 8, to look at a process." in console.screen_text
        assert "submit" not in console.screen_text
