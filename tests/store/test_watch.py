"""Watches report every write, by any process, and nothing else."""

from __future__ import annotations

import resource
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.domain.snapshot import Controls
from gputui.ports import StoreWatch
from gputui.store import TinyJobStore, files
from tests.factories import ACTOR, job
from tests.memory_store import MemoryJobStore

WRITES: dict[str, Callable[[TinyJobStore], object]] = {
    "submit": lambda store: store.submit([job()], actor=ACTOR),
    "action": lambda store: pause(store),
    "fold": lambda store: store.storage.checkpoint(),
    "read": lambda store: (store.jobs(), store.version(), store.controls()),
}


def pause(store: TinyJobStore) -> None:
    with store.transaction() as transaction:
        transaction.set_controls(Controls(paused=True))


def hears(told: StoreWatch, seconds: float = 10) -> bool:
    return bool(select.select([told], [], [], seconds)[0])


@pytest.mark.parametrize("what", WRITES)
def test_changes_by_others_are_reported_when_the_version_shows_them(
    tiny: TinyJobStore, directory: Path, what: str
) -> None:
    other = TinyJobStore(directory)
    told = tiny.watch()
    assert told is not None
    before = tiny.version()
    WRITES[what](other)
    if what == "read":
        assert not hears(told, 0)
    else:
        assert hears(told)
        assert tiny.version() != before
        told.clear()
        assert not hears(told, 0)
    told.close()
    other.close()


def test_without_kernel_notifications_there_is_no_watch(tiny: TinyJobStore) -> None:
    """The kernel refuses more descriptors than a process may have, as it refuses more watches than a user may have."""
    watch = tiny.watch()
    assert watch is not None
    watch.close()  # its number is the next free one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (watch.fileno(), hard))
    try:
        assert tiny.watch() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert MemoryJobStore().watch() is None


def test_a_missing_file_is_not_watched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        files.ChangeWatch(tmp_path / "missing")
