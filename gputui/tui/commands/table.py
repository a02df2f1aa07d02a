"""Table of the console's commands, from which keys, footer, help, palette and docs/keys.md are derived.

Two in one place share a key only by declaration; Escape leaves each dialog.
"""

from __future__ import annotations

from gputui.domain import verbs
from gputui.domain.cluster import Capability
from gputui.tui.commands.command import (
    DIALOG,
    FORM,
    GPUS,
    JOBS,
    LOGS,
    MOVE,
    QUEUE,
    TIMELINE,
    VIEW,
    WHAT_IF,
    Command,
    command_of,
)
from gputui.tui.commands.command import PROCESS_GROUP as GROUP

PROCESS_VIEW = Command(
    "gpu_processes",
    ("U",),
    "GPU users",
    "Show all processes on the GPUs, of jobs and foreign ones: sort, filter, end them, stop containers.",
    GPUS,
    False,
)
_PROCESS, _CONTAINER = "a process in the process view", "a foreign container in the process view"
STOP_CONTAINER = Command(
    "stop_container",
    ("X",),
    "stop container",
    "Stop the foreign container, as `docker stop` does; asks first. A job's is cancelled instead.",
    GROUP,
    changes=True,
    needs=_CONTAINER,
)
PROCESS_COMMANDS = (
    Command(
        "open", ("enter",), "open", "Show the job, the container with its log, or the process.", GROUP, True, False
    ),
    Command(
        "environment",
        ("e",),
        "environment",
        "Show the process with its whole command line and its environment.",
        GROUP,
        False,
        needs=_PROCESS,
    ),
    Command(
        "end_process('TERM')",
        ("T",),
        "send TERM",
        "Ask the process to end; asks first, and says whether it ended.",
        GROUP,
        id="end_term",
        changes=True,
        needs=_PROCESS,
    ),
    Command(
        "end_process('INT')",
        ("I",),
        "send INT",
        "Interrupt the process, as Ctrl-C does; asks first.",
        GROUP,
        False,
        id="end_int",
        changes=True,
        needs=_PROCESS,
    ),
    Command(
        "end_process('KILL')",
        ("K",),
        "send KILL",
        "End the process immediately, without a chance to save; asks first.",
        GROUP,
        id="end_kill",
        changes=True,
        needs=_PROCESS,
    ),
    STOP_CONTAINER,
    Command("tree", ("t",), "tree", "Children below their parents, or a flat list.", GROUP, needs=_PROCESS),
    Command(
        "sort_processes",
        ("S",),
        "sort",
        "Sort by the next column; a click on a title sorts by that, another one in reverse.",
        GROUP,
        False,
        needs=_PROCESS,
    ),
)


SHELL = Command(
    "shell",
    ("x",),
    "shell",
    "Open a shell in the job's container, or on the host with the job's GPUs; exit brings the console back.",
    JOBS,
    in_footer=False,
    changes=True,
    needs="a running job",
    capability=Capability.INSIDE,
)
PROCESSES = Command(
    "processes",
    ("X",),
    "processes",
    "Show the processes of the running job: CPU, memory, GPU memory.",
    JOBS,
    False,
    needs="a running job",
    capability=Capability.INSIDE,
)
COPY = Command(
    "copy",
    ("y",),
    "copy",
    "Copy the job's id, name, command or container; a second key chooses which.",
    JOBS,
    False,
    needs="a job",
)
JOB_COMMANDS = (
    Command("detail", ("enter",), "detail", "Show everything about the job.", JOBS, needs="a job, or a GPU"),
    Command("follow", ("f",), "log", "Go to the job's log; in the log, back to the queue.", JOBS, needs="a job"),
    *map(command_of, verbs.JOB_VERBS),
    *map(command_of, verbs.RUNNING_VERBS),
    SHELL,
    PROCESSES,
    COPY,
)
GPU_COMMANDS = tuple(map(command_of, verbs.GPU_VERBS))
STANDING_COMMANDS = tuple(map(command_of, verbs.RECURRING_VERBS))
"""Commands of the tab of recurring jobs; they share keys with verbs about jobs, so both are declared here."""
SUBMIT = command_of(verbs.SUBMIT)
BACK = Command("back", ("escape", "q"), "back", "Back to the previous screen.", VIEW, in_palette=False)
GPU = Command(
    "gpu",
    ("i",),
    "GPU",
    "Show everything about the GPU, or about the first one of the job.",
    GPUS,
    False,
    needs="a GPU, or a job that holds one",
)
GPU_PAGE_COMMANDS = (
    *GPU_COMMANDS,
    Command("other_gpu(1)", ("right", "l"), "next GPU", "To the next GPU.", GPUS, True, False, "←→", id="gpu_next"),
    Command("other_gpu(-1)", ("left",), "previous GPU", "To the previous GPU.", GPUS, False, False, id="gpu_before"),
    Command("next_job", ("tab",), "next job", "Select the next of the jobs that share the GPU.", GPUS, True, False),
)


MORE_FIELDS = Command(
    "more", ("ctrl+n",), "more", "Show or hide the less common fields.", FORM, footer_key="^N", id="more_fields"
)
GIVE_UP = Command(
    "give_up",
    ("escape",),
    "leave",
    "Leave the form or the input line; the form asks if anything would be lost.",
    FORM,
    in_palette=False,
)
SEND = Command("send", ("ctrl+s",), "submit", "Submit the job of the form.", FORM, True, False, "Enter", changes=True)
SUBMIT_COMMANDS = (
    SEND,
    Command("recent", ("ctrl+r",), "recent", "Fill the form from an earlier submission.", FORM, footer_key="^R"),
    Command("older(1)", ("ctrl+up",), "older", "Fill in the previous submission.", FORM, False, False),
    Command(
        "older(-1)",
        ("ctrl+down",),
        "newer",
        "Forward to the next submission, and at last to your own input.",
        FORM,
        False,
        False,
    ),
    Command("templates", ("ctrl+l",), "templates", "Fill it from a template, or save one.", FORM, footer_key="^L"),
    Command("editor", ("ctrl+o",), "editor", "Open the job in your $EDITOR, as a job file.", FORM, footer_key="^O"),
    MORE_FIELDS,
    GIVE_UP,
)


TIMELINE_SCREEN = Command(
    "timeline",
    ("T",),
    "timeline",
    "Show the timeline of the GPUs: running and planned jobs.",
    VIEW,
    capability=Capability.WHAT_IF,
)
MAIN_COMMANDS = (
    *JOB_COMMANDS,
    *STANDING_COMMANDS,
    SUBMIT,
    GPU,
    *GPU_COMMANDS,
    *map(command_of, verbs.SCHEDULER_VERBS),
    TIMELINE_SCREEN,
)
WORK_COMMANDS = (
    Command(
        "give_up_work",
        ("escape",),
        "give up",
        "Cancel a long change while its bar is shown at the top; nothing is changed then.",
        VIEW,
        in_footer=False,
        in_palette=False,
    ),
)
ANYWHERE_COMMANDS = (
    Command(
        "leave",
        ("ctrl+q", "ctrl+c"),
        "quit anywhere",
        "Quit, also from forms and dialogs; asks if typed input would be lost, and as `q` does.",
        VIEW,
        in_footer=False,
        in_palette=False,
        id="quit_anywhere",
    ),
    Command(
        "stay_awake",
        ("ctrl+z",),
        "no stop",
        "Nothing but a sentence: a stopped console would schedule nothing, and others might wait for it.",
        VIEW,
        in_footer=False,
        in_palette=False,
    ),
)
UNDO = Command(
    "undo",
    ("u",),
    "undo",
    "Undo this console's last change, if nothing has changed since: priority, top, hold, drain, pause.",
    JOBS,
    in_footer=False,
    changes=True,
)
PALETTE = Command(
    "command_palette", ("colon", "ctrl+p"), "palette", "Find a command by its name.", VIEW, False, False, id="palette"
)
HELP = Command("help", ("question_mark",), "help", "Show all keys.", VIEW)
NOTICES = Command(
    "notices",
    ("exclamation_mark",),
    "notices",
    "Show all errors and warnings in full, and the events since the console was opened.",
    VIEW,
    in_footer=False,
)
APP_COMMANDS = (
    HELP,
    NOTICES,
    Command(
        "alarm",
        ("F",),
        "next alarm",
        "Go to the job, process or GPU of the worst alarm; there, to that of the next one.",
        VIEW,
        in_footer=False,
    ),
    PALETTE,
    Command("leave", ("q",), "quit", "Quit; asks about the scheduler if it runs here.", VIEW, id="quit"),
    UNDO,
    PROCESS_VIEW,
    Command(
        "graph_span",
        ("M",),
        "graph span",
        "How far back graphs of GPUs go: 2 seconds a cell, 10 minutes, 1 hour.",
        GPUS,
        in_footer=False,
    ),
    Command(
        "gpu_colours",
        ("H",),
        "GPU colours",
        "Colour GPUs by judgement (busy green, idle amber) or by intensity (the more load the redder).",
        GPUS,
        in_footer=False,
    ),
    Command("themes", ("ctrl+t",), "theme", "Choose the theme, with a preview; remembered.", VIEW, in_footer=False),
)


_LIVE, _ROWS = "the queue of live jobs, and the focus there", "the queue of live jobs or nodes, and the focus there"
QUEUE_COMMANDS = (
    Command(
        "mark", ("space",), "mark", "Mark the job: commands then act on all that are marked.", QUEUE, False, needs=_LIVE
    ),
    Command(
        "mark_all",
        ("asterisk",),
        "mark all",
        "Mark all shown jobs that have not ended, or none.",
        QUEUE,
        False,
        needs=_LIVE,
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
        needs=_ROWS,
    ),
    Command(
        "columns",
        ("vertical_line",),
        "columns",
        "Choose and order the columns of the queue.",
        QUEUE,
        False,
        needs=_LIVE,
    ),
    Command(
        "fold",
        ("o",),
        "unfold",
        "Open or close an array, the jobs that wait for the job, or a node of a cluster.",
        QUEUE,
        False,
        needs=_ROWS,
    ),
    Command(
        "fold_all",
        ("O",),
        "unfold all",
        "Open or close all arrays, and all jobs that others wait for; or all nodes of a cluster.",
        QUEUE,
        False,
        needs=_ROWS,
    ),
    Command("tab('queue')", ("1",), "queue", "Show waiting and running jobs.", QUEUE, False, id="tab_queue"),
    Command(
        "tab('finished')",
        ("2",),
        "finished",
        "Show finished jobs, including the history.",
        QUEUE,
        False,
        id="tab_finished",
    ),
    Command("tab('recurring')", ("3",), "recurring", "Show recurring jobs.", QUEUE, False, id="tab_recurring"),
    Command("tab('reservations')", ("4",), "reservations", "Show reservations.", QUEUE, False, id="tab_reservations"),
)
EDIT_COMMANDS = (
    command_of(verbs.MOVE),
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
    *map(command_of, verbs.ROW_FORM_VERBS),
    command_of(verbs.RESERVE),
)
COLUMN_COMMANDS = (
    Command("toggle_column", ("space",), "show/hide", "Show or hide the column.", QUEUE, True, False),
    Command("shift(1)", ("J", "right"), "move", "Move the column on.", QUEUE, True, False, "J/K", id="column_down"),
    Command("shift(-1)", ("K", "left"), "up", "Move the column back.", QUEUE, False, False, id="column_up"),
    Command("usual", ("u",), "default columns", "Back to the default columns.", QUEUE, True, False),
    Command("take", ("enter",), "use these", "Use these columns, and remember them.", QUEUE, True, False),
)


PANE_COMMANDS = (
    Command("zoom", ("z",), "zoom", "Give the whole screen to the focused pane, and back.", VIEW, in_footer=False),
    Command("grow(1)", ("right_square_bracket",), "grow", "Make the focused pane larger.", VIEW, False),
    Command("grow(-1)", ("left_square_bracket",), "shrink", "Make the focused pane smaller.", VIEW, False, id="shrink"),
    Command("hide", ("w",), "hide pane", "Hide the focused pane; remembered, as all of the layout is.", VIEW, False),
    Command("all_panes", ("W",), "all panes", "Show all panes in their default sizes.", VIEW, False),
    Command("log_place", ("backslash",), "log place", "Put the log beside the queue, or below it.", VIEW, False),
    Command("grid", ("v",), "GPU view", "GPU layout: auto, cards, rows, compact.", GPUS, False, id="gpu_view"),
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
    Command("toggle_wrap", ("b",), "wrap", "Wrap long lines, or cut them at the right.", LOGS, False, id="log_wrap"),
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
    Command("save_log", ("S",), "save log", "Save the whole log to a file; asks where.", LOGS, False),
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


COMMANDS = (
    *MAIN_COMMANDS,
    *QUEUE_COMMANDS,
    *EDIT_COMMANDS,
    *COLUMN_COMMANDS,
    *PANE_COMMANDS,
    *APP_COMMANDS,
    *WORK_COMMANDS,
    *ANYWHERE_COMMANDS,
    BACK,
    *GPU_PAGE_COMMANDS[len(GPU_COMMANDS) :],
    *WHAT_IF_COMMANDS,
    *FURTHER,
    *TIMELINE_COMMANDS,
    *PROCESS_COMMANDS,
    *SUBMIT_COMMANDS,
    *MOVE_COMMANDS,
    *GRID_COMMANDS,
    *LOG_COMMANDS,
    *LOG_JOB_COMMANDS,
    *DIALOG_COMMANDS,
)
BY_NAME = {command.name: command for command in COMMANDS}
"""Commands by their names in the settings file."""
