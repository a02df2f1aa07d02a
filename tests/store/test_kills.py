"""Several processes at once, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.access import AuditEntry
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Drain, GpuFault
from gputui.domain.job import ArrayRef, Attempt
from gputui.domain.runs import runs_of
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.store import TinyJobStore, files
from tests.factories import ACTOR, NOW, job, uuid


def python(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options)


WRITER = """
import sys
import threading
from pathlib import Path
from gputui.store import TinyJobStore
from tests.factories import ACTOR, NOW, job, uuid
store = TinyJobStore(Path(sys.argv[1]))
for _ in range(40):
    print(store.submit([job()], actor=ACTOR)[0], flush=True)
    with store.transaction() as transaction:
        first = transaction.get(1)
        transaction.put(first.evolve(exit_code=first.exit_code + 1))
    if store.storage.journal_length > 20_000:
        store.storage.checkpoint()
"""


def test_processes_share_one_queue(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job(exit_code=0)], actor=ACTOR)
    writers = [python("-c", WRITER, directory) for _ in range(3)]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    ids = [int(line) for output in outputs for line in output.split()]
    assert sorted(ids) == list(range(2, 122))
    assert tiny.get(1).exit_code == 120
    assert list(tiny.jobs()) == list(range(1, 122))
    assert len({entry.target for entry in tiny.audit_log()}) == 121


def test_a_process_sees_what_another_wrote_and_keeps_the_rest(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 3, actor=ACTOR)
    before, version = tiny.jobs(), tiny.version()
    code = (
        "import sys; from tests.store.test_kills import *; TinyJobStore(Path(sys.argv[1])).submit([job()], actor=ACTOR)"
    )
    with python("-c", code, directory) as process:
        assert process.wait(60) == 0
    assert tiny.version() != version
    after = tiny.jobs()
    assert list(after) == [1, 2, 3, 4]
    assert all(after[job_id] is before[job_id] for job_id in before)


def test_objects_stay_the_same_through_the_fold_of_another(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 3, actor=ACTOR)
    before, version = tiny.jobs(), tiny.version()
    other = TinyJobStore(directory)
    other.storage.checkpoint()
    assert tiny.version() != version
    after, version = tiny.jobs(), tiny.version()
    assert all(after[job_id] is before[job_id] for job_id in before)
    other.submit([job()], actor=ACTOR)
    assert tiny.version() != version
    other.close()


def test_no_process_reloads_the_queue_while_it_folds_it_itself(
    tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.submit([job()] * 3, actor=ACTOR)
    tiny.jobs()
    document = tiny.storage.replica.state.tables["jobs"]["1"]
    synced = files.sync_directory

    def read_meanwhile(directory: Path) -> None:
        reader = threading.Thread(target=tiny.jobs)
        reader.start()
        reader.join(60)
        synced(directory)

    monkeypatch.setattr(files, "sync_directory", read_meanwhile)
    tiny.storage.checkpoint()
    assert tiny.storage.replica.state.tables["jobs"]["1"] is document
    assert list(tiny.jobs()) == [1, 2, 3]


def test_a_version_seen_during_a_write_hides_it_from_nobody(
    tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.submit([job()], actor=ACTOR)
    seen: list[tuple[object, int]] = []
    real = os.fdatasync

    def sync(fd: int) -> None:
        reader = threading.Thread(target=lambda: seen.append((tiny.version(), len(tiny.jobs()))))
        reader.start()
        reader.join(60)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    tiny.submit([job()], actor=ACTOR)
    [(version, count)] = seen
    assert count == 1
    assert tiny.version() != version
    assert len(tiny.jobs()) == 2


def test_the_memory_of_a_writer_equals_the_files(tiny: TinyJobStore, directory: Path) -> None:
    array = job(array=ArrayRef(-1, 0)).evolve(runs=runs_of(0, range(9)))
    tiny.submit([job(gpus=2, command=("a", "ü")), job(), array], actor=ACTOR)
    drain, fault = Drain("hot", "root", NOW), GpuFault("Xid 79", NOW, has_ecc=True)
    with tiny.transaction() as transaction:
        ran = transaction.get(1).to(JobState.CONFIGURING)
        attempt = Attempt(1, (uuid(0),), claimed_at=NOW, notes=("n",), clock_moved=timedelta(seconds=1.5))
        transaction.put(ran.evolve(attempts=(attempt,), cause=Cause(CauseCode.GPU_LOST, "lost", (uuid(0),))))
        transaction.put(transaction.get(5).evolve(priority=7))
        transaction.set_controls(Controls(drains={uuid(1): drain}, faults={uuid(2): fault}, resumed={uuid(3): NOW}))
        transaction.add(job(held=True))
        transaction.audit(AuditEntry(NOW, 0, "root", "hold", "job 1", "a", "b"))
    others = TinyJobStore(directory)
    others.jobs()
    ours, theirs = tiny.storage.replica.state, others.storage.replica.state
    assert repr(ours.tables) == repr(theirs.tables)  # with types: 1, 1.0 and True are equal, and not the same in JSON
    assert repr(ours.audit) == repr(theirs.audit)
    assert (ours.offset, ours.checksum, ours.next_id) == (theirs.offset, theirs.checksum, theirs.next_id)
    assert dict(tiny.jobs().items()) == dict(others.jobs().items())
    others.close()


HOLDER = """
import sys, time
from pathlib import Path
from gputui.store import TinyJobStore
from tests.factories import job
with TinyJobStore(Path(sys.argv[1])).transaction() as transaction:
    transaction.add(job())
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_holder_is_free_and_its_change_undone(tiny: TinyJobStore, directory: Path) -> None:
    with python("-c", HOLDER, directory, stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert tiny.jobs() == {}  # readers do not wait
        holder.send_signal(signal.SIGKILL)
        assert tiny.submit([job()], actor=ACTOR) == (1,)


def test_a_child_process_does_not_inherit_the_lock(tiny: TinyJobStore) -> None:
    tiny.submit([job()], actor=ACTOR)
    assert not os.get_inheritable(tiny.storage.lock.fd)


def test_the_store_is_light_to_import() -> None:
    code = """if True:
        import sys
        import gputui.store
        heavy = {"textual", "docker", "apscheduler", "prometheus_client", "pynvml", "ctypes", "asyncio"}
        print(sorted(heavy & sys.modules.keys()))
    """
    with python("-c", code) as process:
        assert process.communicate(timeout=60)[0] == "[]\n"
