"""The check of a state directory: it names the file and what is wrong in it, and tells harm from leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputui.bootstrap import upkeep
from gputui.store import TinyJobStore
from tests.factories import ACTOR, job, recurring
from tests.store.test_files import crc_line

Tables = dict[str, dict[str, Any]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two folded jobs, and one in the journal."""
    directory = tmp_path / "state"
    store = TinyJobStore(directory)
    store.submit([job(), job()], actor=ACTOR)
    with store.transaction() as transaction:
        transaction.add_recurring(recurring())
    store.storage.checkpoint()
    store.submit([job()], actor=ACTOR)
    store.close()
    return directory


def edit(path: Path, change: Callable[[Tables], object]) -> None:
    tables = json.loads(path.read_bytes())
    change(tables)
    path.write_text(json.dumps(tables))


def harm(directory: Path) -> list[tuple[str, str]]:
    """Return where something is wrong, and what."""
    return [(finding.where, finding.text) for finding in upkeep.verify(directory) if not finding.is_harmless]


def test_a_missing_queue_and_one_that_is_no_json_are_named(state: Path) -> None:
    assert upkeep.verify(state) == []
    (state / "queue.json").write_bytes(b"{]")
    [(where, text)] = harm(state)
    assert where == "queue.json"
    assert text
    (state / "queue.json").unlink()
    assert harm(state) == [("queue.json", "it is missing")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tables: tables["jobs"]["1"].update(spec=7), "job 1: "),
        (lambda tables: next(iter(tables["recurring"].values())).update(expression=7), "recurring job "),
        (lambda tables: tables.update(controls={"1": {"paused": "perhaps"}}), "controls 1: "),
    ],
)
def test_each_part_of_the_queue_is_read(state: Path, change: Callable[[Tables], object], said: str) -> None:
    edit(state / "queue.json", change)
    assert [(where, text.startswith(said)) for where, text in harm(state)] == [("queue.json", True)]


def test_a_line_of_the_journal_that_contradicts_itself_is_found(state: Path) -> None:
    good = json.loads((state / "queue.json").read_bytes())["jobs"]["1"]
    [journal] = state.glob("queue.json.wal.*")
    with journal.open("ab") as file:
        file.write(crc_line(b'5 {"t":{"jobs":{"77":%s}},"a":[{"verb":7}]}' % json.dumps(good).encode()))
    (_, of_audit), (_, of_job) = harm(state)
    assert of_audit.startswith("audit entry at byte ")
    assert of_job == "job 77 has an id that was not given out yet: the next is 5"


def test_what_a_crash_left_is_harmless(state: Path) -> None:
    [journal] = state.glob("queue.json.wal.*")
    with journal.open("ab") as file:
        file.write(b"0123")
    (state / "queue.json.lock").write_bytes(b"torn")
    found = upkeep.verify(state)
    assert [(finding.where, finding.is_harmless) for finding in found] == [
        (journal.name, True),
        ("queue.json.lock", True),
    ]
    assert "4 bytes at its end" in found[0].text
    assert "the next write renews it" in found[1].text


def test_a_month_of_version_0_1_is_read_too(state: Path) -> None:
    month = state / "history-2026-01.json"
    month.write_text(json.dumps({"_default": {}, "jobs": {}}))
    good = json.loads((state / "queue.json").read_bytes())["jobs"]["1"]
    edit(month, lambda tables: tables["jobs"].update({"1": good}))
    assert upkeep.verify(state) == []
    edit(month, lambda tables: tables["jobs"].update({"2": {"spec": 7}}))
    [(where, text)] = harm(state)
    assert where == month.name
    assert text.startswith("job 2: ")
    month.write_bytes(b"{]")
    assert [where for where, _ in harm(state)] == [month.name]
    month.write_text(json.dumps({"_meta": {"1": {"schema": 999}}}))
    [(where, text)] = harm(state)
    assert where == month.name
    assert "schema 999" in text
