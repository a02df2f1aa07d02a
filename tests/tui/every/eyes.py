"""Observations of the effects of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.containers import VerticalScroll
from textual.widgets import Input

from gputui.domain.job_spec import JobId
from gputui.tui.screens.dialogs import ColumnChooser
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.logs import LogsScreen
from gputui.tui.screens.pages import GpuDetailScreen
from gputui.tui.screens.panes import PaneLayout, pane_of
from gputui.tui.screens.process_view import GpuProcessesScreen
from gputui.tui.screens.timeline import TimelineScreen, TimelineTable
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.log_view import LogView
from gputui.tui.widgets.queue_folding import EndedRows
from tests.tui.every.hand import Hand
from tests.tui.every.world import Inside


def screen(hand: Hand) -> str:
    """Return the kind of the topmost screen."""
    return type(hand.app.screen).__name__


def not_stopped(hand: Hand) -> bool:
    """Return whether it was said that the console does not stop."""
    return any(words.startswith("Not stopped") for words in hand.console.told)


def screens(hand: Hand) -> tuple[str, ...]:
    """Return all screens, the topmost last."""
    return tuple(type(each).__name__ for each in hand.app.screen_stack)


def actions(hand: Hand) -> list[tuple[str, str]]:
    """Return the actions on jobs since the console was tidied."""
    return [(verb, target) for verb, target in hand.console.audited()[hand.checked :] if target.startswith("job")]


def last_action(hand: Hand) -> tuple[str, str] | None:
    """Return the last action."""
    return actions(hand)[-1] if actions(hand) else None


def priority(hand: Hand) -> int:
    """Return the priority of job 107."""
    return hand.console.store.get(107).priority


def is_held(hand: Hand) -> bool:
    """Return whether job 107 is held."""
    return hand.console.store.get(107).held


def followed(hand: Hand) -> tuple[JobId, int | None]:
    """Return job and attempt of the last opened log."""
    job_id, attempt, _, _ = hand.console.logs.opened[-1]
    return job_id, attempt


def asked_inside(hand: Hand) -> list[tuple[str, int]]:
    """Return the requests for shells and processes of jobs."""
    inside = hand.console.inside
    assert isinstance(inside, Inside)
    return [asked for asked in inside.asked if asked[0] == "shell"]


def signals(hand: Hand) -> list[tuple[int, int]]:
    """Return the signals sent to foreign processes."""
    assert hand.console.host is not None
    return list(hand.console.host.sent)


def stops(hand: Hand) -> int:
    """Return the number of stopped foreign containers."""
    assert hand.console.containers is not None
    return len(hand.console.containers.stopped)


def is_tree(hand: Hand) -> bool:
    """Return whether processes are shown as a tree."""
    return hand.top(GpuProcessesScreen).is_tree


def process_order(hand: Hand) -> str:
    """Return the column by which processes are sorted."""
    return hand.top(GpuProcessesScreen).order.column


def clipboard(hand: Hand) -> str:
    return hand.app.clipboard


def runs_paused(hand: Hand) -> list[bool]:
    """Return the runs paused, by recurring job."""
    return [entry.paused for entry in hand.console.store.recurring().values()]


def drained(hand: Hand) -> set[str]:
    return set(hand.console.store.controls().drains)


def is_paused(hand: Hand) -> bool:
    return hand.console.store.controls().paused


def jobs_stored(hand: Hand) -> int:
    return len(hand.console.store.jobs())


def marks(hand: Hand) -> frozenset[int]:
    return frozenset(hand.queue.live.marks)


def focus(hand: Hand) -> str | None:
    """Return the id of the focused widget."""
    focused = hand.app.focused
    return pane_of(focused) or (focused.id if focused else None)


def filter_text(hand: Hand) -> str:
    return hand.queue.rows.filter


def shows_finished(hand: Hand) -> bool:
    return hand.queue.rows.ended is EndedRows.OPEN


def new_failures(hand: Hand) -> int:
    return hand.queue.rows.ended_counts.new


def sorting(hand: Hand) -> str:
    return hand.queue.rows.sorting.column


def row_below_101(hand: Hand) -> object:
    """Return the row below job 101."""
    keys = list(hand.queue.keys)
    return keys[keys.index(101) + 1]


def tab(hand: Hand) -> str:
    return hand.queue.sheet.name


def columns(hand: Hand) -> tuple[str, ...]:
    return hand.top(ColumnChooser).table.chosen.keys


def columns_kept(hand: Hand) -> tuple[str, ...]:
    """Return the columns of the queue."""
    return hand.queue.live.chosen.keys if screen(hand) == "Main" else ()


def is_zoomed(hand: Hand) -> bool:
    return hand.main.panes.is_zoomed


def layout(hand: Hand) -> PaneLayout:
    return hand.main.panes.layout


def rows_of_queue(hand: Hand) -> int:
    return hand.queue.region.height


def row_of_cursor(table: LineTable[Any]) -> int:
    """Return the number of the row that is selected."""
    return list(table.keys).index(table.cursor)


def queue_row(hand: Hand) -> int:
    return row_of_cursor(hand.queue)


def pages_down(hand: Hand) -> int:
    """Return the pages between the first row of the queue and its cursor."""
    return queue_row(hand) // (hand.queue.page - 1)


def pages_up(hand: Hand) -> int:
    """Return the pages between the cursor of the queue and its last row."""
    return (len(hand.queue.keys) - 1 - queue_row(hand)) // (hand.queue.page - 1)


def gpu_look(hand: Hand) -> tuple[str, str]:
    """Return the time span and the colours of graphs."""
    look = hand.app.services.gpus.look
    return look.span, look.colours


def grid_row(hand: Hand) -> int:
    return list(hand.grid.keys).index(str(hand.grid.cursor))


def gpu_shown(hand: Hand) -> int | None:
    """Return the index of the GPU whose page is shown."""
    view = hand.top(GpuDetailScreen).gpu()
    return view.gpu.index if view else None


def job_meant(hand: Hand) -> int | None:
    job = hand.top(GpuDetailScreen).subject()
    return job.id if job else None


def thought_of(hand: Hand) -> tuple[str, int]:
    """Return the verb and amount of the proposal."""
    proposal = hand.top(WhatIf).proposal
    return getattr(proposal, "verb", ""), getattr(proposal, "delta", 0)


def proposes(hand: Hand) -> bool:
    """Return whether the proposal has changed, or a reason against it is shown."""
    return thought_of(hand) != ("raise", 10) or "already" in hand.console.screen_text


def time_table(hand: Hand) -> TimelineTable:
    return hand.top(TimelineScreen).query_one(TimelineTable)


def step_of_time(hand: Hand) -> float:
    """Return the seconds per cell of the timeline."""
    return time_table(hand).scale.step.total_seconds()


def start_of_time(hand: Hand) -> float:
    return time_table(hand).scale.start.timestamp()


def bar_number(hand: Hand) -> int | None:
    """Return the number of the selected bar in its row."""
    table = time_table(hand)
    return list(table.bars).index(table.bar) if table.bar else None


def image(hand: Hand) -> str:
    """Return the image in the form."""
    return hand.top(Submit).draft()["image"]


def image_below(hand: Hand) -> str:
    """Return the image in the form, whether or not a list covers the form."""
    return next(screen for screen in hand.app.screen_stack if isinstance(screen, Submit)).draft()["image"]


def said(hand: Hand) -> bool:
    """Return whether the form explains why there is no editor."""
    return "no editor can be opened" in hand.top(Submit).below.said


def is_open(hand: Hand) -> bool:
    """Return whether the less common fields are shown."""
    return hand.top(Submit).body.is_open


def follows(hand: Hand) -> bool:
    return hand.log.follows


def log_top(hand: Hand) -> int:
    return hand.log.reading.window.top


def log_at(hand: Hand) -> int | None:
    """Return the current line of the log."""
    return hand.log.reading.search.at


def context(hand: Hand) -> int:
    return hand.log.reading.lines.context


def wraps(hand: Hand) -> bool:
    return hand.log.reading.painter.wraps


def stamps(hand: Hand) -> bool:
    return hand.log.reading.painter.shows_stamps


def picked(hand: Hand) -> bool:
    return hand.log.reading.selection.is_on


def searched(hand: Hand) -> str:
    pattern = hand.log.reading.search.pattern
    return pattern.text if pattern else ""


def aside(hand: Hand) -> int:
    return hand.log.reading.painter.left


def pinned(hand: Hand) -> list[str]:
    """Return the notifications about pinned logs."""
    return [words for words in hand.console.told if "pinned" in words]


def panes(hand: Hand) -> int:
    """Pinned logs."""
    return len(hand.top(LogsScreen).query(LogView))


def attempt_beside(hand: Hand) -> int | None:
    """Return the attempt in the focused one of several logs."""
    focused = hand.top(LogsScreen).focused
    assert isinstance(focused, LogView)
    assert focused.follower is not None
    return focused.follower.attempt


def scrolled(hand: Hand) -> float:
    """Return the scroll position of the screen of a job."""
    return hand.app.screen.query_one(VerticalScroll).scroll_y


def narrowed(hand: Hand) -> str:
    pattern = hand.log.reading.search.narrowed
    return pattern.text if pattern else ""


def is_given_up(hand: Hand) -> bool:
    """Return whether the shown task is being aborted."""
    work = hand.app.works.shown
    return work is not None and work.is_given_up


def saved(hand: Hand) -> bool:
    return Path("saved.log").exists()


def looks_later(hand: Hand) -> bool:
    """Return whether the timeline begins after the present."""
    return start_of_time(hand) > hand.console.clock.now().timestamp()


def looks_earlier(hand: Hand) -> bool:
    """Return whether the timeline shows mostly the past."""
    scale = time_table(hand).scale
    return scale.cell(hand.console.clock.now()) > scale.cells // 2


def left(hand: Hand) -> object:
    """Return the way in which the console was left."""
    return hand.app.return_value


def types(hand: Hand) -> bool:
    """Return whether an input has the focus."""
    return isinstance(hand.app.focused, Input)


def is_below(hand: Hand) -> bool:
    """Return whether a dialog was scrolled."""
    return scrolled(hand) > 0


def is_at_the_end(hand: Hand) -> bool:
    """Return whether the last line is visible, and not all lines are."""
    body = hand.app.screen.query_one(VerticalScroll)
    return 0 < body.max_scroll_y == body.scroll_y
