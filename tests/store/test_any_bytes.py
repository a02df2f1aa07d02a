"""Files with any bytes: everything that reads them tells what is wrong in a sentence, and a repair succeeds."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.errors import GputuiError
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
from gputui.store.repair import damaged_files, move_aside, repair_of, verify_directory
from gputui.store.transfer import export_lines, import_lines
from tests.cases import cases
from tests.factories import ACTOR, NOW, job
from tests.lane import seeds
from tests.store.test_history import over

SETTINGS = StoreSettings(keep_finished=1)
WAL = "queue.json.wal.2"
DEEP = b"[" * 5000
ODD = [DEEP, DEEP + b"]" * 5000, b'{"t":' * 3000, b'"\xff"', b'{"t":{},"a":[],"x":"\xff"}', b"1" * 9000, b"1e999", b""]
KEYS = [
    "1", "jobs", "a", "t", "spec", "id", "", "-5", "١", "9" * 20, "runs", "array", "state", "attempts", "at",
    "schema",
]  # fmt: skip


def line(body: bytes, next_id: bytes = b"9") -> bytes:
    """Return a line of the journal with a correct checksum."""
    rest = next_id + b" " + body
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a queue, its journal, history of both kinds, and an audit log."""
    made = tmp_path_factory.mktemp("whole") / "state"
    store = TinyJobStore(made, SETTINGS)
    store.submit([job() for _ in range(6)], actor=ACTOR)
    with store.transaction() as transaction:
        for number in range(1, 5):
            transaction.put(over(number))
    store.maintain(NOW)
    store.storage.checkpoint()
    store.submit([job() for _ in range(3)], actor=ACTOR)
    store.close()
    [history] = made.glob("history-*.jsonl")
    past = json.loads(history.read_bytes().splitlines()[0])["job"]
    (made / "history-2020-01.json").write_text(json.dumps({"_meta": {"1": {"schema": 2}}, "jobs": {"901": past}}))
    return made


def read_and_write(directory: Path) -> None:
    """Do with a store what commands and a scheduler do."""
    store = TinyJobStore(directory, SETTINGS)
    calls: Iterable[Callable[[], object]] = (
        store.jobs, store.unreadable, store.controls, store.recurring, store.arrays, store.damage, store.check,
        lambda: list(store.past()), lambda: list(store.records()),
        lambda: list(store.audit_log()), lambda: store.get(5),
        lambda: store.submit([job()], actor=ACTOR), store.storage.checkpoint, lambda: store.maintain(NOW),
        lambda: list(store.audit_log()),
    )  # fmt: skip
    for call in calls:
        told(call)
    store.close()


def told(call: Callable[[], object]) -> None:
    """Call it; it may only raise errors of gputui, which are sentences."""
    with suppress(GputuiError):
        call()


def repaired(directory: Path) -> None:
    repair = repair_of(directory)
    if (found := repair.assess()) is not None:
        repair.carry_out(found, NOW, ACTOR)
        assert repair.assess() is None
    if lines := damaged_files(directory):
        move_aside(directory, lines, NOW)


def survives(directory: Path) -> None:
    list(verify_directory(directory))
    told(lambda: read_and_write(directory))
    told(lambda: import_lines(directory / "copy", list(export_lines(directory, NOW, "1")), "x"))
    told(lambda: repaired(directory))
    list(verify_directory(directory))


@cases("body", ODD)
@cases("name", [WAL, "queue.json", "history-2026-03.jsonl", "history-2020-01.json", "audit-2026-03.jsonl"])
def test_what_no_decoder_takes_is_a_sentence(whole: Path, tmp_path: Path, name: str, body: bytes) -> None:
    directory = tmp_path / "state"
    shutil.copytree(whole, directory)
    with (directory / name).open("r+b") as file:
        if name == WAL:
            file.write(line(body) + line(b'{"t":{},"a":[]}', b"12"))  # not the last line, so it is no torn one
        else:
            file.write(body + b"\n")
    found = list(verify_directory(directory))
    assert any(name in finding.where for finding in found), found
    survives(directory)


def test_after_a_repair_of_a_deep_line_the_queue_goes_on(whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    shutil.copytree(whole, directory)
    with (directory / WAL).open("ab") as file:
        file.write(line(DEEP) + line(b'{"t":{},"a":[]}', b"12"))
    repaired(directory)
    store = TinyJobStore(directory, SETTINGS)
    assert {5, 6, 7, 8, 9} <= set(store.jobs())
    assert store.submit([job()], actor=ACTOR)[0] >= 12
    store.close()


class Mutations:
    """Random changes of JSON values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        plain: tuple[Any, ...] = (None, True, -1, 1e300, 2**63, "x", "1", 0, [], {})
        kind = self._random.randrange(14 if depth < 4 else 10)
        if kind < 10:
            return plain[kind]
        if kind == 10:
            return [self.value(depth + 1) for _ in range(3)]
        if kind < 13:
            return {self._random.choice(KEYS): self.value(depth + 1) for _ in range(3)}
        found: Any = 0
        for _ in range(self._random.choice((50, 150, 400))):
            found = [found] if depth % 2 else {"a": found}
        return found

    def changed(self, value: Any) -> Any:
        if self._random.random() < 0.15:
            return self.value()
        if isinstance(value, list):
            return [self.changed(each) for each in value]
        if isinstance(value, dict):
            made = {key if self._random.random() < 0.95 else self._random.choice(KEYS): self.changed(each)
                    for key, each in value.items()}  # fmt: skip
            return made | ({self._random.choice(KEYS): self.value()} if self._random.random() < 0.1 else {})
        return value

    def change(self, directory: Path) -> None:
        """Change one file: a value in it, or single bytes."""
        path = self._random.choice(sorted(each for each in directory.iterdir() if each.is_file()))
        content = path.read_bytes()
        if path.name == WAL:
            body = json.loads(content.split(b" ", 2)[2])
            after = line(json.dumps({"t": {}, "a": []}).encode()) if self._random.random() < 0.5 else b""
            path.write_bytes(content + line(json.dumps(self.changed(body)).encode()) + after)
        elif ".json" in path.suffix and content:
            lines = content.splitlines()
            place = self._random.randrange(len(lines))
            lines[place] = json.dumps(self.changed(json.loads(lines[place])), ensure_ascii=False).encode()
            path.write_bytes(b"\n".join(lines) + b"\n")
        else:
            spoilt = bytearray(content or b"x")
            spoilt[self._random.randrange(len(spoilt))] = self._random.randrange(256)
            path.write_bytes(bytes(spoilt))


@pytest.mark.parametrize("seed", seeds(40, at_once=4))
def test_values_that_no_gputui_wrote(whole: Path, tmp_path: Path, seed: int) -> None:
    mutations = Mutations(seed)
    for number in range(25):
        directory = tmp_path / str(number)
        shutil.copytree(whole, directory)
        mutations.change(directory)
        survives(directory)
        shutil.rmtree(directory)
