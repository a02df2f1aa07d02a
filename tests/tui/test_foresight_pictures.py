"""What the what-if panel and the timeline look like. A picture that changes is a change to look at."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gputui.domain.snapshot import Snapshot
from gputui.tui.leave import Leave
from tests.tui import plans
from tests.tui.foresight import explained, opened, select, timeline_of, watched
from tests.tui.test_pictures import Compare

SIZES = pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])


@SIZES
@pytest.mark.parametrize(
    ("job_id", "keys"), [(111, ("plus", "plus", "plus")), (102, ("c",))], ids=["priority", "cancel"]
)
def test_a_what_if(snap_compare: Compare, size: tuple[int, int], job_id: int, keys: tuple[str, ...]) -> None:
    console = watched()

    async def before(pilot: Pilot[Leave]) -> None:
        await console.begin(pilot)
        await select(console, job_id)
        await opened(console, pilot, *keys)

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


@SIZES
@pytest.mark.parametrize("made", [plans.contended, plans.large], ids=["full", "large"])
def test_a_timeline(snap_compare: Compare, size: tuple[int, int], made: object) -> None:
    assert callable(made)
    picture = made()
    assert isinstance(picture, Snapshot)
    console = watched(picture)

    async def before(pilot: Pilot[Leave]) -> None:
        await console.begin(pilot)
        await timeline_of(console, pilot, "j", "j", "right")

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


@SIZES
def test_a_waiting_job_explained(snap_compare: Compare, size: tuple[int, int]) -> None:
    console = watched()

    async def before(pilot: Pilot[Leave]) -> None:
        await console.begin(pilot)
        await select(console, 108)
        await explained(console, pilot)

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]
