"""kill -9 of the owner of a queue under four clients: each request with a key is one job, whoever answers it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from gputui.api.client import ApiClient
from gputui.api.messages import Acted, NewIds, NewJobs
from gputui.api.wire import to_sockets
from gputui.domain.action import SetPriority
from gputui.domain.errors import NoOwnerError
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3000)]

KILLS = 10
"""Number of kills for each unit of `--torture`; `--torture 20` makes it 200."""
KILLS_IN_CI = 3
CLIENTS = 4
PATIENCE = 60.0


class Owners:
    """Owners of one state directory, one after another."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.socket = state / "api.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        words = ("--state", str(self.state), "--probe", "sim:1:A100", "--runtime", "process", "serve")
        command = [sys.executable, "-P", "-m", "gputui", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class Customer:
    """A client that submits jobs, changes each, and asks again with the same key until it is answered."""

    def __init__(self, name: str, owners: Owners) -> None:
        self.name = name
        self.ids: dict[str, JobId] = {}
        self.longest = 0.0
        self._client = ApiClient(to_sockets([owners.socket]), patience=PATIENCE)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        spec = JobSpec(image=None, command=("true",), name=self.name)
        while not self._is_over.is_set():
            key = f"{self.name}-{len(self.ids)}"
            body = NewJobs((Submission(spec, held=True),))
            [job_id] = self._ask("/v1/jobs", body, NewIds, key).ids
            self._ask("/v1/actions", SetPriority((job_id,), -1, relative=True), Acted, f"{key}-less")
            self.ids[key] = job_id

    def _ask(self, path: str, body: object, result: type, key: str) -> NewIds | Acted:
        begun = time.monotonic()
        while True:
            try:
                told: NewIds | Acted = self._client.ask("POST", path, body, result=result, key=key)
            except NoOwnerError:
                assert time.monotonic() - begun < PATIENCE
                time.sleep(0.02)
            else:
                self.longest = max(self.longest, time.monotonic() - begun)
                return told

    def end(self) -> None:
        """Let the present request be answered."""
        self._is_over.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive()
        self._client.close()


def test_each_key_is_one_job_and_one_change(tmp_path: Path, torture: float) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    kills = round(KILLS * torture) if torture > 1 else KILLS_IN_CI
    owners = Owners(tmp_path / "state")
    owners.begin()
    customers = [Customer(f"client{number}", owners) for number in range(CLIENTS)]
    for _ in range(kills):
        count = sum(len(customer.ids) for customer in customers)
        deadline = time.monotonic() + PATIENCE
        while sum(len(customer.ids) for customer in customers) < count + CLIENTS and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.4))
        owners.kill()
        owners.begin()
    for customer in customers:
        customer.end()
    owners.kill()
    store = TinyJobStore(owners.state, StoreSettings())
    jobs = list(store.jobs().values())
    wanted = {key: job_id for customer in customers for key, job_id in customer.ids.items()}
    assert {job.key.partition(".")[0]: job.id for job in jobs} == wanted
    assert max(Counter(job.key for job in jobs).values()) == 1
    assert {job.priority for job in jobs} == {49}
    store.close()
    longest = max(customer.longest for customer in customers)
    print(f"\n{kills} kills, {len(jobs)} keys, longest answer {longest:.2f} s, seed {seed}")
