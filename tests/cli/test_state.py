"""`gputui state`: backups, checks, exports."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.cli import checks
from gputui.cli.checks import CheckLevel
from gputui.domain.errors import StoreAccessError
from gputui.domain.snapshot import Leader
from gputui.engine.files import read_backup_record
from gputui.engine.leadership import Leadership
from gputui.engine.tick.scheduler import BackupWatch
from gputui.store import TinyJobStore
from gputui.store.transfer import staged
from tests.cli.conftest import Run
from tests.factories import ACTOR, NOW, job


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state directory with a job."""
    directory = tmp_path / "state"
    store = TinyJobStore(directory)
    store.submit([job(name="kept")], actor=ACTOR)
    store.close()
    monkeypatch.setenv("GPUTUI_STATE", str(directory))
    return directory


def names(directory: Path) -> list[str]:
    store = TinyJobStore(directory)
    try:
        return [each.spec.name for each in store.jobs().values()]
    finally:
        store.close()


def test_a_backup_is_made_checked_and_restored(run: Run, state: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup.tar.gz", str(tmp_path / "other")
    assert run("state", "backup", str(backup)).out.startswith("backed up 3 files")
    misnamed = run("state", "backup", str(tmp_path / "backup.tar.zst"))
    assert (misnamed.code, f"(name it {backup})" in misnamed.err) == (2, True)
    result = run("state", "backup", str(backup))
    assert (result.code, "exists already" in result.err) == (1, True)
    assert run("state", "verify", str(backup)).out == f"{backup}: everything can be read\n"
    assert run("--state", other, "state", "restore", str(backup)).out == f"restored to {other}\n"
    assert names(Path(other)) == ["kept"]
    assert run("state", "restore", str(backup)).code == 1
    backup.write_bytes(backup.read_bytes()[:-200])
    found = run("state", "verify", str(backup), "--json")
    assert (found.code, [row["harmless"] for row in json.loads(found.out)]) == (1, [False, False])
    [journal] = state.glob("queue.json.wal.*")
    journal.write_bytes(b"0" + journal.read_bytes()[1:])
    assert run("state", "verify").out.startswith(f"{journal.name}: ")


def damage(state: Path) -> bytes:
    """Change a byte of the journal; return the original content."""
    [journal] = state.glob("queue.json.wal.*")
    content = journal.read_bytes()
    journal.write_bytes(b"0" + content[1:])
    return content


def days_ago(path: Path, days: int) -> Path:
    """Write a file with a modification time some days ago."""
    path.write_bytes(b"")
    then = bootstrap.clock().now().timestamp() - days * 86400
    os.utime(path, (then, then))
    return path


def test_damaged_backups_do_not_pile_up(run: Run, state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    old = [days_ago(folder / f"gputui-2026-01-{day:02}.tar.gz.damaged", 10 - day) for day in range(1, 6)]
    good = days_ago(folder / "gputui-2025-12-31.tar.gz", 30)
    damage(state)
    failed = run("state", "backup", "--keep", "14d", str(folder))
    assert (failed.code, failed.out.splitlines()[1:]) == (1, ["removed 3 old damaged backups"])
    assert [path.exists() for path in (good, *old)] == [True, False, False, False, True, True]
    kept = days_ago(folder / "gputui-2026-01-01.tar.gz.damaged", 9)
    assert (run("state", "backup", str(folder)).code, kept.exists()) == (1, True)


def test_a_backup_of_a_damaged_queue_fails_and_no_good_one_is_removed(run: Run, state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    old = [days_ago(folder / f"gputui-2026-01-{day:02}.tar.gz", 40 - day) for day in range(1, 11)]
    content = damage(state)
    failed = run("state", "backup", "--keep", "14d", str(folder))
    assert (failed.code, "does not count as good" in failed.err) == (1, True)
    [apart] = folder.glob("*.damaged")
    assert str(apart) in failed.out
    assert all(path.exists() for path in old)
    record = read_backup_record(state)
    assert record is not None
    assert (record.good_at, "queue.json.wal" in record.problem) == (None, True)
    [notice] = BackupWatch(state).notices(NOW)
    assert (notice.severity, notice.short, "there is no good one" in notice.text) == ("error", "backup failed", True)
    told = checks.of_backup(record, NOW)
    assert told is not None
    assert told.level is CheckLevel.FAIL
    assert run("state", "backup", str(tmp_path / "one.tar.gz")).code == 1
    [journal] = state.glob("queue.json.wal.*")
    journal.write_bytes(content)
    days_ago(apart, 20)
    made = run("state", "backup", "--keep", "14d", str(folder))
    assert (made.code, made.out.splitlines()[1:]) == (0, ["removed 5 old backups"])
    assert not apart.exists()
    assert [path.exists() for path in old] == [False] * 4 + [True] * 6
    assert BackupWatch(state).notices(NOW) == ()


def test_a_backup_that_cannot_be_written_is_reported(run: Run, state: Path, tmp_path: Path) -> None:
    good = run("state", "backup", str(tmp_path))
    before = read_backup_record(state)
    assert (good.code, before is not None and before.problem) == (0, "")
    [made] = tmp_path.glob("gputui-*.tar.gz")
    assert run("state", "verify", str(made)).code == 0
    assert before is not None
    told = checks.of_backup(before, NOW)
    assert told is not None
    assert told.text == f"{tmp_path}, 0s ago"
    folder = state / "backups"
    folder.mkdir()
    assert run("state", "backup", str(folder)).code == 1
    record = read_backup_record(state)
    assert record is not None
    assert before is not None
    assert ("in the state directory" in record.problem, record.good_at) == (True, before.good_at)
    refused = run("state", "backup", "--keep", "14d", str(tmp_path / "none.tar.gz"))
    assert (refused.code, "--keep" in refused.err) == (2, True)


def test_a_queue_is_not_repaired_beside_a_scheduler_that_knows_nothing_of_the_loss(
    run: Run, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "RESCUE_WAIT", 0.1)
    damage(state)
    leadership = Leadership(state)
    assert leadership.acquire(Leader(4_000_000, "gpu1", "alice", "serve", NOW))
    files = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    refused = run("state", "repair", "--yes")
    assert (refused.code, "pid 4000000, and has written nothing" in refused.err) == (1, True)
    assert {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()} == files
    leadership.release()
    assert run("state", "repair", "--yes").code == 0


def test_nothing_is_restored_or_imported_beside_a_scheduler(run: Run, state: Path, tmp_path: Path) -> None:
    backup, export, other = tmp_path / "backup.tar.gz", tmp_path / "export", tmp_path / "other"
    assert run("state", "backup", str(backup)).code == run("state", "export", str(export)).code == 0
    other.mkdir()
    leadership = Leadership(other)
    assert leadership.acquire(Leader(4_000_000, "gpu1", "alice", "serve", NOW))
    for words in (("restore", str(backup)), ("import", str(export))):
        refused = run("--state", str(other), "state", *words)
        assert (refused.code, "scheduler.lock is there" in refused.err) == (1, True)
    leadership.release()
    assert [path.name for path in other.iterdir()] == ["scheduler.lock"]
    del state


def test_a_queue_that_was_begun_during_a_restore_is_not_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "state"

    def fill() -> None:
        with staged(directory) as staging:
            (staging / "queue.json").write_text("restored")
            store = TinyJobStore(directory)
            store.submit([job(name="kept")], actor=ACTOR)
            store.close()

    with pytest.raises(StoreAccessError, match="appeared meanwhile"):
        fill()
    assert names(directory) == ["kept"]


def test_an_export_is_imported(run: Run, state: Path, tmp_path: Path) -> None:
    del state
    export, other = tmp_path / "export", tmp_path / "other"
    assert run("state", "export", str(export)).out == f"exported to {export}\n"
    lines = run("state", "export").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["gputui-export", "job", "audit", "end"]
    assert lines[1:-1] == export.read_text().splitlines()[1:-1]
    assert run("--state", str(other), "state", "import", str(export)).code == 0
    assert names(other) == ["kept"]
    assert run("--state", str(other), "state", "import", str(export)).code == 1
    assert run("state", "import", str(tmp_path / "none")).code == 1


def test_damaged_lines_are_listed_before_they_are_moved(run: Run, state: Path) -> None:
    audit = state / "audit-2026-03.jsonl"
    audit.write_text("no entry\n")
    result = run("state", "repair")
    assert (result.code, audit.read_text()) == (2, "no entry\n")
    assert result.out.startswith("audit-2026-03.jsonl: 1 line cannot be read (line 1: ")
    assert run("state", "repair", "--yes").out.splitlines()[-1].startswith("repaired; the damaged lines are in ")
    assert audit.read_text() == ""
    assert run("state", "repair").out == "nothing is missing: there is nothing to repair\n"


def test_a_backup_that_cannot_be_checked_is_recorded_and_does_not_count(
    run: Run, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error counts, also one that only a sandbox raises."""

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    run("submit", "busybox", "true")
    monkeypatch.setattr("gputui.store.backup.check_is_backup", refuse)
    assert run("state", "backup", str(tmp_path)).code == 1
    record = read_backup_record(state)
    assert record is not None
    assert "operation not permitted" in record.problem
    assert [path.suffix for path in tmp_path.glob("gputui-*")] == [".damaged"]
