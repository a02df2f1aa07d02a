"""Jobs that this version cannot read: left out, reported, kept byte for byte, and harmless to all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.domain.errors import StoreFormatError
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job
from tests.cases import cases
from tests.factories import ACTOR, NOW, job, recurring, running, uuid
from tests.store.test_files import crc_line, fold

STRANGE = {
    "a newer state": b'{"state":"SLEEPING",  "spec":{"image":"x"},"submitted_at":"2026-03-02T12:00:00Z"}',
    "a wrong type": b'{"spec":{"gpus":"many"},"submitted_at":"2026-03-02T12:00:00Z","big":1e5}',
    "no object": b"[1, 2]",
    "null": b"null",
    "nothing known": b'{"\\u00fc":1.0}',
}


def edited(directory: Path, key: str, document: bytes) -> None:
    """Write a document into queue.json by hand."""
    path = directory / "queue.json"
    marked = path.read_bytes().replace(b'"jobs":{', b'"jobs":{"%s":%s,' % (key.encode(), document), 1)
    path.write_bytes(marked)
    json.loads(marked)


def written(directory: Path, key: str, document: bytes) -> None:
    """Write a document as a newer gputui does."""
    [path] = directory.glob("queue.json.wal.*")
    line = crc_line(b'9 {"t":{"jobs":{"%s":%s}},"a":[]}' % (key.encode(), document))
    with path.open("ab") as file:
        file.write(line)


def three_jobs(directory: Path) -> TinyJobStore:
    """Return a store of three jobs with an empty journal."""
    made = TinyJobStore(directory)
    made.submit([job(), job(), job()], actor=ACTOR)
    fold(made)
    return made


@pytest.fixture
def store(directory: Path) -> TinyJobStore:
    return three_jobs(directory)


@cases(
    ("put", "strange"),
    # a null in a journal is a removal
    [(edited, name) for name in STRANGE] + [(written, name) for name in STRANGE if name != "null"],
)
def test_an_unreadable_job_hides_no_other_and_is_kept(
    tmp_path: Path, strange: str, put: Callable[[Path, str, bytes], None]
) -> None:
    store, directory = three_jobs(tmp_path / "state"), tmp_path / "state"
    document = STRANGE[strange]
    put(directory, "7", document)
    for one in (store, TinyJobStore(directory)):
        for _ in range(2):
            assert list(one.jobs()) == [1, 2, 3]
        [told] = one.unreadable()
        assert (told.kind, told.key) == ("job", "7")
        assert told.why
        with pytest.raises(StoreFormatError, match="job 7"):
            one.get(7)
        with one.transaction() as transaction:
            transaction.put(transaction.get(1).evolve(priority=one.get(1).priority + 1))
        assert list(one.jobs()) == [1, 2, 3]
        one.maintain(NOW)
        for _ in range(2):
            fold(one)
            assert b'"7":' + document in (directory / "queue.json").read_bytes()
        one.close()
    last = TinyJobStore(directory)
    assert last.submit([job()], actor=ACTOR)[0] > 7
    last.close()


def test_a_key_that_is_not_a_number_is_omitted(store: TinyJobStore, directory: Path) -> None:
    edited(directory, "seven", b'{"spec":{}}')
    assert list(store.jobs()) == [1, 2, 3]
    assert [entry.key for entry in store.unreadable()] == ["seven"]
    assert store.submit([job()], actor=ACTOR) == (4,)
    fold(store)
    assert b'"seven":{"spec":{}}' in (directory / "queue.json").read_bytes()
    store.close()


def test_a_job_that_becomes_readable_returns(store: TinyJobStore, directory: Path) -> None:
    written(directory, "2", STRANGE["a newer state"])
    assert list(store.jobs()) == [1, 3]
    written(directory, "2", json.dumps(encode_job(job(2, name="again"))).encode())
    assert store.jobs()[2].spec.name == "again"
    assert store.unreadable() == ()
    store.close()


def test_the_gpus_of_an_unreadable_running_job_are_known(store: TinyJobStore, directory: Path) -> None:
    document = encode_job(running(2, on=[uuid(3), uuid(4)])) | {"state": "SLEEPING"}
    written(directory, "2", json.dumps(document).encode())
    store.jobs()
    assert [entry.gpus for entry in store.unreadable()] == [(uuid(3), uuid(4))]
    store.close()


def test_an_unreadable_recurring_job_hides_no_other(store: TinyJobStore, directory: Path) -> None:
    with store.transaction() as transaction:
        first = transaction.add_recurring(recurring())
        second = transaction.add_recurring(recurring())
    fold(store)
    path = directory / "queue.json"
    path.write_bytes(path.read_bytes().replace(b'"expression":', b'"expresion":', 1))
    assert list(store.recurring()) == [second.id]
    assert [(entry.kind, entry.key) for entry in store.unreadable()] == [("recurring job", str(first.id))]
    store.close()
