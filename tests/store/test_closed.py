"""A closed store, and the memory that it gives back."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from gputui.store import TinyJobStore
from gputui.store.repair import repair_of
from tests.factories import ACTOR, job


def test_a_closed_store_is_freed_without_a_collection(directory: Path) -> None:
    gc.disable()
    try:
        for _ in range(2):
            store = TinyJobStore(directory)
            store.submit([job()], actor=ACTOR)
            assert store.jobs()
            store.check()
            kept = (weakref.ref(store), weakref.ref(store.storage), weakref.ref(store.storage.replica))
            store.close()
            del store
            assert [each() for each in kept] == [None, None, None]
    finally:
        gc.enable()


def test_an_assessed_queue_is_freed_without_a_collection(directory: Path) -> None:
    store = TinyJobStore(directory)
    store.submit([job()], actor=ACTOR)
    store.close()
    gc.disable()
    try:
        found = repair_of(directory)
        assert found.assess() is None
        kept = weakref.ref(found)
        del found
        assert kept() is None
    finally:
        gc.enable()
