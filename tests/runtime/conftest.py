"""The engine the Docker tests share: one per session and worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.dockerd import Dockerd


@pytest.fixture(scope="session")
def engine() -> Iterator[Dockerd]:
    """A private engine that stays up."""
    dockerd = Dockerd()
    try:
        yield dockerd.start()
    finally:
        dockerd.destroy()


@pytest.fixture
def own_engine() -> Iterator[Dockerd]:
    """A private engine to be killed and restarted."""
    dockerd = Dockerd()
    try:
        yield dockerd.start()
    finally:
        dockerd.destroy()
