"""History and audit log within their limits of age and size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.store import TinyJobStore, files
from gputui.store.files import FileAccess
from gputui.store.history import line_files, month_files
from tests.factories import ACTOR, NOW, job

DAYS = 70


def filled(directory: Path, **limits: Any) -> TinyJobStore:
    """Return a store with one job per day in its history, the last one of yesterday, and a waiting one."""
    store = TinyJobStore(directory, StoreSettings(history_after=timedelta(0)))
    with store.transaction() as transaction:
        for days in range(DAYS, 0, -1):
            at = NOW - timedelta(days=days)
            transaction.add(replace(job(), submitted_at=at, state=JobState.CANCELLED, ended_at=at))
            transaction.audit(AuditEntry(at, 1000, "alice", "cancel", "job 1", "", ""))
    store.maintain(NOW - timedelta(hours=2))
    store.submit([job()], actor=ACTOR)
    store.storage.checkpoint()  # the audit entries go from the journal into their files
    store.close()
    return TinyJobStore(directory, StoreSettings(**limits))


def ended(store: TinyJobStore) -> list[int]:
    return sorted(found.id for found in store.past())


def maintain(store: TinyJobStore, steps: int = 6) -> None:
    for _ in range(steps):
        store.maintain(NOW)


def test_without_limits_nothing_is_removed(directory: Path) -> None:
    store = filled(directory)
    maintain(store)
    assert ended(store) == list(range(1, DAYS + 1))
    assert len(list(store.audit_log())) == DAYS + 1
    store.close()


def test_only_old_entries_are_removed(directory: Path) -> None:
    store = filled(directory, history_max_age=timedelta(days=20), audit_max_age=timedelta(days=10))
    reader = TinyJobStore(directory)
    assert len(ended(reader)) > 20  # it knows where the lines were
    maintain(store)
    assert ended(store) == ended(reader) == list(range(DAYS - 19, DAYS + 1))
    assert reader.get(DAYS).state is JobState.CANCELLED
    assert [entry.at for entry in store.audit_log()] == [NOW - timedelta(days=days) for days in (*range(10, 0, -1), 0)]
    assert list(store.jobs()) == [DAYS + 1]
    assert store.submit([job()], actor=ACTOR) == (DAYS + 2,)
    for each in (store, reader):
        each.close()


def test_damaged_lines_are_removed_with_those_before_them(directory: Path) -> None:
    store = filled(directory, history_max_age=timedelta(days=20), audit_max_age=timedelta(days=10))
    for kind in ("history", "audit"):
        path = min(directory.glob(f"{kind}-*.jsonl"))
        path.write_bytes(b'{"damaged":1}\n' + path.read_bytes())
    maintain(store)
    assert ended(store) == list(range(DAYS - 19, DAYS + 1))
    assert len(list(store.audit_log())) == 11
    assert not [path for path in directory.glob("*.jsonl") if b"damaged" in path.read_bytes()]
    store.close()


def test_a_month_of_0_1_is_removed_as_a_whole(directory: Path) -> None:
    store = filled(directory, history_max_age=timedelta(days=20))
    old = directory / "history-2025-01.json"
    old.write_text('{"_meta":{"1":{"schema":2}},"jobs":{}}')
    [history, _] = line_files(directory, StoreSettings())
    assert history.kept().oldest_at == datetime(2025, 1, 1, tzinfo=UTC)
    maintain(store)
    assert not old.exists()
    store.close()


def test_excess_entries_are_removed_oldest_first(directory: Path) -> None:
    store = filled(directory, history_max_size=5000)
    maintain(store)
    [history, _] = line_files(directory, StoreSettings(history_max_size=5000))
    kept = history.kept()
    assert 3000 < kept.size <= 5000
    left = ended(store)
    assert left == list(range(left[0], DAYS + 1))
    assert kept.oldest_at == NOW - timedelta(days=DAYS + 1 - left[0])
    assert not kept.is_over(NOW, timedelta(0))
    store.close()


class KilledError(BaseException):
    """Raised in place of a kill of the process."""


@pytest.mark.parametrize("call", ["replace", "write"])
def test_a_scheduler_killed_while_it_cuts_a_file_loses_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    filled(directory).close()
    limits = StoreSettings(history_max_age=timedelta(days=20))
    before = {path: path.read_bytes() for path in month_files(directory, "history")}

    def killed(*_: object) -> None:
        raise KilledError

    store = TinyJobStore(directory, limits)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _unlink_months(Path.unlink))
        patch.setattr(*((Path, "replace", killed) if call == "replace" else (files, "write_all", killed)))
        with pytest.raises(KilledError):
            maintain(store)
    left = {path: path.read_bytes() for path in month_files(directory, "history")}
    assert left == {path: before[path] for path in left}
    assert list(directory.glob("*.tmp"))
    store.close()
    store = TinyJobStore(directory, limits)
    maintain(store)
    assert ended(store) == list(range(DAYS - 19, DAYS + 1))
    assert not list(directory.glob("*.tmp"))
    store.close()


def _unlink_months(unlink: Callable[..., None]) -> Callable[..., None]:
    """A killed process removes no half-written copy."""

    def only(path: Path, **how: bool) -> None:
        if path.suffix != ".tmp":
            unlink(path, **how)

    return only


def test_lines_appended_while_a_file_is_cut_are_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that opened the file before it was replaced goes into the new one."""
    filled(directory).close()
    path = max(directory.glob("audit-*.jsonl"))
    opened = files.open_file
    is_first = iter([True])

    def open_late(path: Path, flags: int, mode: int = 0o600) -> int:
        fd = opened(path, flags, mode)
        if path.name.startswith("audit") and path.suffix == ".jsonl" and next(is_first, False):
            files.keep_ranges(path, [(path.read_bytes().index(b"\n") + 1, None)], FileAccess())
        return fd

    monkeypatch.setattr(files, "open_file", open_late)
    count = len(path.read_bytes().splitlines())
    files.append_lines(path, b'{"late":1}\n', FileAccess())
    lines = path.read_bytes().splitlines()
    assert (len(lines), lines[-1]) == (count, b'{"late":1}')
