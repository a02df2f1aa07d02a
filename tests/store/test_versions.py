"""Schemas and versions: each schema has a version of its own, and nobody migrates under an older scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import gputui
from gputui import bootstrap
from gputui.config import Options
from gputui.domain.action import Pause
from gputui.domain.errors import StoreError
from gputui.domain.snapshot import Leader
from gputui.engine.leadership import Leadership
from gputui.store import TinyJobStore
from gputui.store.queue_files import MIGRATIONS, SCHEMA
from gputui.store.repair import repair_of
from tests.factories import ACTOR, NOW, job

SCHEMAS = {"0.1.0": 3, "0.2.0": 3}
"""Schema of each version. A new schema needs a new version, and its line here; a line is never changed.

Commits before 0.2.0 had three schemas under one version.
"""
OLD = Path(__file__).parent / "data" / "store_v2.json"
HERE = Leader(4711, "gpu1", "root", "serve", NOW)


def test_each_schema_has_a_version_of_its_own() -> None:
    assert SCHEMAS[gputui.__version__] == SCHEMA
    assert list(MIGRATIONS) == list(range(1, SCHEMA))
    later = [schema for version, schema in SCHEMAS.items() if version != "0.1.0"]
    assert later == sorted(later)
    assert list(SCHEMAS) == sorted(SCHEMAS, key=lambda version: [int(part) for part in version.split(".")])


@pytest.fixture
def options(directory: Path) -> Options:
    """Return the options of a state directory with a queue of schema 2."""
    directory.mkdir(mode=0o700)
    (directory / "queue.json").write_bytes(OLD.read_bytes())
    return Options(state=directory)


@pytest.mark.parametrize(
    ("leader", "theirs"),
    [
        (HERE, "an older gputui, which reads schema 2"),
        (replace(HERE, version="0.1.9", schema=2), "gputui 0.1.9, which reads schema 2"),
    ],
)
def test_a_queue_is_not_migrated_under_an_older_scheduler(options: Options, leader: Leader, theirs: str) -> None:
    store, leadership = bootstrap.open_store(options), Leadership(options.state)
    before = (options.state / "queue.json").read_bytes()
    assert leadership.acquire(leader)
    for write in (lambda: store.submit([job()], actor=ACTOR), lambda: bootstrap.actions(store, options).act(Pause(""))):
        with pytest.raises(StoreError, match=f"serve of root, pid 4711, schedules with {theirs}.*restart it") as found:
            write()
        assert "kill 4711" in str(found.value)
    assert (options.state / "queue.json").read_bytes() == before
    leadership.release()
    assert store.submit([job()], actor=ACTOR)
    assert b'"schema":3' in (options.state / "queue.json").read_bytes()
    store.close()


@pytest.mark.parametrize("kind", ["serve", "console"])
def test_a_scheduler_of_this_version_reads_what_is_migrated(options: Options, kind: str) -> None:
    store, leadership = bootstrap.open_store(options), Leadership(options.state)
    assert leadership.acquire(replace(HERE, kind=kind, version="0.2.0", schema=SCHEMA))
    assert store.submit([job()], actor=ACTOR)
    leadership.release()
    store.close()


def test_an_older_console_is_to_be_quit(options: Options) -> None:
    store, leadership = bootstrap.open_store(options), Leadership(options.state)
    assert leadership.acquire(replace(HERE, kind="console"))
    with pytest.raises(StoreError, match=r"quit that console, pid 4711, and open"):
        store.submit([job()], actor=ACTOR)
    leadership.release()
    store.close()


def test_a_repair_migrates_nothing_under_an_older_scheduler(options: Options) -> None:
    """The queue's journal is lost; a repair would write the current schema."""
    store = TinyJobStore(options.state)
    store.close()
    next(options.state.glob("queue.json.wal.*")).unlink()

    def refuse(schema: int) -> None:
        raise StoreError(f"schema {schema} is read here")

    damaged = repair_of(options.state, refuse)
    found = damaged.assess()
    assert found is not None
    with pytest.raises(StoreError, match="schema 2 is read here"):
        damaged.carry_out(found, NOW, ACTOR)
    assert b'"schema":2' in (options.state / "queue.json").read_bytes().replace(b" ", b"")
