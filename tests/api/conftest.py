"""Fixtures of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.owner import TestOwner


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[TestOwner]:
    made = TestOwner(tmp_path / "state")
    yield made
    made.close()
