"""A run of 200 jobs on the real engine with failures, retries, preemption, cancellations and a lost GPU, scraped.

The run keeps what others say about it: the engine's events, the lines of the containers, and the audit log.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from gputui.domain.action import Cancel
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobId, JobSpec, Submission
from tests.e2e.site import Site, act_directly, submit_directly
from tests.metrics.prometheus import Prometheus
from tests.metrics.witness import Witness
from tests.runtime.dockerd import IMAGE, NETWORK

TENANTS = ("alice", "bob")
GPUS = 8
JOBS = 200
HELD, RUNNING_CANCELLED, PREEMPTED = 20, 4, 4
LIMIT = 3600
"""Seconds of the time limit of the jobs that wait while others hold all GPUs."""
PATIENCE = 900.0
SETTINGS = """
[scheduler]
fast_failing_jobs = 0
[policy]
preemption = true
preemption_min_run = "0s"
preemption_grace = "20s"
[[policy.tenants]]
name = "alice"
gpus = 7
[[policy.tenants]]
name = "bob"
[hooks]
on_job_end = ["sh", "-c", "echo told >> {out}/told"]
[metrics]
enabled = true
listen = "127.0.0.1:{port}"
[report]
gpu_hour = 2.0
kwh = 0.5
currency = "EUR"
"""
_BEGIN = (
    'n=${GPUTUI_ATTEMPT##*:}; said() { echo "$GPUTUI_ATTEMPT $NVIDIA_VISIBLE_DEVICES $(cut -d" " -f1 /proc/uptime)" '
    ">> /out/runs; }; said; trap said EXIT; "
)
"""A line at the begin and one at the end. The uptime is the host's, to 10 ms."""
_UNTIL_STOPPED = "trap 'exit 143' TERM; while :; do sleep 0.1; done"


def readings(gpu: int) -> dict[str, float]:
    """Return the constant readings of a GPU in base units; the first is idle."""
    return {
        "utilization": 0.1 * gpu,
        "memory": float((gpu + 1) * 10 * 2**20),
        "power": 100.0 + 10 * gpu,
        "temperature": 40.0 + gpu,
        "clock": (1000.0 + 10 * gpu) * 1e6,
        "sm_activity": 0.05 * (gpu + 1),
    }


SLOW, CORRECTED, POWER_LIMIT = 5, 6, 700.0
"""GPU that is slowed down, GPU whose ECC errors are counted, and the watts of each GPU's limit."""


def _lines() -> Iterator[str]:
    for gpu in range(GPUS):
        read = readings(gpu)
        yield f"gpu {gpu} util {round(read['utilization'] * 100)}"
        yield f"gpu {gpu} used {read['memory']:.0f}"
        yield f"gpu {gpu} power {read['power'] * 1000:.0f}"
        yield f"gpu {gpu} temperature {read['temperature']:.0f}"
        yield f"gpu {gpu} sm_clock {read['clock'] / 1e6:.0f}"
        yield f"gpu {gpu} gpm {read['sm_activity'] * 100:.0f} 10"
    yield f"gpu {SLOW} throttle 0x40"


class RealRun:
    """The run, step by step, and the answers of Prometheus at the compared moments."""

    def __init__(self, site: Site, prometheus: Prometheus, events: Path, witness: Witness) -> None:
        self.site = site
        self.witness = witness
        self.prometheus = prometheus
        self.began_at = time.time()
        self.lost: tuple[int, float, float] = (-1, 0.0, 0.0)
        """The lost GPU, and the begin and end of its loss."""
        self._events = events

    def events(self) -> list[dict[str, Any]]:
        """Return the engine's events so far."""
        return [json.loads(line) for line in self._events.read_text().splitlines()]

    def count(self, action: str) -> int:
        """Return the number of such events of the engine."""
        return sum(each["Action"] == action for each in self.events())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, for as long as a busy machine may take."""
        self.site.until(condition, PATIENCE)

    def scraped(self, expression: str) -> float:
        """Return the time of a scrape, the first from now on in which the expression is true."""
        asked, found = time.time(), 0.0

        def is_true() -> bool:
            nonlocal found
            at = self.prometheus.ask('timestamp(up{job="gputui"})')
            found = float(at[0]["value"][1]) if at else 0.0
            return found > asked and bool(
                self.prometheus.ask(f'({expression}) and on () up{{job="gputui"}} == 1', found)
            )

        self.until(is_true)
        return found

    def spec(self, script: str, gpus: int, tenant: str, **wishes: Any) -> JobSpec:
        options = ContainerOptions(volumes=(f"{self.site.out}:/out",), network=NETWORK)
        command = ("sh", "-c", _BEGIN + script)
        request = GpuRequest(gpus, gpus)
        return JobSpec(image=IMAGE, command=command, gpus=request, tenant=tenant, options=options, **wishes)

    def submit(self, *jobs: JobSpec | Submission) -> tuple[JobId, ...]:
        return submit_directly(self.site.state, jobs)

    def fill(self) -> float:
        """Let preemptible jobs hold all GPUs, others wait and others be held; return the time of a scrape then."""
        yielding = f'[ "$n" -gt 1 ] && exit 0; {_UNTIL_STOPPED}'
        self.submit(
            *(
                self.spec(yielding, 2, TENANTS[number % 2], priority=0, preemptible=True, name=f"yields{number}")
                for number in range(PREEMPTED)
            )
        )
        self.submit(*(Submission(self.spec("true", 1, TENANTS[n % 2]), held=True) for n in range(HELD)))
        self.until(lambda: self.count("start") == PREEMPTED)
        limit = timedelta(seconds=LIMIT)
        self.submit(*(self.spec("sleep 0.5", 1, "bob", priority=0, time_limit=limit) for _ in range(3)))
        return self.scraped(
            'sum(gputui_jobs{state="RUNNING"}) == 4 and on () sum(gputui_jobs_eligible) == 3 '
            "and on () sum(gputui_gpu_utilization_ratio) > 0 and on () sum(gputui_gpu_sm_active_ratio) > 0"
        )

    def make_way(self) -> None:
        """Submit a job for which all of these are preempted, and wait until they have ended after it."""
        self.submit(self.spec("sleep 1", GPUS, "bob", priority=100))
        self.until(lambda: all(job.held or job.state.is_terminal for job in self.site.queue.jobs().values()))

    def work(self) -> float:
        """Submit the rest, lose a GPU under a job, and give it back; return the time of a scrape without it."""
        first = self.spec(f'[ "$n" -gt 1 ] && exit 0; {_UNTIL_STOPPED}', 1, "alice", priority=70, retries=1)
        [unlucky] = self.submit(first)
        doomed = self.submit(
            *(self.spec(_UNTIL_STOPPED, 1, TENANTS[n % 2], priority=69) for n in range(RUNNING_CANCELLED))
        )
        self.submit(*self._rest(JOBS - PREEMPTED - HELD - 3 - 1 - 1 - RUNNING_CANCELLED))
        self.until(lambda: {unlucky, *doomed} <= {int(line.split(":")[1]) for line in self.site.runs()})
        line = next(line for line in self.site.runs() if line.split(":")[1] == str(unlucky))
        gpu = int(line.split()[1].split("-")[1], 16)
        lost_at = time.time()
        self.site.gpus.change(f"gpu {gpu} lost 1", f"gpu {CORRECTED} ecc_corrected 5")
        self.until(lambda: self._tried_again(unlucky))
        act_directly(self.site.state, Cancel(tuple(doomed)))
        act_directly(self.site.state, Cancel(tuple(job.id for job in self.site.queue.jobs().values() if job.held)))
        seen = self.scraped("sum(gputui_gpu_up) == 7 and on () sum(gputui_gpu_healthy) == 7")
        self.site.gpus.change(without=(f"gpu {gpu} lost",))
        self.lost = (gpu, lost_at, time.time())
        return seen

    def _tried_again(self, job_id: JobId) -> bool:
        return any(line.split()[0].endswith(f":{job_id}:2") for line in self.site.runs())

    def _rest(self, count: int) -> Iterator[JobSpec]:
        """Yield jobs that succeed, fail, and fail at first."""
        for n in range(count):
            tenant, gpus, seconds = TENANTS[n % 2], 1 + n % 5 // 4, (0.5, 1.0, 3.0)[n % 3]
            soon = timedelta(0)
            if n % 6 == 1:
                yield self.spec(f"sleep {seconds}; exit 1", gpus, tenant)
            elif n % 8 == 2:
                yield self.spec(f'sleep {seconds}; [ "$n" -gt 1 ]', gpus, tenant, retries=1, backoff=soon)
            elif n % 16 == 4:
                yield self.spec(f"sleep {seconds}; exit 3", gpus, tenant, retries=1, backoff=soon)
            else:
                yield self.spec(f"sleep {seconds}", gpus, tenant)

    def finish(self) -> float:
        """Wait until all jobs have ended; return the time of a scrape that knows."""
        self.until(lambda: all(job.state.is_terminal for job in self.site.queue.jobs().values()))
        return self.scraped(
            f"sum(gputui_jobs_ended_total) == {JOBS} and on () sum(gputui_gpu_up) == {GPUS} "
            f"and on () sum(gputui_hook_deliveries_total) == {JOBS} and on () "
            'sum(gputui_gpu_ecc_errors_total{type="corrected"}) == 5 and on () sum(gputui_gpus{state="FREE"}) == 8'
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def begun(site: Site, directory: Path) -> Iterator[RealRun]:
    """A scheduler with metrics, the Prometheus that scrapes it each second, and the engine's events."""
    port = _free_port()
    site.config.write_text(SETTINGS.format(port=port, out=site.out))
    site.gpus.write(*_lines(), gpus=GPUS)
    path = directory / "events"
    kinds = [f"--filter={word}" for word in ("type=container", "event=create", "event=start", "event=die")]
    words = ["docker", "events", "--since", str(int(time.time())), *kinds, "--format", "{{json .}}"]
    with path.open("w") as file:
        listening = subprocess.Popen(words, env=site.engine.environ, stdout=file)
    prometheus = Prometheus(directory, port, interval="1s")
    site.serve()
    witness = Witness(site.state, site.engine.directory / "data")
    try:
        run = RealRun(site, prometheus, path, witness)
        run.scraped(f'gputui_gpus{{state="FREE"}} == {GPUS}')
        yield run
    finally:
        witness.close()
        prometheus.end()
        listening.terminate()
        listening.wait()
