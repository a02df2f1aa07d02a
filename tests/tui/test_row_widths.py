"""Widths of rows: at every width nothing is longer than the screen, and what matters most stays."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.gpu import GpuState, Holder
from gputui.domain.gpu_history import GpuHistory
from gputui.domain.job import ArrayRef
from gputui.domain.runs import Run
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import PendingReason, Reason
from gputui.domain.text import width
from gputui.tui.present.cells import Cell, PlacedColumn, cell, fitted, lay_out
from gputui.tui.present.gpu import gpu_cells
from gputui.tui.present.gpu_rows import GpuPicture, gpu_picture
from gputui.tui.present.job import JobContext, job_cells
from gputui.tui.widgets.queue_rows import INFO_FIRST, ChosenColumns, QueueRows, varied_columns
from gputui.tui.widgets.queue_tabs import QueueTab
from tests.cases import cases
from tests.factories import NOW, job, running, uuid
from tests.tui import days, sample

HOUR = timedelta(hours=1)
Rows: TypeAlias = dict[int, dict[str, str]]
ROOMS = st.integers(60, 300)
NAMES = ("a", "train", "vit-large-pretrain-imagenet22k", "训练大模型-第三阶段-continued")
USERS = st.sampled_from(["al", "alice", "bob-the-b"])


def table(picture: GpuPicture, room: int) -> list[str]:
    """Return the titles and the rows of the grid."""
    placed = lay_out(picture.columns(picture.unread()), room)
    cells = [[cell(picture.title_of(each)) for each in placed]]
    cells += [[gpu_cells(row, each.column.key, each.width) for each in placed] for row in picture.rows.values()]
    return ["".join(f" {shown(made, each)}" for made, each in zip(row, placed, strict=True)) for row in cells]


def shown(made: Cell, placed: PlacedColumn) -> str:
    return "".join(text for text, _ in fitted(made, placed.width, right=placed.column.right))


def grid(name: str, user: str, models: tuple[str, ...] = ("NVIDIA H100 80GB HBM3",)) -> GpuPicture:
    """Return twelve GPUs: a job, a foreign container, a foreign process, and free ones."""
    held = running(101, name=name, tenant=user, on=(uuid(0),))
    since = NOW - timedelta(days=2, hours=4)
    holders = (
        Holder("container", name, user, since=since),
        Holder("process", f"python3 {name}.py", user, 4242, since=since),
    )
    views = [replace(sample.busy(0, 101), state=GpuState.ALLOCATED)]
    views += [
        replace(sample.busy(place), state=GpuState.FOREIGN, holders=(each,)) for place, each in enumerate(holders, 1)
    ]
    views += [replace(sample.busy(place), state=GpuState.FREE, holders=()) for place in range(3, 12)]
    views = [
        replace(each, gpu=replace(each.gpu, index=n, model=models[n % len(models)])) for n, each in enumerate(views)
    ]
    snapshot = sample.with_job(sample.with_node(gpus=tuple(views)), [held])
    return gpu_picture(snapshot, {each.id: each for each in snapshot.jobs}, GpuHistory(), NOW)


@given(ROOMS, st.sampled_from(NAMES), USERS)
def test_a_held_gpu_shows_whose_it_is_and_since_when(room: int, name: str, user: str) -> None:
    titles, *rows = table(grid(name, user), room)
    assert all(width(row) <= room for row in (titles, *rows))
    if room >= 80:
        assert f" {user} " in rows[0]
        assert "#101 " in rows[0]
        assert all(f" {user} " in row and "2d04h" in row for row in rows[1:3])
        assert "12x H100" in titles, "the model is said once"
        assert not any("H100" in row for row in rows)


@given(st.integers(80, 300), USERS)
def test_models_that_differ_have_a_column(room: int, user: str) -> None:
    titles, *rows = table(grid("train", user, ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")), room)
    assert "HELD BY " in titles
    assert "x H100" not in titles
    assert all("A100" in row or "H100" in row for row in rows)
    assert f" {user} " in rows[0]


def test_instances_keep_their_profiles() -> None:
    views = days.instances().gpus
    picture = gpu_picture(days.instances(), {}, GpuHistory(), NOW)
    assert picture.model == ""
    assert len(views) == len(picture.rows)
    assert "model" in {column.key for column in picture.columns()}


def family() -> Snapshot:
    """Return a queue with an array, a chain of dependents, a running and a held job, of names of all lengths."""
    chain = [job(n, name=NAMES[n % 4], tenant="alice", after=(n - 1,), time_limit=HOUR, gpus=2) for n in range(11, 18)]
    first = job(10, name="first", gpus=2, time_limit=HOUR)
    array = job(30, name="sweep", gpus=1).evolve(array=ArrayRef(30, 0)).with_runs((Run(30, 0, 12),))
    held = job(60, name=NAMES[2], held=True, gpus=1)
    on = running(1, name=NAMES[3], tenant="bob-the-b", on=(uuid(0), uuid(1)), time_limit=HOUR)
    jobs = (on, first, *chain, array, held)
    waiting = tuple(each.id for each in jobs[1:])
    why = Reason(PendingReason.RESOURCES, "needs 2 GPUs: 0 free, 8 held by jobs; 3 jobs ahead of it")
    starts = {each: NOW + timedelta(minutes=each) for each in waiting[:-1]}
    return sample.rich_snapshot(jobs=jobs, order=waiting, reasons=dict.fromkeys(waiting, why), expected_starts=starts)


def queue_table(room: int, snapshot: Snapshot, *, is_open: bool = True) -> tuple[dict[str, int], Rows]:
    """Return the width of each column, and the cells of each row."""
    rows = QueueRows()
    rows.update(snapshot)
    if is_open:
        rows.fold_all()
    tab = QueueTab(rows, ChosenColumns())
    tab.room = room
    placed = lay_out(tab.columns, room)
    context = JobContext.of(snapshot, NOW, {}, room={each.column.key: each.width for each in placed})
    keys = [key for key in rows.keys if rows.jobs_of(key)]
    made = {key: {p.column.key: shown(tab.cell(key, p.column.key, context), p) for p in placed} for key in keys}
    return {each.column.key: each.width for each in placed}, made


@given(ROOMS, st.booleans())
def test_names_begin_in_one_column_and_no_row_of_the_queue_is_too_long(room: int, is_open: bool) -> None:
    placed, made = queue_table(room, family(), is_open=is_open)
    if room >= 70:
        assert all(1 + sum(width(text) + 1 for text in row.values()) <= room + 1 for row in made.values())
    begins = {len(row["name"]) - len(row["name"].lstrip(" └▸▾")) for row in made.values()}
    assert len(begins) == 1
    assert {"id", "state", "name", "gpus", "why"} <= placed.keys()


@given(st.integers(80, 300))
def test_a_waiting_row_says_when_it_starts_and_what_it_needs(room: int) -> None:
    _, made = queue_table(room, family())
    assert made[10]["why"].startswith("needs 2 GPUs: ")
    assert "~10m" in made[10].get("start", made[10]["progress"])


@given(st.integers(160, 300))
def test_the_reason_has_its_cells_before_the_command(room: int) -> None:
    before = family()
    jobs = tuple(
        each.evolve(spec=replace(each.spec, command=("python3", "train.py", str(each.id)))) for each in before.jobs
    )
    cells, _ = queue_table(room, replace(before, jobs=tuple(jobs)))
    assert "command" not in cells or cells["why"] >= INFO_FIRST


@cases(
    ("name", "command", "told"),
    [
        ("sleep", ("/bin/sleep", "600"), "… 600"),
        ("prep", ("/opt/prep",), ""),
        ("llama", ("python3", "-u", "train.py", "--lr", "1"), "train.py --lr 1"),
        ("busybox", (), ""),
    ],
)
def test_the_command_does_not_repeat_the_name(name: str, command: tuple[str, ...], told: str) -> None:
    one = job(1, name=name)
    one = one.evolve(spec=replace(one.spec, command=command))
    assert "".join(text for text, _ in job_cells(one, "command", JobContext(NOW))) == told


def test_commands_that_only_repeat_names_have_no_column() -> None:
    jobs = [job(n, name=name) for n, name in enumerate(("prep", "train"), 1)]
    jobs = [each.evolve(spec=replace(each.spec, command=(f"/opt/{each.name}",))) for each in jobs]
    assert "command" not in varied_columns(jobs)
