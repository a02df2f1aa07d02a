"""Rows of commands of the main screen: jobs, queue, GPUs, panes."""

from __future__ import annotations

from gputui.tui.screens.panes import PaneLayout
from gputui.tui.widgets.queue_rows import ChosenColumns
from gputui.tui.widgets.status_bars import line_of
from tests.factories import uuid
from tests.tui.every import eyes, stages, stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.row import Row, Step
from tests.tui.every.stages import at_gpu, at_job, at_tab


def on_row(job_id: int, times: int = 1) -> Step:
    """Return a click on that job."""

    async def click(hand: Hand) -> None:
        place = hand.queue.view.lines.index(list(hand.queue.keys).index(job_id))
        await hand.click(hand.queue, 12, hand.queue.head + place, times)

    return click


def on_gpu(index: int, times: int = 1) -> Step:
    """Return a click on that GPU's card or line."""

    async def click(hand: Hand) -> None:
        made, grid = hand.grid.arrangement, hand.grid
        place = list(grid.keys).index(uuid(index)) - grid.shown.top
        if grid.has_tiles:
            y, x = divmod(place, made.across)
            await hand.click(grid, x * made.width + 2, y * made.height + (made.kind == "compact"), times)
        else:
            await hand.click(grid, 5, grid.shown.head + place, times)

    return click


def on_tab(name: str) -> Step:
    """Click on a tab."""

    async def click(hand: Hand) -> None:
        line = hand.console.screen_text.splitlines()[hand.queue.region.y]
        await hand.click_at(line.index(f" {name}") + 1, hand.queue.region.y)

    return click


def on_pane(name: str) -> Step:
    """Click into a pane."""

    async def click(hand: Hand) -> None:
        await hand.click(hand.main.panes.pane(name), 5, 2)

    return click


async def on_title(hand: Hand) -> None:
    """Click on the title of the first column."""
    await hand.click(hand.queue, 2, hand.queue.head - 1)


def edge_by(rows: int) -> Step:
    """Drag the line between the queue and the log."""

    async def drag(hand: Hand) -> None:
        await hand.drag(hand.log, (30, 0), (30, rows))

    return drag


async def on_notice(hand: Hand) -> None:
    """Click on a notice."""
    await hand.click(line_of(hand.main), 20, 0)


USUAL = ChosenColumns.of({}, ()).keys

ROWS = (
    Row("detail", at_job(101), eyes.screen, "Detail", mouse=on_row(101, 2)),
    Row("detail", at_gpu(0), eyes.screen, "Detail", mouse=on_gpu(0, 2)),
    Row("follow", stages.another_log, eyes.followed, (104, None)),
    Row("hold", at_job(107), eyes.actions, [("hold", "job 107")]),
    Row("release", at_job(109), eyes.actions, [("release", "job 109")]),
    Row("cancel", at_job(101), eyes.actions, [("cancel", "job 101")], ("y",)),
    Row("requeue", at_job(104), eyes.actions, [("requeue", "job 104")]),
    Row("raise", at_job(107), eyes.priority, 60),
    Row("lower", at_job(107), eyes.priority, 40),
    Row("top", at_job(107), eyes.actions, [("top", "job 107")]),
    Row("suspend", at_job(101), eyes.actions, [("suspend", "job 101")]),
    Row("unsuspend", stages.suspended, eyes.actions, lambda was: [*was, ("unsuspend", "job 101")]),
    Row("signal", at_job(101), eyes.actions, [("signal", "job 101")], ("enter",)),
    Row("shell", at_job(101), eyes.asked_inside, [("shell", 101)]),
    Row("processes", at_job(101), eyes.screen, "ProcessesScreen"),
    Row("copy", at_job(101), eyes.clipboard, "llama-7b-sft", ("n",)),
    Row("pause_recurring", at_tab("recurring"), eyes.runs_paused, [True]),
    Row("resume_recurring", stages.no_runs, eyes.runs_paused, [False]),
    Row("remove", at_tab("recurring"), eyes.runs_paused, [], ("y",)),
    Row("remove", at_tab("reservations"), lambda hand: hand.console.store.controls().reservations, (), ("y",)),
    Row("submit", stages.queue, eyes.screen, "Submit"),
    Row("gpu", at_job(101), eyes.screen, "GpuDetailScreen"),
    Row("gpu", at_gpu(4), eyes.screen, "GpuDetailScreen", mouse=on_gpu(4, 2)),
    Row("drain", at_gpu(0), eyes.drained, {uuid(0), uuid(6)}, ("f", "enter")),
    Row("resume", at_gpu(6), eyes.drained, set()),
    Row("reserve", stages.queue, eyes.screen, "Reserve"),
    Row("reserve", at_tab("reservations"), eyes.screen, "Reserve"),
    Row("pause", stages.queue, eyes.is_paused, True, ("f", "enter")),
    Row("unpause", stages.paused, eyes.is_paused, False),
    Row("timeline", stages.queue, eyes.screen, "TimelineScreen"),
    Row("mark", at_job(107), eyes.marks, frozenset({107})),
    Row("mark_all", stages.queue, eyes.marks, frozenset({101, 104, 105, 106, 107, 108, 109, 110, 111})),
    Row("clear_marks", stages.marked, eyes.marks, frozenset()),
    Row("filter", stages.queue, eyes.focus, "filter"),
    Row("clear_filter", stages.filtered, eyes.filter_text, ""),
    Row("finished", stages.queue, eyes.shows_finished, lambda was: not was),
    Row("failures_seen", stages.queue, eyes.new_failures, 0),
    Row("sort", stages.queue, eyes.sorting, "id", mouse=on_title),
    Row("columns", stages.queue, eyes.screen, "ColumnChooser"),
    Row("fold", at_job(101), eyes.row_below_101, 108),
    Row("fold_all", stages.queue, eyes.row_below_101, 108),
    Row("tab_queue", at_tab("recurring"), eyes.tab, "queue", mouse=on_tab("queue")),
    Row("tab_finished", stages.queue, eyes.tab, "finished", mouse=on_tab("finished")),
    Row("tab_recurring", stages.queue, eyes.tab, "recurring", mouse=on_tab("recurring")),
    Row("tab_reservations", stages.queue, eyes.tab, "reservations", mouse=on_tab("reservations")),
    Row("move", at_job(106), eyes.last_action, ("move", "job 106")),
    Row("move_up", at_job(107), eyes.last_action, ("move", "job 107")),
    Row("edit", at_job(107), eyes.screen, "Submit"),
    Row("clone", at_job(107), eyes.screen, "Submit"),
    Row("recur", at_job(107), lambda hand: len(hand.console.store.recurring()), 2, (*"@daily", "enter")),
    Row("toggle_column", stages_screens.columns, eyes.columns, USUAL[:1] + USUAL[2:]),
    Row("column_down", stages_screens.columns, eyes.columns, (USUAL[0], USUAL[2], USUAL[1], *USUAL[3:])),
    Row("column_up", stages_screens.columns, eyes.columns, (USUAL[1], USUAL[0], *USUAL[2:])),
    Row("usual", stages_screens.fewer_columns, eyes.columns, USUAL),
    Row("take", stages_screens.fewer_columns, eyes.columns_kept, USUAL[:1] + USUAL[2:]),
    Row("zoom", stages.queue, eyes.is_zoomed, True),
    Row("grow", stages.queue, eyes.rows_of_queue, lambda was: was + 1, mouse=edge_by(1)),
    Row("shrink", stages.queue, eyes.rows_of_queue, lambda was: was - 1, mouse=edge_by(-1)),
    Row("hide", stages.queue, eyes.layout, lambda was: was.without("queue")),
    Row("all_panes", stages.log_hidden, eyes.layout, PaneLayout()),
    Row("log_place", stages.queue, lambda hand: hand.main.panes.layout.log, "beside"),
    Row("gpu_view", stages.queue, eyes.layout, lambda was: was.with_next_grid()),
    Row("graph_span", stages.queue, eyes.gpu_look, ("10m", "judgement")),
    Row("gpu_colours", stages.queue, eyes.gpu_look, ("live", "intensity")),
    Row("pane_next", stages.queue, eyes.focus, "log", mouse=on_pane("log")),
    Row("pane_before", stages.queue, eyes.focus, "gpus", mouse=on_pane("gpus")),
    Row("help", stages.queue, eyes.screen, "Help"),
    Row("alarm", stages.queue, eyes.screen, "GpuDetailScreen"),
    Row("notices", stages.queue, eyes.screen, "Notices"),
    Row("notices", stages.paused, eyes.screen, "Notices", mouse=on_notice),
    Row("palette", stages.queue, eyes.screen, "CommandFinder"),
    Row("quit", stages.queue, eyes.screen, "LeaveDialog"),
    Row("quit_anywhere", stages.queue, eyes.screen, "LeaveDialog", footer=False),
    Row("stay_awake", stages.queue, eyes.not_stopped, True, footer=False),
    Row("undo", stages.held, eyes.is_held, False),
    Row("themes", stages.queue, eyes.screen, "Themes"),
    Row("down", at_job(106), eyes.queue_row, lambda was: was + 1, mouse=on_row(107)),
    Row("up", at_job(107), eyes.queue_row, lambda was: was - 1, mouse=on_row(106)),
    Row("page_down", stages.long_queue, eyes.pages_down, 1),
    Row("page_up", stages.long_queue_last, eyes.pages_up, 1),
    Row("first", stages.long_queue_last, eyes.queue_row, 0),
    Row("last", stages.long_queue, eyes.queue_row, 100),
    Row("card_next", at_gpu(0), eyes.grid_row, 1, mouse=on_gpu(1)),
    Row("card_before", at_gpu(1), eyes.grid_row, 0, mouse=on_gpu(0)),
    Row("down", at_gpu(0), eyes.grid_row, lambda was: was + 4, mouse=on_gpu(4)),
)
