"""Modes and owners of files in a state directory, whoever writes there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.domain.errors import StoreAccessError
from gputui.store.files import FileAccess, access_for
from tests.cases import cases

OWNER = 61_001


def apply(access: FileAccess, path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        access.apply_to_file(fd)
    finally:
        os.close(fd)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "queue.json"
    path.touch()
    path.chmod(0o644)
    return path


def test_a_file_gets_its_mode_whatever_the_umask(file: Path) -> None:
    apply(FileAccess(), file)
    assert mode(file) == 0o600


def test_what_belongs_to_another_user_is_left_as_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OWNER)
    apply(FileAccess(), file)
    assert mode(file) == 0o644


@pytest.mark.needs("root")
def test_root_leaves_files_to_the_owner_of_the_directory(file: Path, tmp_path: Path) -> None:
    """Otherwise the owner could not write a queue that root wrote once."""
    apply(FileAccess(uid=OWNER), file)
    assert file.stat().st_uid == OWNER
    os.chown(tmp_path, OWNER, -1)
    assert access_for(tmp_path) == FileAccess(uid=OWNER)


@cases("others", [0o2770, 0o1777, 0o775, 0o702])
def test_a_directory_that_others_may_write_is_refused_with_what_helps(tmp_path: Path, others: int) -> None:
    tmp_path.chmod(others)
    with pytest.raises(StoreAccessError, match=r"chmod go-w .*install --users --convert"):
        access_for(tmp_path)
