"""The epilog on the nodes of the test bed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gputui.cli.main import run
from tests.slurm.bed import Bed


@contextmanager
def installed_epilog(bed: Bed) -> Iterator[None]:
    """Have all nodes run the epilog, installed by our command."""
    directory = bed.directory / "epilog.d"
    assert run(["cluster", "install", "--yes", "--epilog-dir", str(directory)]) == 0
    bed.set_epilog(directory / "*")
    try:
        yield
    finally:
        bed.set_epilog(None)
