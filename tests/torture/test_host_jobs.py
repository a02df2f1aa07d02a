"""Thousands of short host jobs on a busy machine, whose wrappers are killed at random moments.

Each attempt runs exactly once and every exit code is found: proved from what the jobs themselves wrote.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputui.runtime import host_processes
from gputui.runtime.process.attempt_folder import AttemptFolder

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

JOBS, KILLS = 5000, 100
FAILING = {index: 1 + index % 120 for index in range(JOBS) if index % 3 == 0}
"""Exit codes other than 0, by index in the array."""
SCRIPT = """
echo "$GPUTUI_ARRAY_INDEX $GPUTUI_ATTEMPT" >> {runs}
sleep 0.$(( GPUTUI_ARRAY_INDEX % 7 ))
[ $(( GPUTUI_ARRAY_INDEX % 3 )) = 0 ] && exit $(( 1 + GPUTUI_ARRAY_INDEX % 120 ))
exit 0
"""


@contextmanager
def pressure() -> Iterator[None]:
    """Run four computing processes beside the jobs."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def gputui(state: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gputui", "--state", str(state), "--probe", "sim:1", "--runtime", "process", *words]


def wrappers(state: Path, hit: set[str]) -> list[tuple[str, int]]:
    """Return attempt and pid of all working keepers and runners, except of attempts already hit."""
    found: list[tuple[str, int]] = []
    for place in (state / "attempts").glob("gputui-*"):
        try:
            records = AttemptFolder(place).records()
        except OSError:
            continue
        both = (records.start.leader if records.start else None, records.runner)
        if records.end is None and place.name not in hit:
            found += [(place.name, who.pid) for who in both if who is not None and host_processes.is_alive(who)]
    return found


class Killer(threading.Thread):
    """Kills or briefly stops one wrapper process at a time; never both of one attempt."""

    def __init__(self, state: Path, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.state, self.rng = state, rng
        self.kills = self.stops = 0
        self.hit: set[str] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.rng.uniform(0.1, 1.0)):
            found = wrappers(self.state, self.hit)
            if not found:
                continue
            name, victim = self.rng.choice(found)
            try:
                if self.kills < KILLS and self.rng.random() < 0.7:
                    self.hit.add(name)
                    os.kill(victim, signal.SIGKILL)
                    self.kills += 1
                else:
                    os.kill(victim, signal.SIGSTOP)
                    self.stops += 1
                    time.sleep(self.rng.uniform(0.01, 0.4))
                    os.kill(victim, signal.SIGCONT)
            except ProcessLookupError:
                continue


def test_each_of_thousands_of_host_jobs_runs_once(tmp_path: Path) -> None:
    state, runs = tmp_path / "state", tmp_path / "runs"
    (tmp_path / "config.toml").write_text(
        "[scheduler]\nfast_failing_jobs = 0\ncpu_jobs = 40\n[store]\nkeep_finished = 100000\n"
    )
    environ = {**os.environ, "GPUTUI_CONFIG": str(tmp_path / "config.toml")}
    words = ("submit", "--host", "--array", f"0-{JOBS - 1}%40", "--", "sh", "-c", SCRIPT.format(runs=runs))
    subprocess.run(gputui(state, *words), check=True, env=environ, stdout=subprocess.DEVNULL)
    seed = random.randrange(10**6)
    killer = Killer(state, random.Random(seed))
    with pressure(), subprocess.Popen(gputui(state, "serve"), env=environ, stderr=subprocess.DEVNULL) as serve:
        killer.start()
        try:
            jobs = wait_for_all(state, environ)
        finally:
            killer.done.set()
            killer.join()
            serve.terminate()
    print(f"\n{JOBS} jobs, {killer.kills} wrappers killed, {killer.stops} stopped for a moment, seed {seed}")
    attempts = Counter(line.split()[1] for line in runs.read_text().splitlines())
    assert {tag: count for tag, count in attempts.items() if count > 1} == {}
    ran = {int(tag.split(":")[1]) for tag in attempts}
    first = min(jobs)
    for job_id, job in jobs.items():
        assert job["exit_code"] == FAILING.get(job_id - first, 0), job
        begun = [each for each in job["attempts"] if each["cause_code"] not in NEVER_RAN]
        assert len(begun) == 1, job
    assert len(attempts) == len(ran) == JOBS
    assert killer.kills == KILLS


NEVER_RAN = {"RuntimeError", "ContainerLost"}
"""Causes of attempts whose wrapper was killed before their command began."""


def wait_for_all(state: Path, environ: dict[str, str]) -> dict[int, dict[str, Any]]:
    """Return the jobs by id, once all have ended."""
    while True:
        time.sleep(15)
        listing = subprocess.run(
            gputui(state, "queue", "--all", "--json"), check=True, env=environ, stdout=subprocess.PIPE
        )
        jobs = {job["id"]: job for job in json.loads(listing.stdout)}
        ended = sum(job["ended_at"] is not None for job in jobs.values())
        print(f"{ended} of {len(jobs)} ended", file=sys.stderr, flush=True)
        if ended == JOBS:
            return jobs
