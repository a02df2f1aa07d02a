"""Commands that move about, and lay the screen out."""

from __future__ import annotations

from gputui.tui.commands.command import GPUS, MOVE, VIEW, Command

PANE_COMMANDS = (
    Command("zoom", ("z",), "zoom", "Give the whole screen to the focused pane, and back.", VIEW, in_footer=False),
    Command("grow(1)", ("right_square_bracket",), "grow", "Make the focused pane a row higher.", VIEW, False),
    Command(
        "grow(-1)", ("left_square_bracket",), "shrink", "Make the focused pane a row lower.", VIEW, False, id="shrink"
    ),
    Command("hide", ("w",), "hide pane", "Hide the focused pane; remembered, as all of the layout is.", VIEW, False),
    Command("all_panes", ("W",), "all panes", "Show every pane again, as high as at first.", VIEW, False),
    Command(
        "grid", ("v",), "GPU view", "Draw GPUs as fits, as cards, one or several to a line.", GPUS, False, id="gpu_view"
    ),
    Command("pane(1)", ("tab",), "pane", "Go to the next pane: GPUs, queue, log.", MOVE, False, False, id="pane_next"),
    Command("pane(-1)", ("shift+tab",), "pane", "Go to the pane before.", MOVE, False, False, id="pane_before"),
)
MOVE_COMMANDS = (
    Command("down(1)", ("j", "down"), "down", "One row down.", MOVE, False, False),
    Command("down(-1)", ("k", "up"), "up", "One row up.", MOVE, False, False, id="up"),
    Command("page(1)", ("pagedown", "ctrl+d"), "page down", "One page down.", MOVE, False, False, id="page_down"),
    Command("page(-1)", ("pageup", "ctrl+u"), "page up", "One page up.", MOVE, False, False, id="page_up"),
    Command("first", ("g", "home"), "first", "To the first row.", MOVE, False, False),
    Command("last", ("G", "end"), "last", "To the last row; a log follows its end again.", MOVE, False, False),
)
GRID_COMMANDS = (
    Command(
        "beside(1)",
        ("right", "l"),
        "next GPU",
        "To the next GPU, where several stand side by side.",
        MOVE,
        False,
        False,
        id="card_next",
    ),
    Command("beside(-1)", ("left",), "GPU before", "To the GPU before.", MOVE, False, False, id="card_before"),
)
