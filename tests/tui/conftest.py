"""What all tests of the console share: one time zone, no blinking, no colours taken away by the environment."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from textual.widgets import Input


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    for name in ("NO_COLOR", "FORCE_COLOR", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    monkeypatch.setattr(Input, "cursor_blink", False)
    yield
    monkeypatch.undo()
    time.tzset()
