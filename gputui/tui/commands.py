"""The console's commands: declarations, the table that keys, footer, help and palette follow, and their places."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from gputui.domain import verbs
from gputui.domain.cluster import Capability
from gputui.domain.verbs import GPUS, JOBS, QUEUE, BaseVerb, words_of
from gputui.tui.keys import key_name

VIEW, MOVE, LOGS = "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM, DIALOG = "What-if", "Timeline", "Submit form", "Dialogs"
PROCESS_GROUP = "Process view"


class Command(Struct, frozen=True, eq=False):
    """A command of the console. Each is declared once and compared by identity, which is fast."""

    action: str
    """The action as Textual runs it: `verb('hold')`."""
    keys: tuple[str, ...]
    title: str
    """Short title for the footer, one or two words."""
    help: str
    """A sentence for help, the palette and docs/keys.md."""
    group: str
    in_footer: bool = True
    in_palette: bool = True
    footer_key: str = ""
    """Keys as shown in the footer, in place of the first one."""
    id: str = ""
    """Name, if the action does not make a good one."""
    changes: bool = False
    """True if the command changes more than the screen: a read-only console does not offer it."""
    needs: str = ""
    """Required subject, if it cannot always be used: `a running job`."""
    capability: Capability | None = None
    """Capability that a cluster needs for it; None: none."""

    @property
    def action_name(self) -> str:
        """Name of the action: `verb` of `verb('hold')`."""
        return self.action.partition("(")[0]

    @property
    def argument(self) -> str:
        """Argument of the action: `hold` of `verb('hold')`, `1` of `grow(1)`; empty without one."""
        return self.action.partition("(")[2].strip("')")

    @property
    def name(self) -> str:
        """Name in the settings file; it does not change between releases."""
        rest = "" if self.argument in {"", "1"} else f"_{self.argument.replace('-1', 'back')}"
        return self.id or (self.argument if self.action_name == "verb" else self.action_name + rest)

    @property
    def synonyms(self) -> tuple[str, ...]:
        return words_of(self.name)

    @property
    def key_names(self) -> str:
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key shown in the footer; empty without one."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")

    def is_known_to(self, place: DOMNode) -> bool:
        return hasattr(doer_of(place, self.action_name), f"action_{self.action_name}")

    def works_at(self, place: DOMNode) -> bool:
        return bool(place.check_action(self.action_name, (self.argument,)))


def command_of(verb: BaseVerb[Any]) -> Command:
    return Command(
        verb.action,
        verb.keys,
        verb.label,
        verb.help,
        verb.group,
        in_footer=verb.in_footer,
        footer_key=verb.footer_key,
        changes=True,
        needs=verb.needs,
        capability=verb.capability,
    )


def bindings(commands: tuple[Command, ...], *, before_others: bool = False) -> list[BindingType]:
    """Return Textual's bindings for commands; with `before_others` they take precedence over the focused widget's."""
    return [
        Binding(
            ",".join(command.keys),
            command.action,
            command.title,
            command.in_footer,
            priority=before_others,
            id=command.name,
        )
        for command in commands
        if command.keys
    ]


def bound_to(action: str, *commands: Command) -> list[BindingType]:
    return [Binding(",".join(command.keys), action, command.title, id=command.name) for command in commands]


def doer_of(place: object, action: str) -> object:
    """Return what carries out an action of a widget, screen or app: that itself, or one of its `parts`."""
    doers = (place, *getattr(place, "parts", ()))
    return next((doer for doer in doers if hasattr(doer, f"action_{action}")), place)


def place_of(command: Command, screen: Screen[Any]) -> DOMNode | None:
    """Return the node that carries out a command: the first of focused pane, screen and app that has it."""
    places = (place for place in (screen.focused, screen, screen.app) if place is not None)
    return next((place for place in places if command.is_known_to(place)), None)


_quiet = partial(Command, in_footer=False)
_shown = partial(Command, in_palette=False)
_unlisted = partial(Command, in_footer=False, in_palette=False)
"""A command that the footer does not list, the palette, or neither."""
PROCESS_VIEW = _quiet(
    "gpu_processes",
    ("U",),
    "GPU users",
    "Show all processes on the GPUs, of jobs and foreign ones: sort, filter, end them, stop containers.",
    GPUS,
)
_PROCESS, _CONTAINER = "a process in the process view", "a foreign container in the process view"
STOP_CONTAINER = Command(
    "stop_container",
    ("X",),
    "stop container",
    "Stop the foreign container, as `docker stop` does; asks first. A job's is cancelled instead.",
    PROCESS_GROUP,
    changes=True,
    needs=_CONTAINER,
)
PROCESS_COMMANDS = (
    _shown("open", ("enter",), "open", "Show the job, the container with its log, or the process.", PROCESS_GROUP),
    _quiet(
        "environment",
        ("e",),
        "environment",
        "Show the process with its whole command line and its environment.",
        PROCESS_GROUP,
        needs=_PROCESS,
    ),
    Command(
        "end_process('TERM')",
        ("T",),
        "send TERM",
        "Ask the process to end; asks first, and says whether it ended.",
        PROCESS_GROUP,
        id="end_term",
        changes=True,
        needs=_PROCESS,
    ),
    _quiet(
        "end_process('INT')",
        ("I",),
        "send INT",
        "Interrupt the process, as Ctrl-C does; asks first.",
        PROCESS_GROUP,
        id="end_int",
        changes=True,
        needs=_PROCESS,
    ),
    Command(
        "end_process('KILL')",
        ("K",),
        "send KILL",
        "End the process immediately, without a chance to save; asks first.",
        PROCESS_GROUP,
        id="end_kill",
        changes=True,
        needs=_PROCESS,
    ),
    STOP_CONTAINER,
    Command("tree", ("t",), "tree", "Children below their parents, or a flat list.", PROCESS_GROUP, needs=_PROCESS),
    _quiet(
        "sort_processes",
        ("S",),
        "sort",
        "Sort by the next column; a click on a title sorts by that, another one in reverse.",
        PROCESS_GROUP,
        needs=_PROCESS,
    ),
)
SHELL = _quiet(
    "shell",
    ("x",),
    "shell",
    "Open a shell in the job's container, or on the host with the job's GPUs; exit brings the console back.",
    JOBS,
    changes=True,
    needs="a running job",
    capability=Capability.INSIDE,
)
PROCESSES = _quiet(
    "processes",
    ("X",),
    "processes",
    "Show the processes of the running job: CPU, memory, GPU memory.",
    JOBS,
    needs="a running job",
    capability=Capability.INSIDE,
)
COPY = _quiet(
    "copy",
    ("y",),
    "copy",
    "Copy the job's id, name, command or container; a second key chooses which.",
    JOBS,
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
BACK = _shown("back", ("escape", "q"), "back", "Back to the previous screen.", VIEW)
GPU = _quiet(
    "gpu",
    ("i",),
    "GPU",
    "Show everything about the GPU, or about the first one of the job.",
    GPUS,
    needs="a GPU, or a job that holds one",
)
GPU_PAGE_COMMANDS = (
    *GPU_COMMANDS,
    _shown("other_gpu(1)", ("right", "l"), "next GPU", "To the next GPU.", GPUS, footer_key="←→", id="gpu_next"),
    _unlisted("other_gpu(-1)", ("left",), "previous GPU", "To the previous GPU.", GPUS, id="gpu_before"),
    _shown("next_job", ("tab",), "next job", "Select the next of the jobs that share the GPU.", GPUS),
)
MORE_FIELDS = Command(
    "more", ("ctrl+n",), "more", "Show or hide the less common fields.", FORM, footer_key="^N", id="more_fields"
)
GIVE_UP = _shown(
    "give_up", ("escape",), "leave", "Leave the form or the input line; the form asks if anything would be lost.", FORM
)
SEND = _shown("send", ("ctrl+s",), "submit", "Submit the job of the form.", FORM, footer_key="Enter", changes=True)
SUBMIT_COMMANDS = (
    SEND,
    Command("recent", ("ctrl+r",), "recent", "Fill the form from an earlier submission.", FORM, footer_key="^R"),
    _unlisted("older(1)", ("ctrl+up",), "older", "Fill in the previous submission.", FORM),
    _unlisted(
        "older(-1)", ("ctrl+down",), "newer", "Forward to the next submission, and at last to your own input.", FORM
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
    _unlisted(
        "give_up_work",
        ("escape",),
        "give up",
        "Cancel a long change while its bar is shown at the top; nothing is changed then.",
        VIEW,
    ),
)
ANYWHERE_COMMANDS = (
    _unlisted(
        "leave",
        ("ctrl+q", "ctrl+c"),
        "quit anywhere",
        "Quit, also from forms and dialogs; asks if typed input would be lost, and as `q` does.",
        VIEW,
        id="quit_anywhere",
    ),
    _unlisted(
        "stay_awake",
        ("ctrl+z",),
        "no stop",
        "Nothing but a sentence: jobs and others might wait for a stopped console.",
        VIEW,
    ),
)
UNDO = _quiet(
    "undo",
    ("u",),
    "undo",
    "Undo this console's last change, if nothing has changed since: priority, top, hold, drain, pause.",
    JOBS,
    changes=True,
)
PALETTE = _unlisted(
    "command_palette", ("colon", "ctrl+p"), "palette", "Find a command by its name.", VIEW, id="palette"
)
HELP = Command("help", ("question_mark",), "help", "Show all keys.", VIEW)
NOTICES = _quiet(
    "notices",
    ("exclamation_mark",),
    "notices",
    "Show all errors and warnings in full, and the events since the console was opened.",
    VIEW,
)
APP_COMMANDS = (
    HELP,
    NOTICES,
    _quiet(
        "alarm",
        ("F",),
        "next alarm",
        "Go to the job, process or GPU of the worst alarm; there, to that of the next one.",
        VIEW,
    ),
    PALETTE,
    Command("leave", ("q",), "quit", "Quit; asks first if jobs would wait for this console.", VIEW, id="quit"),
    UNDO,
    PROCESS_VIEW,
    _quiet(
        "graph_span",
        ("M",),
        "graph span",
        "How far back graphs of GPUs go: 2 seconds a cell, 10 minutes, 1 hour.",
        GPUS,
    ),
    _quiet(
        "gpu_colours",
        ("H",),
        "GPU colours",
        "Colour GPUs by judgement (busy green, idle amber) or by intensity (the more load the redder).",
        GPUS,
    ),
    _quiet("themes", ("ctrl+t",), "theme", "Choose the theme, with a preview; remembered.", VIEW),
)


def _tab(name: str, key: str, help_: str, capability: Capability | None = None) -> Command:
    return _quiet(f"tab('{name}')", (key,), name, help_, QUEUE, id=f"tab_{name}", capability=capability)


_LIVE, _ROWS = "the queue of live jobs, and the focus there", "the queue of live jobs or nodes, and the focus there"
QUEUE_COMMANDS = (
    _quiet("mark", ("space",), "mark", "Mark the job: commands then act on all that are marked.", QUEUE, needs=_LIVE),
    _quiet(
        "mark_all", ("asterisk",), "mark all", "Mark all shown jobs that have not ended, or none.", QUEUE, needs=_LIVE
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
    _quiet("finished", ("a",), "ended", "Show the ended jobs, latest first, or fold them into one row.", QUEUE),
    _quiet(
        "failures_seen",
        ("Y",),
        "failures seen",
        "Acknowledge all failures: they are no longer new. The filter is:failed lists them.",
        QUEUE,
    ),
    _quiet(
        "sort",
        ("S",),
        "sort",
        "Sort by the next column; after the last one in their turn. Among nodes of a cluster: the idlest first.",
        QUEUE,
        needs=_ROWS,
    ),
    _quiet("columns", ("vertical_line",), "columns", "Choose and order the columns of the queue.", QUEUE, needs=_LIVE),
    _quiet(
        "fold",
        ("o",),
        "unfold",
        "Open or close an array, the jobs that wait for the job, or a node of a cluster.",
        QUEUE,
        needs=_ROWS,
    ),
    _quiet(
        "fold_all",
        ("O",),
        "unfold all",
        "Open or close all arrays, and all jobs that others wait for; or all nodes of a cluster.",
        QUEUE,
        needs=_ROWS,
    ),
    _tab("queue", "1", "Show waiting and running jobs."),
    _tab("finished", "2", "Show finished jobs, including the history."),
    _tab("recurring", "3", "Show recurring jobs.", Capability.RECURRING),
    _tab("reservations", "4", "Show reservations.", Capability.RESERVE),
)
EDIT_COMMANDS = (
    command_of(verbs.MOVE),
    _quiet(
        "move(-1)",
        ("K",),
        "move up",
        "Move the waiting job before the one above it; it takes over that job's priority and rank.",
        QUEUE,
        id="move_up",
        changes=True,
        needs="a waiting job of the queue",
        capability=Capability.MOVE,
    ),
    *map(command_of, verbs.ROW_FORM_VERBS),
    command_of(verbs.RESERVE),
)
COLUMN_COMMANDS = (
    _shown("toggle_column", ("space",), "show/hide", "Show or hide the column.", QUEUE),
    _shown("shift(1)", ("J", "right"), "move", "Move the column on.", QUEUE, footer_key="J/K", id="column_down"),
    _unlisted("shift(-1)", ("K", "left"), "up", "Move the column back.", QUEUE, id="column_up"),
    _shown("usual", ("u",), "default columns", "Back to the default columns.", QUEUE),
    _shown("take", ("enter",), "use these", "Use these columns, and remember them.", QUEUE),
)
PANE_COMMANDS = (
    _quiet("zoom", ("z",), "zoom", "Give the whole screen to the focused pane, and back.", VIEW),
    _quiet("grow(1)", ("right_square_bracket",), "grow", "Make the focused pane larger.", VIEW),
    _quiet("grow(-1)", ("left_square_bracket",), "shrink", "Make the focused pane smaller.", VIEW, id="shrink"),
    _quiet("hide", ("w",), "hide pane", "Hide the focused pane; remembered, as all of the layout is.", VIEW),
    _quiet("all_panes", ("W",), "all panes", "Show all panes in their default sizes.", VIEW),
    _quiet("log_place", ("backslash",), "log place", "Put the log beside the queue, or below it.", VIEW),
    _quiet("grid", ("v",), "GPU view", "GPU layout: auto, cards, rows, compact.", GPUS, id="gpu_view"),
    _unlisted("pane(1)", ("tab",), "pane", "Go to the next pane: GPUs, queue, log.", MOVE, id="pane_next"),
    _unlisted("pane(-1)", ("shift+tab",), "pane", "Go to the previous pane.", MOVE, id="pane_before"),
)
MOVE_COMMANDS = (
    _unlisted("down(1)", ("j", "down"), "down", "One row down.", MOVE),
    _unlisted("down(-1)", ("k", "up"), "up", "One row up.", MOVE, id="up"),
    _unlisted("page(1)", ("pagedown", "ctrl+d"), "page down", "One page down.", MOVE, id="page_down"),
    _unlisted("page(-1)", ("pageup", "ctrl+u"), "page up", "One page up.", MOVE, id="page_up"),
    _unlisted("first", ("g", "home"), "first", "To the first row.", MOVE),
    _unlisted("last", ("G", "end"), "last", "To the last row; a log follows its end again.", MOVE),
)
GRID_COMMANDS = (
    _unlisted("beside(1)", ("right", "l"), "next GPU", "To the next GPU in a row of several.", MOVE, id="card_next"),
    _unlisted("beside(-1)", ("left",), "previous GPU", "To the previous GPU.", MOVE, id="card_before"),
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
    _shown("found(1)", ("n",), "next", "To the next match.", LOGS, footer_key="n/N", id="log_next"),
    _unlisted("found(-1)", ("N",), "previous", "To the previous match.", LOGS, id="log_previous"),
    Command("narrow", ("ampersand",), "only", "Show only lines that match an expression.", LOGS, id="log_only"),
    _unlisted(
        "context(1)",
        ("right_parenthesis",),
        "more around",
        "Show more lines around each match.",
        LOGS,
        id="log_more_around",
    ),
    _unlisted(
        "context(-1)",
        ("left_parenthesis",),
        "fewer around",
        "Show fewer lines around each match.",
        LOGS,
        id="log_fewer_around",
    ),
    _unlisted("error(-1)", ("E",), "previous error", "To the previous error in the log.", LOGS, id="error_before"),
    _quiet("toggle_wrap", ("b",), "wrap", "Wrap long lines, or cut them at the right.", LOGS, id="log_wrap"),
    _quiet(
        "toggle_stamps", ("D",), "times", "Show when each line was written, where that is known.", LOGS, id="log_times"
    ),
    _quiet(
        "pick",
        ("V",),
        "pick lines",
        "Select lines to copy: j and k extend the selection; the mouse selects too.",
        LOGS,
        id="pick_lines",
    ),
    _quiet(
        "copy_lines",
        ("y",),
        "copy lines",
        "Copy the selected lines, or the visible ones, to the terminal's clipboard.",
        LOGS,
    ),
    _quiet("save_log", ("S",), "save log", "Save the whole log to a file; asks where.", LOGS),
    _shown("clear_log", ("escape",), "show all", "End selection, search and filter.", LOGS),
    _unlisted("sideways(1)", ("right", "l"), "right", "Scroll to the right.", LOGS, id="log_right"),
    _unlisted("sideways(-1)", ("left",), "left", "Scroll to the left.", LOGS, id="log_left"),
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
    _quiet(
        "attempt(-1)",
        ("comma",),
        "previous attempt",
        "Show the log of the job's previous attempt.",
        LOGS,
        id="attempt_before",
        needs="an earlier attempt",
    ),
    _quiet(
        "attempt(1)",
        ("full_stop",),
        "next attempt",
        "Show the log of the job's next attempt.",
        LOGS,
        id="attempt_after",
        needs="a later attempt",
    ),
    _quiet(
        "attempts",
        ("A",),
        "attempts",
        "Show the logs of the job's last two attempts together.",
        LOGS,
        needs="a job that was started more than once",
    ),
    _quiet(
        "pin_log",
        ("p",),
        "pin log",
        "Pin the job's log: the pane keeps it while the cursor moves, and it is shown with the other pinned logs.",
        LOGS,
        needs="a job that was started",
    ),
    _quiet("logs", ("L",), "logs", "Show the pinned logs together, up to six.", LOGS),
)


def _command(action: str, keys: tuple[str, ...], title: str, help_: str, id_: str, shown: str = "") -> Command:
    return _unlisted(action, keys, title, help_, DIALOG, footer_key=shown, id=id_)


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
    _shown("commit", ("enter",), "commit", "Make the change that is shown.", WHAT_IF),
    _shown("forget", ("escape",), "cancel", "Change nothing.", WHAT_IF),
)
FURTHER = (
    _shown(
        "further('raise')", ("plus", "equals_sign"), "more", "Raise the priority by another 10.", WHAT_IF, id="more"
    ),
    _shown("further('lower')", ("minus",), "less", "Lower the priority by 10.", WHAT_IF, id="less"),
    _shown("further('top')", ("t",), "top", "Move it to the head of the queue instead.", WHAT_IF, id="top_instead"),
    _shown("drag(1)", ("J",), "move", "Move it one more place down.", WHAT_IF, footer_key="J/K", id="drag_down"),
    _unlisted("drag(-1)", ("K",), "further up", "Move it one more place up.", WHAT_IF, id="drag_up"),
)
TIMELINE_COMMANDS = (
    Command(
        "zoom_time(1)", ("i",), "zoom", "Zoom in: less time on the screen.", TIMELINE, footer_key="i/o", id="zoom_in"
    ),
    _quiet("zoom_time(-1)", ("o",), "zoom out", "Zoom out: more time on the screen.", TIMELINE, id="zoom_out"),
    Command(
        "look(1)",
        ("greater_than_sign", "shift+right"),
        "later",
        "Look further ahead.",
        TIMELINE,
        footer_key="</>",
        id="later",
    ),
    _quiet("look(-1)", ("less_than_sign", "shift+left"), "earlier", "Look back.", TIMELINE, id="earlier"),
    Command("present", ("0",), "now", "Back to the present, with the whole plan in sight.", TIMELINE, id="now"),
    _unlisted("bar(1)", ("right", "l"), "next bar", "To the next job on this GPU.", TIMELINE, id="bar_next"),
    _unlisted("bar(-1)", ("left",), "previous bar", "To the previous job on this GPU.", TIMELINE, id="bar_before"),
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
