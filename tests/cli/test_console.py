"""What is behind the console's screen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.cli import console
from gputui.cli.console import Console
from gputui.config import Options
from gputui.domain.snapshot import Snapshot
from gputui.engine.feed import Feed


class FailsOnce:
    """A host that fails at its first run."""

    runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("it broke")


@pytest.mark.parametrize("makes_it_at_once", [True, False])
async def test_a_failure_behind_the_screen_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, makes_it_at_once: bool
) -> None:
    monkeypatch.setattr(console, "AGAIN_AFTER", 0.0)
    options = Options(state=tmp_path / "state")
    host, feed, seen = FailsOnce(), Feed(), list[Snapshot]()
    feed.subscribe(seen.append)
    store = bootstrap.open_store(options)
    there = Console(options, store)
    host.runs = 0 if makes_it_at_once else 1
    made = iter([] if makes_it_at_once else [RuntimeError("it broke")])

    def make(_: Feed) -> FailsOnce:
        if error := next(made, None):
            raise error
        return host

    monkeypatch.setattr(there, "_make_host", make)
    painted = asyncio.Event()
    painted.set()
    await there._behind(painted, feed)
    store.close()
    assert host.runs == 2
    assert [notice.text for notice in seen[-1].notices] == [
        "scheduling here failed, and is tried again: RuntimeError: it broke"
    ]
    assert seen[-1].leader is None
