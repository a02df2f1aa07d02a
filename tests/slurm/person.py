"""A user of the test bed, who knows nothing but gputui's commands, and what the containers themselves wrote down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.commands import Commands
from tests.results import Result
from tests.runtime.dockerd import NETWORK
from tests.slurm import files
from tests.slurm.bed import IMAGE, PATIENCE, Bed

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
STAMPING = """
trap 'exit 143' TERM
begun=$(cut -d' ' -f1 /proc/uptime)
echo "$NAME $NVIDIA_VISIBLE_DEVICES $begun" >> /stamps/begun
nvidia-smi -L
sleep {seconds} & wait $!
code={code}
echo "$NAME $NVIDIA_VISIBLE_DEVICES $begun $(cut -d' ' -f1 /proc/uptime)" >> /stamps/ended
exit $code
"""
"""Script of a container: it notes GPUs and times on the clock that all nodes have in common."""


@dataclass(frozen=True)
class Stamp:
    """Note of a container: its GPUs, and its begin and end in seconds of the host's clock."""

    gpus: tuple[str, ...]
    begun: float
    ended: float


class Person:
    """A user at the head."""

    def __init__(self, bed: Bed, commands: Commands, name: str) -> None:
        self.bed = bed
        self.name = name
        self._commands = commands
        self.home = bed.home(name)
        self.stamps = self.home / "stamps"
        self.stamps.mkdir(exist_ok=True)
        self.stamps.chmod(0o777)
        (self.home / "config.toml").touch()

    @property
    def environ(self) -> dict[str, str]:
        inside = self.bed.environ_inside | {"HOME": str(self.home), "USER": self.name}
        if self.name == "root":  # root's defaults are those of this machine
            own = {"GPUTUI_STATE": "state", "GPUTUI_CLUSTER_LOG_DIRECTORY": "logs"}
            inside |= {name: str(self.home / folder) for name, folder in own.items()}
        return inside | {"GPUTUI_CLUSTER": "slurm", "GPUTUI_CONFIG": str(self.home / "config.toml")}

    def run(self, *words: str, check: bool = True, environ: Mapping[str, str] | None = None) -> Result:
        """Run a gputui command."""
        number = files.USERS.get(self.name, 0)
        groups = [files.DOCKER_GROUP] if self.name == "alice" else []
        account = (number, number, [number, *groups])
        settings = self.environ | dict(environ or {})
        code, out, err = self._commands.run(words, settings, b"", 2 * PATIENCE, cwd=self.home, account=account)
        result = Result(code, out.decode(), err.decode())
        assert not check or code == 0, f"gputui {' '.join(words)}: {result}\n{self.bed.told()}"
        return result

    def submit(self, name: str, *options: str, gpus: int = 1, seconds: float = 0.2, code: int = 0) -> int:
        """Submit a job that notes its GPUs and times."""
        return int(self.run("submit", *self._words(name, options, gpus), *_command(seconds, code)).out)

    def submit_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[int]:
        """Submit jobs by a job file; each has a `name`, and may have `gpus`, `seconds`, `code` and more keys."""
        path = self.home / "jobs.toml"
        path.write_text("".join(self._table(dict(job)) for job in jobs))
        return [int(word) for word in self.run("submit", "--file", str(path)).out.split()]

    def _table(self, job: dict[str, Any]) -> str:
        words = _command(job.pop("seconds", 0.2), job.pop("code", 0))
        keys = {"image": words[0], "command": list(words[1:]), "gpus": 1, "time_limit": "5m"}
        keys |= {"env": {"NAME": job["name"]}, "volume": [f"{self.stamps}:/stamps"], "network": NETWORK, **job}
        lines = [f"{key} = {_toml(value)}\n" for key, value in keys.items()]
        return "[[job]]\n" + "".join(lines)

    def _words(self, name: str, options: Sequence[str], gpus: int) -> list[str]:
        limit = [] if "--time-limit" in options else ["--time-limit", "5m"]
        return [
            "--name",
            name,
            "--gpus",
            str(gpus),
            "-e",
            f"NAME={name}",
            "-v",
            f"{self.stamps}:/stamps",
            "--network",
            NETWORK,
            *limit,
            *options,
        ]

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return all jobs of the queue by their ids."""
        return {job["id"]: job for job in self.run("queue", "--all", "--array", "--json").json}

    def states(self, ids: Sequence[int]) -> list[str]:
        """Return the states of jobs, as the queue has them."""
        jobs = self.jobs()
        return [jobs[job]["state"] if job in jobs else "?" for job in ids]

    def wait(self, ids: Sequence[int], *, patience: float = 2 * PATIENCE) -> list[str]:
        """Wait until all of these jobs have ended; return their states."""
        return self.wait_for(ids, lambda states: set(states) <= ENDED, patience=patience)

    def wait_for(
        self, ids: Sequence[int], is_right: Callable[[list[str]], bool], *, patience: float = 2 * PATIENCE
    ) -> list[str]:
        """Wait until the states of jobs are right; return them."""
        deadline = time.monotonic() + patience
        while not is_right(states := self.states(ids)):
            assert time.monotonic() < deadline, f"{dict(zip(ids, states, strict=True))}\n{self.bed.told()}"
            time.sleep(0.1)
        return states

    def ended(self) -> dict[str, Stamp]:
        """Return what containers noted at their end, by the name of their job; each ended once."""
        lines = [line.split() for line in _lines(self.stamps / "ended")]
        stamps = {name: Stamp(tuple(gpus.split(",")), float(begun), float(ended)) for name, gpus, begun, ended in lines}
        assert len(stamps) == len(lines), f"a container ran twice: {sorted(line[0] for line in lines)}"
        return stamps

    def begun(self) -> list[str]:
        """Return the names of jobs in the order in which their containers began."""
        return [
            line.split()[0] for line in sorted(_lines(self.stamps / "begun"), key=lambda line: float(line.split()[2]))
        ]

    def forget(self) -> None:
        """Remove what containers noted."""
        for path in self.stamps.iterdir():
            path.unlink()


def assert_no_gpu_was_shared(stamps: Mapping[str, Stamp]) -> None:
    """Fail if two containers had the same GPU at the same time."""
    uses = sorted((gpu, stamp.begun, stamp.ended, name) for name, stamp in stamps.items() for gpu in stamp.gpus)
    for (gpu, _, ended, first), (other, begun, _, second) in pairwise(uses):
        assert gpu != other or ended <= begun, f"{gpu} was in {first} and {second}"


def _command(seconds: float, code: int) -> tuple[str, ...]:
    return (IMAGE, "sh", "-c", STAMPING.format(seconds=seconds, code=code))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def give_to(path: Path, name: str) -> None:
    """Make a file belong to a user of the bed."""
    number = files.USERS.get(name, 0)
    os.chown(path, number, number)
