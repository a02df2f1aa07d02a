"""Modes and owners of files in a state directory, whoever writes there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.store.files import SHARED, FileAccess, access_for

OWNER, GROUP = 61_001, 61_002


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


@pytest.mark.parametrize(("gid", "wanted"), [(None, 0o600), (os.getegid(), 0o660)])
def test_a_file_gets_its_mode_whatever_the_umask(file: Path, gid: int | None, wanted: int) -> None:
    apply(FileAccess(gid=gid), file)
    assert mode(file) == wanted


def test_a_second_name_that_a_member_made_is_not_opened_to_the_group(file: Path, tmp_path: Path) -> None:
    """Test that a hard link is refused: it may name a file elsewhere, of the user who writes here."""
    (tmp_path / "other").hardlink_to(file)
    with pytest.raises(OSError, match="another name"):
        apply(FileAccess(gid=os.getegid()), file)
    assert mode(file) == 0o644
    apply(FileAccess(), file)  # a private directory has no members
    assert mode(file) == 0o600


def test_what_belongs_to_another_user_is_left_as_it_is(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: OWNER)
    apply(FileAccess(gid=os.getegid()), file)
    FileAccess(gid=os.getegid()).apply_to_directory(tmp_path)
    assert (mode(file), mode(tmp_path)) == (0o644, 0o755)


@pytest.mark.needs("root")
def test_root_leaves_files_to_the_owner_and_the_group_of_the_directory(file: Path, tmp_path: Path) -> None:
    """Otherwise the owner could not write a queue that root wrote once."""
    before = file.stat()
    apply(FileAccess(gid=GROUP), file)
    assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, GROUP)
    apply(FileAccess(uid=OWNER), file)
    assert (file.stat().st_uid, file.stat().st_gid) == (OWNER, GROUP)
    FileAccess(gid=GROUP).apply_to_directory(tmp_path)
    assert (tmp_path.stat().st_gid, mode(tmp_path)) == (GROUP, SHARED)
    os.chown(tmp_path, OWNER, GROUP)
    assert access_for(tmp_path, None, tmp_path / "none") == FileAccess(uid=OWNER)


def test_a_directory_counts_as_shared_only_together_with_its_queue(file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(SHARED)
    file.chmod(0o660)
    assert access_for(tmp_path, None, file).gid == file.stat().st_gid
    assert access_for(tmp_path, None, tmp_path / "none").gid is None
    file.chmod(0o600)
    assert access_for(tmp_path, None, file).gid is None
    tmp_path.chmod(0o700)
    file.chmod(0o660)
    assert access_for(tmp_path, None, file).gid is None
