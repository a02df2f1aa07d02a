"""Clients of a queue, all the time, whose every request must become one job and one change."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gputui.api.http import Acted, NewIds, NewJobs
from gputui.domain.action import SetPriority
from gputui.domain.errors import NoOwnerError
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
from tests.torture.owners import PATIENCE, Owners


class Customer:
    """A client that submits jobs, lowers the priority of each, and asks again with the same key until it is told."""

    def __init__(self, name: str, owners: Owners) -> None:
        self.name = name
        self.owners = owners
        self.ids: dict[str, JobId] = {}
        self.longest = 0.0
        self.unowned = 0
        """Number of times that nobody owned the queue when asked."""
        self._is_over = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._work = self._thread.submit(self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            key = f"{self.name}-{len(self.ids)}"
            begun = time.monotonic()
            job_id = self.submit(key)
            self.longest = max(self.longest, time.monotonic() - begun)
            self.lower(job_id, key)
            self.ids[key] = job_id

    def submit(self, key: str) -> JobId:
        raise NotImplementedError

    def lower(self, job_id: JobId, key: str) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Let the present request be answered."""
        self._is_over.set()
        self._work.result(2 * PATIENCE)
        self._thread.shutdown()


class Asker(Customer):
    """Client of the interface."""

    def __init__(self, name: str, owners: Owners) -> None:
        self._client = owners.client()
        super().__init__(name, owners)

    def submit(self, key: str) -> JobId:
        spec = JobSpec(image=None, command=("true",), name=key)
        [job_id] = self._ask("/v1/jobs", NewJobs((Submission(spec, held=True),)), NewIds, key).ids
        return job_id

    def lower(self, job_id: JobId, key: str) -> None:
        self._ask("/v1/actions", SetPriority((job_id,), -1, relative=True), Acted, f"{key}-less")

    def _ask(self, path: str, body: object, result: type, key: str) -> NewIds | Acted:
        begun = time.monotonic()
        while True:
            try:
                told: NewIds | Acted = self._client.ask("POST", path, body, result=result, key=key)
            except NoOwnerError:
                self.unowned += 1
                assert time.monotonic() - begun < PATIENCE
                time.sleep(0.02)
            else:
                return told

    def end(self) -> None:
        super().end()
        self._client.close()


class Typist(Customer):
    """Person who types commands. One that nobody answers does it in its own process, with the key that was sent."""

    def submit(self, key: str) -> JobId:
        return int(self.owners.told("submit", "--hold", "--host", "--name", key, "--", "true"))

    def lower(self, job_id: JobId, key: str) -> None:
        del key
        self.owners.told("priority", str(job_id), "-1")


@contextmanager
def customers(owners: Owners) -> Iterator[list[Customer]]:
    """Let three clients of the interface and a person who types ask all the time."""
    found: list[Customer] = [Asker(f"client{number}", owners) for number in range(3)]
    found.append(Typist("client3", owners))
    try:
        yield found
    finally:
        for customer in found:
            customer.end()


def until_served(customers: list[Customer]) -> None:
    """Wait until there are as many new jobs as customers."""
    count = sum(len(customer.ids) for customer in customers)
    deadline = time.monotonic() + PATIENCE
    while sum(len(customer.ids) for customer in customers) < count + len(customers) and time.monotonic() < deadline:
        time.sleep(0.01)


def check(state: Path, customers: list[Customer], others: int = 0) -> None:
    """Check the jobs behind the first `others`: one for each key, whose priority was lowered once."""
    store = TinyJobStore(state, StoreSettings())
    jobs = list(store.jobs().values())[others:]
    store.close()
    wanted = {key: job_id for customer in customers for key, job_id in customer.ids.items()}
    assert Counter(job.spec.name for job in jobs) == Counter(wanted.keys())
    assert {job.spec.name: job.id for job in jobs} == wanted
    assert {job.priority for job in jobs} == {49}
