"""The page of one GPU: ways to open it, its content, and its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from textual._compositor import LayoutUpdate
from textual.screen import Screen

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import (
    Gpu,
    GpuFault,
    GpuProcess,
    GpuSample,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    Link,
    Sharer,
)
from gputui.domain.gpu_history import STEP, GpuHistory, TakenStep, mean
from gputui.domain.job import Job
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.domain.state import JobState
from gputui.domain.text import UNKNOWN
from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu_detail import GpuPage, gpu_page_lines, graph_lines, holders, topology_lines
from gputui.tui.present.gpu_rows import gpu_picture
from gputui.tui.screens.main import Main
from gputui.tui.screens.pages import Detail, GpuDetailScreen
from gputui.tui.textual_internals import ExactUpdate
from tests.cases import cases
from tests.factories import GIB, NOW, gpu, running, uuid, view
from tests.factories import sample as reading
from tests.tui import days, sample
from tests.tui.console import Console, on_screen, steady, until
from tests.tui.test_pictures import WIDE, Compare, matches


def page(
    snapshot: Snapshot, index: int = 0, *, room: int = 160, pcie: str = "", history: GpuHistory | None = None
) -> str:
    """Return the page of that GPU as text."""
    jobs = {job.id: job for job in snapshot.jobs}
    picture = gpu_picture(snapshot, jobs, history or GpuHistory(), NOW)
    row = next(row for row in picture.rows.values() if row.view.gpu.index == index)
    made = GpuPage(row, picture, snapshot, NOW, holders(row.view, snapshot.jobs), pcie)
    return text(gpu_page_lines(made, room, 48))


def text(lines: list[Cell]) -> str:
    return "\n".join("".join(value for value, _ in line) for line in lines)


def top(console: Console) -> Screen[object]:
    """The screen that is seen: asked each time, as it changes."""
    return console.app.screen


def shown(console: Console) -> GpuDetailScreen:
    screen = console.app.screen
    assert isinstance(screen, GpuDetailScreen)
    return screen


@cases("keys", [("i",), ("shift+tab", "j", "enter")])
async def test_a_key_opens_the_page_and_enter_does_for_a_gpu_without_a_job(keys: tuple[str, ...]) -> None:
    async with on_screen(Console(sample.linked()), WIDE) as (console, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        index = 4 if "enter" in keys else 0
        assert f"GPU {index}" in console.screen_text.splitlines()[0]
        assert "NV18" in console.screen_text
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(console.app.screen, Main)


async def test_a_waiting_job_has_no_gpu_to_look_at() -> None:
    async with on_screen(Console(sample.linked()), WIDE) as (console, pilot):
        await pilot.press(*"jjjjjji")
        await pilot.pause()
        assert isinstance(console.app.screen, Main)


async def test_keys_go_to_other_gpus_to_the_job_and_back() -> None:
    async with on_screen(Console(sample.linked()), (120, 36)) as (console, pilot):
        await pilot.press("shift+tab", "i", "G", "right")
        await pilot.pause()
        assert "GPU 1 " in console.screen_text.splitlines()[0]
        assert "state" in console.screen_text.splitlines()[1]
        await pilot.press("left", "left")
        await pilot.pause()
        assert "GPU 7 " in console.screen_text.splitlines()[0]
        assert "fell off the bus (Xid 79): reboot the host" in console.screen_text
        await pilot.press("right", "enter")
        await pilot.pause()
        assert isinstance(top(console), Detail)
        await pilot.press("escape", "f")
        await pilot.pause()
        assert isinstance(top(console), Main)
        assert console.logs.opened[-1][0] == 101


async def test_the_page_scrolls_by_key() -> None:
    async with on_screen(Console(sample.linked()), (80, 24)) as (console, pilot):
        await pilot.press("i")
        await pilot.pause()
        await pilot.press("G")
        await pilot.pause()
        assert "driver" in console.screen_text
        last = console.screen_text
        await pilot.press("j", "pagedown")
        await pilot.pause()
        assert console.screen_text == last
        await pilot.press("g")
        await pilot.pause()
        assert "state" in console.screen_text
        await pilot.press("ctrl+d")
        await pilot.pause()
        assert "1–22 of" not in console.screen_text


async def test_pcie_is_read_only_for_this_gpu() -> None:
    wanted: list[str | None] = []
    async with on_screen(Console(sample.linked(), want_pcie=wanted.append), WIDE) as (console, pilot):
        assert not wanted
        await pilot.press("i")
        await pilot.pause()
        assert set(wanted) == {uuid(0)}
        await pilot.press("right")
        await pilot.pause()
        assert wanted[-1] == uuid(1)
        await pilot.press("escape")
        await pilot.pause()
        assert wanted[-1:] == [None]
        del wanted[:]
        await console.show(pilot, replace(sample.linked(), leader=sample.SERVE, leads_here=False))
        await pilot.press("i")
        await pilot.pause()
        assert set(wanted) == {uuid(0)}
        assert "gputui serve (pid 812) reads the GPUs" in console.screen_text


def sharing() -> Snapshot:
    """Return a snapshot with two jobs on one GPU."""
    jobs = (running(101, on=(uuid(0),), name="first"), running(102, on=(uuid(0),), name="second"))
    sharers = (Sharer(101, 20 * GIB), Sharer(102, 30 * GIB))
    shared = replace(sample.busy(0, 101), job_ids=(101, 102), sharers=sharers)
    return replace(sample.with_node(gpus=(shared, view(1))), jobs=jobs, order=())


async def test_tab_chooses_among_jobs_that_share_the_gpu() -> None:
    async with on_screen(Console(sharing()), WIDE) as (console, pilot):
        await pilot.press("shift+tab", "i")
        await pilot.pause()
        assert "counts 20G" in console.screen_text
        assert "counts 30G" in console.screen_text
        await pilot.press("tab")
        await pilot.pause()
        job = shown(console).subject()
        assert job is not None
        assert job.id == 102
        await pilot.press("enter")
        await pilot.pause()
        assert "Job #102" in console.screen_text


async def test_a_gpu_that_is_no_longer_listed_stays_as_it_was() -> None:
    async with on_screen(Console(sample.linked()), WIDE) as (console, pilot):
        await pilot.press("i")
        await console.show(pilot, sample.with_node(gpus=()))
        assert "llama-7b-sft" in console.screen_text


@pytest.mark.usefixtures("drawn_at_once")
async def test_a_redraw_each_second_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(sample.linked())
    drawn: list[object] = []
    costs: list[int] = []
    async with on_screen(console, WIDE) as (_, pilot):
        await pilot.press("i")
        await steady(pilot)
        monkeypatch.setattr(console.app, "_display", lambda screen, update: drawn.append(update))
        for power in (240.0, 222.0) * 10:  # the first redraws also draw the rest of the page's opening
            drawn.clear()
            gpus = [_moved(gpu, power) for gpu in sample.linked().gpus]
            await console.show(pilot, sample.with_node(gpus=tuple(gpus)))
            await until(pilot, lambda words=f"{power:.0f}W of": words in console.screen_text)  # type: ignore[misc]
            await steady(pilot)
            costs.append(sum(_bytes_of(update, console) for update in drawn))
            if len(costs) > 1 and all(30 < cost < 1000 for cost in costs[-2:]):
                return
    pytest.fail(f"bytes of the redraws: {costs}")


def _bytes_of(update: object, console: Console) -> int:
    """Return the bytes that an update sends; of a whole screen, only that they are many."""
    if isinstance(update, ExactUpdate):
        return len(update.render_segments(console.app.console).encode())
    return 10_000 if isinstance(update, LayoutUpdate) else 0


def _moved(view: GpuView, power: float) -> GpuView:
    if view.sample is None:
        return view
    return replace(view, sample=replace(view.sample, utilization=power / 2000, power=power, temperature=power / 5))


class TestPage:
    def test_the_page_shows_all_readings(self) -> None:
        told = page(sample.linked())
        for part in (
            "#101 llama-7b-sft",
            "2h14m / 8h",
            "62%",
            "38G",
            "480W of 700W",
            "58°C",
            "1755 MHz",
            "2619 MHz",
        ):
            assert part in told
        for part in ("2 corrected, 0 uncorrected", "none seen", "not slowed", "22110", "ipykernel", "c0ffee00c0ff"):
            assert part in told
        for part in (uuid(0), "0000:18:00.0", "/dev/nvidia0", "560.35.05", "NVIDIA H100 80GB HBM3"):
            assert part in told

    def test_problems_are_described_in_words(self) -> None:
        sick = Health(HealthCode.REMAP_PENDING, "a memory row waits to be remapped at the next reset")
        first = sample.linked().gpus[0]
        assert first.sample is not None
        reading = replace(first.sample, xid=79, ecc_uncorrected=3, throttle=("too hot", "power brake"))
        told = page(sample.with_node(gpus=(replace(first, health=sick, sample=reading),)))
        for part in (sick.text, "79, the last one seen", "3 uncorrected", "slowed: too hot, power brake"):
            assert part in told
        drained = page(sample.linked(), 6)
        assert "by alice on 2025-03-01 12:00: fan noise, ticket 812" in drained.replace(f"{NOW:%Y-%m-%d}", "2025-03-01")
        assert "none now: the driver does not answer for it" in page(sample.linked(), 7)

    def test_a_foreign_container_is_named_with_its_process(self) -> None:
        told = page(sample.linked(), 3)
        for part in ("jupyter-bob", "bob", "pid 22110 python -m ipykernel_launcher", "31G", "container f00df00df00d"):
            assert part in told
        views = sample.linked().gpus
        holder = Holder("container", "jupyter-bob", None, container_id="f00d" * 16, image="jupyter/torch:7")
        named = page(sample.with_node(gpus=(*views[:3], replace(views[3], holders=(holder,)), *views[4:])), 3)
        assert "jupyter-bob  image jupyter/torch:7, pid 22110 " in named
        assert "user bob, container f00df00df00d" in named

    def test_the_clock_of_a_gpu_at_rest_is_drawn_low(self) -> None:
        history = GpuHistory()
        for step in range(30):
            history.add(replace(sample.linked(), taken_at=NOW + timedelta(seconds=10 * step)))
        row = gpu_picture(sample.linked(), {}, history, NOW).rows[uuid(4)]
        lines = ["".join(words for words, _ in line) for line in graph_lines(row, 100, 24)]
        clock = next(line for line in lines if "SM clock" in line)
        assert "345MHz" in clock
        assert "█" not in clock

    def test_unreadable_processes_are_not_shown_as_none(self) -> None:
        blind = replace(sample.busy(0), sample=replace(sample_of(sample.busy(0)), processes=None))
        assert "cannot be read" in page(sample.with_node(gpus=(blind,)))
        assert "processes   none" in page(sample.with_node(gpus=(view(0),)))

    def test_processes_of_other_namespaces_and_screens_say_so(self) -> None:
        processes = (GpuProcess(1, visible=False), GpuProcess(2, command="Xorg", compute=False))
        held = replace(sample.busy(0), sample=replace(sample_of(sample.busy(0)), processes=processes))
        told = page(sample.with_node(gpus=(held,)))
        assert "in another PID namespace" in told
        assert "Xorg (graphics)" in told

    def test_all_reservations_of_a_gpu_are_listed(self) -> None:
        later = Window("course", NOW + timedelta(hours=30), NOW + timedelta(hours=32), gpus=(uuid(0),), tenant="alice")
        soon = replace(later, name="demo", start=NOW + timedelta(hours=2))
        windows = tuple(WindowView(window, WindowState.UPCOMING, gpus=(uuid(0),)) for window in (soon, later))
        told = page(replace(sample.linked(), windows=windows))
        assert "from 14:00 reserved for alice  demo:" in told
        assert "course:" in told

    def test_pcie_says_why_there_is_none(self) -> None:
        assert "PCIe        N/A: others read" in page(sample.linked(), pcie="others read")
        busy = sample.linked().gpus[0]
        reading = replace(sample_of(busy), pcie_rx=4.0 * GIB, pcie_tx=2.5 * GIB)
        assert "in 4G/s, out 2.5G/s" in page(sample.with_node(gpus=(replace(busy, sample=reading),)))

    def test_nvlink_is_shown_beside_pcie_if_there_is_any(self) -> None:
        told = page(sample.looked_at())
        assert "NVLink      in 77G/s, out 78G/s" in told
        assert "NVLink in" in told  # a graph too
        assert "NVLink      N/A: others read" in page(sample.linked(), pcie="others read")
        assert "NVLink      N/A: no reading yet, or the driver has none" in page(sample.linked())
        assert "NVLink" not in page(sample.rich_snapshot())

    def test_the_share_of_each_process_is_shown_on_request(self) -> None:
        told = [line.split() for line in page(sample.looked_at()).splitlines()]
        assert ["PID", "USER", "SM", "MEMORY", "CONTAINER", "COMMAND"] in told
        assert [line[:4] for line in told if line[:2] in (["22110", "bob"], ["22984", "bob"])] == [
            ["22110", "bob", "58%", "38G"],
            ["22984", "bob", UNKNOWN, "512M"],
        ]
        head = next(line for line in page(sample.looked_at()).splitlines() if "PID" in line)
        row = next(line for line in page(sample.looked_at()).splitlines() if "22110" in line)
        assert (head.index("SM") + 2, head.index("MEMORY") + 6) == (row.index("58%") + 3, row.index("38G") + 3)
        assert " SM  MEMORY" not in page(sample.looked_at(), pcie="others read")
        first = sample.looked_at().gpus[0]
        cut = replace(first, gpu=replace(first.gpu, mig_enabled=True))
        assert " SM  MEMORY" not in page(sample.with_node(gpus=(cut,)))

    def test_mig_instances_stand_under_their_gpu(self) -> None:
        parent = replace(view(0), gpu=replace(gpu(0), mig_enabled=True))
        names = ("3g.40gb", "4g.40gb")
        cut = [Gpu(f"MIG-{n}", 0, "NVIDIA H100", mig_parent=uuid(0), mig_profile=n) for n in names]
        instances = tuple(GpuView(one, GpuState.FREE, Health()) for one in cut)
        snapshot = sample.with_node(gpus=(parent, *instances))
        told = page(snapshot)
        assert "cut into 2" in told
        assert "4g.40gb" in told
        assert "MIG-3g.40gb" in told
        picture = gpu_picture(snapshot, {}, GpuHistory(), NOW)
        row = picture.rows["MIG-3g.40gb"]
        assert "instance 3g.40gb of GPU 0" in text(gpu_page_lines(GpuPage(row, picture, snapshot, NOW), 120, 40))

    def test_a_wide_screen_has_readings_beside_the_links(self) -> None:
        snapshot = sample.looked_at()
        picture = gpu_picture(snapshot, {}, GpuHistory(), NOW)
        made = GpuPage(picture.rows[uuid(0)], picture, snapshot, NOW)
        wide, narrow = (text(gpu_page_lines(made, room, 48)).splitlines() for room in (198, 118))
        assert len(wide) <= 48, "no key is needed to see the rest"
        below = [" ".join(lines).partition("processes")[2].split() for lines in (wide, narrow)]
        assert sorted(below[0]) == sorted(below[1])
        heads = {line.index(word) for line in wide for word in ("neighbours", "topology") if word in line}
        assert heads == {99}
        assert max(map(len, wide)) <= 198
        assert min(line.find("UUID") for line in wide if "UUID" in line) == 0

    def test_instances_stand_in_columns(self) -> None:
        rows = [line for line in page(days.instances()).splitlines() if "MIG-0" in line]
        assert [row.split()[:2] for row in rows] == [["0m0", "3g.40gb"], ["0m1", "2g.20gb"], ["0m2", "1g.10gb"]]
        for column in ("/", "MIG-0"):
            assert len({row.index(column) for row in rows}) == 1, column
        states = zip(rows, ("job", "job", "free"), strict=True)
        assert len({row.index(state) for row, state in states}) == 1

    @cases("room", [38, 78, 118, 198])
    @cases("rows", [10, 22, 48, 78])
    def test_graphs_fit_any_screen(self, room: int, rows: int) -> None:
        history = GpuHistory()
        for step in range(40):
            history.add(replace(sample.linked(), taken_at=NOW + step * STEP))
        snapshot = sample.linked()
        picture = gpu_picture(snapshot, {}, history, NOW)
        made = GpuPage(picture.rows[uuid(0)], picture, snapshot, NOW)
        lines = text(gpu_page_lines(made, room, rows)).splitlines()
        graphs = [line for line in lines if any("\u2800" <= character < "\u2900" for character in line)]
        assert graphs
        assert max(map(len, graphs)) <= room

    def test_strange_names_do_nothing(self) -> None:
        for name in sample.NAMES:
            held = running(1, on=(uuid(0),), name=name, tenant=name[:8])
            process = GpuProcess(1, GIB, name, name, name)
            busy = replace(sample.busy(0, 1), sample=replace(sample_of(sample.busy(0)), processes=(process,)))
            snapshot = replace(sample.with_node(gpus=(busy,)), jobs=(held,))
            assert "\x1b" not in page(snapshot)
            assert "\u202e" not in page(snapshot)


def sample_of(view: GpuView) -> GpuSample:
    assert view.sample is not None
    return view.sample


class TestTopology:
    def links(self, count: int) -> str:
        views = tuple(
            replace(view(i), gpu=replace(gpu(i), links=tuple(self.link(i, j) for j in range(count) if i != j)))
            for i in range(count)
        )
        picture = gpu_picture(sample.with_node(gpus=views), {}, GpuHistory(), NOW)
        return text(topology_lines(picture.rows[uuid(1)], picture, 100))

    @staticmethod
    def link(here: int, there: int) -> Link:
        kind = "PIX" if here // 2 == there // 2 else "NODE"
        return Link(uuid(there), "NVLINK", 12) if here // 4 != there // 4 else Link(uuid(there), kind)

    def test_neighbours_are_sorted_by_distance_with_a_legend(self) -> None:
        lines = self.links(8).splitlines()
        assert lines[0].startswith("neighbours  NV12 GPU 4, 5, 6, 7  NVLink")
        assert lines[1].split()[:3] == ["PIX", "GPU", "0"]
        assert lines[2].split()[:4] == ["NODE", "GPU", "2,", "3"]

    def test_the_map_is_symmetric_and_marks_this_gpu(self) -> None:
        rows = [line.split() for line in self.links(8).splitlines()[5:]]
        table = [row[-9:-1] for row in rows]
        assert len(table) == 8
        assert all(table[i][j] == table[j][i] for i in range(8) for j in range(8))
        assert [table[i][i] for i in range(8)] == ["X"] * 8
        assert [row[0] for row in rows].count("▸") == 1

    def test_a_map_that_is_too_wide_is_omitted(self) -> None:
        assert "topology" in self.links(8)
        assert "topology" not in self.links(16)
        assert "neighbours" in self.links(16)

    def test_without_links_the_map_is_omitted(self) -> None:
        assert "neighbours" not in page(sample.rich_snapshot())


def test_holders_come_in_the_order_they_have_on_the_gpu() -> None:
    jobs: list[Job] = [running(1, on=(uuid(0),)), running(2, on=(uuid(0),)), running(3, on=(uuid(1),))]
    assert [job.id for job in holders(replace(view(0), job_id=2, job_ids=(2, 1)), jobs)] == [2, 1]
    assert [job.id for job in holders(replace(view(0), job_id=3), jobs)] == [3]
    assert holders(view(0), jobs) == ()


@pytest.mark.parametrize("size", [(80, 24)], ids=["80x24"])
class TestPictures:
    def test_a_gpu_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert matches(snap_compare, sample.looked_at(), size, "i", history=True)

    def test_a_lost_gpu_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert matches(snap_compare, sample.linked(), size, "shift+tab", "G", "enter", history=True)


@pytest.mark.parametrize(("count", "size"), [(16, (80, 24)), (64, (200, 50))], ids=["16-80x24", "64-200x50"])
def test_a_page_with_many_gpus_matches_its_picture(snap_compare: Compare, count: int, size: tuple[int, int]) -> None:
    assert matches(snap_compare, sample.many_gpus(count), size)


def lost_snapshot() -> Snapshot:
    """GPU 7 fell off the bus three minutes ago, under job 31; job 30 ran on it before."""
    took = {"started_at": NOW - timedelta(minutes=40), "ended_at": NOW - timedelta(minutes=3)}
    cause = Cause(CauseCode.GPU_LOST, "GPU 7 fell off the bus (Xid 79)")
    hit = running(31, on=[uuid(7)], name="llama-sft", tenant="alice").with_attempt(**took, cause=cause)
    before = running(30, on=[uuid(7)], name="vit-eval", tenant="bob").with_attempt(**took)
    jobs = (hit.evolve(state=JobState.FAILED, ended_at=NOW), before.evolve(state=JobState.COMPLETED, ended_at=NOW))
    base = sample.rich_snapshot()
    fault = GpuFault("Xid 79: fell off the bus", NOW - timedelta(minutes=3))
    return replace(base, jobs=(*base.jobs, *jobs), controls=replace(base.controls, faults={uuid(7): fault}))


def recorded(indices: range) -> GpuHistory:
    """Readings of the last hour, for the GPUs with these indices."""
    history = GpuHistory()
    step = mean([reading(0, utilization=0.7, power=400.0)])
    began = NOW - timedelta(hours=1)
    times = [began + number * STEP for number in range(360)]
    history.begin_with([TakenStep(at, {uuid(index): step for index in indices}) for at in times], NOW)
    return history


@cases("indices", [range(8), range(7)])
@cases(("room", "rows"), [(298, 78), (198, 48), (118, 34)])
def test_the_page_of_a_lost_gpu_is_not_half_empty(indices: range, room: int, rows: int) -> None:
    snapshot = lost_snapshot()
    picture = gpu_picture(snapshot, {}, recorded(indices), NOW)
    made = GpuPage(picture.rows[uuid(7)], picture, snapshot, NOW)
    lines = text(gpu_page_lines(made, room, rows)).splitlines()[:rows]
    assert sum(bool(line.strip()) for line in lines) > rows / 2, "\n".join(lines)


def test_the_page_of_a_lost_gpu_says_since_when_what_to_do_and_which_jobs_it_had() -> None:
    made = page(lost_snapshot(), 7)
    assert "3m00s ago" in made
    assert "journalctl -k" in made
    assert "sudo reboot" in made
    assert re.search(r"#31 +llama-sft +alice +failed .*fell off the bus", made)
    assert re.search(r"#30 +vit-eval +bob +completed", made)
    assert re.search(r"GPU 4 +free", made), "the other GPUs"


def past_of(history: list[Job], asked: list[datetime | None]) -> Callable[[datetime | None], Iterable[Job]]:
    """Read this history, and note since when."""

    def read(since: datetime | None) -> Iterable[Job]:
        asked.append(since)
        return iter(history)

    return read


async def test_the_page_of_a_lost_gpu_shows_jobs_of_the_history_and_reads_it_once() -> None:
    asked: list[datetime | None] = []
    took = {"started_at": NOW - timedelta(hours=40), "ended_at": NOW - timedelta(hours=30)}
    had = [
        running(number, on=[uuid(on)], name=name)
        .with_attempt(**took)
        .evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(hours=30))
        for number, on, name in ((11, 7, "bert-old"), (12, 3, "elsewhere"))
    ]
    async with on_screen(Console(sample.linked(), past=past_of(had, asked)), WIDE) as (console, pilot):
        await pilot.press("shift+tab", "G", "enter")
        await pilot.pause()
        assert re.search(r"last jobs +1\b", console.screen_text)
        assert re.search(r"#11 +bert-old .*completed", console.screen_text)
        assert "elsewhere" not in console.screen_text
        shown(console).tick()
        await pilot.pause()
        assert asked == [NOW - timedelta(days=7)]


async def test_the_page_of_a_lost_gpu_says_that_the_history_cannot_be_read() -> None:
    def broken(since: datetime | None) -> Iterable[Job]:
        raise OSError(f"no history since {since}")

    async with on_screen(Console(sample.linked(), past=broken), WIDE) as (console, pilot):
        await pilot.press("shift+tab", "G", "enter")
        await pilot.pause()
        assert "the history cannot be read: OSError: no history since" in console.screen_text


async def test_the_page_of_a_working_gpu_reads_no_history() -> None:
    asked: list[datetime | None] = []
    async with on_screen(Console(sample.linked(), past=past_of([], asked)), WIDE) as (console, pilot):
        await pilot.press("i")
        await pilot.pause()
        shown(console)
        assert asked == []
