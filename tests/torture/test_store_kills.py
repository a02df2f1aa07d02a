"""Concurrent writers killed at random moments: nothing acknowledged is lost, no id is given out twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from tests.factories import ACTOR, NOW, job

WRITERS = 4
KILLS = 40
"""Number of kills for each unit of `--torture`; `--torture 20` makes it 800."""
KILLS_IN_CI = 20
"""Number of kills for `--torture 1`."""

WRITER = """
import os, random, sys
from pathlib import Path
from gputui.domain.settings import StoreSettings
from gputui.domain import runs
from gputui.domain.job import ArrayRef
from gputui.domain.job import JobState
from gputui.store import TinyJobStore
from tests.factories import ACTOR, NOW, job

directory, acks, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = TinyJobStore(directory, StoreSettings(keep_finished=5))
log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
chance = random.Random(seed)


def ack(*words):
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())


def submit():
    ack("added", *store.submit([job()] * chance.choice([1, 1, 1, 40]), actor=ACTOR))


def submit_array():
    indices = range(chance.choice([2, 5, 40, 3000]))
    array = job(array=ArrayRef(-1, 0)).evolve(runs=runs.runs_of(0, indices))
    [first] = store.submit([array], actor=ACTOR)
    ack("array", first, len(indices))


def claim():
    arrays = store.jobs().with_runs
    if not arrays:
        return
    ids = chance.sample(list(chance.choice(arrays).ids)[:50], 2)
    claimed = []
    with store.transaction() as transaction:
        for job_id in ids:
            one = transaction.get(job_id)
            if one.state is JobState.PENDING:
                transaction.put(one.to(JobState.CONFIGURING))
                claimed.append(job_id)
    ack("claimed", *claimed)


def divide():
    arrays = store.jobs().with_runs
    if not arrays:
        return
    ids = list(chance.choice(arrays).ids)
    start = chance.randrange(len(ids))
    with store.transaction() as transaction:
        for part in list(transaction.chosen(ids[start : start + 20])):
            if part.state is JobState.PENDING:
                transaction.put(part.evolve(priority=chance.randint(0, 100)))


def count():
    with store.transaction() as transaction:
        value = transaction.get(1).exit_code + 1
        for job_id in (1, 2):
            transaction.put(transaction.get(job_id).evolve(exit_code=value))
    ack("counted", value)


def finish():
    live = (one for one in store.jobs().values() if not one.state.is_terminal)
    waiting = [job_id for one in live for job_id in list(one.ids)[:5] if job_id > 2]
    chosen = chance.choice(waiting or [0])
    with store.transaction() as transaction:
        if chosen and not transaction.get(chosen).state.is_terminal:
            ended = NOW.replace(month=chance.randint(1, 3))
            transaction.put(transaction.get(chosen).evolve(state=JobState.COMPLETED, ended_at=ended))
        added = transaction.add(job())
    ack("added", added.id)
    if chosen:
        ack("finished", chosen)


def fold():
    chance.choice([store.storage.checkpoint, lambda: store.maintain(NOW)])()


print("ready", flush=True)
while True:
    chance.choices([submit, submit_array, claim, divide, count, finish, fold], [4, 2, 3, 1, 9, 3, 1])[0]()
"""


@dataclass
class Acks:
    """Acknowledgements that the writers received."""

    added: Counter[JobId] = field(default_factory=Counter)
    finished: set[JobId] = field(default_factory=set)
    claimed: Counter[JobId] = field(default_factory=Counter)
    arrays: list[range] = field(default_factory=list)
    """Ids of the elements of each array."""
    counted: list[int] = field(default_factory=list)


def read_acks(paths: Iterator[Path]) -> Acks:
    acks = Acks()
    for path in paths:
        for line in path.read_text().splitlines():
            word, *numbers = line.split()
            values = [int(number) for number in numbers]
            if word == "added":
                acks.added.update(values)
            elif word == "array":
                first, count = values
                acks.arrays.append(range(first, first + count))
                acks.added.update(acks.arrays[-1])
            elif word == "claimed":
                acks.claimed.update(values)
            elif word == "finished":
                acks.finished.update(values)
            else:
                acks.counted += values
    return acks


class Killer(threading.Thread):
    """Starts one writer after the other, and kills each while it writes."""

    def __init__(self, directory: Path, acks: Path, kills: int, seed: int) -> None:
        super().__init__()
        self._directory = directory
        self._acks = acks
        self._kills = kills
        self._seed = seed
        self.killed = 0

    def run(self) -> None:
        chance = random.Random(self._seed)
        for number in range(self._kills):
            seed = self._seed * 10_000 + number
            command = [sys.executable, "-c", WRITER, str(self._directory), str(self._acks / f"{seed}"), str(seed)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0.002, 0.15))  # the random moment
                writer.send_signal(signal.SIGKILL)
            self.killed += writer.returncode == -signal.SIGKILL


class Watcher(threading.Thread):
    """Reader without a lock that checks constantly that transactions are whole and versions never go back."""

    def __init__(self, store: TinyJobStore) -> None:
        super().__init__()
        self._store = store
        self._over = threading.Event()
        self.looks = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        last = 0
        while not self._over.is_set():
            jobs = self._store.jobs()
            first, second = jobs[1].exit_code, jobs[2].exit_code
            if first != second or first is None or first < last:
                self.wrong.append(f"{first} and {second} after {last}")
            last = first or 0
            if self.looks % 20 == 0 and jobs.count != sum(end - start for start, end in jobs.spans.parts):
                self.wrong.append("an element is in two entries")
            self.looks += 1
            self._over.wait(0.002)

    def stop(self) -> None:
        self._over.set()
        self.join(60)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_no_acknowledged_write_is_lost_and_no_id_reused(tmp_path: Path, torture: float) -> None:
    directory, logs = tmp_path / "state", tmp_path / "acks"
    logs.mkdir()
    store = TinyJobStore(directory)
    assert store.submit([job(exit_code=0), job(exit_code=0)], actor=ACTOR) == (1, 2)
    watcher = Watcher(store)
    watcher.start()
    each = max(1, round((KILLS * torture if torture > 1 else KILLS_IN_CI) / WRITERS))
    killers = [Killer(directory, logs, each, seed) for seed in range(1, WRITERS + 1)]
    for killer in killers:
        killer.start()
    for killer in killers:
        killer.join()
    watcher.stop()
    killed = sum(killer.killed for killer in killers)
    assert killed == each * WRITERS
    assert watcher.wrong == []
    assert watcher.looks > killed
    acks = read_acks(logs.iterdir())
    check(store, acks, killed)
    store.close()
    fresh = TinyJobStore(directory)
    check(fresh, acks, killed)
    fresh.maintain(NOW)
    check(fresh, acks, killed)
    [new] = fresh.submit([job()], actor=ACTOR)
    assert new > max(acks.added)
    fresh.close()
    arrays = f"{len(acks.arrays)} arrays, {len(acks.claimed)} elements claimed"
    counts = f"{len(acks.added)} ids and {len(acks.counted)} counts acknowledged"
    print(f"{killed} kills, {counts}, {arrays}, {watcher.looks} looks")


def check(store: TinyJobStore, acks: Acks, killed: int) -> None:
    assert len(acks.added) > killed
    assert len(acks.counted) > killed / 4  # on a busy machine most are killed before they have counted
    assert [job_id for job_id, times in acks.added.items() if times > 1] == []
    ids = [job_id for entry in store.jobs().values() for job_id in entry.ids]
    live, old = set(ids), [moved.id for moved in store.past()]
    assert len(live) == len(ids)
    assert len(old) == len(set(old))
    assert not live & set(old)
    known = {*live, *old}
    assert acks.added.keys() - known == set()
    assert [job_id for job_id in acks.finished if not store.get(job_id).state.is_terminal] == []
    assert acks.arrays
    assert all(store.get(ids[-1]).shown_id == f"{ids[0]}_{len(ids) - 1}" for ids in acks.arrays)
    # an element is claimed once, whichever of four processes gets it
    assert acks.claimed
    assert [job_id for job_id, times in acks.claimed.items() if times > 1] == []
    assert [job_id for job_id in acks.claimed if store.get(job_id).state is JobState.PENDING] == []
    # each count was given out once, and at most one a kill was made without being acknowledged
    assert len(set(acks.counted)) == len(acks.counted)
    counted = store.get(1).exit_code
    assert counted is not None
    assert len(acks.counted) <= counted <= len(acks.counted) + killed
    assert max(acks.counted) <= counted
    audited = Counter(entry.target for entry in store.audit_log())
    assert [target for target, times in audited.items() if times > 1] == []
    assert store.damage() == ()
