"""The process runtime passes the contract of all runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Runtime
from gputui.runtime.process.attempt_folder import AttemptFolder
from gputui.runtime.process.runtime import ProcessRuntime
from tests.cases import cases
from tests.runtime.contract import SLEEP, Harness, RuntimeContract


def process_harness(directory: Path) -> Harness:
    return Harness(lambda store_id: ProcessRuntime(store_id, directory, RuntimeSettings(), SystemClock()))


class TestProcessRuntime(RuntimeContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = process_harness(tmp_path / "state")
        yield harness
        harness.clean()

    @cases("call", ["log", "set_suspended"])
    def test_an_attempt_removed_during_a_listing_is_omitted(
        self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = process_harness(tmp_path / "state")
        runtime, remover = harness.open(), harness.open()
        container_id = self.run(runtime, harness.launch(SLEEP))
        original = getattr(AttemptFolder, call)

        def after_the_removal(folder: AttemptFolder, **options: bool) -> object:
            remover.kill(container_id)
            harness.ended(remover, container_id)
            remover.remove(container_id)
            return original(folder, **options)

        try:
            monkeypatch.setattr(AttemptFolder, call, after_the_removal)
            with pytest.raises(RuntimeFault, match="no attempt") as raised:
                getattr(runtime, "logs" if call == "log" else "suspend")(container_id)
            assert not isinstance(raised.value, RuntimeUnavailableError)
        finally:
            monkeypatch.undo()
            harness.clean()

    def test_an_attempt_that_was_removed_has_no_activity(self, harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(RuntimeFault, match="no attempt gone"):
            runtime.activity("gone")
