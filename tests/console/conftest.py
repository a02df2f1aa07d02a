"""The console's tests use the fixtures of the commands: an isolated environment, and a store in memory."""

from __future__ import annotations

import pytest

from tests.cli.conftest import alone, clock, run, store
from tests.tui.idle import share_style_sheets

__all__ = ["alone", "clock", "run", "store"]


@pytest.fixture(autouse=True)
def _one_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    share_style_sheets(monkeypatch.setattr)
