"""Pictures of the what-if panel and the timeline. A picture that changes is a change to look at."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from tests.tui import plans
from tests.tui.foresight import explained, opened, timeline_of, watched
from tests.tui.test_pictures import Compare

NARROW, WIDE = (80, 24), (200, 50)


@pytest.mark.parametrize(
    ("job_id", "keys", "size"),
    [(111, ("plus", "plus", "plus"), NARROW), (102, ("c",), NARROW)],
    ids=["priority-80x24", "cancel-80x24"],
)
def test_the_what_if_panel_matches_its_picture(
    snap_compare: Compare, size: tuple[int, int], job_id: int, keys: tuple[str, ...]
) -> None:
    console = watched()

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.begin(pilot)
        console.select(job_id)
        await opened(console, pilot, *keys)

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "size"),
    [(plans.contended, NARROW), (plans.large, WIDE)],
    ids=["full-80x24", "large-200x50"],
)
def test_the_timeline_matches_its_picture(snap_compare: Compare, size: tuple[int, int], made: object) -> None:
    assert callable(made)
    picture = made()
    assert isinstance(picture, Snapshot)
    console = watched(picture)

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.begin(pilot)
        await timeline_of(console, pilot, "j", "j", "right")

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [NARROW], ids=["80x24"])
def test_an_explained_job_matches_its_picture(snap_compare: Compare, size: tuple[int, int]) -> None:
    console = watched()

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.begin(pilot)
        console.select(108)
        await explained(console, pilot)

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]
