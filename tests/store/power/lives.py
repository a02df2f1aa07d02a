"""Lives of a state directory, to be recorded: `python -m tests.store.power.lives NAME DIRECTORY` goes through one.

What it has acknowledged it writes to its output right away, a JSON object a line. The state directory is
DIRECTORY/state, backups are in DIRECTORY/backups.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from msgspec.structs import replace

from gputui.bootstrap import upkeep
from gputui.config import Options
from gputui.domain.access import AuditEntry
from gputui.domain.errors import StoreError
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.store import TinyJobStore, files, storage
from gputui.store.queue_files import SCHEMA
from gputui.store.repair import damaged_files, move_aside, repair_of
from tests.factories import ACTOR, NOW, job, recurring

SETTINGS = StoreSettings(keep_finished=3)
DAYS = 70
AUDIT_AGE = timedelta(days=40)
LIMITS = StoreSettings(history_max_age=timedelta(days=20), audit_max_age=AUDIT_AGE)


def ack(word: str, value: object) -> None:
    os.write(1, json.dumps({word: value}).encode() + b"\n")


def use(root: Path) -> None:
    """Use every operation of a store; the first job may already be there."""
    store = TinyJobStore(root / "state", SETTINGS)
    for job_id in store.submit([job()] * 3, actor=ACTOR):
        ack("added", job_id)
    with store.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(priority=70))
        transaction.put(transaction.get(2).evolve(priority=70))
        transaction.audit(AuditEntry(NOW, 1000, "alice", "priority", "jobs 1 and 2", "50", "70"))
    ack("both", 70)
    ack("audited", "jobs 1 and 2")
    store.storage.checkpoint()
    with store.transaction() as transaction:
        transaction.put(transaction.get(3).evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2025)))
        added = transaction.add(job())
    ack("added", added.id)
    ack("finished", 3)
    store.maintain(NOW)
    ack("added", store.submit([job()], actor=ACTOR)[0])
    with store.transaction() as transaction:
        entry = transaction.add_recurring(recurring())
    ack("recurring", entry.id)
    with store.transaction() as transaction:
        [run] = store.submit([job(recurring=entry.id)], actor=ACTOR)
        transaction.put_recurring(replace(entry, last_job_id=run))
    ack("added", run)
    store.note(AuditEntry(NOW, 1000, "alice", "refused", "the end", "", "x" * 2000))
    ack("audited", "the end")
    store.storage.checkpoint()
    ack("added", store.submit([job()], actor=ACTOR)[0])
    store.close()


def go_on(root: Path) -> None:
    """Use a store as another process left it."""
    store = TinyJobStore(root / "state", SETTINGS)
    ack("added", store.submit([job()], actor=ACTOR)[0])
    with store.transaction() as transaction:
        for each in list(transaction.jobs().values())[:2]:
            transaction.put(each.evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2025)))
    store.maintain(NOW)
    store.storage.checkpoint()
    ack("added", store.submit([job()], actor=ACTOR)[0])
    store.note(AuditEntry(NOW, 1000, "alice", "refused", "another end", "", "x" * 700))
    ack("audited", "another end")
    store.close()


def ask(root: Path) -> None:
    """Submit by a request with a key."""
    store = TinyJobStore(root / "state", SETTINGS)
    ack("added", store.submit([job(key="k.1", submitted_uid=ACTOR.uid)], actor=ACTOR)[0])
    store.close()


def ask_older(root: Path) -> None:
    """Do the same as a gputui of the schema before."""
    with patch.object(storage, "SCHEMA", SCHEMA - 1):
        ask(root)


def answer(root: Path) -> None:
    """Answer that request again, as the next owner does."""
    store = TinyJobStore(root / "state", SETTINGS)
    for _, ids in store.requests(ACTOR.uid):
        ack("added", ids[0])
    store.close()


def fold_beside(root: Path) -> None:
    """Use a store that another process folds, and dies before it has synced the new name."""
    store, other = TinyJobStore(root / "state", SETTINGS), TinyJobStore(root / "state", SETTINGS)
    ack("added", store.submit([job()], actor=ACTOR)[0])
    other.storage.checkpoint()  # the next one has nothing for the audit log to sync
    with patch.object(files, "sync_directory", side_effect=OSError(errno.EIO, "")), suppress(StoreError):
        other.storage.checkpoint()
    ack("added", store.submit([job()], actor=ACTOR)[0])


def add(root: Path) -> None:
    """Submit one job."""
    ack("added", _submit(root / "state"))


def copy(root: Path) -> None:
    """Use a queue that was copied to its place."""
    shutil.copy(root / "queue.json", root / "state")
    add(root)


def fill(root: Path) -> None:
    """Make a store with a job and an audit entry of each of the last days, all of them in their files."""
    store = TinyJobStore(root / "state", StoreSettings(history_after=timedelta(0)))
    with store.transaction() as transaction:
        for days in range(DAYS, 0, -1):
            at = NOW - timedelta(days=days)
            transaction.add(replace(job(), submitted_at=at, state=JobState.CANCELLED, ended_at=at))
            transaction.audit(AuditEntry(at, 1000, "alice", "cancel", f"job {DAYS + 1 - days}", "", ""))
    store.maintain(NOW - timedelta(hours=2))
    store.submit([job()] * 2, actor=ACTOR)
    store.storage.checkpoint()
    store.submit([job()] * 2, actor=ACTOR)
    store.close()


def trim(root: Path) -> None:
    """Keep history and audit log within their limits, and write on."""
    store = TinyJobStore(root / "state", LIMITS)
    for _ in range(5):
        store.maintain(NOW)
        ack("added", store.submit([job()], actor=ACTOR)[0])
        store.storage.checkpoint()
    ack("trimmed", 0)
    store.close()


def repair(root: Path) -> None:
    """Repair queue, history and audit log, and write on."""
    found = repair_of(root / "state")
    if recovery := found.assess():
        found.carry_out(recovery, NOW, ACTOR)
        ack("repaired", list(recovery.lost))
    if damaged := damaged_files(root / "state"):
        move_aside(root / "state", damaged, NOW)
    ack("added", _submit(root / "state"))


def back_up(root: Path) -> None:
    """Make backups of a queue that grows, of which old ones go."""
    for day in range(9):
        options, now = Options(root / "state"), NOW + timedelta(days=day)
        ack("added", _submit(options.state))
        made = upkeep.scheduled_backup(options, root / "backups", timedelta(days=1), now, with_logs=True)
        ack("backup", made.path.name)


def restore(root: Path) -> None:
    """Restore a backup, and write on."""
    [backup] = (root / "backups").glob("*.tar.gz")
    upkeep.restore(Options(root / "state"), backup)
    ack("restored", 0)
    ack("added", _submit(root / "state"))


def import_(root: Path) -> None:
    """Import an export, and write on."""
    with (root / "export").open("rb") as lines:
        upkeep.import_(Options(root / "state"), lines, "export")
    ack("restored", 0)
    ack("added", _submit(root / "state"))


def _submit(state: Path) -> int:
    store = TinyJobStore(state, SETTINGS)
    [job_id] = store.submit([job()], actor=ACTOR)
    store.close()
    return job_id


LIVES: dict[str, Callable[[Path], None]] = {
    "use": use,
    "ask": ask,
    "ask_older": ask_older,
    "answer": answer,
    "fold_beside": fold_beside,
    "add": add,
    "copy": copy,
    "go_on": go_on,
    "trim": trim,
    "repair": repair,
    "back_up": back_up,
    "restore": restore,
    "import": import_,
}

if __name__ == "__main__":
    LIVES[sys.argv[1]](Path(sys.argv[2]))
