"""Host processes keep the contract of every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.domain.settings import RuntimeSettings
from gputui.runtime.process.runtime import ProcessRuntime
from tests.runtime.contract import Harness, RuntimeContract


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def process_harness(directory: Path) -> Harness:
    return Harness(lambda store_id: ProcessRuntime(store_id, directory, RuntimeSettings(), RealClock()))


class TestProcessRuntime(RuntimeContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = process_harness(tmp_path / "state")
        yield harness
        harness.clean()
