"""A server for each test, on one Docker engine for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site, fresh_site
from tests.runtime.conftest import engine, live_engine, own_engine
from tests.runtime.dockerd import Dockerd

__all__ = ["engine", "live_engine", "own_engine", "site"]


@pytest.fixture
def site(tmp_path: Path, engine: Dockerd) -> Iterator[Site]:
    found = fresh_site(tmp_path / "site", engine)
    yield found
    found.close()
