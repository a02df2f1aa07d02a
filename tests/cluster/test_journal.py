"""Append-only files on a disk that becomes full: a value is there as a whole, or its writer is told."""

from __future__ import annotations

import shutil
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from gputui.cluster.journal import Index, Journal
from tests.needs import need
from tests.store.power.disk import Disk, moments, put
from tests.store.power.recording import Recording


class Entry(Struct, frozen=True):
    """A value of the tests."""

    number: int
    text: str


def appended(journal: Journal[Entry], number: int) -> str:
    """Add a value; return the file of which the disk is full, empty if it is not."""
    try:
        journal.append([Entry(number, "x" * 3000)])
    except OSError as error:
        return str(error.filename)
    return ""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on a disk of 32 KiB."""
    need("mount")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_value_that_the_disk_does_not_take_is_refused_and_leaves_no_part(small: Path) -> None:
    path = small / "journal.jsonl"
    journal = Journal(path, Entry)
    taken = [appended(journal, number) for number in range(40)].index(str(path))
    assert taken > 1
    assert path.read_bytes().endswith(b"}\n")
    journal.append([Entry(taken, "it fits")])
    found = Index(path, Entry, lambda each: each.number).all()
    assert list(found) == list(range(taken + 1))


APPENDING = """
import os, sys
from pathlib import Path
from gputui.cluster.journal import Journal
from tests.cluster.test_journal import Entry
for number in range(6):
    Journal(Path(sys.argv[1]), Entry, 200).append([Entry(number, "x" * 50)])
    os.write(1, b"%d" % number)
"""


@pytest.mark.needs("gcc")
def test_a_value_that_was_added_outlasts_a_power_loss(tmp_path: Path) -> None:
    root, place = tmp_path / "root", tmp_path / "disk"
    root.mkdir()
    disk, recording = Disk(root), Recording(root, tmp_path / "log")
    recording.run("-c", APPENDING, root / "journal")
    for moment in moments(disk, list(recording.changes()), samples=2):
        put(moment.tree, place)
        _, found = Journal(place / "journal", Entry).fresh()
        assert not moment.told or found[-1].number >= int(moment.told[-1:]), moment
        shutil.rmtree(place)


class Mark(Struct, frozen=True):
    """What a reader needs of an entry."""

    number: int


def test_a_reader_of_marks_never_holds_the_whole_file(tmp_path: Path) -> None:
    Journal(tmp_path / "many", Entry).append(Entry(number, "x" * 8000) for number in range(1000))
    tracemalloc.start()
    assert len(Index(tmp_path / "many", Mark, lambda each: each.number).all()) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
