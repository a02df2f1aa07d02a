"""Lines of the journal, and readers beside a transaction."""

from __future__ import annotations

import threading
from pathlib import Path

from gputui.store import TinyJobStore
from gputui.store.queue_files import JournalEntry, encode_line, journal_lines
from tests.factories import ACTOR, job

LINE = encode_line(JournalEntry({"jobs": {"1": {"name": "a"}}}, next_id=7))


def test_an_empty_line_is_damaged_and_does_not_hide_the_next() -> None:
    found = list(journal_lines(b"\n" + LINE + b"torn"))
    assert [(each.start, each.entry is not None) for each in found] == [(0, False), (1, True)]


def test_a_damaged_line_keeps_its_next_id() -> None:
    [damaged] = journal_lines(LINE.replace(b'"a"', b'"b"'))
    assert (damaged.entry, damaged.salvaged_id) == (None, 7)


def test_tables_read_by_another_thread_lack_an_open_transaction(tmp_path: Path) -> None:
    store = TinyJobStore(tmp_path / "state")
    store.submit([job()], actor=ACTOR)
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(sorted(store.storage.read()["jobs"]))

    with store.transaction() as transaction:
        transaction.add(job())
        assert sorted(store.storage.read()["jobs"]) == ["1", "2"]
        reader = threading.Thread(target=look)
        reader.start()
        reader.join(60)
    look()
    assert seen == [["1"], ["1", "2"]]
    store.close()
