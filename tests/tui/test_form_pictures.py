"""Pictures of the submit form: begun, filled, wrong, unfolded, and its lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from gputui.tui.actions import ExitChoice
from gputui.tui.preferences import Preferences
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.job_form import keep_submission
from tests.tui.console import Console
from tests.tui.foresight import judged, watched

SIZES = {"80x24": (80, 24), "200x50": (200, 50)}
LINE = (
    "docker run --rm -it --gpus 1-2 -e WANDB_MODE=offline -v /data:/data:ro --ipc host --shm-size 16g "
    "--cap-add IPC_LOCK nvcr.io/nvidia/pytorch:24.10-py3 torchrun --nproc-per-node 2 train.py --epochs 3"
)
WRONG = {
    "image": "PyTorch",
    "command": "python 'train.py",
    "gpus": "4-2",
    "gpu_memory": "much",
    "signal": "TERM@60",
    "array": "9-0",
}


class Compare(Protocol):
    def __call__(
        self,
        app: str | PurePath | App[object],
        press: tuple[str, ...] = (),
        terminal_size: tuple[int, int] = (80, 24),
        run_before: Callable[[Pilot[ExitChoice]], object] | None = None,
    ) -> bool: ...


def matches(
    compare: Compare, size: str, prepare: Callable[[Submit], object], *keys: str, is_sound: bool = True
) -> bool:
    """Return whether the form looks as it did."""
    preferences = Preferences()
    for number, name in enumerate(("bert-large", "resnet", "whisper"), 1):
        keep_submission(
            preferences, {"image": f"registry.lab/{name}:1", "name": name, "gpus": str(number), "command": "train"}
        )
    console = Console(preferences=preferences)

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.begin(pilot)
        await pilot.press("s")
        await pilot.pause()
        form = console.app.screen
        assert isinstance(form, Submit)
        prepare(form)
        await pilot.pause()
        if is_sound:
            await judged(console, pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return compare(console.app, terminal_size=SIZES[size], run_before=before)  # type: ignore[arg-type]


NARROW = pytest.mark.parametrize("size", ["80x24"])


class TestForm:
    @NARROW
    def test_an_empty_form_matches_its_picture(self, snap_compare: Compare, size: str) -> None:
        assert matches(snap_compare, size, lambda form: None, is_sound=False)

    @NARROW
    def test_a_pasted_line_matches_its_picture(self, snap_compare: Compare, size: str) -> None:
        assert matches(snap_compare, size, lambda form: form.fill_line(LINE))

    @NARROW
    def test_a_form_with_errors_matches_its_picture(self, snap_compare: Compare, size: str) -> None:
        assert matches(snap_compare, size, lambda form: form.fill(WRONG), is_sound=False)

    @NARROW
    def test_an_impossible_job_matches_its_picture(self, snap_compare: Compare, size: str) -> None:
        assert matches(snap_compare, size, lambda form: form.fill({"image": "busybox", "gpus": "16"}))

    @NARROW
    def test_recent_submissions_match_their_picture(self, snap_compare: Compare, size: str) -> None:
        assert matches(snap_compare, size, lambda form: None, "ctrl+r", "down", is_sound=False)


@NARROW
def test_the_edit_form_matches_its_picture(snap_compare: Compare, size: str) -> None:
    console = watched()

    async def before(pilot: Pilot[ExitChoice]) -> None:
        await console.begin(pilot)
        console.select(108)
        await pilot.press("e")
        await pilot.pause()
        form = console.app.screen
        assert isinstance(form, Submit)
        form.query_one("#gpus", Input).value = "4"
        await pilot.pause()
        await judged(console, pilot)
        await pilot.pause()

    assert snap_compare(console.app, terminal_size=SIZES[size], run_before=before)  # type: ignore[arg-type]
