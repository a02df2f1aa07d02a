"""Views of jobs from outside, whatever gputui says: their living processes, and the events of the engine.

The processes of jobs are also what the stand-in driver reports, as a real one would.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.gpus import standin
from tests.runtime.dockerd import Dockerd

LOOK_EVERY = 0.3
GIB = 1024**3


@dataclass(frozen=True)
class Seen:
    """Living process of an attempt."""

    pid: int
    tag: str
    gpus: tuple[str, ...]
    name: str


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def living(mark: str, among: Iterable[int] | None = None) -> Iterator[Seen]:
    """Yield the processes with that variable in their environment."""
    wanted = mark.encode()
    for pid in among or [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]:
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            words = (place / "environ").read_bytes().split(b"\0")
            if wanted in words:
                known = dict(os.fsdecode(word).partition("=")[::2] for word in words)
                gpus = known.get("NVIDIA_VISIBLE_DEVICES") or known.get("CUDA_VISIBLE_DEVICES", "")
                named = tuple(gpu for gpu in gpus.split(",") if gpu.startswith("GPU-"))
                yield Seen(pid, known.get("GPUTUI_ATTEMPT", ""), named, (place / "comm").read_text().strip())


class Processes(threading.Thread):
    """Looks at the processes of jobs a few times a second, until told to end; the driver reports what it sees."""

    def __init__(self, mark: str, gpus: standin.StandIn, driver: threading.Lock) -> None:
        """`driver` is held by who changes the behaviour of the GPUs."""
        super().__init__(daemon=True)
        self.mark, self._gpus, self._driver = mark, gpus, driver
        self._is_over = threading.Event()
        self.last_seen: dict[str, float] = {}
        """Uptime at which each attempt was last alive."""
        self.together: Counter[tuple[str, str, str]] = Counter()
        """How often two attempts were alive on a GPU at the same time."""
        self.looks = 0

    def run(self) -> None:
        told: list[str] = []
        while not self._is_over.wait(LOOK_EVERY):
            lines = self._look()
            if lines != told:
                with self._driver:
                    kept = tuple(f"gpu {index} {word}" for index in range(8) for word in ("process", "used"))
                    self._gpus.change(*lines, without=kept)
                told = lines

    def _look(self) -> list[str]:
        """Return what the driver is to report: the main process of each attempt on its GPUs, with a GiB."""
        at, found = uptime(), list(living(self.mark))
        users: dict[str, dict[str, int]] = defaultdict(dict)
        for each in sorted(found, key=lambda seen: -seen.pid):
            self.last_seen[each.tag] = at
            for gpu in each.gpus if each.name != "docker-init" else ():
                users[gpu][each.tag] = each.pid
        for gpu, of_gpu in users.items():
            if len(of_gpu) > 1:
                still = sorted({each.tag for each in living(self.mark, of_gpu.values())})
                self.together.update((gpu, one, other) for n, one in enumerate(still) for other in still[n + 1 :])
        self.looks += 1
        index = {standin.uuid(number): number for number in range(8)}
        lines = [f"gpu {index[gpu]} process {pid} {GIB}" for gpu in users for pid in users[gpu].values()]
        return sorted(lines + [f"gpu {index[gpu]} used {len(users[gpu]) * GIB}" for gpu in users])

    def end(self) -> None:
        self._is_over.set()
        self.join()


class Events(threading.Thread):
    """Follows the events of an engine about containers, from one of its lives to the next."""

    def __init__(self, engine: Dockerd) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._is_over = threading.Event()
        self._seen: set[tuple[int, str]] = set()
        self._client: subprocess.Popen[bytes] | None = None
        self.starts: Counter[str] = Counter()
        """How often the engine started each container, by its name."""
        self.exits: dict[str, int] = {}
        """Exit code that the engine told at the end of each container, by its name."""

    def run(self) -> None:
        since = time.time()
        while not self._is_over.is_set():
            words = ["docker", "events", "--since", f"{since - 10:.0f}", "--filter", "type=container"]
            with subprocess.Popen(
                [*words, "--format", "{{json .}}"],
                env=self._engine.environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as self._client:
                assert self._client.stdout is not None
                for line in self._client.stdout:
                    since = self._take(json.loads(line))
            self._is_over.wait(0.2)

    def _take(self, event: dict[str, object]) -> float:
        actor, action, at = event["Actor"], str(event["Action"]), int(str(event["timeNano"]))
        assert isinstance(actor, dict)
        known = actor["Attributes"]
        if (at, action) not in self._seen:
            self._seen.add((at, action))
            self.starts[known["name"]] += action == "start"
            if action == "die":
                self.exits[known["name"]] = int(known["exitCode"])
        return at / 1e9

    def end(self) -> None:
        self._is_over.set()
        if self._client is not None:
            self._client.kill()
        self.join()
