"""The Slurm cluster that all tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.bed import Bed


@pytest.fixture(scope="session")
def _bed() -> Iterator[Bed]:
    bed = Bed()
    try:
        yield bed.start()
    finally:
        bed.destroy()


@pytest.fixture
def bed(_bed: Bed) -> Iterator[Bed]:
    """Yield a cluster without jobs whose three nodes of two GPUs are idle."""
    yield _bed
    _bed.clear()
