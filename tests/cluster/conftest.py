"""Fixtures of the tests of clusters."""

from tests.cli.conftest import alone
from tests.cluster.commands import clock, cluster, run, use

__all__ = ["alone", "clock", "cluster", "run", "use"]
