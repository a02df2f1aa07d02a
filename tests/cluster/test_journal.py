"""Append-only files on a disk that becomes full: a value is there as a whole, or its writer is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from gputui.cluster.journal import Index, Journal
from tests.needs import need


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
