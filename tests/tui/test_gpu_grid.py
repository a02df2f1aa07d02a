"""The grid of GPUs: as cards, as rows, several to a line, and their contents."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.style import Style

from gputui.domain.gpu import Drain, GpuProcess, GpuSample, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.gpu_history import KEPT, STEP, GpuHistory, Step, TakenStep
from gputui.domain.settings import ConsoleSettings, Window
from gputui.domain.snapshot import Node, WindowState, WindowView, kept_words
from gputui.domain.text import plain, width
from gputui.tui.preferences import Preferences
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GRAPH,
    GREEN,
    LIGHT_GREEN,
    RED,
    VIOLET,
    area,
    block_bar,
    past_graph,
    span_words,
)
from gputui.tui.present.gpu import METERS, card_lines, compact_line, compact_title, gpu_cells
from gputui.tui.present.gpu_rows import (
    GpuLook,
    GpuPicture,
    GpuPictures,
    GpuRow,
    foreign_words,
    gpu_picture,
    running_words,
    slowed_cell,
    tone,
    tone_of,
)
from gputui.tui.widgets.gpu_grid import CARD_LEAST, CARD_SHORT, CARD_WIDTH, GpuGrid, GridRoom, arrange
from gputui.tui.widgets.job_table import JobTable
from tests.cases import cases
from tests.factories import GIB, NOW, running, snapshot, uuid, view
from tests.tui import plans, sample
from tests.tui.console import Console, on_screen

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
ALICE = Window("course", NOW + 2 * HOUR, NOW + 4 * HOUR, 2, tenant="alice")


def grid(console: Console) -> GpuGrid:
    return console.app.screen.query_one(GpuGrid)


def sample_of() -> GpuSample:
    """Return a reading of a busy GPU."""
    reading = sample.busy(0).sample
    assert reading is not None
    return reading


def words(lines: Sequence[Sequence[tuple[str, object]]]) -> str:
    return "\n".join("".join(value for value, _ in line) for line in lines)


@given(
    count=st.integers(1, 80),
    wide=st.integers(20, 320),
    most=st.integers(3, 60),
    fixed=st.one_of(st.none(), st.integers(3, 60)),
    mode=st.sampled_from(["auto", "cards", "rows", "compact"]),
)
def test_gpus_never_stand_beyond_the_room(count: int, wide: int, most: int, fixed: int | None, mode: str) -> None:
    made = arrange(count, GridRoom(wide, most, fixed, mode))
    assert made.rows == fixed or made.rows <= most or (made.kind == "cards" and made.rows <= CARD_LEAST)
    assert made.across * made.width <= max(wide, CARD_WIDTH)
    assert 1 <= made.across <= count
    if mode == "auto" and made.kind == "cards":
        assert made.bands(count) * made.height <= (fixed or most)
        assert made.height >= (CARD_LEAST if fixed is None else CARD_SHORT)  # a resized pane is filled by lower cards


@cases(
    ("count", "wide", "most", "kind", "across"),
    [
        (8, 200, 24, "cards", 4),
        (8, 120, 17, "cards", 4),
        (8, 80, 11, "rows", 1),
        (2, 80, 11, "cards", 2),
        (4, 300, 40, "cards", 4),
        (16, 200, 24, "cards", 6),
        (16, 80, 11, "compact", 2),
        (64, 200, 24, "compact", 5),
        (64, 120, 17, "compact", 4),
        (64, 300, 39, "compact", 5),
        (0, 200, 24, "rows", 1),
    ],
)
def test_the_layout_that_fits_is_chosen(count: int, wide: int, most: int, kind: str, across: int) -> None:
    made = arrange(count, GridRoom(wide, most))
    assert (made.kind, made.across) == (kind, across)


@cases(("size", "least"), [((200, 50), 13), ((120, 36), 8), ((80, 24), 4)])
async def test_the_queue_keeps_a_decent_height_beside_eight_gpus(size: tuple[int, int], least: int) -> None:
    async with on_screen(Console(), size) as (console, _):
        assert grid(console).has_tiles == (size[0] > 80)
        assert console.app.screen.query_one(JobTable).size.height > least
        for name in ("llama-7b-sft", "jupyter-bob", "drained", "LOST"):
            assert name in console.screen_text


@cases(("count", "size"), [(16, (200, 50)), (64, (80, 24))])
async def test_all_of_many_gpus_can_be_selected(count: int, size: tuple[int, int]) -> None:
    async with on_screen(Console(sample.many_gpus(count)), size) as (console, pilot):
        await pilot.press("shift+tab")
        table = grid(console)
        assert table.shown.height >= min(count, 27)
        seen = {table.cursor}
        for _ in range(count):
            await pilot.press("right")
            seen.add(table.cursor)
            assert table.shown.top <= table.keys.index(str(table.cursor)) < table.shown.top + table.shown.height
        assert seen == set(table.keys)
        await pilot.press("g")
        assert (table.shown.top, table.cursor) == (0, uuid(0))
        await pilot.press("G")
        assert table.cursor == uuid(count - 1)
        if table.shown.height < count:
            assert f"of {count} GPUs" in console.screen_text


async def test_keys_and_mouse_go_among_cards() -> None:
    async with on_screen(Console(), (200, 50)) as (console, pilot):
        await pilot.press("shift+tab")
        table = grid(console)
        for key, index in (("right", 1), ("j", 5), ("j", 5), ("left", 4), ("k", 0), ("up", 0), ("l", 1), ("down", 5)):
            await pilot.press(key)
            assert table.cursor == uuid(index), key
        made = table.arrangement
        await pilot.click(GpuGrid, offset=(2 * made.width + 3, made.height + 2))
        assert table.cursor == uuid(6)
        await console.show(pilot, sample.with_node(gpus=sample.gpus()[2:]))
        assert table.cursor == uuid(6)
        assert "▌6 H100" in console.screen_text


async def test_the_mouse_opens_a_card() -> None:
    async with on_screen(Console(), (200, 50)) as (console, pilot):
        await pilot.click(GpuGrid, offset=(60, 3), times=2)
        await pilot.pause()
        assert "Job #101" in console.screen_text


async def test_a_key_cycles_through_the_layouts_and_the_choice_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    console = Console(preferences=Preferences(path))
    kinds = []
    async with on_screen(console, (200, 50)) as (_, pilot):
        for _ in range(4):
            kinds.append(grid(console).arrangement.kind)
            await pilot.press("v")
            await pilot.pause()
        await pilot.press("v", "v")
    assert kinds == ["cards", "cards", "rows", "compact"]
    assert json.loads(path.read_text())["layout"]["grid"] == "rows"
    again = Console(preferences=Preferences(path))
    async with again.app.run_test(size=(200, 50)) as pilot:
        await again.begin(pilot)
        assert grid(again).arrangement.kind == "rows"


async def test_cards_are_drawn_whole_after_every_change_of_size() -> None:
    async with on_screen(Console(), (200, 50)) as (console, pilot):
        for size in ((80, 24), (120, 36), (300, 80), (40, 12), (200, 50)):
            await console.resize(pilot, *size)
            assert all(width(line) == size[0] for line in console.screen_text.splitlines()), size
            assert "#101" in console.screen_text


async def test_columns_without_any_reading_go_and_come_back() -> None:
    blind = tuple(
        replace(gpu, sample=None if gpu.sample is None else replace(gpu.sample, utilization=None, power=None))
        for gpu in sample.gpus()
    )
    async with on_screen(Console(sample.with_node(gpus=blind), preferences=Preferences()), (100, 24)) as (
        console,
        pilot,
    ):
        titles = console.screen_text.splitlines()[1]
        assert "UTIL" not in titles
        assert "PWR" not in titles
        assert "MEM" in titles
        await console.show(pilot, sample.rich_snapshot())
        titles = console.screen_text.splitlines()[1]
        assert "UTIL" in titles
        assert "PWR" in titles


def test_no_reading_is_omitted_before_the_first_snapshot() -> None:
    row = GpuRow(replace(view(0), sample=None))
    assert GpuPicture({"a": row}).unread() == {"fan"}
    assert "clock" in GpuPicture({"a": GpuRow(view(0, sample=replace(sample_of(), sm_clock=None)))}).unread()


@cases("room", [27, 28, 37, 48, 99])
@cases("height", [6, 7, 8, 10, 12])
def test_lines_of_a_card_are_exactly_as_wide(room: int, height: int) -> None:
    for name in sample.NAMES:
        job = running(1, name=name, tenant=name[:6], on=(uuid(0),), time_limit=HOUR)
        holder = Holder("process", name, name, 7, name * 3)
        held = replace(sample.busy(0, 1))
        foreign = replace(sample.busy(1), state=GpuState.FOREIGN, holders=(holder,), job_id=None)
        for row in (GpuRow(held, job, kept=plain(name), now=NOW), GpuRow(foreign, kept="", label="节点:1", now=NOW)):
            lines = card_lines(row, room, height)
            assert len(lines) == height
            assert {sum(width(value) for value, _ in line) for line in lines} == {room}
            assert sum(width(value) for value, _ in compact_line(row, room)) == room
            assert "\x1b" not in words(lines)


def test_a_long_line_shows_temperature_and_throttling() -> None:
    busy = sample.busy(0, 101)
    assert busy.sample is not None
    hot = GpuRow(replace(busy, sample=replace(busy.sample, throttle=("too hot",), temperature=91.0, power=412.0)))
    told = words((compact_line(hot, 70),))
    assert "91°" in told
    assert "412W" in told
    assert "slowed: too hot" in told
    titles = words((compact_title(70),))
    assert titles.index("PWR") + 3 == told.index("412W") + 4
    assert "91°" not in words((compact_line(hot, 40),))


@cases(
    ("room", "ran", "shown"),
    [
        (27, 2.25, "2h15m/8h30m"),
        (27, 50, "2d02h/8h30m"),
        (48, 2.25, "2h15m/8h30m"),
        (22, 2.25, "2h15m"),
    ],
)
def test_a_card_shows_the_time_limit_where_a_bar_has_room_beside_it(room: int, ran: float, shown: str) -> None:
    job = running(101, on=(uuid(0),), time_limit=8.5 * HOUR)
    line = words(card_lines(GpuRow(sample.busy(0, 101), plans.since(job, ran * HOUR), now=NOW), room, 10)).splitlines()[
        -1
    ]
    assert re.fullmatch(rf"RUN [━╸─]{{9,}} +{shown}", line)


def test_a_card_shows_the_main_readings() -> None:
    job = running(101, name="sft", tenant="alice", on=(uuid(0),), time_limit=8 * HOUR)
    busy = sample.busy(0, 101)
    assert busy.sample is not None
    hot = replace(busy, sample=replace(busy.sample, throttle=("too hot",), temperature=91.0))
    told = words(card_lines(GpuRow(hot, job, now=NOW), 48, 10))
    for part in ("0 H100", "#101 sft alice", "UTL █", "62%", "38/80G", "480/700W", "TMP✗", "91°C", "RUN ", "/8h"):
        assert part in told
    assert "slowed: too hot" in told
    drained, lost = (words(card_lines(GpuRow(gpu), 48, 8)) for gpu in sample.gpus()[6:])
    assert drained.count("drained") == 1
    assert "\nby alice: fan noise, ticket 812" in drained
    assert "fell off the bus (Xid 79)" in lost
    assert "no reading" in lost
    assert "0%" not in lost


def test_a_drained_gpu_says_so_while_it_is_in_use() -> None:
    drain = Drain("driver update at 18:00", "alice", NOW)
    job = running(101, name="llama-7b-sft", tenant="alice", on=(uuid(0),))
    ours = GpuRow(replace(sample.busy(0, 101), drain=drain), job, now=NOW)
    theirs = GpuRow(replace(sample.gpus()[3], drain=drain), now=NOW)
    for row, holder in ((ours, "#101 llama-7b-sft alice"), (theirs, "jupyter-bob bob")):
        title = words(card_lines(row, 36, 7)).splitlines()[0]
        assert title.endswith("drained")
        assert holder in title
        assert "\nby alice: driver update at 18:00" in words(card_lines(row, 60, 8))
        assert words((gpu_cells(row, "state", 7),)) == "drained"
        assert " drained " in words((compact_line(row, 70),))
        assert holder in words((compact_line(row, 70),))
    assert " drained by alice: fan" in words((compact_line(GpuRow(sample.gpus()[6]), 49),))


@given(room=st.integers(CARD_WIDTH - 1, 70), height=st.integers(CARD_LEAST, 12))
def test_a_card_shows_throttling(room: int, height: int) -> None:
    slowed = replace(sample_of(), throttle=("too hot (hardware)", "power cap"), temperature=93.0)
    told = words(card_lines(GpuRow(replace(sample.busy(1), sample=slowed)), room, height))
    assert "slowed: too hot" in told
    assert "PWR!" in told
    assert "TMP✗" in told


@cases(("count", "across"), [(8, 4), (5, 5), (6, 3), (9, 5), (11, 4)])
def test_lines_are_shared_evenly(count: int, across: int) -> None:
    assert arrange(count, GridRoom(200, 24, mode="compact")).across == across


def test_readings_from_before_a_loss_are_not_shown_as_current() -> None:
    gone = Health(HealthCode.LOST, "fell off the bus")
    for old in (replace(sample.busy(0), health=gone), replace(sample.busy(0), stale=True, age=HOUR)):
        told = words(card_lines(GpuRow(old), 48, 8))
        assert "not read" in told or "no reading" in told
        assert "58°C" not in told
        assert "480" not in told


@cases(
    ("window", "state", "expected"),
    [
        (ALICE, WindowState.UPCOMING, "from 14:00 reserved for alice"),
        (replace(ALICE, start=NOW - HOUR), WindowState.ACTIVE, "reserved for alice until 16:00"),
        (replace(ALICE, end=NOW + 30 * HOUR, start=NOW), WindowState.ACTIVE, "reserved for alice until Tue 18:00"),
        (replace(ALICE, tenant=None, priority=80), WindowState.UPCOMING, "from 14:00 reserved for priority 80+"),
        (replace(ALICE, priority=80), WindowState.UPCOMING, "from 14:00 reserved for alice or priority 80+"),
        (replace(ALICE, tenant=None), WindowState.UPCOMING, "from 14:00 reserved for nobody (course)"),
        (replace(ALICE, start=NOW - HOUR), WindowState.RELEASED, ""),
        (replace(ALICE, start=NOW + 30 * HOUR, end=NOW + 40 * HOUR), WindowState.UPCOMING, ""),
    ],
)
def test_the_beneficiary_of_a_reserved_gpu_is_named(window: Window, state: WindowState, expected: str) -> None:
    assert kept_words([WindowView(window, state, gpus=(uuid(4),))], NOW) == expected


@cases("size", [(80, 24), (200, 50)])
async def test_a_reservation_is_drawn_on_its_gpus(size: tuple[int, int]) -> None:
    now = WindowView(replace(ALICE, start=NOW - HOUR), WindowState.ACTIVE, gpus=(uuid(4), uuid(5)))
    async with on_screen(Console(sample.rich_snapshot(windows=(now,))), size) as (console, _):
        assert console.screen_text.count("reserved for alice") == 2


@cases(("named", "told"), [((), ""), ((uuid(4), uuid(5)), "from 14:00 reserved for alice")])
def test_a_coming_reservation_marks_only_gpus_that_it_names(named: tuple[str, ...], told: str) -> None:
    coming = replace(ALICE, gpus=named, count=0 if named else 2)
    windows = (WindowView(coming, WindowState.UPCOMING, gpus=(uuid(4), uuid(5))),)
    found = gpu_picture(sample.rich_snapshot(windows=windows), {}, GpuHistory(), NOW)
    assert found.rows[uuid(4)].kept == told


def test_a_foreign_process_is_shown_with_user_command_and_container() -> None:
    holder = Holder("container", "jupyter-bob", "bob", None, "f00d" * 16)
    process = GpuProcess(22110, 31 * GIB, "bob", "python notebook.py", "f00d" * 16)
    reading = replace(sample_of(), processes=(GpuProcess(1, command="other"), process))
    held = GpuView(view(3).gpu, GpuState.FOREIGN, view(3).health, sample=reading, holders=(holder,))
    assert foreign_words(held, holder) == "pid 22110 python notebook.py, 31G, container f00df00df00d"
    assert foreign_words(replace(held, sample=None), replace(holder, container_id=None)) == ""


def test_the_run_time_of_a_job_changes_once_a_minute() -> None:
    job = running(1, on=(uuid(0),)).evolve(started_at=NOW)
    told = [running_words(job, NOW + timedelta(seconds=second)) for second in (10, 61, 119, 120)]
    assert told == ["<1m", "1m", "1m", "2m"]


async def test_several_nodes_are_distinguished() -> None:
    nodes = (Node("north", sample.gpus()[:2]), Node("south", (view(0, gpu=replace(view(0).gpu, uuid="GPU-s")),)))
    async with on_screen(Console(sample.rich_snapshot(nodes=nodes)), (200, 50)) as (console, _):
        assert "north:0" in console.screen_text
        assert "south:0" in console.screen_text


class TestGraph:
    def test_a_graph_fills_from_the_bottom_with_the_newest_value_at_the_right(self) -> None:
        assert area([0.5, 1.0], 2, 2) == [" ⢸", " ⣿"]
        assert area([1.0] * 4, 2, 1) == ["⣿⣿"]

    def test_a_graph_distinguishes_idle_from_unknown(self) -> None:
        assert area([0.0, 0.0], 1, 1) == ["▁"]
        assert area([None, None], 1, 1) == [" "]
        assert area([None, 0.0], 1, 2) == [" ", "▁"]

    @given(st.lists(st.one_of(st.none(), st.floats(-1, 2)), max_size=40), st.integers(0, 20), st.integers(0, 5))
    def test_a_graph_has_exactly_its_given_size(self, values: list[float | None], wide: int, high: int) -> None:
        assert [len(line) for line in area(values, wide, high)] == [wide] * high

    @cases("height", [1, 2])
    def test_a_graph_moves_by_one_cell_every_two_seconds(self, height: int) -> None:
        history, shown = GpuHistory(), []
        for second in range(24):
            reading = sample.at_load(sample_of(), (second // 2 * 7 % 24) / 24)
            gpu = sample.with_sample(sample.busy(0, 101), reading)
            history.add(sample.with_node(taken_at=NOW + second * SECOND, gpus=(gpu,)))
            shown.append(past_graph(history.past_of(uuid(0)), "utilization", 1.0, (4, height))[-1])
        moves = [second for second in range(12, 24) if shown[second] != shown[second - 1]]
        assert {later - earlier for earlier, later in pairwise(moves)} == {2}
        assert shown[21][1:] == shown[23][:-1]

    @cases(("width", "span", "words"), [(28, 0, "56s"), (90, 0, "3m"), (28, 600, "10m"), (28, 3600, "1h")])
    def test_the_span_of_a_graph_is_shown(self, width: int, span: int, words: str) -> None:
        assert span_words(width, span) == words

    def test_a_zoom_shows_the_whole_span_in_the_same_room(self) -> None:
        taken = [TakenStep(NOW - ago * STEP, {uuid(0): Step(1.0 if ago > 180 else 0.5)}) for ago in range(359, 0, -1)]
        history = GpuHistory()
        history.begin_with(taken, NOW)
        past = history.past_of(uuid(0))
        hour, minutes, live = (past_graph(past, "utilization", 1.0, (20, 2), span)[0] for span in (3600, 600, 0))
        assert hour[:8] == "⣿" * 8
        assert hour[11:].strip() == ""
        assert "⣿" not in minutes + live
        assert past_graph(past, "utilization", 1.0, (20, 2))[1].strip()[:18] == "⣿" * 18, (
            "filled from what was recorded"
        )

    def test_time_without_a_reading_is_a_gap_and_no_zero(self) -> None:
        history = GpuHistory()
        for second in (*range(20), *range(40, 60)):
            history.add(sample.with_node(taken_at=NOW + second * SECOND, gpus=(sample.busy(0, 101),)))
        [line] = area(history.past_of(uuid(0)).columns("utilization", 1, 60), 30, 1)
        assert line == "⣤" * 10 + " " * 10 + "⣤" * 10


class TestForeignUse:
    def test_a_foreign_process_beside_a_job_is_named(self) -> None:
        eve = Holder("process", "miner", "eve", 999, None, GIB)
        row = GpuRow(replace(sample.busy(0, 101), holders=(eve,)), running(101, on=(uuid(0),)), now=NOW)
        card = "\n".join("".join(words for words, _ in line) for line in card_lines(row, 40, 9))
        assert "! also miner eve" in card
        assert "! also miner eve" in "".join(words for words, _ in gpu_cells(row, "held", 60))

    def test_a_mig_profile_keeps_its_numbers_in_a_narrow_column(self) -> None:
        row = GpuRow(replace(view(0), gpu=replace(view(0).gpu, mig_profile="3g.40gb")))
        assert ["".join(words for words, _ in gpu_cells(row, "model", room)) for room in (5, 9)] == ["3g.40", "3g.40gb"]


class TestTones:
    def row(self, reading: GpuSample, look: GpuLook | None = None, minutes: int = 20, **changes: object) -> GpuRow:
        job = running(101, on=(uuid(0),)).evolve(started_at=NOW - HOUR)
        history = GpuHistory()
        taken = [TakenStep(NOW - n * STEP, {uuid(0): Step(reading.utilization)}) for n in range(6 * minutes, 0, -1)]
        history.begin_with(taken, NOW)
        seen = replace(sample.busy(0, 101), sample=reading, **changes)
        return GpuRow(seen, job, history.past_of(uuid(0)), now=NOW, look=look or GpuLook())

    def test_an_idle_job_is_the_alarm_and_a_busy_one_is_not(self) -> None:
        for share, style, mark in ((0.99, GREEN, " "), (0.3, LIGHT_GREEN, " ")):
            judged = tone_of(self.row(sample.at_load(sample_of(), share)), "utilization", share)
            assert (judged.style, judged.mark) == (style, mark)
        since = NOW - timedelta(minutes=20)
        idle = self.row(replace(sample_of(), utilization=0.02), idle_since=since)
        assert self.row(sample_of(), idle_since=since, stale=True).idle is None
        assert (tone_of(idle, "utilization", 0.02).style, tone_of(idle, "utilization", 0.02).mark) == (AMBER, "!")
        told = words(card_lines(idle, 48, 8))
        assert "idle 20m" in told
        assert "UTL!" in told
        assert "░" in told
        assert "idle 20m #101" in words((gpu_cells(idle, "held", 40),))

    @cases(("share", "style"), [(0.5, BLUE), (0.9, AMBER), (1.0, AMBER)])
    def test_memory_has_colours_by_its_fill(self, share: float, style: Style) -> None:
        assert tone_of(self.row(sample_of()), "memory_used", share).style == style

    def test_only_faults_that_slow_the_gpu_down_are_red(self) -> None:
        """The driver holds each well-used board at its own limit; only a lowered limit is worth telling."""
        for reasons, power, heat in (
            ((), GRAPH, GRAPH),
            (("power cap",), AMBER, GRAPH),
            (("power brake",), RED, GRAPH),
            (("hardware slowdown", "power cap"), AMBER, RED),
            (("sync boost", "display clock"), GRAPH, GRAPH),
        ):
            row = self.row(replace(sample_of(), throttle=reasons))
            assert (tone_of(row, "power", 0.98).style, tone_of(row, "temperature", 0.6).style) == (power, heat)
            colours = {style for _, style in slowed_cell(row.view.current)}
            assert colours == ({RED} if RED in {power, heat} else {AMBER} if reasons and power == AMBER else set())
        assert tone_of(self.row(sample_of()), "temperature", 0.95).style == AMBER

    def test_memory_and_heat_do_not_flap(self) -> None:
        history = GpuHistory()
        told = []
        for second in range(60):
            is_high = second % 4 < 2 if second < 30 else True
            reading = replace(
                sample_of(), memory_used=(75 if is_high else 60) * GIB, temperature=85.0 if is_high else 60.0
            )
            seen = replace(sample.busy(0, 101), sample=reading)
            now = NOW + second * timedelta(seconds=1)
            history.add(snapshot(gpus=[seen], taken_at=now))
            row = GpuRow(seen, past=history.past_of(uuid(0)), now=now)
            told.append({tone(row, name).mark for name in ("memory_used", "temperature")})
        assert told[0] == {"!"}, "nothing is known of the time before"
        assert len(set(map(frozenset, told))) == 1

    @cases(("share", "style"), [(0.05, GREEN), (0.10, AMBER), (0.74, AMBER), (0.75, RED)])
    def test_the_intensity_colours_are_those_of_nvitop(self, share: float, style: Style) -> None:
        look = GpuLook(colours="intensity")
        assert tone_of(self.row(sample_of(), look), "utilization", share).style == style
        assert tone_of(GpuRow(view(4), look=look), "utilization", share).style == style

    def test_bars_of_a_foreign_gpu_have_the_colours_of_their_values_and_a_free_gpu_is_grey(self) -> None:
        foreign = GpuRow(sample.gpus()[3])
        assert [tone_of(foreign, name, 0.95).style for name, _ in METERS] == [GREEN, AMBER, GRAPH, AMBER]
        assert VIOLET not in {style for line in card_lines(foreign, 48, 8)[1:] for _, style in line}
        assert VIOLET in {style for _, style in card_lines(foreign, 48, 8)[0]}
        assert {tone_of(GpuRow(view(4)), name, 0.2).style for name, _ in METERS} == {DIM}


@given(share=st.floats(0, 1), room=st.integers(1, 60))
def test_a_bar_is_exact_to_an_eighth_of_a_cell(share: float, room: int) -> None:
    [(bar, _)] = block_bar(share, room, GREEN)
    assert len(bar) == room
    filled = 8 * bar.count("█") + sum(" ▏▎▍▌▋▊▉".index(part) for part in bar if part in "▏▎▍▌▋▊▉")
    assert filled == pytest.approx(max(share * room * 8, 1 if share else 0), abs=0.51)


def test_unavailable_readings_take_no_line_and_missing_values_are_dashes() -> None:
    blind = GpuRow(replace(sample.busy(0, 101), sample=replace(sample_of(), power=None)))
    assert "–" in words(card_lines(blind, 30, 8))
    assert "PWR" not in words(card_lines(blind, 30, 8, GpuPicture({"a": blind}).unread_fields()))


async def test_keys_change_span_and_colours_and_the_choice_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    async with on_screen(Console(preferences=Preferences(path)), (200, 50)) as (console, pilot):
        await pilot.press("M", "H")
        await pilot.pause()
        assert "GPU colours by intensity" in console.told[-1]
    assert json.loads(path.read_text())["gpus"] == {"span": "10m", "colours": "intensity"}
    chosen = GpuPictures(ConsoleSettings(), Preferences(path), GpuHistory()).look
    assert (chosen.seconds, chosen.colours) == (600, "intensity")
    intense = GpuPictures(ConsoleSettings(gpu_colours="intensity"), Preferences(), GpuHistory())
    assert intense.look.colours == "intensity"


async def test_readings_from_before_the_console_was_opened_are_drawn() -> None:
    taken = [TakenStep(NOW - ago * STEP, {uuid(0): Step(utilization=0.99)}) for ago in range(30, 0, -1)]
    full, looked = "⣿" * 20, []

    def gpu_past() -> list[TakenStep]:
        looked.append(threading.current_thread())
        return taken

    for console, is_there in ((Console(gpu_past=gpu_past), True), (Console(), False)):
        async with console.app.run_test(size=(200, 50)) as pilot:
            await console.begin(pilot)
            await pilot.pause(0.1)
            await console.begin(pilot)
            assert (full in console.screen_text) is is_there
    assert looked
    assert threading.main_thread() not in looked
    assert len(looked) == 1


def test_the_history_keeps_an_hour_with_gaps() -> None:
    history = GpuHistory()
    for step in range(KEPT + 20):
        gpu = sample.busy(0, 101) if step % 2 else replace(view(0), sample=None)
        history.add(sample.with_node(taken_at=NOW + step * STEP, gpus=(gpu,)))
    past = history.past_of(uuid(0))
    assert len(past.steps) == KEPT
    assert past.number == KEPT + 19
    assert {value is None for value in past.values("power")} == {True, False}
    assert max(value or 0 for value in past.values("memory_used", 80 * GIB)) == pytest.approx(38 / 80)


async def test_a_lost_gpu_that_is_read_again_has_a_row_again() -> None:
    async with on_screen(Console(), (80, 24)) as (console, pilot):
        assert "7 LOST" in console.screen_text
        await console.show(pilot, sample.with_node(gpus=(*sample.gpus()[:7], sample.busy(7, 101))))
        assert "LOST" not in console.screen_text
        await console.show(pilot, console.snapshot)
        assert "7 LOST" in console.screen_text


@cases(("width", "rows"), [(80, 22), (100, 28), (120, 34), (200, 48), (300, 78)])
def test_eight_gpus_that_fill_the_screen_use_its_height(width: int, rows: int) -> None:
    made = arrange(8, GridRoom(width, rows, fixed=rows))
    assert made.kind == "cards"
    assert made.bands(8) * made.height > rows * 0.8


def test_a_pane_of_a_few_rows_keeps_a_row_for_each_gpu() -> None:
    assert arrange(8, GridRoom(80, 12, fixed=12)).kind == "rows"
    assert arrange(8, GridRoom(80, 11)).kind == "rows"


async def test_the_toast_names_the_span_that_is_shown_while_no_gpu_is_in_use() -> None:
    taken = [TakenStep(NOW - n * STEP, {uuid(0): Step(0.5)}) for n in range(200, 0, -1)]
    async with on_screen(Console(sample.empty_queue(), gpu_past=lambda: taken), (200, 50)) as (console, pilot):
        while not console.app.services.gpu_history.recorded:
            await pilot.pause(0.01)
        for words in ("10 minutes across", "1 hour across"):
            await pilot.press("M")
            await pilot.pause()
            assert console.told[-1] == f"GPU graphs: {words}"
        await pilot.press("M")
        await pilot.pause()
        assert console.told[-1] == "GPU graphs: 2 seconds a cell while a GPU is in use; now 1 hour across, as none is"


async def test_the_toast_names_only_the_chosen_span_while_a_gpu_is_in_use() -> None:
    async with on_screen(Console(), (200, 50)) as (console, pilot):
        await pilot.press("M", "M", "M")
        await pilot.pause()
        assert console.told[-1] == "GPU graphs: 2 seconds a cell"
