"""Streams of containers that end while the container does not: its exit code is not made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.job_spec import Interactive
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.job_exec import DockerExec
from tests.cases import cases
from tests.runtime.standin_engine import Handler, StandInEngine

NAME = "attempt"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    made = StandInEngine(tmp_path / "d.sock")
    made.special[f"/containers/{NAME}/attach"] = broken_stream
    yield made
    made.close()


def broken_stream(handler: Handler, query: dict[str, str]) -> None:
    """Upgrade the connection and end it at once, as a restarting engine does."""
    del query
    handler.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
    handler.break_off()


@cases(
    ("state", "code"),
    [
        ({"Status": "created", "Running": False, "ExitCode": 0}, None),
        ({"Status": "running", "Running": True, "ExitCode": 0}, None),
        ({"Status": "exited", "Running": False, "ExitCode": 5}, 5),
        ({"Status": "exited", "Running": False, "ExitCode": 0}, 0),
    ],
)
def test_only_a_container_that_has_run_has_an_exit_code(
    engine: StandInEngine, state: dict[str, Any], code: int | None
) -> None:
    engine.runs(NAME, **state)
    inside = DockerExec(RuntimeSettings(docker_host=engine.url))
    channel = inside.attach(NAME, Interactive(), lambda submitter: None)
    assert channel.receive() is None
    assert channel.exit_code() == code
    channel.close()
    inside.close()
