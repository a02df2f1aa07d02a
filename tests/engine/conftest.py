"""A world for each test, with workers in the calling thread, or also on real pools if a module asks for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.fakes import LaterExecutor
from tests.engine.real_pools import RealPools
from tests.engine.world import World

BOTH = ("inline", "real pools")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules that set `ON_REAL_POOLS` with both kinds of workers, save tests that hold them back."""
    runs_twice = "later" not in metafunc.fixturenames and getattr(metafunc.module, "ON_REAL_POOLS", False)
    if "pools" in metafunc.fixturenames and runs_twice:
        metafunc.parametrize("pools", BOTH, indirect=True)


@pytest.fixture
def pools(request: pytest.FixtureRequest) -> Iterator[RealPools | None]:
    """Real worker pools; None for workers in the calling thread."""
    made = RealPools() if getattr(request, "param", BOTH[0]) == BOTH[1] else None
    yield made
    if made:
        made.close()


@pytest.fixture
def world(tmp_path: Path, pools: RealPools | None) -> World:
    return World(tmp_path, pools=pools)


@pytest.fixture
def later(world: World) -> LaterExecutor:
    """Workers of the world's scheduler that work when they are asked to."""
    world.workers = made = LaterExecutor()
    world.reborn()
    return made
