"""Fixtures of the stores under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.settings import StoreSettings
from gputui.ports import JobStore
from gputui.store import TinyJobStore
from tests.memory_store import MemoryJobStore

SETTINGS = StoreSettings(keep_finished=3)


@pytest.fixture(params=["tinydb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    """Yield each implementation of the store."""
    made: JobStore
    made = TinyJobStore(tmp_path / "state", SETTINGS) if request.param == "tinydb" else MemoryJobStore(SETTINGS)
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the path of a new state directory."""
    return tmp_path / "state"


@pytest.fixture
def tiny(directory: Path) -> Iterator[TinyJobStore]:
    """Yield a store over TinyDB in `directory`."""
    made = TinyJobStore(directory, SETTINGS)
    yield made
    made.close()
