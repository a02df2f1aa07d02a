"""Rows of commands of logs: on the main screen, and with several side by side."""

from __future__ import annotations

from tests.tui.every import eyes, stages, stages_log, stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.row import Row
from tests.tui.every.stages import at_job, failed_job


async def on_line(hand: Hand) -> None:
    """Return a click on a line."""
    await hand.click(hand.log, 20, 3)


ROWS = (
    Row("pause_log", stages_log.log, eyes.follows, False),
    Row("log_search", stages_log.log, eyes.searched, "line 7", (*"line 7", "enter")),
    Row("log_next", stages_log.log_searched, eyes.log_at, lambda was: was + 1),
    Row("log_previous", stages_log.log_searched, eyes.log_at, lambda was: was - 1),
    Row("log_only", stages_log.log, eyes.narrowed, "NCCL", (*"NCCL", "enter")),
    Row("log_more_around", stages_log.log_narrowed, eyes.context, 2),
    Row("log_fewer_around", stages_log.log_narrowed, eyes.context, 0),
    Row("error", failed_job, eyes.focus, "log", footer=False),
    Row("error", stages_log.log, eyes.log_at, 150),
    Row("error_before", stages_log.log, eyes.log_at, 170),
    Row("log_wrap", stages_log.log, eyes.wraps, lambda was: not was),
    Row("log_times", stages_log.log, eyes.stamps, lambda was: not was),
    Row("pick_lines", stages_log.log, eyes.picked, True, mouse=on_line),
    Row("copy_lines", stages_log.log, lambda hand: "line 199" in eyes.clipboard(hand), True),
    Row("save_log", stages_log.log, eyes.saved, True, (*"saved.log", "enter")),
    Row("clear_log", stages_log.log_searched, eyes.searched, ""),
    Row("log_right", stages_log.log_aside, eyes.aside, lambda was: was + 16),
    Row("log_left", stages_log.log_aside, eyes.aside, lambda was: was - 16),
    Row("attempt_before", stages_log.log, eyes.followed, (101, 1)),
    Row("attempt_after", stages_log.log_of_first, eyes.followed, (101, 2)),
    Row("attempts", at_job(101), eyes.screen, "LogsScreen"),
    Row("pin_log", at_job(104), eyes.pinned, ["#104 resnet-ablation: pinned (1 of 6). L shows pinned logs together"]),
    Row("logs", stages.queue, eyes.screen, "LogsScreen"),
    Row("down", stages_log.log_above, eyes.log_top, lambda was: was + 1),
    Row("up", stages_log.log_above, eyes.log_top, lambda was: was - 1),
    Row("last", stages_log.log_above, eyes.follows, True),
    Row("copy", stages_screens.logs, eyes.clipboard, "101", ("i",), has_key=False),  # there it copies lines
    Row("copy", stages_log.log, eyes.clipboard, "101", ("i",), has_key=False),
    Row("filter", stages_log.log, eyes.focus, "filter", has_key=False, footer=False),  # there it searches
    Row("detail", stages_log.log, eyes.screen, "Detail"),
    Row("hold", stages_log.log_of_waiting, eyes.actions, [("hold", "job 107")]),
    Row("pin_log", stages_screens.logs, eyes.panes, 1),
    Row("attempt_after", stages_screens.logs, eyes.attempt_beside, 2),
    Row("pane_next", stages_screens.logs, eyes.focus, "log-1"),
    Row("zoom", stages_screens.logs, lambda hand: hand.app.screen.has_class("-zoomed"), True),
)
