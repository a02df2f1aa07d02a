"""Commands of the panes, of dialogs, of the what-if panel and of the timeline. Escape leaves each dialog."""

from __future__ import annotations

from gputui.domain.verbs import MOVE as MOVE_JOB
from gputui.domain.verbs import RESERVE, ROW_FORM_VERBS
from gputui.tui.commands.command import DIALOG, GPUS, LOGS, MOVE, QUEUE, TIMELINE, VIEW, WHAT_IF, Command, command_of

QUEUE_COMMANDS = (
    Command(
        "mark",
        ("space",),
        "mark",
        "Mark the job: commands then act on all that are marked.",
        QUEUE,
        False,
        needs="the queue of live jobs, and the focus there",
    ),
    Command(
        "mark_all",
        ("asterisk",),
        "mark all",
        "Mark all shown jobs that have not ended, or none.",
        QUEUE,
        False,
        needs="the queue of live jobs, and the focus there",
    ),
    Command("clear_marks", ("escape",), "unmark", "Unmark all jobs.", QUEUE, needs="marked jobs"),
    Command(
        "filter",
        ("slash",),
        "filter",
        "Show only some jobs: words, or state:pd tenant:alice gpus>=4 name~bert -is:held.",
        QUEUE,
    ),
    Command("clear_filter", ("escape",), "show all", "Show all jobs again.", QUEUE, needs="a filter"),
    Command(
        "finished",
        ("a",),
        "ended",
        "Show the ended jobs, latest first, or fold them into one row.",
        QUEUE,
        in_footer=False,
    ),
    Command(
        "failures_seen",
        ("Y",),
        "failures seen",
        "Acknowledge all failures: they are no longer new. The filter is:failed lists them.",
        QUEUE,
        in_footer=False,
    ),
    Command(
        "sort",
        ("S",),
        "sort",
        "Sort by the next column; after the last one by the plan. Among nodes of a cluster: the idlest first.",
        QUEUE,
        False,
        needs="the queue of live jobs or nodes, and the focus there",
    ),
    Command(
        "columns",
        ("vertical_line",),
        "columns",
        "Choose and order the columns of the queue.",
        QUEUE,
        False,
        needs="the queue of live jobs, and the focus there",
    ),
    Command(
        "fold",
        ("o",),
        "unfold",
        "Open or close an array, the jobs that wait for the job, or a node of a cluster.",
        QUEUE,
        False,
        needs="the queue of live jobs or nodes, and the focus there",
    ),
    Command(
        "fold_all",
        ("O",),
        "unfold all",
        "Open or close all arrays, and all jobs that others wait for; or all nodes of a cluster.",
        QUEUE,
        False,
        needs="the queue of live jobs or nodes, and the focus there",
    ),
    Command(
        "tab('queue')",
        ("1",),
        "queue",
        "Show waiting and running jobs.",
        QUEUE,
        False,
        id="tab_queue",
    ),
    Command(
        "tab('finished')",
        ("2",),
        "finished",
        "Show finished jobs, including the history.",
        QUEUE,
        False,
        id="tab_finished",
    ),
    Command(
        "tab('recurring')",
        ("3",),
        "recurring",
        "Show recurring jobs.",
        QUEUE,
        False,
        id="tab_recurring",
    ),
    Command(
        "tab('reservations')",
        ("4",),
        "reservations",
        "Show reservations.",
        QUEUE,
        False,
        id="tab_reservations",
    ),
)
EDIT_COMMANDS = (
    command_of(MOVE_JOB),
    Command(
        "move(-1)",
        ("K",),
        "move up",
        "Move the waiting job before the one above it; it takes over that job's priority and rank.",
        QUEUE,
        False,
        id="move_up",
        changes=True,
        needs="a waiting job of the queue",
    ),
    *map(command_of, ROW_FORM_VERBS),
    command_of(RESERVE),
)
COLUMN_COMMANDS = (
    Command("toggle_column", ("space",), "show/hide", "Show or hide the column.", QUEUE, True, False),
    Command("shift(1)", ("J", "right"), "move", "Move the column on.", QUEUE, True, False, "J/K", id="column_down"),
    Command("shift(-1)", ("K", "left"), "up", "Move the column back.", QUEUE, False, False, id="column_up"),
    Command("usual", ("u",), "default columns", "Back to the default columns.", QUEUE, True, False),
    Command("take", ("enter",), "use these", "Use these columns, and remember them.", QUEUE, True, False),
)


PANE_COMMANDS = (
    Command(
        "zoom",
        ("z",),
        "zoom",
        "Give the whole screen to the focused pane, and back.",
        VIEW,
        in_footer=False,
    ),
    Command("grow(1)", ("right_square_bracket",), "grow", "Make the focused pane larger.", VIEW, False),
    Command("grow(-1)", ("left_square_bracket",), "shrink", "Make the focused pane smaller.", VIEW, False, id="shrink"),
    Command("hide", ("w",), "hide pane", "Hide the focused pane; remembered, as all of the layout is.", VIEW, False),
    Command("all_panes", ("W",), "all panes", "Show all panes in their default sizes.", VIEW, False),
    Command("log_place", ("backslash",), "log place", "Put the log beside the queue, or below it.", VIEW, False),
    Command(
        "grid",
        ("v",),
        "GPU view",
        "GPU layout: auto, cards, rows, compact.",
        GPUS,
        False,
        id="gpu_view",
    ),
    Command("pane(1)", ("tab",), "pane", "Go to the next pane: GPUs, queue, log.", MOVE, False, False, id="pane_next"),
    Command("pane(-1)", ("shift+tab",), "pane", "Go to the previous pane.", MOVE, False, False, id="pane_before"),
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
        "To the next GPU in a row of several.",
        MOVE,
        False,
        False,
        id="card_next",
    ),
    Command("beside(-1)", ("left",), "previous GPU", "To the previous GPU.", MOVE, False, False, id="card_before"),
)


LOG_COMMANDS = (
    Command(
        "toggle_pause",
        ("space",),
        "pause log",
        "Stop the log where it is, or follow its end again.",
        LOGS,
        id="pause_log",
    ),
    Command(
        "search",
        ("slash",),
        "search",
        "Search the log for a regular expression; case-sensitive if it has capitals.",
        LOGS,
        id="log_search",
    ),
    Command("found(1)", ("n",), "next", "To the next match.", LOGS, True, False, "n/N", "log_next"),
    Command("found(-1)", ("N",), "previous", "To the previous match.", LOGS, False, False, id="log_previous"),
    Command("narrow", ("ampersand",), "only", "Show only lines that match an expression.", LOGS, id="log_only"),
    Command(
        "context(1)",
        ("right_parenthesis",),
        "more around",
        "Show more lines around each match.",
        LOGS,
        False,
        False,
        id="log_more_around",
    ),
    Command(
        "context(-1)",
        ("left_parenthesis",),
        "fewer around",
        "Show fewer lines around each match.",
        LOGS,
        False,
        False,
        id="log_fewer_around",
    ),
    Command(
        "error(-1)",
        ("E",),
        "previous error",
        "To the previous error in the log.",
        LOGS,
        False,
        False,
        id="error_before",
    ),
    Command(
        "toggle_wrap",
        ("b",),
        "wrap",
        "Wrap long lines, or cut them at the right.",
        LOGS,
        False,
        id="log_wrap",
    ),
    Command(
        "toggle_stamps",
        ("D",),
        "times",
        "Show when each line was written, where that is known.",
        LOGS,
        False,
        id="log_times",
    ),
    Command(
        "pick",
        ("V",),
        "pick lines",
        "Select lines to copy: j and k extend the selection; the mouse selects too.",
        LOGS,
        False,
        id="pick_lines",
    ),
    Command(
        "copy_lines",
        ("y",),
        "copy lines",
        "Copy the selected lines, or the visible ones, to the terminal's clipboard.",
        LOGS,
        False,
    ),
    Command(
        "save_log",
        ("S",),
        "save log",
        "Save the whole log to a file; asks where.",
        LOGS,
        False,
    ),
    Command("clear_log", ("escape",), "show all", "End selection, search and filter.", LOGS, True, False),
    Command("sideways(1)", ("right", "l"), "right", "Scroll to the right.", LOGS, False, False, id="log_right"),
    Command("sideways(-1)", ("left",), "left", "Scroll to the left.", LOGS, False, False, id="log_left"),
)
LOG_JOB_COMMANDS = (
    Command(
        "error(1)",
        ("e",),
        "error",
        "To the first error in the job's log; there, to the next.",
        LOGS,
        needs="a job that was started",
    ),
    Command(
        "attempt(-1)",
        ("comma",),
        "previous attempt",
        "Show the log of the job's previous attempt.",
        LOGS,
        False,
        id="attempt_before",
        needs="an earlier attempt",
    ),
    Command(
        "attempt(1)",
        ("full_stop",),
        "next attempt",
        "Show the log of the job's next attempt.",
        LOGS,
        False,
        id="attempt_after",
        needs="a later attempt",
    ),
    Command(
        "attempts",
        ("A",),
        "attempts",
        "Show the logs of the job's last two attempts together.",
        LOGS,
        False,
        needs="a job that was started more than once",
    ),
    Command(
        "pin_log",
        ("p",),
        "pin log",
        "Pin the job's log: the pane keeps it while the cursor moves, and it is shown with the other pinned logs.",
        LOGS,
        False,
        needs="a job that was started",
    ),
    Command("logs", ("L",), "logs", "Show the pinned logs together, up to six.", LOGS, False),
)


def _command(action: str, keys: tuple[str, ...], title: str, help_: str, id_: str, shown: str = "") -> Command:
    return Command(action, keys, title, help_, DIALOG, False, False, shown, id=id_)


YES = _command("answer('yes')", ("y", "enter"), "yes", "Yes.", "yes", "y Enter")
NO = _command("answer('no')", ("n", "escape", "q"), "no", "No: change nothing.", "no", "n Esc")
LEAVE_COMMANDS = (
    _command(
        "choose('HAND_OVER')",
        ("b", "enter"),
        "hand over",
        "Quit, and let a scheduler continue in the background.",
        "hand_over",
        "b Enter",
    ),
    _command("choose('STOP')", ("s",), "stop", "Quit, and start no new jobs.", "stop"),
    _command("stay", ("escape", "n", "q"), "stay", "Stay in the console.", "stay"),
)
TAKE_LINE = _command("take_line", ("enter",), "take", "Take the line under the cursor.", "take_line")
SAVE_TEMPLATE = _command("save_template", ("s",), "save", "Save the form as a template.", "save_template")
COPY_COMMANDS = (
    _command("copy_part('id')", ("i", "y", "enter"), "id", "Copy the job's id.", "copy_id"),
    _command("copy_part('name')", ("n",), "name", "Copy its name.", "copy_name"),
    _command("copy_part('command')", ("c",), "command", "Copy its command.", "copy_command"),
    _command("copy_part('image')", ("m",), "image", "Copy its image.", "copy_image"),
    _command("copy_part('container')", ("k",), "container", "Copy the id of its container.", "copy_container"),
    _command("copy_part('GPUs')", ("g",), "GPUs", "Copy the UUIDs of its GPUs.", "copy_gpus"),
)
SEARCH_HELP = _command("search_help", ("slash",), "search", "Search help for a key, or for words.", "search_help")
CLOSE = _command("close", ("enter",), "close", "Close the page.", "close")
DIALOG_COMMANDS = (YES, NO, *LEAVE_COMMANDS, TAKE_LINE, SAVE_TEMPLATE, *COPY_COMMANDS, SEARCH_HELP, CLOSE)


WHAT_IF_COMMANDS = (
    Command("commit", ("enter",), "commit", "Make the change that is shown.", WHAT_IF, True, False),
    Command("forget", ("escape",), "cancel", "Change nothing.", WHAT_IF, True, False),
)
FURTHER = (
    Command(
        "further('raise')",
        ("plus", "equals_sign"),
        "more",
        "Raise the priority by another 10.",
        WHAT_IF,
        True,
        False,
        id="more",
    ),
    Command("further('lower')", ("minus",), "less", "Lower the priority by 10.", WHAT_IF, True, False, id="less"),
    Command(
        "further('top')",
        ("t",),
        "top",
        "Move it to the head of the queue instead.",
        WHAT_IF,
        True,
        False,
        id="top_instead",
    ),
    Command("drag(1)", ("J",), "move", "Move it one more place down.", WHAT_IF, True, False, "J/K", id="drag_down"),
    Command("drag(-1)", ("K",), "further up", "Move it one more place up.", WHAT_IF, False, False, id="drag_up"),
)
TIMELINE_COMMANDS = (
    Command(
        "zoom_time(1)", ("i",), "zoom", "Zoom in: less time on the screen.", TIMELINE, True, True, "i/o", id="zoom_in"
    ),
    Command("zoom_time(-1)", ("o",), "zoom out", "Zoom out: more time on the screen.", TIMELINE, False, id="zoom_out"),
    Command(
        "look(1)",
        ("greater_than_sign", "shift+right"),
        "later",
        "Look further ahead.",
        TIMELINE,
        True,
        True,
        "</>",
        id="later",
    ),
    Command("look(-1)", ("less_than_sign", "shift+left"), "earlier", "Look back.", TIMELINE, False, id="earlier"),
    Command("present", ("0",), "now", "Back to the present, with the whole plan in sight.", TIMELINE, id="now"),
    Command(
        "bar(1)", ("right", "l"), "next bar", "To the next job on this GPU.", TIMELINE, False, False, id="bar_next"
    ),
    Command(
        "bar(-1)",
        ("left",),
        "previous bar",
        "To the previous job on this GPU.",
        TIMELINE,
        False,
        False,
        id="bar_before",
    ),
)
