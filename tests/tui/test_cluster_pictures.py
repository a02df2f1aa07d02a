"""Pictures of the console over a cluster: three nodes, and 64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from tests.cluster.console import ClusterConsole
from tests.cluster.fake import FakeCluster
from tests.cluster.scenes import many_nodes, three_nodes, with_readings, with_troubles
from tests.tui.test_pictures import SMALL, Compare


def _unread(snapshot: Snapshot) -> Snapshot:
    return snapshot


LOOKS: dict[str, tuple[Callable[[], FakeCluster], Callable[[Snapshot], Snapshot], tuple[str, ...]]] = {
    "three_nodes": (three_nodes, _unread, ()),
    "three_nodes_read": (three_nodes, with_readings, ()),
    "many_nodes": (many_nodes, with_readings, ()),
    "many_nodes_in_trouble": (many_nodes, with_troubles, ("shift+tab",)),
    "many_nodes_zoomed": (many_nodes, with_readings, ("shift+tab", "S", "z")),
}
"""Cluster, readings and keys of each picture."""
SIZES = {"80x24": SMALL}
PICTURES = [(name, "80x24") for name in LOOKS]


@pytest.mark.parametrize(("name", "size"), PICTURES)
def test_a_cluster_matches_its_picture(snap_compare: Compare, name: str, size: str) -> None:
    make, read, keys = LOOKS[name]
    cluster = make()
    console = ClusterConsole(cluster)
    console.clock.advance(4000)

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.show(pilot, read(cluster.snapshot()))
        while "epoch 39" not in console.screen_text:
            await pilot.pause(0.01)
        for key in keys:
            await console.press(pilot, key)
        console.app.clear_notifications()
        await pilot.pause()

    assert snap_compare(console.app, terminal_size=SIZES[size], run_before=before)  # type: ignore[arg-type]
    cluster.end(1)
