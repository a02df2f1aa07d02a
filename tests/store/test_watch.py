"""Watches report every write, by any process, and nothing else."""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.domain.snapshot import Controls
from gputui.ports import StoreWatch
from gputui.store import TinyJobStore, lock
from gputui.store.memory import MemoryJobStore
from tests.factories import ACTOR, job

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


def test_without_kernel_notifications_there_is_no_watch(tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr(lock.ChangeWatch, "__init__", refuse)
    assert tiny.watch() is None
    assert MemoryJobStore().watch() is None
