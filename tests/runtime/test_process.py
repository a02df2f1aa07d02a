"""Host processes keep the contract of every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.domain.container import ContainerRecord
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Runtime
from gputui.runtime.process.runtime import ProcessRuntime
from tests.runtime.contract import SLEEP, Harness, RuntimeContract


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

    @pytest.mark.parametrize("call", ["logs", "save_log", "suspend"])
    def test_an_attempt_removed_between_the_look_and_the_read_is_gone(
        self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = process_harness(tmp_path / "state")
        try:
            runtime, remover = harness.open(), harness.open()
            assert isinstance(runtime, ProcessRuntime)
            container_id = self.run(runtime, harness.launch(SLEEP))
            found = runtime._there(container_id)

            def removed_after_the_look(name: str) -> ContainerRecord:
                remover.kill(name)
                harness.ended(remover, name)
                remover.remove(name)
                return found

            monkeypatch.setattr(runtime, "_there", removed_after_the_look)
            arguments = (tmp_path / "log",) if call == "save_log" else ()
            with pytest.raises(RuntimeFault, match=f"no attempt {container_id}") as raised:
                getattr(runtime, call)(container_id, *arguments)
            assert not isinstance(raised.value, RuntimeUnavailableError)
        finally:
            harness.clean()

    def test_an_attempt_that_was_removed_has_no_activity(self, harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(RuntimeFault, match="no attempt gone"):
            runtime.activity("gone")
