"""The health check of the image, run as the engine does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import until

DOCKERFILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"


def test_the_image_is_healthy_only_while_something_schedules(tmp_path: Path) -> None:
    program = tmp_path / "gputui"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m gputui "$@"\n')
    program.chmod(0o755)
    (tmp_path / "config.toml").touch()
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GPUTUI_STATE": str(tmp_path / "state"),
    }
    environ |= {"GPUTUI_CONFIG": str(tmp_path / "config.toml"), "PYTHONPATH": str(DOCKERFILE.parents[1])}
    text = DOCKERFILE.read_text().replace("\\\n", "")
    [line] = [line for line in text.splitlines() if line.startswith("HEALTHCHECK")]

    def is_healthy() -> bool:
        check = ["sh", "-c", line.partition(" CMD ")[2]]
        return not subprocess.run(check, env=environ, check=False, timeout=60).returncode

    (tmp_path / "state").mkdir(mode=0o700)
    assert not is_healthy()
    words = [str(program), "--probe", "sim:1", "--runtime", "process", "serve"]
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE) as served:
        until(is_healthy, "it never becomes healthy")
        served.terminate()
        served.wait(60)
    assert not is_healthy()
