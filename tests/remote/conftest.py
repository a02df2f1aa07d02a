"""The two machines that all tests of this directory share, and gputui on the laptop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.e2e.commands import Commands
from tests.e2e.site import SiteOf
from tests.needs import need
from tests.remote.bed import Bed
from tests.remote.image import PYTHON_IMAGE

Far: TypeAlias = SiteOf[Bed]
Laptop: TypeAlias = Callable[[str], Far]
"""Makes a gputui on the laptop, with a queue of its own, that reaches the engine by one of the ways."""


@pytest.fixture(scope="session")
def _bed() -> Iterator[Bed]:
    need("docker", "ssh", "nvml", "ip", "nsenter", "openssl", "/usr/bin/python3")
    bed = Bed()
    try:
        yield bed.start()
    finally:
        bed.destroy()


@pytest.fixture
def bed(_bed: Bed) -> Iterator[Bed]:
    """Yield the machines, with idle GPUs and no containers."""
    _bed.idle()
    yield _bed
    _bed.reach()


@pytest.fixture(scope="session")
def _commands(_bed: Bed) -> Iterator[Commands]:
    with closing(Commands(_bed.laptop.into)) as commands:
        yield commands


@pytest.fixture
def laptop(bed: Bed, _commands: Commands, tmp_path: Path) -> Iterator[Laptop]:
    made: list[Far] = []

    def make(way: str) -> Far:
        place = tmp_path / f"{way}-{len(made)}"
        place.mkdir()
        (place / "config.toml").write_text(f'[runtime]\nprobe_image = "{PYTHON_IMAGE}"\n')
        made.append(Far(place, bed, bed.driver, around=bed.environ(way), into=bed.laptop.into, commands=_commands))
        return made[-1]

    yield make
    for site in made:
        site.close()


def states(site: Far) -> dict[str, str]:
    """Return the state of each GPU by UUID; none until the scheduler has its first reading."""
    told = site.run("gpus", "--json", check=False)
    return {gpu["uuid"]: gpu["state"] for gpu in json.loads(told.stdout)} if told.returncode == 0 else {}
