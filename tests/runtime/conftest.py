"""The engine the Docker tests share: one per session and worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.needs import need
from tests.runtime.dockerd import Dockerd


@pytest.fixture(scope="session")
def engine() -> Iterator[Dockerd]:
    """Yield a private engine that keeps running."""
    need("docker")
    dockerd = Dockerd()
    try:
        yield dockerd.start()
    finally:
        dockerd.destroy()


@pytest.fixture
def own_engine() -> Iterator[Dockerd]:
    """Yield a private engine that the test may kill and restart."""
    need("docker")
    dockerd = Dockerd()
    try:
        yield dockerd.start()
    finally:
        dockerd.destroy()


@pytest.fixture
def live_engine() -> Iterator[Dockerd]:
    """Yield a private engine that the test may kill, and whose containers survive it."""
    need("docker")
    dockerd = Dockerd()
    try:
        yield dockerd.start(live_restore=True)
    finally:
        dockerd.destroy()
