"""A scheduler whose queue has lost changes reports it with the remedy."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader
from gputui.engine.tick.snapshot_builder import files_snapshot
from gputui.store import TinyJobStore
from gputui.tui.present.status import scheduler_words
from tests.engine.world import World
from tests.factories import NOW
from tests.store.repairing import repair

TOLD = "queue damaged, so no job starts: run `gputui state repair`. "


def test_a_damaged_queue_is_reported_first_with_the_remedy(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.use(TinyJobStore(world.directory))
    world.submit(1)
    assert scheduler_words(world.tick(2))[0][0] == "● scheduling"
    [journal] = world.directory.glob("queue.json.wal.*")
    journal.write_bytes(b"")
    seen = world.tick()
    assert [notice.text.startswith(TOLD) for notice in seen.notices if notice.halts] == [True]
    assert scheduler_words(seen)[0][0] == "✗ starts nothing"
    other = replace(seen, leads_here=False, leader=Leader(1, "here", "root", "serve", NOW))
    assert scheduler_words(other)[0][0] == "✗ starts nothing"
    repair(world.directory)
    assert scheduler_words(world.tick(2))[0][0] == "● scheduling"
    world.store.close()


def test_a_second_console_reports_it_without_a_scheduler(tmp_path: Path) -> None:
    store = TinyJobStore(tmp_path / "state")
    [journal] = (tmp_path / "state").glob("queue.json.wal.*")
    journal.unlink()
    seen = files_snapshot(store, tmp_path / "state", Settings(), NOW)
    assert [notice.text.startswith(TOLD) for notice in seen.notices if notice.halts] == [True]
    store.close()
