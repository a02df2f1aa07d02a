"""Fixtures of the torture tests: engines and servers."""

from __future__ import annotations

from tests.e2e.conftest import engine, live_engine, own_engine, site

__all__ = ["engine", "live_engine", "own_engine", "site"]
