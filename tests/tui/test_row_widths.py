"""Widths of rows: at every width nothing is longer than the screen, and what matters most stays."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.gpu import GpuState, Holder
from gputui.domain.gpu_history import GpuHistory
from gputui.domain.text import width
from gputui.tui.present.cells import Cell, PlacedColumn, cell, fitted, lay_out
from gputui.tui.present.gpu import gpu_cells
from gputui.tui.present.gpu_rows import GpuPicture, gpu_picture
from tests.factories import NOW, running, uuid
from tests.tui import days, sample

ROOMS = st.integers(60, 300)
NAMES = st.sampled_from(["a", "train", "vit-large-pretrain-imagenet22k", "训练大模型-第三阶段-continued"])
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
    job = running(101, name=name, tenant=user, on=(uuid(0),))
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
    snapshot = sample.with_job(sample.with_node(gpus=tuple(views)), [job])
    return gpu_picture(snapshot, {job.id: job for job in snapshot.jobs}, GpuHistory(), NOW)


@given(ROOMS, NAMES, USERS)
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
