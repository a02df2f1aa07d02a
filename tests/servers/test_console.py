"""The console over two servers behind a real sshd, in a real terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal
from tests.process_list import command_lines
from tests.servers.conftest import PATIENCE, Site
from tests.waiting import until

pytestmark = [pytest.mark.ssh, pytest.mark.tmux, pytest.mark.xdist_group("servers")]


class Screen(Terminal):
    """Console over both servers of a site, with a home of its own."""

    def __init__(self, site: Site, home: Path, *options: str) -> None:
        self._config = home / "config.toml"
        tables = [
            f"[[servers]]\nname = {json.dumps(each.name)}\naddress = {json.dumps(each.address)}\n"
            f"command = {json.dumps(each.command)}\n"
            for each in site.settings
        ]
        self._config.write_text("\n".join(tables))
        words = [sys.executable, "-P", "-m", "gputui", "--config", str(self._config), "--on", "all", *options]
        super().__init__(words, {"PATH": site.sshd.path, "XDG_STATE_HOME": str(home)}, 120, 36)

    @property
    def pids(self) -> list[int]:
        """Processes of the console."""
        name = str(self._config).encode()
        return [pid for pid, words in command_lines().items() if name in words and words[0] != b"env"]


def is_held(site: Site, job_id: int) -> bool:
    job = json.loads(site.gpus[1].run("show", "--json", str(job_id)))
    return (job["state"], job["held"]) == ("PENDING", True)


def test_a_key_holds_a_job_of_one_server(site: Site, tmp_path: Path) -> None:
    running = site.gpus[1].submit("--gpus", "2", "--name", "takes-both", "--", "sleep", "600")
    waiting = site.gpus[1].submit("--name", "waits-there", "--gpus", "2", "--", "true")
    with Screen(site, tmp_path) as screen:
        screen.until("gpu1", "gpu2", "A100", "takes-both", "waits-there")
        screen.click("waits-there")
        screen.press("h")
        screen.until("What if", "hold it until it is released", "Enter commit")
        screen.press("Enter")
        until(lambda: is_held(site, waiting), lambda: screen.text, seconds=PATIENCE)
        screen.press("q")
        screen.until("EXIT 0")
        assert screen.pids == []
    site.gpus[1].run("cancel", str(running), str(waiting))


@pytest.mark.long  # tests/tui has it over one queue
def test_a_console_that_only_reads_cancels_nothing(site: Site, tmp_path: Path) -> None:
    held = site.gpus[1].submit("--hold", "--name", "kept-there", "--", "true")
    with Screen(site, tmp_path, "--read-only") as screen:
        screen.until("gpu1", "gpu2", "A100", "kept-there")
        screen.click("kept-there")
        screen.press("c")
        screen.until("read-only")
        screen.press("q")
        screen.until("EXIT 0")
    assert is_held(site, held)
    site.gpus[1].run("cancel", str(held))


@pytest.mark.long  # tests/e2e has it over one queue
def test_sigterm_ends_it_and_a_closed_terminal_too(site: Site, tmp_path: Path) -> None:
    with Screen(site, tmp_path) as screen:
        screen.until("gpu1", "gpu2", "A100")
        [pid] = screen.pids
        os.kill(pid, signal.SIGTERM)
        screen.until(f"EXIT {128 + signal.SIGTERM}")
    with Screen(site, tmp_path) as screen:
        screen.until("gpu1", "gpu2", "A100")
        screen.close()
        until(lambda: not screen.pids, "it still runs")
