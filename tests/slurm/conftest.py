"""The Slurm cluster that all tests of this directory share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.e2e.commands import Commands
from tests.slurm.bed import Bed
from tests.slurm.person import Person


@pytest.fixture(scope="session")
def _bed() -> Iterator[Bed]:
    bed = Bed(accounts="GPUTUI_TEST_SLURM_ACCOUNTS" in os.environ)
    try:
        yield bed.start()
    finally:
        bed.destroy()


@pytest.fixture
def bed(_bed: Bed) -> Iterator[Bed]:
    """Yield a cluster without jobs whose three nodes of two GPUs are idle."""
    yield _bed
    _bed.clear()


@pytest.fixture(scope="session")
def _commands(_bed: Bed) -> Iterator[Commands]:
    with closing(Commands(_bed.into_head)) as commands:
        yield commands


def _person(name: str) -> Callable[[Bed, Commands], Iterator[Person]]:
    def person(bed: Bed, _commands: Commands) -> Iterator[Person]:
        someone = Person(bed, _commands, name)
        yield someone
        someone.forget()

    return person


root = pytest.fixture(_person("root"), name="root")
alice = pytest.fixture(_person("alice"), name="alice")
bob = pytest.fixture(_person("bob"), name="bob")
