"""A server on which everything fails: who schedules and who asks, engine, GPUs, disk, clock and ssh."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from gputui.api.client import ApiClient
from gputui.api.http import Acted, NewIds, NewJobs
from gputui.api.wire import to_sockets
from gputui.domain.action import ResumeGpus
from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, Submission
from gputui.engine.leadership import current_leader
from tests.api.serving import connect, tell
from tests.compiled import compiled
from tests.e2e.site import Site
from tests.e2e.terminal import Terminal
from tests.gpus import standin
from tests.runtime.dockerd import IMAGE, NETWORK
from tests.runtime.sshd import Sshd
from tests.torture.onlookers import GIB, Events, Processes
from tests.torture.test_bad_days import fill, probes_of
from tests.torture.test_host_jobs import wrappers

MACHINE = Path(__file__).with_name("bad_machine.c")
SHARERS = 2
SHARED = ("0", "1")
"""GPUs that jobs may share, SHARERS at a time."""
SETTINGS = f"""
[scheduler]
fast_failing_jobs = 0
[store]
keep_finished = 100
[runtime]
docker_timeout = "6s"
[gpus]
hang_after = "3s"
[policy]
share = {json.dumps(SHARED)}
share_jobs = {SHARERS}
"""
RECORD = 'echo "$GPUTUI_ATTEMPT {gpus} $(cut -d" " -f1 /proc/uptime) {word}" >> {out}/runs'
START_WITHIN = 5.0
"""Seconds after which a console that was opened has a process."""
PATIENCE = 2.0
"""Seconds for which a client waits for the owner before it gives up, and asks again later with the same key."""


Told = TypeVar("Told")


@dataclass(frozen=True)
class Wanted:
    """Exit code, retries and sharing that a job was submitted with."""

    code: int
    retries: int
    shares: bool


@dataclass
class BadHour:
    """A server on which things fail, and what was done to it."""

    site: Site
    rng: random.Random
    seed: int
    sshd: Sshd
    console: Terminal | None = None
    scheduler: subprocess.Popen[bytes] | None = None
    wanted: dict[str, Wanted] = field(default_factory=dict)
    """Intent of each job, by its key."""
    pending: dict[str, Submission] = field(default_factory=dict)
    """Submissions that nobody acknowledged yet, by key: they are sent again until somebody does."""
    ids: dict[str, int] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    hit: set[str] = field(default_factory=set)
    """Attempts of which one wrapper was killed: never both."""
    undo: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """Ends of faults that last, each with its time on the monotonic clock."""
    sick: set[int] = field(default_factory=set)
    """GPUs that were lost or had an Xid, and that nobody has given jobs again."""
    driver: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.site.config.write_text(SETTINGS)
        self.processes = Processes(f"SOAK={self.site.directory}", self.site.gpus, self.driver)
        self.events = Events(self.site.engine)
        self._console_until = 0.0
        self.library = compiled(MACHINE, "bad_machine.so", "-ldl")
        self.machine.write_bytes(bytes(16))
        for each in (self.processes, self.events):
            each.start()

    @property
    def machine(self) -> Path:
        """File by which gputui's clock jumps, and no other, and its disk fails."""
        return self.site.directory / "machine"

    def set(self, *, seconds: int | None = None, percent: int | None = None) -> None:
        """Set the offset of gputui's clock, or how many of its writes fail."""
        with self.machine.open("r+b") as file:
            for at, value in ((0, seconds), (8, percent)):
                if value is not None:
                    os.pwrite(file.fileno(), struct.pack("=q", value), at)

    def environ(self) -> dict[str, str]:
        """Return an environment with the clock and the disk that fail, and with either address of the engine."""
        host = self.site.engine.host
        return {
            **self.site.environ,
            "LD_PRELOAD": str(self.library),
            "BAD_MACHINE": str(self.machine),
            "BAD_DISK": str(self.site.state),
            "PATH": self.sshd.path,
            "DOCKER_HOST": self.rng.choice((host, host.replace("unix://", "ssh://lab"))),
        }

    def tend(self) -> None:
        """Do what a service manager and an operator do: start again what has ended, and use GPUs that are well."""
        now = time.monotonic()
        due = [each for each in self.undo if each[0] <= now]
        self.undo = [each for each in self.undo if each[0] > now]
        for _, end in due:
            end()
        if self.scheduler is None or self.scheduler.poll() is not None:
            self._serve()
        if time.monotonic() > self._console_until and not list(self._consoles()):
            self._open_console()
        for gpu in sorted(self.sick):
            if self._ask("/v1/actions", ResumeGpus((standin.uuid(gpu),)), Acted, f"resume-{time.monotonic_ns()}"):
                self.sick.discard(gpu)

    def _serve(self) -> None:
        if self.scheduler is not None:
            self.done[f"(serve ended with {self.scheduler.returncode})"] += 1
            self.site.serving.remove(self.scheduler)
        with (self.site.directory / "serve.err").open("ab") as errors:
            self.scheduler = subprocess.Popen(
                [sys.executable, "-m", "gputui", "serve", "--wait", "20s"],
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.site.serving.append(self.scheduler)

    def _open_console(self) -> None:
        if self.console is not None:
            self.done["(consoles that ended)"] += 1
            self.console.close()
        self.console = Terminal([sys.executable, "-P", "-m", "gputui"], self.environ(), 120, 36)
        self._console_until = time.monotonic() + START_WITHIN

    def _consoles(self) -> Iterator[int]:
        """Yield the pids of the console, without the scheduler to which it hands over."""
        mark = f"GPUTUI_STATE={self.site.state}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[1:-1] == [b"-P", b"-m", b"gputui"] and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)

    def submit(self, *, is_host: bool | None = None) -> None:
        """Submit a container or a host job with a key."""
        key = self._new(is_host=is_host)
        self.ask(key)

    def _new(self, *, is_host: bool | None = None) -> str:
        """Think of a job; return its key."""
        rng, key = self.rng, f"key-{len(self.wanted)}"
        code = rng.choice((0, 0, 0, 3))
        wanted = Wanted(code, rng.choice((0, 0, 1)) if code else 0, shares=rng.random() < 0.3)
        seconds = rng.choice((0, 0.1, 0.5, 2, 5)) * rng.random()
        is_host = rng.random() < 0.4 if is_host is None else is_host
        out = str(self.site.out) if is_host else "/out"
        gpus = "${CUDA_VISIBLE_DEVICES:-void}" if is_host else "$NVIDIA_VISIBLE_DEVICES"
        begin, end = (RECORD.format(word=word, gpus=gpus, out=out) for word in ("begin", f"end:{code}"))
        count = rng.choice((0, 1, 1, 2, 3))
        env = (("SOAK", str(self.site.directory)),)
        spec = JobSpec(
            image=None if is_host else IMAGE,
            command=("sh", "-c", f"{begin}; echo on; sleep {seconds:.2f}; {end}; exit {code}"),
            name=key,
            gpus=GpuRequest(1, 1, memory=20 * GIB, share=True) if wanted.shares else GpuRequest(count, count),
            retries=wanted.retries,
            backoff=timedelta(seconds=1),
            options=ContainerOptions(env=env)
            if is_host
            else ContainerOptions(env, (f"{self.site.out}:/out",), network=NETWORK),
        )
        self.wanted[key], self.pending[key] = wanted, Submission(spec)
        return key

    def ask(self, key: str) -> None:
        """Send a submission, once more if it was sent before, and note its id if it is acknowledged."""
        if found := self._ask("/v1/jobs", NewJobs((self.pending[key],)), NewIds, key):
            [self.ids[key]] = found.ids
            del self.pending[key]
        else:
            self.done["(submissions not acknowledged at once)"] += 1

    def _ask(self, path: str, body: object, result: type[Told], key: str) -> Told | None:
        """Return the owner's answer; None if it gives none in time, or an error."""
        with closing(ApiClient(to_sockets([self.site.state / "api.sock"]), patience=PATIENCE)) as client:
            with contextlib.suppress(GputuiError):
                return client.ask("POST", path, body, result=result, key=key)
            return None

    def ask_again(self) -> None:
        """Send what is not acknowledged, until one of them is refused again."""
        for key in list(self.pending):
            self.ask(key)
            if key in self.pending:
                return

    def later(self, seconds: float, end: Callable[[], object]) -> None:
        self.undo.append((time.monotonic() + seconds, end))

    def fault(self) -> None:
        """Let one thing fail, beside those that still do and beside jobs that start and end."""
        chosen = self.rng.choice(FAULTS)
        chosen(self)
        self.done[chosen.__name__.replace("_", " ")] += 1

    def _leader(self) -> int:
        """Return the pid of who schedules, or of the service; 0 if nobody runs."""
        found = current_leader(self.site.state)
        if found is not None and found.pid:
            return found.pid
        return self.scheduler.pid if self.scheduler and self.scheduler.poll() is None else 0

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, number)

    def _stopped(self, pid: int, seconds: float) -> None:
        """Let a stopped process go on after a while."""
        self.later(seconds, lambda: self._signal(pid, signal.SIGCONT))

    def kill_scheduler(self) -> None:
        self._signal(self._leader(), signal.SIGKILL)

    def stop_scheduler(self) -> None:
        self._signal(self._leader(), signal.SIGTERM)

    def pause_scheduler(self) -> None:
        self._signal(pid := self._leader(), signal.SIGSTOP)
        self._stopped(pid, self.rng.uniform(0.5, 14))

    def close_console(self) -> None:
        """Close the terminal of the console, as a lost connection does: a console that schedules hands over."""
        if self.console is not None:
            self.console.close()
            self.console = None

    def kill_console(self) -> None:
        for pid in self._consoles():
            self._signal(pid, signal.SIGKILL)

    def cut_client(self) -> None:
        """Send a whole submission or a part of one, and leave without waiting for the answer."""
        key = self._new()
        body = msgspec.json.encode(NewJobs((self.pending[key],)))
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: {key}\r\n"
        whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with contextlib.suppress(OSError), connect(self.site.state / "api.sock") as link:
            tell(link, whole[: self.rng.choice((len(whole), len(whole), self.rng.randrange(len(whole))))])

    def hold_connections(self) -> None:
        """Open connections that ask for nothing, or for half of something, and keep them for a while."""
        for _ in range(self.rng.randint(1, 20)):
            with contextlib.suppress(OSError):
                link = connect(self.site.state / "api.sock")
                tell(link, self.rng.choice((b"", b"GET /v1/jobs HTTP/1.1\r\nHo")))
                self.later(self.rng.uniform(0, 20), link.close)

    def kill_probe(self) -> None:
        if self.scheduler is not None:
            for pid in probes_of(self.scheduler):
                self._signal(pid, signal.SIGKILL)

    def kill_wrapper(self) -> None:
        for _ in range(3):
            self.submit(is_host=True)
        time.sleep(self.rng.uniform(0, 0.6))
        if found := wrappers(self.site.state, self.hit):
            name, pid = self.rng.choice(found)
            self.hit.add(name)
            self._signal(pid, signal.SIGKILL)

    def kill_engine(self) -> None:
        """Kill dockerd within moments of a start or an end, and start it again after up to three seconds."""
        for _ in range(self.rng.randint(1, 3)):
            self.submit(is_host=False)
        time.sleep(self.rng.uniform(0, 0.6))
        self.site.engine.kill()
        self._engine_again()

    def kill_engine_in_a_start(self) -> None:
        """Let dockerd die right before or after a step of runc."""
        engine = self.site.engine
        engine.kill_at(self.rng.choice(("before", "after")), self.rng.choice(("create", "start")))
        self.submit(is_host=False)
        deadline = time.monotonic() + 5
        while engine.pid is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        (engine.directory / "bin" / "runc").unlink(missing_ok=True)
        engine.kill()
        self._engine_again()

    def restart_engine(self) -> None:
        self.submit(is_host=False)
        time.sleep(self.rng.uniform(0, 0.6))
        self.site.engine.send(signal.SIGCONT)
        try:
            self.site.engine.stop()
        except subprocess.TimeoutExpired:  # it waits for a container that it takes for running
            self.site.engine.kill()
        self._engine_again()

    def _engine_again(self) -> None:
        time.sleep(self.rng.choice((0, self.rng.uniform(0, 3))))
        self.site.engine.launch(live_restore=self.rng.random() < 0.5)

    def pause_engine(self) -> None:
        """Stop dockerd, sometimes for longer than gputui waits for an answer."""
        self.submit(is_host=False)
        self.site.engine.send(signal.SIGSTOP)
        self.later(self.rng.choice((1, 4, 12)) * self.rng.random(), lambda: self.site.engine.send(signal.SIGCONT))

    def fail_hook(self) -> None:
        """Let NVIDIA's hook fail, as without a driver."""
        self.site.engine.fail_hook()
        self.later(self.rng.uniform(0.5, 3), lambda: self.site.engine.fail_hook(False))

    def hang_driver(self) -> None:
        with self.driver:
            self.site.gpus.change("hang *")
        self.later(self.rng.uniform(1, 9), lambda: self._heal("hang"))

    def lose_gpu(self) -> None:
        gpu = self.rng.randrange(8)
        with self.driver:
            self.site.gpus.change(f"gpu {gpu} lost 1")
        self.later(self.rng.uniform(0.5, 8), lambda: self._heal(f"gpu {gpu} lost", gpu))

    def _heal(self, line: str, gpu: int | None = None) -> None:
        with self.driver:
            self.site.gpus.change(without=(line,))
        if gpu is not None:
            self.sick.add(gpu)

    def raise_xid(self) -> None:
        """Send an Xid, some of which take a GPU out of service until an operator resumes it."""
        gpu = self.rng.randrange(8)
        with self.driver:
            self.site.gpus.change(without=("xid",))
            self.site.gpus.xid(gpu, self.rng.choice((13, 31, 48, 79, 95, 119)))
        self.later(self.rng.uniform(2, 8), lambda: self.sick.add(gpu))

    def fill_disk(self) -> None:
        ballast = fill(self.site.state)
        self.later(self.rng.uniform(0, 4), lambda: ballast.unlink(missing_ok=True))

    def fail_disk(self) -> None:
        """Let some or all writes and syncs of the state directory fail with EIO."""
        self.set(percent=self.rng.choice((5, 30, 100)))
        self.later(self.rng.uniform(0.3, 4), lambda: self.set(percent=0))

    def jump(self) -> None:
        """Let gputui's clock jump by up to a day, back or ahead."""
        self.set(seconds=self.rng.choice((0, 40, -40, 3600, -3600, 86000, -86000)))

    def cut_ssh(self) -> None:
        self.sshd.cut()

    def freeze_ssh(self) -> None:
        """Let every connection stay open and silent; a new one may be made meanwhile."""
        for pid in self.sshd.freeze():
            self._stopped(pid, self.rng.uniform(1, 15))

    def stop_sshd(self) -> None:
        if self.sshd.process.poll() is None:
            self.sshd.stop()
            self.later(self.rng.uniform(0.5, 5), self.sshd.start)

    def end(self) -> None:
        """End all faults; then the last submissions are acknowledged."""
        self.undo = [(0.0, end) for _, end in self.undo]
        self.set(seconds=0)
        deadline = time.monotonic() + 180
        while self.undo or self.pending or self.sick:
            assert time.monotonic() < deadline, f"{self.sick} {list(self.pending)}\n{self.site.evidence()}"
            self.tend()
            self.ask_again()
            time.sleep(0.1)

    def close(self) -> None:
        """End what this made; the site is closed by its owner."""
        for _, end in self.undo:
            end()
        if self.console is not None:
            self.console.close()
        for each in (self.processes, self.events):
            each.end()
        self.sshd.close()


FAULTS = (
    *(BadHour.kill_scheduler, BadHour.stop_scheduler, BadHour.pause_scheduler),
    *(BadHour.close_console, BadHour.kill_console, BadHour.cut_client, BadHour.hold_connections),
    *(BadHour.kill_probe, BadHour.kill_wrapper),
    *(BadHour.kill_engine, BadHour.kill_engine_in_a_start, BadHour.restart_engine, BadHour.pause_engine),
    *(BadHour.fail_hook, BadHour.hang_driver, BadHour.lose_gpu, BadHour.raise_xid),
    *(BadHour.fill_disk, BadHour.fail_disk, BadHour.jump),
    *(BadHour.cut_ssh, BadHour.freeze_ssh, BadHour.stop_sshd),
)
