"""Journals cut, removed and replaced under two writers and a scheduler: each lost id is named, and all stop."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gputui.domain.errors import StoreDamagedError, StoreError
from gputui.domain.job_spec import JobId
from gputui.store import TinyJobStore
from gputui.store.repair import repair_of
from tests.factories import ACTOR, NOW

PLACES = 50

WRITER = """
import os, sys, time
from pathlib import Path
from gputui.domain.errors import StoreError
from gputui.store import TinyJobStore
from tests.factories import ACTOR, job

directory, acks, turn = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = TinyJobStore(directory)
log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print("ready", flush=True)
while True:
    turn += 1
    try:
        if turn % 3:
            ids = store.submit([job(held=True)] * (1 + turn % 4), actor=ACTOR)
        else:
            with store.transaction() as transaction:
                ids = [transaction.add(job(held=True)).id]
    except StoreError:
        time.sleep(0.02)
        continue
    os.write(log, (" ".join(map(str, ids)) + "\\n").encode())
    time.sleep(0.003)
"""


@dataclass
class Tally:
    """State of a queue after the damage, over all places."""

    lost: set[JobId] = field(default_factory=set)
    refused: int = 0
    from_memory: int = 0
    unharmed: int = 0
    folded: int = 0
    acknowledged: int = 0
    """Ids that the writers were given."""


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[str]]:
    """Run a process for the time of a block."""
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as one:
        try:
            yield one
        finally:
            one.kill()


def spoil(directory: Path, chance: random.Random) -> str:
    """Cut, remove or replace the journal; return the kind of damage."""
    path = max(directory.glob("queue.json.wal.*"), key=lambda path: int(path.suffix[1:]))
    data = path.read_bytes()
    place = chance.randrange(len(data) + 1)
    how = chance.choice(["cut", "removed", "replaced by a part", "replaced by another", "overwritten"])
    if how == "cut":
        os.truncate(path, place)
    elif how == "removed":
        path.unlink()
    elif how == "overwritten":
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"?" * chance.randrange(1, 40))
    else:
        other = directory / "other"
        other.write_bytes(data[:place] if how == "replaced by a part" else data[:place] + data[:place])
        other.replace(path)
    return f"{how} at byte {place} of {len(data)}"


def is_refused(directory: Path) -> bool:
    """Return whether a new process reports the loss."""
    store = TinyJobStore(directory)
    try:
        store.jobs()
        store.check()
    except StoreDamagedError:
        return True
    finally:
        store.close()
    return False


def mend(directory: Path, tally: Tally, *, patient: bool) -> None:
    """Repair the queue, from the scheduler's memory or without it."""
    found, deadline = repair_of(directory), time.monotonic() + (10 if patient else 0)
    while time.monotonic() < deadline and not list(directory.glob("queue.json.rescue.*")):
        time.sleep(0.05)
    for path in () if patient else directory.glob("queue.json.rescue.*"):
        path.unlink(missing_ok=True)
    for _ in range(20):
        recovery = found.assess()
        if recovery is None:  # overwritten in place: the scheduler has folded what it has in memory
            tally.folded += 1
            return
        try:
            found.carry_out(recovery, NOW, ACTOR)
        except StoreError as error:
            if "changed meanwhile" not in error.what:  # a rescue may have come
                raise
            time.sleep(0.1)
            continue
        tally.lost.update(recovery.lost)
        tally.refused += 1
        tally.from_memory += recovery.source.startswith("the memory")
        return
    pytest.fail("the queue changes all the while")


def acknowledged(logs: Path) -> Counter[JobId]:
    return Counter(int(word) for path in logs.iterdir() for word in path.read_text().split())


def check(directory: Path, logs: Path, tally: Tally, what: str) -> None:
    acks = acknowledged(logs)
    store = TinyJobStore(directory)
    present = set(store.jobs())
    store.check()
    store.close()
    assert [job_id for job_id, times in acks.items() if times > 1] == [], what
    assert acks.keys() - present - tally.lost == set(), what
    assert not present & tally.lost, what


def damage(place: Path, chance: random.Random, places: int) -> Tally:
    """Damage a new queue at some places while it is written and scheduled; check and repair it after each."""
    directory, logs, tally = place / "state", place / "acks", Tally()
    logs.mkdir(parents=True)
    TinyJobStore(directory).close()
    gputui = (sys.executable, "-m", "gputui", "--state", directory, "--probe", "sim:2", "--runtime", "process")
    writers = [(sys.executable, "-c", WRITER, directory, logs / name, turn) for turn, name in enumerate("ab")]
    with running(*gputui, "serve"), running(*writers[0]) as first, running(*writers[1]) as second:
        for writer in (first, second):
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for _ in range(places):
            time.sleep(chance.uniform(0.05, 0.4))  # the random moment
            with suppress(FileNotFoundError):  # folded at that very moment
                what = spoil(directory, chance)
            if is_refused(directory):
                mend(directory, tally, patient=chance.random() < 0.6)
            else:
                tally.unharmed += 1
            check(directory, logs, tally, what)
    check(directory, logs, tally, "at the end")
    tally.acknowledged = acknowledged(logs).total()
    return tally


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_loss_is_silent_and_every_lost_id_is_named(tmp_path: Path, torture: float) -> None:
    chance, places = random.Random(7), max(1, round(PLACES * torture))
    rounds = [PLACES] * (places // PLACES) + [places % PLACES] * (places % PLACES > 0)
    # a queue of its own for each round: each check reads all jobs, and the writers add hundreds a second
    tallies = [damage(tmp_path / str(number), chance, count) for number, count in enumerate(rounds)]
    refused, from_memory = sum(each.refused for each in tallies), sum(each.from_memory for each in tallies)
    assert refused > places / 2
    assert 0 < from_memory < refused or places < 10
    unharmed, folded = sum(each.unharmed for each in tallies), sum(each.folded for each in tallies)
    print(
        f"{places} places: {refused} refused, {from_memory} repaired from memory, "
        f"{unharmed} unharmed, {folded} folded from memory; "
        f"{sum(each.acknowledged for each in tallies)} ids acknowledged, "
        f"{sum(len(each.lost) for each in tallies)} lost and named"
    )
