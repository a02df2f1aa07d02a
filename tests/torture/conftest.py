"""Engines and servers for torture."""

from __future__ import annotations

from tests.e2e.conftest import engine, own_engine, site

__all__ = ["engine", "own_engine", "site"]
