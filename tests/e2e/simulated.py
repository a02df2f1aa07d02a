"""Server with simulated GPUs and a real Docker engine, and the starts that its containers report."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gputui.domain.job_spec import JobId
from tests.e2e.site import Site
from tests.gpus import standin
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd


class SimulatedGpus(standin.StandIn):
    """Simulated GPUs, which need no NVML."""

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path)
        self._count = count

    @property
    def environment(self) -> dict[str, str]:
        return {"GPUTUI_PROBE": f"sim:{self._count}"}


def simulated_site(directory: Path, engine: Dockerd, gpus: int = 4) -> Site:
    """Return a server with that many idle simulated GPUs."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return Site(directory, engine, SimulatedGpus(directory / "none", gpus))


def submit_together(site: Site, jobs: Sequence[dict[str, Any]]) -> list[JobId]:
    """Submit jobs in one command; the keys are those of a job file."""
    tables = []
    for job in jobs:
        given = {"image": IMAGE, "network": NETWORK, "volume": [f"{site.out}:/out"], **job}
        tables.append("[[job]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
    path = site.directory / "jobs.toml"
    path.write_text("\n".join(tables))
    found = [json.loads(line) for line in site.run("submit", "-f", str(path)).stdout.split()]
    assert len(found) == len(jobs)
    return found


@dataclass(frozen=True)
class Witness:
    """Events of the engine about its containers, which are removed once they have ended."""

    path: Path

    @property
    def starts(self) -> dict[JobId, datetime]:
        """Return the times at which the engine started each job, by its own clock, in order."""
        return self._times("start")

    def used(self, jobs: Collection[JobId], now: datetime) -> float:
        """Return for how many seconds these jobs have run so far, all together."""
        ends = self._times("die")
        began = {job: at for job, at in self.starts.items() if job in jobs}
        return sum((ends.get(job, now) - at).total_seconds() for job, at in began.items())

    def _times(self, wanted: str) -> dict[JobId, datetime]:
        told = sorted((int(at), action, int(job)) for action, at, job in map(str.split, self._lines()))
        return {job: datetime.fromtimestamp(at / 1e9, UTC) for at, action, job in told if action == wanted}

    def _lines(self) -> list[str]:
        return [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def witnessed(site: Site) -> Iterator[Witness]:
    """Yield the events of the engine about its containers from now on."""
    path = site.directory / "events"
    shown = '{{.Action}} {{.TimeNano}} {{index .Actor.Attributes "gputui.job"}}'
    wanted = ("--filter", "type=container", "--filter", "event=start", "--filter", "event=die")
    words = ["docker", "events", *wanted, "--format", shown]
    with path.open("wb") as file, subprocess.Popen(words, env=site.engine.environ, stdout=file) as events:
        try:
            yield Witness(path)
        finally:
            events.terminate()
