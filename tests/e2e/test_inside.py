"""Shells in running jobs, in a real terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.e2e.terminal import Terminal

CONSOLE = [sys.executable, "-m", "gputui"]


@pytest.mark.tmux
@pytest.mark.docker
@pytest.mark.nvml
def test_a_shell_in_a_real_container_and_its_processes(site: Site) -> None:
    with Terminal(CONSOLE, site.environ, 100, 30) as terminal:  # it schedules too, and goes on while the shell is open
        job_id = site.shell("echo ready; sleep 600", "--gpus", "1", "--name", "roomy", "-e", "MARK=inside-it")
        terminal.until("roomy", "ready")
        terminal.press("x")
        terminal.until(f"job #{job_id} roomy: container", "brings the console back")
        terminal.until_that(lambda shown: shown.rstrip().endswith("#"), "prompt")
        terminal.press("echo $MARK-$((40+2)); tty; stty size", "Enter")
        terminal.until("inside-it-42", "/dev/pts/", "30 100")
        terminal.press("C-c")  # is the shell's, not the console's
        next_id = site.shell("true", "--gpus", "1")
        site.until_state(next_id, "COMPLETED")
        assert "roomy: container" in terminal.text, "the console drew over the shell"
        terminal.press("exit", "Enter")
        terminal.until("GPU", "roomy", "q quit")
        terminal.press("X")
        terminal.until("PROCESSES", "sleep 600", "root")
        terminal.leave("PROCESSES")
        other_id = site.shell("sleep 600", "--gpus", "1", "--name", "bystander")
        terminal.until("bystander")
        terminal.press("x")
        terminal.until_that(lambda shown: shown.rstrip().endswith("#"), "prompt")
        site.run("cancel", str(job_id))
        terminal.until("the shell was ended", "Enter brings the console back")
        terminal.press("cy")  # meant for the shell
        terminal.press("Enter")
        terminal.until("bystander", "q quit")
        assert "Cancel" not in terminal.text
        terminal.press("q")
        terminal.until("stop scheduling")
        terminal.press("s")
        terminal.until("EXIT 0")
    assert site.json("show", str(other_id))["state"] == "RUNNING"


@pytest.mark.tmux
def test_a_shell_in_a_host_job_has_its_gpus_and_directory(tmp_path: Path) -> None:
    environ = {"GPUTUI_CONFIG": "/dev/null", "TMPDIR": str(tmp_path), "SHELL": "/bin/sh"}
    with Terminal([*CONSOLE, "demo"], environ, 140, 36) as terminal:
        terminal.until("scheduling", "segformer-city", "GPU 4,7")
        terminal.press("j")  # the failed job stands on top
        terminal.until(" segformer-city", "rank 1/2 on")
        terminal.press("x")
        terminal.until("this host, with the job's environment", "brings the console back")
        terminal.press("echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | grep -c GPU-; echo at-$PWD", "Enter")
        terminal.until("2\n", "at-/")
        terminal.press("exit", "Enter")
        terminal.until("q quit", "llama-7b-sft")
        terminal.press("X")
        terminal.until("PROCESSES", "gputui.cli.trainer")
        terminal.press("q")
        terminal.until("llama-7b-sft", "q quit")
        terminal.press("q")
        terminal.until("EXIT 0")


@pytest.mark.tmux
def test_keys_for_a_shell_that_ended_with_its_host_job_do_not_reach_the_console(tmp_path: Path) -> None:
    """A shell that is refused is asked about too, so that the reason can be read."""
    config = tmp_path / "config.toml"
    config.touch()
    environ = {
        "GPUTUI_CONFIG": str(config),
        "GPUTUI_STATE": str(tmp_path / "state"),
        "GPUTUI_PROBE": "sim:1",
        "GPUTUI_RUNTIME": "process",
        "SHELL": "/bin/sh",
    }
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    submit = [*CONSOLE, "submit", "--host", "--gpus", "1", "--", "sh", "-c"]
    for each in (script, "sleep 600"):
        subprocess.run([*submit, each], env={**os.environ, **environ}, check=True, capture_output=True, timeout=60)
    with Terminal(CONSOLE, environ, 120, 36) as terminal:
        terminal.until("running    50 sh", "waiting    50 sh")
        config.write_text("nonsense")
        terminal.press("x")
        terminal.until("gputui: error", "the shell ended with exit code 2; Enter brings the console back")
        config.write_text("")
        terminal.press("Enter")
        terminal.until("running    50 sh", "q quit")
        terminal.press("x")
        terminal.until_that(lambda shown: shown.rstrip().endswith("#" if os.geteuid() == 0 else "$"), "prompt")
        (tmp_path / "go").touch()
        terminal.until("the shell was ended (exit code 129)", "Enter brings the console back")
        terminal.press("cy")
        terminal.press("Enter")
        shown = terminal.until("running    50 sh", "0 wait", "q quit")
        assert "Cancel" not in shown
        subprocess.run([*CONSOLE, "cancel", "2"], env={**os.environ, **environ}, check=True, capture_output=True)
        terminal.until("1/1 free")
        terminal.press("q")
        terminal.until("stop scheduling")
        terminal.press("s")
        terminal.until("EXIT 0")
