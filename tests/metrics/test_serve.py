"""A real `gputui serve --metrics` on simulated GPUs with host jobs, scraped while jobs start, fail and end."""

from __future__ import annotations

import base64
import http.client
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import leftovers
from tests.metrics.scraped import Scrape
from tests.metrics.test_server import HASH, OTHERS, get
from tests.waiting import until

PATIENCE = 60.0
AS_USER = """
import importlib, os, pkgutil, sys
import gputui, json, shlex, socket, tomllib
import concurrent.futures.thread, zoneinfo, apscheduler.executors.asyncio, apscheduler.executors.pool
import apscheduler.executors.debug, apscheduler.schedulers.asyncio, apscheduler.triggers.interval
for module in pkgutil.walk_packages(gputui.__path__, "gputui."):
    if not module.name.endswith("__main__") and ".tui" not in module.name and ".web" not in module.name:
        importlib.import_module(module.name)
uid = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(uid); os.setuid(uid)  # only now: the interpreter itself may be closed to users
from gputui.__main__ import main
main()
"""


class Served:
    """Scheduler in its own process, and commands beside it."""

    def __init__(self, directory: Path, *words: str, uid: int | None = None) -> None:
        self.state = directory / "state"
        self._uid = uid
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self._errors = (directory / "stderr").open("w+")
        self.process = subprocess.Popen(self._command("serve", *words), env=self._environ, stderr=self._errors, cwd="/")

    def _command(self, *words: str) -> list[str]:
        where = ("--state", str(self.state), "--probe", "sim:4", "--runtime", "process", *words)
        if self._uid is None:
            return [sys.executable, "-P", "-m", "gputui", *where]
        return [sys.executable, "-P", "-c", AS_USER, str(self._uid), *where]

    def run(self, *words: str) -> str:
        """Run a command, and return its output."""
        done = subprocess.run(self._command(*words), env=self._environ, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until_said(self, words: str) -> str:
        """Wait until its stderr has a line with these words."""
        return until(lambda: next((line for line in self.said.splitlines() if words in line), ""), words)

    @property
    def said(self) -> str:
        return Path(self._errors.name).read_text()

    @property
    def port(self) -> int:
        return int(self.until_said("metrics at http").rpartition("/metrics")[0].rpartition(":")[2])

    def scrape(self, headers: dict[str, str] | None = None) -> Scrape:
        """Return the page that Prometheus would read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/metrics", headers=headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 200, text
        return Scrape(text)

    def until(self, condition: Callable[[Scrape], bool], patience: float = PATIENCE) -> Scrape:
        """Scrape until the condition holds."""
        return until(lambda: found if condition(found := self.scrape()) else None, "a scrape", seconds=patience)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self._errors.close()
        leftovers.end(self.state)


@contextmanager
def served(directory: Path, *words: str, uid: int | None = None) -> Iterator[Served]:
    it = Served(directory, *words, uid=uid)
    try:
        yield it
    finally:
        it.end()


def lint(scrape: Scrape) -> list[str]:
    """Return the complaints of `promtool check metrics`."""
    words = ["promtool", "check", "metrics"]
    done = subprocess.run(words, input=scrape.text, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines() + ([f"exit code {done.returncode}"] if done.returncode else [])


def test_without_metrics_their_library_is_not_imported() -> None:
    program = "import sys, gputui.cli.serve, gputui.console.serving; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.prometheus
def test_jobs_are_counted_from_their_start_to_their_end(tmp_path: Path) -> None:
    mapping, me = tmp_path / "jobs", pwd.getpwuid(os.geteuid()).pw_name
    with served(tmp_path, "--metrics=0", f"--hpc-job-mapping-dir={mapping}") as it:
        it.until(lambda found: found.value("gputui_gpus", state="FREE") == 4)
        it.run("submit", "--host", "--gpus", "2", "--tenant", "bob", "--", "sleep", "600")
        it.run("submit", "--host", "--retries", "1", "--backoff", "0s", "--", "false")
        found = it.until(
            lambda found: (
                found.value("gputui_jobs", tenant="bob", state="RUNNING") == 1
                and found.value("gputui_jobs_ended_total", tenant=me, state="FAILED") == 1
            )
        )
        assert found.value("gputui_attempts_started_total", tenant=me) == 2
        assert found.value("gputui_attempts_ended_total", cause="NonZeroExit") == 2
        assert found.value("gputui_job_retries_total", cause="NonZeroExit") == 1
        assert found.value("gputui_jobs_submitted_total", tenant="bob") == 1
        assert found.value("gputui_tenant_wait_seconds_count", tenant="bob") == 1
        assert found.value("gputui_gpu_allocation_ratio") == 0.5
        assert found.value("gputui_runtime_calls_total", runtime="process", call="start", result="ok") == 3
        assert (found.value("gputui_store_write_duration_seconds_count") or 0) > 5
        assert (found.value("gputui_tick_duration_seconds_count") or 0) > 3
        assert (found.value("gputui_plan_duration_seconds_count") or 0) > 1
        held = {labels["gpu"] for labels in found.labels("gputui_gpu_job_info") if labels["tenant"] == "bob"}
        written = until(lambda: [path.name for path in mapping.iterdir() if path.read_text() == "1\n"], "files")
        assert set(written) == held
        assert len(held) == 2
        assert lint(found) == []
        busy = it.until(lambda found: (found.value("gputui_gpu_allocated_seconds_total", tenant="bob") or 0) > 0)
        assert busy.value("gputui_store_size_bytes", file="journal") is not None
        it.run("cancel", "1")
        it.until(lambda found: found.value("gputui_jobs_ended_total", tenant="bob", state="CANCELLED") == 1)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Directory that every user may enter; pytest's are for one user."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.long  # another user's processes import all of gputui each
@pytest.mark.needs("root")
def test_a_scheduler_runs_without_metrics_if_another_user_has_the_port(open_path: Path) -> None:
    for name in ("mine", "theirs"):
        (open_path / name).mkdir()
    shutil.chown(open_path / "theirs", OTHERS, OTHERS)
    users = open_path / "mine" / "users"
    users.write_text(f"alice:{HASH}\n")
    users.chmod(0o600)
    (open_path / "mine" / ".config" / "gputui").mkdir(parents=True)
    (open_path / "mine" / ".config" / "gputui" / "config.toml").write_text(f'[metrics]\nusers = "{users}"\n')
    header = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
    with (
        served(open_path / "mine", "--metrics=0") as mine,
        served(open_path / "theirs", f"--metrics={mine.port}", uid=OTHERS) as theirs,
    ):
        assert "Address already in use; scheduling continues" in theirs.until_said("no metrics are served")
        theirs.run("submit", "--host", "--hold", "--", "true")
        theirs.run("submit", "--host", "--after", "1", "--", "true")
        theirs.run("cancel", "1")
        until(lambda: '"DependencyNeverMet"' in theirs.run("show", "2", "--json"), "the end of the job")
        assert mine.scrape(header).value("gputui_scheduler_info", kind="serve") == 1
        assert get(mine.port) == (401, b"name and password are needed\n")
        seen = subprocess.run(["cat", str(users)], user=OTHERS, group=OTHERS, capture_output=True, check=False)
        assert seen.returncode != 0
