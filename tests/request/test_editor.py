"""Drafts in the user's own editor."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gputui.domain.errors import GputuiError, InputError
from gputui.request.edits import Editor, command
from gputui.request.submitter import Submitter
from tests.factories import NOW

DRAFT = {"image": "busybox", "command": "sleep 3", "gpus": "2"}


def by(editor: str) -> Submitter:
    return Submitter("alice", NOW, Path("/home/alice"), {"EDITOR": editor})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_file_with_a_mistake_is_opened_again_and_then_removed(folder: Path) -> None:
    editor, user = Editor("Job 7"), by("vim -u NONE")
    *program, path = editor.begin(DRAFT, user)
    assert program == ["vim", "-u", "NONE"]
    file = Path(path)
    assert file.read_text().startswith("# Job 7\n")
    file.write_text(file.read_text().replace("gpus = 2", "gpus = 4\nwhat = 1"))
    with pytest.raises(InputError, match="what"):
        editor.end([*program, path], 0, user)
    assert editor.begin(DRAFT, user) == (*program, path)
    with pytest.raises(GputuiError, match=f"ended with 3: nothing was changed.*{path}"):
        editor.end([*program, path], 3, user)
    file.write_text(file.read_text().replace("what = 1\n", ""))
    edited = editor.end([*program, path], 0, user)
    assert edited is not None
    assert (edited["image"], edited["gpus"]) == ("busybox", "4")
    assert not list(folder.iterdir())


def test_ctrl_c_in_the_editor_does_not_reach_the_caller(folder: Path) -> None:
    """A terminal sends it to both."""
    before = signal.getsignal(signal.SIGINT)
    assert Editor("").edit(DRAFT, by("sh -c 'kill -INT $PPID' sh")) is None
    assert signal.getsignal(signal.SIGINT) is before
    assert not list(folder.iterdir())


def test_an_editor_that_cannot_be_run_is_named() -> None:
    with pytest.raises(GputuiError, match=r"/missing/editor: cannot be run: No such file or directory.*EDITOR"):
        Editor("").edit(DRAFT, by("/missing/editor"))


def test_the_environment_goes_before_installed_editors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(GputuiError, match=r"there is no editor.*set EDITOR"):
        command({"VISUAL": " "})
    installed = folder / "vi"
    installed.touch(0o700)
    assert command({}) == [str(installed)]
    assert command({"EDITOR": "nano -w"}) == ["nano", "-w"]
    assert command({"EDITOR": "nano", "VISUAL": "code --wait"}) == ["code", "--wait"]
    with pytest.raises(GputuiError, match="VISUAL: a quotation is not closed"):
        command({"VISUAL": "'code"})
