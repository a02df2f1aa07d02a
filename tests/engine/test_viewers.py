"""A start waits for a client that is about to attach, and for no other."""

from __future__ import annotations

from pathlib import Path

from gputui.engine.files.console_marks import FOLDER, PATIENCE, AttachWait, wait_for_viewer


def waits(directory: Path, job_id: int, viewer: AttachWait | None = None, after: int = 0) -> int:
    """Return how often the start paused; the viewer attaches after `after` pauses."""
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if viewer is not None and len(paused) == after:
            viewer.is_attached()

    wait_for_viewer(directory, job_id, pause)
    assert sum(paused) < PATIENCE + 0.1
    return len(paused)


def test_the_start_comes_after_the_attachment(tmp_path: Path) -> None:
    assert waits(tmp_path, 7) == 0
    viewer = AttachWait(tmp_path, 7)
    assert waits(tmp_path, 8) == 0
    assert waits(tmp_path, 7, viewer, after=3) == 3
    assert waits(tmp_path, 7) == 0
    assert not list((tmp_path / FOLDER).iterdir())


def test_no_viewer_delays_a_start_for_ever(tmp_path: Path) -> None:
    viewer = AttachWait(tmp_path, 7)
    assert waits(tmp_path, 7) == 500
    viewer.is_attached()


def test_the_lock_of_an_ended_process_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "7").touch()
    assert waits(tmp_path, 7) == 0


def test_without_the_right_to_wait_nothing_fails(tmp_path: Path) -> None:
    AttachWait(tmp_path / "none", 7).is_attached()
