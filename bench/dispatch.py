"""Time from the exit of a job to the start of the next on its GPUs, compared with Docker's own create and start.

Runs on a Docker engine of its own with the stand-in NVML (root, dockerd, gcc): `python -m bench.dispatch [JOBS]`.
Times are what the containers themselves read from the host's uptime, so to 10 ms.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from pathlib import Path

from gputui import bootstrap
from gputui.domain.container import Launch
from gputui.domain.job_spec import JobId
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.runtime import DockerRuntime
from tests.e2e import witness
from tests.e2e.site import Site, fresh_site, submit_directly
from tests.runtime.dockerd import Dockerd


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def chained(site: Site, jobs: int) -> list[float]:
    """Return the milliseconds between the end of each job and the start of the next; each needs all GPUs."""
    scheduler = site.serve()
    submit_directly(site.state, [witness.spec(site.out, 8, 0.05) for _ in range(jobs)])
    site.until(lambda: len(site.runs()) == 2 * jobs, 60 + jobs)
    scheduler.terminate()
    scheduler.wait()
    site.serving.clear()
    times = [(float(line.split()[2]), line.split()[3]) for line in site.runs()]
    (site.out / "runs").unlink()
    return [
        (begin - end) * 1000 for (end, was), (begin, now) in itertools.pairwise(times) if (was, now) == ("end", "begin")
    ]


def raw(site: Site, jobs: int) -> list[float]:
    """Return the milliseconds from Docker's create request until the first command has run."""
    runtime = DockerRuntime("bench", RuntimeSettings(docker_host=site.engine.host), bootstrap.clock())
    runtime.check()
    spec = witness.spec(site.out, 8, 0.05)
    uuids = tuple(f"GPU-{n:08x}-0000-4000-8000-000000000000" for n in range(8))
    took = []
    for number in range(jobs):
        job_id: JobId = number + 1
        asked = uptime()
        made = runtime.create(Launch("bench", job_id, 1, spec, uuids))
        runtime.start(made.id)
        site.until(lambda: len(site.runs()) == 2)
        took.append((float(site.runs()[0].split()[2]) - asked) * 1000)
        (site.out / "runs").unlink()
        site.engine.docker("rm", "-f", made.id)
    runtime.close()
    return took


def show(what: str, values: list[float]) -> float:
    median = statistics.median(values)
    print(f"{what:<46} median {median:6.0f} ms   min {min(values):6.0f}   max {max(values):6.0f}   n={len(values)}")
    return median


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    engine = Dockerd().start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            site = fresh_site(Path(directory) / "site", engine)
            by_docker = show("Docker alone: create, start, first command", raw(site, jobs))
            by_gputui = show("gputui: exit of a job to the next's first command", chained(site, jobs + 1))
            site.close()
            print(f"gputui adds {by_gputui - by_docker:.0f} ms (budget 100 ms)")
    finally:
        engine.destroy()


if __name__ == "__main__":
    main()
