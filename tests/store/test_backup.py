"""Backups, exports and checks of a state directory."""

from __future__ import annotations

import fcntl
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.bootstrap import upkeep
from gputui.config import Options
from gputui.domain.access import AuditEntry
from gputui.domain.errors import GputuiError, StoreAccessError, StoreDamagedError, StoreFormatError
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Leader
from gputui.domain.state import JobState
from gputui.engine.leadership import Leadership
from gputui.store import TinyJobStore
from gputui.store.backup import MANIFEST, CapturedFile
from gputui.store.codec import encode_job
from tests.cases import cases
from tests.factories import ACTOR, NOW, array, job, recurring
from tests.lane import examples

SETTINGS = StoreSettings(history_after=timedelta(hours=1))
PROPERTY = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],  # a list replaces the profile's
)


def options(directory: Path) -> Options:
    return Options(directory)


def add_job(store: TinyJobStore, number: int) -> None:
    store.submit([job(name=f"job-{number}", comment="ä\n")], actor=ACTOR)


def add_array(store: TinyJobStore, number: int) -> None:
    elements = array(range(number + 2), first=0)
    store.submit([elements.evolve(array=ArrayRef(-1, 0))], actor=ACTOR)


def end_some(store: TinyJobStore, number: int) -> None:
    with store.transaction() as transaction:
        for each in list(transaction.jobs().values())[: number + 1]:
            if not each.state.is_terminal:
                transaction.put(each.evolve(state=JobState.CANCELLED, ended_at=NOW - timedelta(days=20 * number)))


def archive(store: TinyJobStore, number: int) -> None:
    store.maintain(NOW + timedelta(days=number))


def control(store: TinyJobStore, number: int) -> None:
    with store.transaction() as transaction:
        transaction.set_controls(replace(transaction.controls(), paused=True, pause_reason=f"for {number}"))
        transaction.add_recurring(recurring())


def fold(store: TinyJobStore, number: int) -> None:
    del number
    store.storage.checkpoint()


STEPS: list[Callable[[TinyJobStore, int], None]] = [add_job, add_array, end_some, archive, control, fold]
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=12)


def made(directory: Path, taken: list[tuple[Callable[[TinyJobStore, int], None], int]]) -> None:
    """Make a state directory by these steps, with a log."""
    store = TinyJobStore(directory, SETTINGS)
    for step, number in taken:
        step(store, number)
    store.close()
    (directory / "logs" / "1").mkdir(parents=True)
    (directory / "logs" / "1" / "1.log").write_bytes(b"output\xff\n")


def content(directory: Path) -> dict[str, Any]:
    """Return everything that a store knows, and the id that it gives out next."""
    store = TinyJobStore(directory)
    try:
        known = {
            "store": store.store_id,
            "jobs": dict(store.jobs()),
            "history": list(store.past()),
            "audit": list(store.audit_log()),
            "controls": store.controls(),
            "recurring": dict(store.recurring()),
        }
        return known | {"next": store.submit([job()], actor=ACTOR)}
    finally:
        store.close()


@pytest.fixture
def place() -> Iterator[Callable[[], Path]]:
    """Yield a maker of new directories: hypothesis runs many examples in one test."""
    with tempfile.TemporaryDirectory() as top:
        yield lambda: Path(tempfile.mkdtemp(dir=top))


@PROPERTY
@given(taken=steps)
def test_restored_backups_and_imported_exports_equal_the_original(
    place: Callable[[], Path], taken: list[tuple[Callable[[TinyJobStore, int], None], int]]
) -> None:
    here = place()
    before = here / "before"
    made(before, taken)
    upkeep.back_up(options(before), here / "backup", NOW, with_logs=True)
    assert upkeep.verify(here / "backup") == upkeep.verify(before) == []
    upkeep.restore(options(here / "restored"), here / "backup")
    lines = list(upkeep.export(options(before), NOW))
    upkeep.import_(options(here / "imported"), lines, "export")
    assert upkeep.verify(here / "restored") == upkeep.verify(here / "imported") == []
    assert (here / "restored" / "logs" / "1" / "1.log").read_bytes() == b"output\xff\n"
    again = list(upkeep.export(options(here / "imported"), NOW))
    assert sorted(again[1:-1]) == sorted(lines[1:-1])
    known = content(before)
    assert content(here / "restored") == known
    assert content(here / "imported") == known


def test_a_backup_has_its_name_only_when_all_of_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave a whole name with half a file."""
    made(tmp_path / "state", [(add_job, 1)])
    backup = tmp_path / "backup"
    synced: list[tuple[Path, int, bool]] = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").readlink(), os.fstat(fd).st_size, backup.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    upkeep.back_up(options(tmp_path / "state"), backup, NOW, with_logs=True)
    [before] = [(size, has_name) for path, size, has_name in synced if path.name.startswith(".backup.")]
    assert before == (backup.stat().st_size, False)
    path, _, has_name = synced[-1]
    assert (path, has_name) == (tmp_path, True)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a state directory, `state`, and its backup."""
    top = tmp_path_factory.mktemp("sample")
    made(
        top / "state",
        [(add_job, 1), (end_some, 1), (archive, 1), (fold, 0), (add_job, 2), (add_array, 3), (control, 1)],
    )
    upkeep.back_up(options(top / "state"), top / "backup", NOW, with_logs=True)
    return top


def flipped(data: bytes, at: int, bit: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@settings(PROPERTY, max_examples=examples(60))
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_in_a_backup(sample: Path, place: Callable[[], Path], at: int, bit: int) -> None:
    here = place()
    (here / "backup").write_bytes(flipped((sample / "backup").read_bytes(), at, bit))
    try:
        found = upkeep.verify(here / "backup")
    except StoreFormatError:  # it does not look like a backup at all
        return
    assert found
    if all(finding.is_harmless for finding in found):
        upkeep.restore(options(here / "state"), here / "backup")
        assert upkeep.verify(here / "state") == []
        assert journal(here / "state").read_bytes() == journal(sample / "state").read_bytes()
    else:
        with pytest.raises(StoreFormatError, match="damaged"):
            upkeep.restore(options(here / "state"), here / "backup")
        assert not (here / "state").exists()


def journal(directory: Path) -> Path:
    [path] = directory.glob("queue.json.wal.*")
    return path


@settings(PROPERTY, max_examples=examples(60))
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_in_a_journal(sample: Path, place: Callable[[], Path], at: int, bit: int) -> None:
    here = place()
    upkeep.restore(options(here / "state"), sample / "backup")
    path = journal(here / "state")
    path.write_bytes(flipped(path.read_bytes(), at, bit))
    found = upkeep.verify(here / "state")
    places = {finding.where for finding in found if not finding.is_harmless}
    assert places == {path.name}  # both lines, if the bit makes an end of line


def test_a_backup_has_one_moment_while_others_write(sample: Path, tmp_path: Path) -> None:
    """Between the copy of the first file and the last, jobs are submitted, ended, archived and the journal folded."""
    state = tmp_path / "state"
    upkeep.restore(options(state), sample / "backup")
    store, known = TinyJobStore(state, SETTINGS), content_without_write(state)
    pieces = CapturedFile.pieces

    def write_between(file: CapturedFile) -> Iterator[bytes]:
        for step in (add_job, end_some, archive, fold):
            step(store, 3)
        return pieces(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapturedFile, "pieces", write_between)
        upkeep.back_up(options(state), tmp_path / "backup", NOW, with_logs=True)
    store.close()
    assert upkeep.verify(tmp_path / "backup") == []
    upkeep.restore(options(tmp_path / "restored"), tmp_path / "backup")
    assert content_without_write(tmp_path / "restored") == known


def content_without_write(directory: Path) -> tuple[dict[JobId, Job], list[Job], list[AuditEntry]]:
    store = TinyJobStore(directory)
    try:
        return dict(store.jobs()), list(store.past()), list(store.audit_log())
    finally:
        store.close()


def test_a_backup_overwrites_nothing_and_leaves_no_partial_file(sample: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreAccessError, match="exists already"):
        upkeep.back_up(options(sample / "state"), sample / "backup", NOW, with_logs=True)
    with pytest.raises(StoreAccessError, match="in the state directory"):
        upkeep.back_up(options(sample / "state"), sample / "state" / "backup", NOW, with_logs=True)
    with pytest.raises(StoreAccessError, match="not empty"):
        upkeep.restore(options(sample / "state"), sample / "backup")
    lines = list(upkeep.export(options(sample / "state"), NOW))
    with pytest.raises(StoreAccessError, match="not empty"):
        upkeep.import_(options(sample / "state"), lines, "export")
    for damaged in (lines[:-1], [*lines[:2], *lines[3:]], lines[1:], [*lines, b"{}\n"], [lines[0], b"{}\n"]):
        with pytest.raises(StoreFormatError, match="export"):
            upkeep.import_(options(tmp_path / "state"), damaged, "export")
        assert not (tmp_path / "state").exists()
    with pytest.raises(GputuiError):
        upkeep.export_to(options(tmp_path / "none"), tmp_path / "export", NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_lost_something_or_is_missing_is_not_exported(sample: Path, tmp_path: Path) -> None:
    state, empty = tmp_path / "state", tmp_path / "empty"
    upkeep.restore(options(state), sample / "backup")
    os.truncate(journal(state), 10)
    with pytest.raises(StoreDamagedError):
        upkeep.export_to(options(state), tmp_path / "export", NOW)
    empty.mkdir()
    with pytest.raises(StoreFormatError, match="there is no queue"):
        upkeep.export_to(options(empty), tmp_path / "export", NOW)
    assert set(tmp_path.iterdir()) == {state, empty}


def test_an_export_of_a_newer_version_is_refused(sample: Path, tmp_path: Path) -> None:
    first, *rest = upkeep.export(options(sample / "state"), NOW)
    newer = [first.replace(b'"version":1', b'"version":9'), *rest]
    with pytest.raises(StoreFormatError, match="line 1: a newer gputui wrote it"):
        upkeep.import_(options(tmp_path / "state"), newer, "export")


def test_an_export_has_months_of_0_1_and_leaves_out_unreadable_lines(sample: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    upkeep.restore(options(state), sample / "backup")
    old = job(901, name="old").evolve(state=JobState.CANCELLED, ended_at=NOW)
    month = {"_meta": {"1": {"schema": 2}}, "jobs": {"901": encode_job(old)}}
    (state / "history-2025-11.json").write_text(json.dumps(month))
    known = content_without_write(state)
    for path in (*state.glob("history-*.jsonl"), *state.glob("audit-*.jsonl")):
        path.write_bytes(b'{"id":7}\n{]\n' + path.read_bytes())
    upkeep.import_(options(tmp_path / "again"), list(upkeep.export(options(state), NOW)), "export")
    assert content_without_write(tmp_path / "again") == known
    assert "old" in [each.spec.name for each in known[1]]


def test_a_backup_has_logs_on_another_disk_but_only_regular_files(sample: Path, tmp_path: Path) -> None:
    state, disk, again = tmp_path / "state", tmp_path / "disk", tmp_path / "again"
    upkeep.restore(options(state), sample / "backup")
    (state / "logs").rename(disk)
    (state / "logs").symlink_to(disk)
    (state / "hostname").symlink_to("/etc/hostname")
    (state / "engine.json").write_text("{}")
    (disk / "1" / "hostname").symlink_to("/etc/hostname")
    (disk / "1" / ".1.log.part").write_text("begun")
    for folder in (state, disk / "1"):
        os.mkfifo(folder / "fifo")
    upkeep.back_up(options(state), tmp_path / "backup", NOW, with_logs=True)
    upkeep.restore(options(again), tmp_path / "backup")
    assert not (again / "logs").is_symlink()
    assert [path.name for path in (again / "logs" / "1").iterdir()] == ["1.log"]
    assert (again / "logs" / "1" / "1.log").read_bytes() == b"output\xff\n"
    assert not {"fifo", "hostname"} & {path.name for path in again.iterdir()}
    assert (again / "engine.json").read_text() == "{}", "or running jobs would be looked for on any engine, and lost"


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(b"output\n")
    with path.open("rb") as file:
        captured = CapturedFile("1.log", file.fileno(), os.fstat(file.fileno()))
        os.truncate(path, 3)
        with pytest.raises(StoreFormatError, match=r"1\.log: it became shorter while it was read"):
            list(captured.pieces())


def test_partial_files_of_killed_processes_are_removed(sample: Path, tmp_path: Path) -> None:
    named = tmp_path / "a[1]"
    for name in (".a[1].7.part", ".gputui-2026-03-01T120000Z.tar.gz.7.part", ".gputui-1.tar.gz.8.part", ".b.7.part"):
        (tmp_path / name).write_bytes(b"partial")
        os.utime(tmp_path / name, (0, 0))
    with (tmp_path / ".gputui-1.tar.gz.8.part").open("rb") as written:  # another process still writes it
        fcntl.flock(written, fcntl.LOCK_EX)
        upkeep.back_up(options(sample / "state"), named, NOW, with_logs=True)
        upkeep.scheduled_backup(options(sample / "state"), tmp_path, None, NOW, with_logs=True)
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".part"} == {
        ".b.7.part",
        ".gputui-1.tar.gz.8.part",
    }


Member = tuple[tarfile.TarInfo, bytes]


def forged(sample: Path, backup: Path, change: Callable[[list[Member]], None]) -> Path:
    """Write the backup with other members, as an attacker would."""
    with tarfile.open(sample / "backup", "r:gz") as archive:
        members = [(each, file.read() if (file := archive.extractfile(each)) else b"") for each in archive]
    change(members)
    with tarfile.open(backup, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return backup


def with_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[list[Member]], None]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return lambda members: members.insert(1, (info, b""))


def without(name: str) -> Callable[[list[Member]], None]:
    def change(members: list[Member]) -> None:
        members[:] = [(info, data) for info, data in members if info.name != name]

    return change


def with_content(name: str, old: bytes, new: bytes) -> Callable[[list[Member]], None]:
    def change(members: list[Member]) -> None:
        members[:] = [(info, data.replace(old, new) if info.name == name else data) for info, data in members]

    return change


@cases(
    ("change", "said"),
    [
        (with_member("../evil"), "outside of the directory"),
        (with_member("logs/../../evil"), "outside of the directory"),
        (with_member("/tmp/gputui-evil"), "outside of the directory"),
        (with_member("../evil", tarfile.DIRTYPE), "outside of the directory"),
        (with_member("evil", tarfile.SYMTYPE, "/etc/passwd"), "cannot be read"),
        (with_member("evil", tarfile.LNKTYPE, "/etc/passwd"), "cannot be read"),
        (with_member("evil", tarfile.FIFOTYPE), "no regular file"),
        (with_member("evil"), f"it is not in {MANIFEST}"),
        (with_member("queue.json"), "cannot be read"),
        (with_member("queue.json/below"), "cannot be read"),
        (with_member("queue.json", tarfile.DIRTYPE), "cannot be read"),
        (without("queue.json"), "it is missing"),
        (without(MANIFEST), "it is missing"),
        (with_content("logs/1/1.log", b"output", b"Output"), "its checksum is wrong"),
        (with_content(MANIFEST, b"{", b"["), MANIFEST),
        (with_content(MANIFEST, b'"format": 1', b'"format": 99'), "upgrade gputui"),
    ],
)
def test_a_forged_backup_is_refused_and_leaves_nothing(
    sample: Path, tmp_path: Path, change: Callable[[list[Member]], None], said: str
) -> None:
    backup = forged(sample, tmp_path / "backup", change)
    assert any(said in finding.text and not finding.is_harmless for finding in upkeep.verify(backup))
    with pytest.raises(StoreFormatError, match="damaged"):
        upkeep.restore(options(tmp_path / "state"), backup)
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
    assert not Path("/tmp/gputui-evil").exists()


def test_a_backup_of_the_same_members_is_restored_without_its_seal(sample: Path, tmp_path: Path) -> None:
    """Otherwise the refusals above would prove nothing."""
    backup = forged(sample, tmp_path / "backup", lambda _: None)
    [finding] = upkeep.verify(backup)
    assert finding.is_harmless
    upkeep.restore(options(tmp_path / "state"), backup)
    assert upkeep.verify(tmp_path / "state") == []


def test_owners_modes_and_times_are_kept(sample: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    upkeep.restore(options(state), sample / "backup")
    log = state / "logs" / "1" / "1.log"
    log.chmod(0o640)
    os.utime(log, (1e9, 1e9 + 0.5))
    log.parent.chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(log, 1234, 4321)
    state.chmod(0o750)
    upkeep.back_up(options(state), tmp_path / "backup", NOW, with_logs=True)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    upkeep.restore(options(tmp_path / "again"), tmp_path / "backup")
    for path in (log, log.parent, state):
        status, other = path.stat(), (tmp_path / "again" / path.relative_to(state)).stat()
        assert (other.st_mode, other.st_uid, other.st_gid) == (status.st_mode, status.st_uid, status.st_gid)
    assert (tmp_path / "again" / log.relative_to(state)).stat().st_mtime == 1e9 + 0.5


def test_unreadable_lines_are_moved_aside_while_no_scheduler_runs(sample: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    upkeep.restore(options(state), sample / "backup")
    [history], [audit, *_] = state.glob("history-*.jsonl"), sorted(state.glob("audit-*.jsonl"))
    good, lines = history.read_bytes(), audit.read_bytes()
    history.write_bytes(b'{"id":77,"schema":3,"job":{"spec":7}}\n' + good + b"\0\0\0\n")
    audit.write_bytes(lines + b"{}\n" + b'{"torn')
    found = upkeep.verify(state)
    assert [finding.where for finding in found if not finding.is_harmless] == [
        f"{history.name}, line 1, byte 0",
        f"{history.name}, line {len(good.splitlines()) + 2}, byte {len(good) + 38}",
        f"{audit.name}, line {len(lines.splitlines()) + 1}, byte {len(lines)}",
    ]
    assert "of job 77" in upkeep.damaged_lines(options(state))[0]
    leadership = Leadership(state)
    assert leadership.acquire(Leader(1, "gpu1", "alice", "serve", NOW))
    with pytest.raises(GputuiError, match="schedules there"):
        upkeep.move_damaged_lines(options(state), NOW)
    leadership.release()
    aside = upkeep.move_damaged_lines(options(state), NOW)
    assert history.read_bytes() == good
    assert audit.read_bytes() == lines + b'{"torn'
    assert (aside / history.name).read_bytes().count(b"\n") == 2
    assert [finding.is_harmless for finding in upkeep.verify(state)] == [True]
    history.write_bytes(b"{]\n" + good)
    again = upkeep.move_damaged_lines(options(state), NOW)
    assert again == aside.with_name(f"{aside.name}-2")
    assert (again / history.name).read_bytes() == b"{]\n"
    assert (aside / history.name).read_bytes().count(b"\n") == 2
