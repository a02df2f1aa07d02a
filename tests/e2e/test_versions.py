"""Schedulers and commands of version 0.1, from the history of this checkout, and of others to come, beside today's."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gputui import __version__
from gputui.domain.settings import ServerSettings
from gputui.store.queue_files import SCHEMA
from tests.servers.connections import Connections

ROOT = Path(__file__).parents[2]
SCHEMA_2 = "2b60c9b50cca"
"""The last commit of 0.1 with schema 2."""
LAST_OF_0_1 = "1b77e2e1"


def unpack(commit: str, directory: Path) -> None:
    """Unpack gputui as it was; skip the test, with the reason, without that commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "gputui"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("not installed: git")
    if done.returncode:
        pytest.skip(f"this checkout has no commit {commit}: {done.stderr.decode(errors='replace').strip()}")
    directory.mkdir()
    subprocess.run(["tar", "-x", "-C", str(directory)], input=done.stdout, check=True)
    # a dependency of then, which names the places of files; all of them are named here
    (directory / "platformdirs.py").write_text(
        "def user_state_dir(name): return '/nonexistent'\nuser_config_dir = user_state_dir\n"
    )


@dataclass
class Version:
    """A version of gputui, working on the state directory of the test."""

    state: Path
    code: Path
    program: tuple[str, ...] = ("-m", "gputui")
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        words = ["--state", str(self.state), "--probe", "sim:2", "--runtime", "process"]
        return [sys.executable, "-P", "-W", "ignore", *self.program, *words]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUTUI_")}
        short = {"GPUTUI_STORE_LOCK_TIMEOUT": "3s"}
        return {**kept, **short, "PYTHONPATH": str(self.code), "XDG_CONFIG_HOME": str(self.state / "none")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words], env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def job(self, *words: str) -> str:
        """Submit a host job; return its id."""
        done = self.run("submit", "--host", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ends(self, job: str) -> bool:
        """Wait for the end of a job; return whether it completed."""
        return self.run("wait", job).returncode == 0

    def serve(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a scheduler; return once it says so."""
        process = subprocess.Popen(
            [*self.command, "serve", *words], env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.serving.append(process)
        assert process.stderr is not None
        assert b"state in" in process.stderr.readline()
        return process

    def until_it_listens(self) -> None:
        """Wait until its owner takes requests, a moment after it says where it schedules."""
        deadline = time.monotonic() + 60
        with socket.socket(socket.AF_UNIX) as asked:
            while asked.connect_ex(str(self.state / "api.sock")):
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def close(self) -> None:
        for process in self.serving:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=60)


@pytest.fixture
def today(tmp_path: Path) -> Iterator[Version]:
    made = Version(tmp_path / "state", ROOT)
    yield made
    made.close()


@pytest.fixture
def past(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Version]:
    """Yield the version of the commit that the test names."""
    unpack(request.param, tmp_path / "past")
    made = Version(tmp_path / "state", tmp_path / "past")
    yield made
    made.close()


@pytest.mark.parametrize("past", [SCHEMA_2], indirect=True)
def test_an_older_scheduler_keeps_its_queue(past: Version, today: Version) -> None:
    scheduler = past.serve()
    assert today.ends(past.job("--", "true"))
    held = past.job("--hold", "--", "true")
    before = (past.state / "queue.json").read_bytes()
    writes = (
        ["submit", "--host", "--", "true"],
        ["cancel", held],
        ["release", held],
        ["pause"],
        ["state", "repair", "--yes"],
    )
    for words in writes[:-1]:
        refused = today.run(*words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"pid {scheduler.pid}, schedules with an older gputui, which reads schema 2" in refused.stderr
        assert "restart it with this gputui" in refused.stderr
    today.run(*writes[-1])
    assert (past.state / "queue.json").read_bytes() == before
    assert '"PENDING"' in today.run("queue", "--json").stdout
    assert "held" in today.run("explain", held).stdout
    assert today.run("state", "verify").returncode == 0
    doctor = today.run("doctor")
    assert doctor.returncode == 1
    assert "schedules with an older gputui" in doctor.stdout
    assert "schedules in" in today.run("serve").stderr
    assert past.run("release", held).returncode == 0
    assert today.ends(held)
    waiting = today.serve("--wait", "60s")
    scheduler.terminate()
    scheduler.wait(60)
    assert today.ends(today.job("--", "true"))
    assert waiting.poll() is None
    assert f'"schema":{SCHEMA}'.encode() in (past.state / "queue.json").read_bytes()
    refused = past.run("submit", "--host", "--", "true")
    assert (refused.returncode, f"it has schema {SCHEMA}" in refused.stderr) == (1, True)


@pytest.mark.parametrize("past", [LAST_OF_0_1], indirect=True)
def test_the_last_0_1_and_today_work_together(past: Version, today: Version, tmp_path: Path) -> None:
    scheduler = past.serve()
    job = today.job("--env", "A=1", "--label", "b=2", "--gpus", "1", "--time-limit", "5m", "--", "true")
    assert today.ends(job)
    assert today.run("doctor").returncode == 0
    waiting = today.serve("--wait", "60s")
    scheduler.terminate()
    scheduler.wait(60)
    for words in (("submit", "--host", "--", "true"), ("cancel", job), ("pause",)):
        refused = past.run(*words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert re.search(f"locked for 3 s by process {waiting.pid} .*; nothing was stored", refused.stderr)
    for words in (("queue", "--all"), ("show", job), ("gpus",), ("state", "verify")):
        assert past.run(*words).returncode == 0
    assert len(json.loads(today.run("queue", "--all", "--json").stdout)) == 1
    assert today.ends(today.job("--", "true"))
    last = past.serve("--wait", "60s")
    waiting.terminate()
    waiting.wait(60)
    assert today.ends(today.job("--", "true"))
    assert last.poll() is None
    for state in ("verify", "export"):
        assert past.run("state", state).returncode == 0
    path = fake_ssh(tmp_path)
    there = shlex.join(["env", f"PYTHONPATH={past.code}", *past.command])
    config = tmp_path / "config.toml"
    config.write_text(f'[[servers]]\nname = "old"\naddress = "ssh://old"\ncommand = {there!r}\n')
    told = subprocess.run(
        [*today.command[:-6], "--config", str(config), "--on", "old", "queue", "--all", "--json"],
        env={**today.environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout.count('"COMPLETED"')) == (0, 3), told.stderr


OLD_CONSOLE = """
import sys, time
from datetime import UTC, datetime
from gputui.domain.settings import ServerSettings
from gputui.domain.snapshot import EMPTY
from gputui.servers.connection import ServerConnection
there = ServerConnection(ServerSettings("a", "ssh://a", sys.argv[1]), lambda: datetime.now(UTC), lambda: None)
there.start()
while there.view(EMPTY).problem == "connecting":
    time.sleep(0.05)
print(there.view(EMPTY).problem)
there.close()
"""


def fake_ssh(directory: Path) -> str:
    """Return a PATH by which ssh runs its last word here."""
    command = directory / "bin" / "ssh"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize("past", [LAST_OF_0_1], indirect=True)
def test_consoles_over_servers_of_another_version_are_told_which_to_update(
    past: Version, today: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path := fake_ssh(tmp_path))
    command = shlex.join(["env", f"PYTHONPATH={today.code}", *today.command])
    words = [sys.executable, "-P", "-c", OLD_CONSOLE, command]
    told = subprocess.run(
        words, env={**past.environment, "PATH": path}, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == f"gputui {__version__} there is too new for this console (0.1.0): update gputui here\n"
    there = shlex.join(["env", f"PYTHONPATH={past.code}", *past.command])
    console = Connections([ServerSettings("old", "ssh://old", there)], 60)
    console.start()
    problem = console.until(lambda s: s.servers and s.servers[0].problem not in {"", "connecting"}).servers[0].problem
    console.there.close()
    assert problem.startswith("gputui there is too old for this console")


OTHER = """
import gputui
from gputui.api import http
gputui.__version__, http.API = "0.9", "{}"
from gputui.__main__ import main
main()
"""


@pytest.mark.parametrize("speaks", ["1.99", "2.0"])
def test_commands_and_owners_of_different_versions_work_together_or_say_so(today: Version, speaks: str) -> None:
    other = Version(today.state, ROOT, ("-c", OTHER.format(speaks)))
    for owner, command in ((other, today), (today, other)):
        serving = owner.serve()
        owner.until_it_listens()
        done = command.run("submit", "--host", "--hold", "--", "true")
        if speaks == "2.0":
            assert (done.returncode, done.stdout) == (1, "")
            assert "the client speaks version" in done.stderr
            assert "update the older one" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert command.run("cancel", done.stdout.strip()).returncode == 0
        serving.terminate()
        serving.wait(60)
    other.close()
