"""Tests of the server for browsers use the fixtures of the commands: an isolated environment, and a store in memory."""

from __future__ import annotations

from tests.cli.conftest import alone, clock, run, store

__all__ = ["alone", "clock", "run", "store"]
