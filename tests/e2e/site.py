"""A server for end-to-end tests: a real Docker engine, the real pynvml over the stand-in NVML, the real commands."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from gputui.bootstrap import ask_backend
from gputui.config import resolve
from gputui.domain.action import Action
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.store import TinyJobStore
from tests import leftovers
from tests.e2e.commands import Commands
from tests.gpus import standin
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd

COMMANDS = Commands()
atexit.register(COMMANDS.close)


class Engine(Protocol):
    """Docker engine of a site, as seen from outside."""

    @property
    def host(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""

    def docker(self, *words: str, check: bool = True) -> str:
        """Return the output of the `docker` command on it."""


EngineOf = TypeVar("EngineOf", bound=Engine)


@dataclass
class SiteOf(Generic[EngineOf]):
    """Server of a test: state directory, engine, GPUs; commands run against it as a user would run them."""

    directory: Path
    engine: EngineOf
    gpus: standin.StandIn
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)
    around: Mapping[str, str] | None = None
    """Environment of commands, where they do not run beside engine and GPUs."""
    into: Sequence[str] = ()
    """Words before a command that run it on the machine of the console."""
    commands: Commands = COMMANDS

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def out(self) -> Path:
        """Directory that jobs write into, as /out."""
        path = self.directory / "out"
        path.mkdir(exist_ok=True)
        return path

    @property
    def environ(self) -> dict[str, str]:
        beside = {**os.environ, **self.gpus.environment, "DOCKER_HOST": self.engine.host}
        return {
            **(beside if self.around is None else self.around),
            "GPUTUI_STATE": str(self.state),
            "GPUTUI_CONFIG": str(self.config),
            "XDG_STATE_HOME": str(self.directory / "home-state"),
            "TERM": "xterm-256color",
        }

    @property
    def config(self) -> Path:
        path = self.directory / "config.toml"
        if not path.exists():
            path.write_text("")
        return path

    def run(self, *words: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run a gputui command; fail the test if it fails, unless `check` is off."""
        code, out, err = self.commands.run(words, self.environ, stdin, timeout=60)
        stdout, stderr = out.decode(), err.decode()
        assert not check or code == 0, f"gputui {' '.join(words)}: {code}\n{stdout}{stderr}"
        return subprocess.CompletedProcess(["gputui", *words], code, stdout, stderr)

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def submit(self, *words: str) -> JobId:
        return int(self.run("submit", *words).stdout)

    def shell(self, script: str, *options: str) -> JobId:
        """Submit a job that runs a shell script, with /out mounted."""
        return self.submit("-v", f"{self.out}:/out", "--network", NETWORK, *options, IMAGE, "sh", "-c", script)

    def let_go(self, gate: str = "gate") -> None:
        """End the jobs that wait for it: see `witness.until_let_go`."""
        (self.out / gate).touch()

    def serve(self) -> subprocess.Popen[bytes]:
        """Run a scheduler in the background."""
        errors = (self.directory / "serve.err").open("ab")
        process = subprocess.Popen(
            [*self.into, "env", "-C", str(Path.cwd()), sys.executable, "-m", "gputui", "serve", "--wait", "20s"],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        errors.close()
        self.serving.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the scheduler with SIGKILL, as the out-of-memory killer does."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.serving.remove(process)

    def jobs(self) -> dict[JobId, dict[str, Any]]:
        return {job["id"]: job for job in self.json("queue", "--all")}

    def until(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        """Wait until a condition holds, checking as often as that is cheap."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if condition():
                return
            now = time.monotonic()
            assert now < deadline, f"it did not come true in {seconds} s\n{self.evidence()}"
            time.sleep(min(max(0.05, 2 * (now - began)), 0.5))

    def until_state(self, job_id: JobId, *states: str, seconds: float = 90) -> dict[str, Any]:
        """Wait until the job is in one of these states, and return its `show --json`."""
        self.until(lambda: self.queue.get(job_id).state in states, seconds)
        found: dict[str, Any] = self.json("show", str(job_id))
        return found

    @cached_property
    def queue(self) -> TinyJobStore:
        """Return the queue as read by this process, which is cheaper than a command."""
        return self.store()

    def until_output(self, job_id: JobId, words: str) -> None:
        """Wait until the job has written these words."""
        self.until(lambda: words in self.run("logs", str(job_id), check=False).stdout)

    def evidence(self) -> str:
        """Return the logs that help to explain a failure."""
        log = self.state / "gputui.log"
        tail = log.read_text()[-3000:] if log.exists() else "(no log)"
        errors = self.directory / "serve.err"
        return (
            f"{self.run('queue', '--all', check=False).stdout}\n{self.run('gpus', check=False).stdout}\n{tail}\n"
            f"{errors.read_text()[-2000:] if errors.exists() else ''}"
        )

    def store(self) -> TinyJobStore:
        return TinyJobStore(self.state, StoreSettings())

    def runs(self) -> list[str]:
        """Return the lines that jobs appended to /out/runs."""
        path = self.out / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """End all schedulers and host jobs, and remove all containers."""
        for process in self.serving:
            process.kill()
            process.wait()
        if "queue" in vars(self):
            self.queue.close()
        leftovers.end(self.state)
        if self.engine.pid is not None:
            self._remove_containers()

    def _remove_containers(self) -> None:
        """Remove all containers, also one that the engine was creating when its scheduler was killed."""
        deadline = time.monotonic() + 60
        while ids := self.engine.docker("ps", "-aq", "--no-trunc").split():
            assert time.monotonic() < deadline, f"these are still there: {ids}"
            self.engine.docker("rm", "-f", *ids, check=False)


Site: TypeAlias = SiteOf[Dockerd]


def act_directly(state: Path, action: Action) -> Done:
    """Act as a command does, without starting an interpreter for it: the owner is asked, if there is one."""
    with closing(ask_backend(resolve(state=str(state), config="/dev/null"))) as backend:
        return backend.act(action)


def submit_directly(state: Path, jobs: Iterable[JobSpec | Submission]) -> tuple[JobId, ...]:
    """Submit as `gputui submit` does; return an id for each element."""
    wished = [Submission(each) if isinstance(each, JobSpec) else each for each in jobs]
    return act_directly(state, SubmitJobs(tuple(wished))).ids


def all_over(jobs: Iterable[Job]) -> bool:
    return all(job.state.is_terminal for job in jobs)


def fresh_site(directory: Path, engine: Dockerd, gpus: int = 8) -> Site:
    """Yield a server with that many idle GPUs."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    nvml = standin.StandIn(directory / "nvml.txt")
    nvml.write(gpus=gpus)
    return Site(directory, engine, nvml)
