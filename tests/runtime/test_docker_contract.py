"""The Docker runtime passes the contract of all runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.container import ContainerState
from gputui.domain.errors import CauseCode
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Runtime
from gputui.runtime.docker.runtime import DockerRuntime
from tests.factories import FakeClock
from tests.runtime.contract import NOT_EXECUTABLE, NOT_FOUND, Harness, RuntimeContract, output, shell
from tests.runtime.dockerd import IMAGE, Dockerd


@pytest.mark.docker
class TestDocker(RuntimeContract):
    @pytest.fixture
    def harness(self, engine: Dockerd) -> Iterator[Harness]:
        settings = RuntimeSettings(docker_host=engine.host)
        harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
        yield harness
        harness.clean()

    @pytest.mark.parametrize(
        ("command", "code"),
        [(NOT_FOUND, CauseCode.COMMAND_NOT_FOUND), (NOT_EXECUTABLE, CauseCode.COMMAND_NOT_EXECUTABLE)],
        ids=["not found", "not executable"],
    )
    def test_an_unrunnable_command_is_reported(
        self, harness: Harness, runtime: Runtime, command: tuple[str, ...], code: CauseCode
    ) -> None:
        """The engine's init is what finds the command missing, so it shows when the container has ended."""
        ended = self.run_out(harness, runtime, harness.launch(command))
        assert ended.state is ContainerState.EXITED
        assert ended.cause is not None
        assert ended.cause.code is code
        assert command[0] in ended.cause.text

    def test_the_output_is_saved_completely(self, harness: Harness, runtime: Runtime, tmp_path: Path) -> None:
        """The engine's json-file driver keeps text: bytes that are none come back as U+FFFD."""
        script = r"echo out; echo err >&2; printf 'raw \377 byte\n'; printf unfinished"
        ended = self.run_out(harness, runtime, harness.launch(shell(script)))
        printed = output(runtime, ended.id, tmp_path / "log")
        assert sorted(printed.split(b"\n")) == [b"err", b"out", "raw \ufffd byte".encode(), b"unfinished"]
