"""The console's commands: declarations, the table that keys, footer, help and palette follow, and their places."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
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


def _listed(binding: tuple[str, str, str], help_: str, group: str = "", **others: Any) -> Command:
    """Return a command by its keys, with blanks between them, action and title, in the order of Textual's bindings."""
    keys, action, title = binding
    return Command(action, tuple(keys.split()), title, help_, group, **others)


def _of(group: str, *commands: Command) -> tuple[Command, ...]:
    """Return the commands, with that group where they have none of their own."""
    return tuple(command if command.group else replace(command, group=group) for command in commands)


_quiet = partial(_listed, in_footer=False)
_shown = partial(_listed, in_palette=False)
_unlisted = partial(_listed, in_footer=False, in_palette=False)
"""A command that the footer does not list, the palette, or neither."""
_answer = partial(_unlisted, group=DIALOG)
PROCESS_VIEW = _quiet(
    ("U", "gpu_processes", "GPU users"),
    "Show all processes on the GPUs, of jobs and foreign ones: sort, filter, end them, stop containers.",
    GPUS,
)
_PROCESS, _CONTAINER = "a process in the process view", "a foreign container in the process view"
STOP_CONTAINER = _listed(
    ("X", "stop_container", "stop container"),
    "Stop the foreign container, as `docker stop` does; asks first. A job's is cancelled instead.",
    PROCESS_GROUP,
    changes=True,
    needs=_CONTAINER,
)
PROCESS_COMMANDS = _of(
    PROCESS_GROUP,
    _shown(("enter", "open", "open"), "Show the job, the container with its log, or the process."),
    _quiet(
        ("e", "environment", "environment"),
        "Show the process with its whole command line and its environment.",
        needs=_PROCESS,
    ),
    _listed(
        ("T", "end_process('TERM')", "send TERM"),
        "Ask the process to end; asks first, and says whether it ended.",
        id="end_term",
        changes=True,
        needs=_PROCESS,
    ),
    _quiet(
        ("I", "end_process('INT')", "send INT"),
        "Interrupt the process, as Ctrl-C does; asks first.",
        id="end_int",
        changes=True,
        needs=_PROCESS,
    ),
    _listed(
        ("K", "end_process('KILL')", "send KILL"),
        "End the process immediately, without a chance to save; asks first.",
        id="end_kill",
        changes=True,
        needs=_PROCESS,
    ),
    STOP_CONTAINER,
    _listed(("t", "tree", "tree"), "Children below their parents, or a flat list.", needs=_PROCESS),
    _quiet(
        ("S", "sort_processes", "sort"),
        "Sort by the next column; a click on a title sorts by that, another one in reverse.",
        needs=_PROCESS,
    ),
)
SHELL = _quiet(
    ("x", "shell", "shell"),
    "Open a shell in the job's container, or on the host with the job's GPUs; exit brings the console back.",
    JOBS,
    changes=True,
    needs="a running job",
    capability=Capability.INSIDE,
)
PROCESSES = _quiet(
    ("X", "processes", "processes"),
    "Show the processes of the running job: CPU, memory, GPU memory.",
    JOBS,
    needs="a running job",
    capability=Capability.INSIDE,
)
COPY = _quiet(
    ("y", "copy", "copy"),
    "Copy the job's id, name, command or container; a second key chooses which.",
    JOBS,
    needs="a job",
)
JOB_COMMANDS = _of(
    JOBS,
    _listed(("enter", "detail", "detail"), "Show everything about the job.", needs="a job, or a GPU"),
    _listed(("f", "follow", "log"), "Go to the job's log; in the log, back to the queue.", needs="a job"),
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
BACK = _shown(("escape q", "back", "back"), "Back to the previous screen.", VIEW)
GPU = _quiet(
    ("i", "gpu", "GPU"),
    "Show everything about the GPU, or about the first one of the job.",
    GPUS,
    needs="a GPU, or a job that holds one",
)
GPU_PAGE_COMMANDS = _of(
    GPUS,
    *GPU_COMMANDS,
    _shown(("right l", "other_gpu(1)", "next GPU"), "To the next GPU.", footer_key="←→", id="gpu_next"),
    _unlisted(("left", "other_gpu(-1)", "previous GPU"), "To the previous GPU.", id="gpu_before"),
    _shown(("tab", "next_job", "next job"), "Select the next of the jobs that share the GPU."),
)
MORE_FIELDS = _listed(
    ("ctrl+n", "more", "more"), "Show or hide the less common fields.", FORM, footer_key="^N", id="more_fields"
)
GIVE_UP = _shown(
    ("escape", "give_up", "leave"), "Leave the form or the input line; the form asks if anything would be lost.", FORM
)
SEND = _shown(("ctrl+s", "send", "submit"), "Submit the job of the form.", FORM, footer_key="Enter", changes=True)
SUBMIT_COMMANDS = _of(
    FORM,
    SEND,
    _listed(("ctrl+r", "recent", "recent"), "Fill the form from an earlier submission.", footer_key="^R"),
    _unlisted(("ctrl+up", "older(1)", "older"), "Fill in the previous submission."),
    _unlisted(("ctrl+down", "older(-1)", "newer"), "Forward to the next submission, and at last to your own input."),
    _listed(("ctrl+l", "templates", "templates"), "Fill it from a template, or save one.", footer_key="^L"),
    _listed(("ctrl+o", "editor", "editor"), "Open the job in your $EDITOR, as a job file.", footer_key="^O"),
    MORE_FIELDS,
    GIVE_UP,
)
TIMELINE_SCREEN = _listed(
    ("T", "timeline", "timeline"),
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
        ("escape", "give_up_work", "give up"),
        "Cancel a long change while its bar is shown at the top; nothing is changed then.",
        VIEW,
    ),
)
ANYWHERE_COMMANDS = _of(
    VIEW,
    _unlisted(
        ("ctrl+q ctrl+c", "leave", "quit anywhere"),
        "Quit, also from forms and dialogs; asks if typed input would be lost, and as `q` does.",
        id="quit_anywhere",
    ),
    _unlisted(
        ("ctrl+z", "stay_awake", "no stop"), "Nothing but a sentence: jobs and others might wait for a stopped console."
    ),
)
UNDO = _quiet(
    ("u", "undo", "undo"),
    "Undo this console's last change, if nothing has changed since: priority, top, hold, drain, pause.",
    JOBS,
    changes=True,
)
PALETTE = _unlisted(("colon ctrl+p", "command_palette", "palette"), "Find a command by its name.", VIEW, id="palette")
HELP = _listed(("question_mark", "help", "help"), "Show all keys.", VIEW)
NOTICES = _quiet(
    ("exclamation_mark", "notices", "notices"),
    "Show all errors and warnings in full, and the events since the console was opened.",
    VIEW,
)
APP_COMMANDS = _of(
    VIEW,
    HELP,
    NOTICES,
    _quiet(
        ("F", "alarm", "next alarm"),
        "Go to the job, process or GPU of the worst alarm; there, to that of the next one.",
    ),
    PALETTE,
    _listed(("q", "leave", "quit"), "Quit; asks first if jobs would wait for this console.", id="quit"),
    UNDO,
    PROCESS_VIEW,
    _quiet(
        ("M", "graph_span", "graph span"), "How far back graphs of GPUs go: 2 seconds a cell, 10 minutes, 1 hour.", GPUS
    ),
    _quiet(
        ("H", "gpu_colours", "GPU colours"),
        "Colour GPUs by judgement (busy green, idle amber) or by intensity (the more load the redder).",
        GPUS,
    ),
    _quiet(("ctrl+t", "themes", "theme"), "Choose the theme, with a preview; remembered."),
)


def _tab(name: str, key: str, help_: str, capability: Capability | None = None) -> Command:
    return _quiet((key, f"tab('{name}')", name), help_, QUEUE, id=f"tab_{name}", capability=capability)


_LIVE, _ROWS = "the queue of live jobs, and the focus there", "the queue of live jobs or nodes, and the focus there"
QUEUE_COMMANDS = _of(
    QUEUE,
    _quiet(("space", "mark", "mark"), "Mark the job: commands then act on all that are marked.", needs=_LIVE),
    _quiet(("asterisk", "mark_all", "mark all"), "Mark all shown jobs that have not ended, or none.", needs=_LIVE),
    _listed(("escape", "clear_marks", "unmark"), "Unmark all jobs.", needs="marked jobs"),
    _listed(
        ("slash", "filter", "filter"),
        "Show only some jobs: words, or state:pd tenant:alice gpus>=4 name~bert -is:held.",
    ),
    _listed(("escape", "clear_filter", "show all"), "Show all jobs again.", needs="a filter"),
    _quiet(("a", "finished", "ended"), "Show the ended jobs, latest first, or fold them into one row."),
    _quiet(
        ("Y", "failures_seen", "failures seen"),
        "Acknowledge all failures: they are no longer new. The filter is:failed lists them.",
    ),
    _quiet(
        ("S", "sort", "sort"),
        "Sort by the next column; after the last one in their turn. Among nodes of a cluster: the idlest first.",
        needs=_ROWS,
    ),
    _quiet(("vertical_line", "columns", "columns"), "Choose and order the columns of the queue.", needs=_LIVE),
    _quiet(
        ("o", "fold", "unfold"),
        "Open or close an array, the jobs that wait for the job, or a node of a cluster.",
        needs=_ROWS,
    ),
    _quiet(
        ("O", "fold_all", "unfold all"),
        "Open or close all arrays, and all jobs that others wait for; or all nodes of a cluster.",
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
        ("K", "move(-1)", "move up"),
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
COLUMN_COMMANDS = _of(
    QUEUE,
    _shown(("space", "toggle_column", "show/hide"), "Show or hide the column."),
    _shown(("J right", "shift(1)", "move"), "Move the column on.", footer_key="J/K", id="column_down"),
    _unlisted(("K left", "shift(-1)", "up"), "Move the column back.", id="column_up"),
    _shown(("u", "usual", "default columns"), "Back to the default columns."),
    _shown(("enter", "take", "use these"), "Use these columns, and remember them."),
)
PANE_COMMANDS = _of(
    VIEW,
    _quiet(("z", "zoom", "zoom"), "Give the whole screen to the focused pane, and back."),
    _quiet(("right_square_bracket", "grow(1)", "grow"), "Make the focused pane larger."),
    _quiet(("left_square_bracket", "grow(-1)", "shrink"), "Make the focused pane smaller.", id="shrink"),
    _quiet(("w", "hide", "hide pane"), "Hide the focused pane; remembered, as all of the layout is."),
    _quiet(("W", "all_panes", "all panes"), "Show all panes in their default sizes."),
    _quiet(("backslash", "log_place", "log place"), "Put the log beside the queue, or below it."),
    _quiet(("v", "grid", "GPU view"), "GPU layout: auto, cards, rows, compact.", GPUS, id="gpu_view"),
    _unlisted(("tab", "pane(1)", "pane"), "Go to the next pane: GPUs, queue, log.", MOVE, id="pane_next"),
    _unlisted(("shift+tab", "pane(-1)", "pane"), "Go to the previous pane.", MOVE, id="pane_before"),
)
MOVE_COMMANDS = _of(
    MOVE,
    _unlisted(("j down", "down(1)", "down"), "One row down."),
    _unlisted(("k up", "down(-1)", "up"), "One row up.", id="up"),
    _unlisted(("pagedown ctrl+d", "page(1)", "page down"), "One page down.", id="page_down"),
    _unlisted(("pageup ctrl+u", "page(-1)", "page up"), "One page up.", id="page_up"),
    _unlisted(("g home", "first", "first"), "To the first row."),
    _unlisted(("G end", "last", "last"), "To the last row; a log follows its end again."),
)
GRID_COMMANDS = _of(
    MOVE,
    _unlisted(("right l", "beside(1)", "next GPU"), "To the next GPU in a row of several.", id="card_next"),
    _unlisted(("left", "beside(-1)", "previous GPU"), "To the previous GPU.", id="card_before"),
)
LOG_COMMANDS = _of(
    LOGS,
    _listed(
        ("space", "toggle_pause", "pause log"), "Stop the log where it is, or follow its end again.", id="pause_log"
    ),
    _listed(
        ("slash", "search", "search"),
        "Search the log for a regular expression; case-sensitive if it has capitals.",
        id="log_search",
    ),
    _shown(("n", "found(1)", "next"), "To the next match.", footer_key="n/N", id="log_next"),
    _unlisted(("N", "found(-1)", "previous"), "To the previous match.", id="log_previous"),
    _listed(("ampersand", "narrow", "only"), "Show only lines that match an expression.", id="log_only"),
    _unlisted(
        ("right_parenthesis", "context(1)", "more around"), "Show more lines around each match.", id="log_more_around"
    ),
    _unlisted(
        ("left_parenthesis", "context(-1)", "fewer around"),
        "Show fewer lines around each match.",
        id="log_fewer_around",
    ),
    _unlisted(("E", "error(-1)", "previous error"), "To the previous error in the log.", id="error_before"),
    _quiet(("b", "toggle_wrap", "wrap"), "Wrap long lines, or cut them at the right.", id="log_wrap"),
    _quiet(("D", "toggle_stamps", "times"), "Show when each line was written, where that is known.", id="log_times"),
    _quiet(
        ("V", "pick", "pick lines"),
        "Select lines to copy: j and k extend the selection; the mouse selects too.",
        id="pick_lines",
    ),
    _quiet(
        ("y", "copy_lines", "copy lines"), "Copy the selected lines, or the visible ones, to the terminal's clipboard."
    ),
    _quiet(("S", "save_log", "save log"), "Save the whole log to a file; asks where."),
    _shown(("escape", "clear_log", "show all"), "End selection, search and filter."),
    _unlisted(("right l", "sideways(1)", "right"), "Scroll to the right.", id="log_right"),
    _unlisted(("left", "sideways(-1)", "left"), "Scroll to the left.", id="log_left"),
)
LOG_JOB_COMMANDS = _of(
    LOGS,
    _listed(
        ("e", "error(1)", "error"),
        "To the first error in the job's log; there, to the next.",
        needs="a job that was started",
    ),
    _quiet(
        ("comma", "attempt(-1)", "previous attempt"),
        "Show the log of the job's previous attempt.",
        id="attempt_before",
        needs="an earlier attempt",
    ),
    _quiet(
        ("full_stop", "attempt(1)", "next attempt"),
        "Show the log of the job's next attempt.",
        id="attempt_after",
        needs="a later attempt",
    ),
    _quiet(
        ("A", "attempts", "attempts"),
        "Show the logs of the job's last two attempts together.",
        needs="a job that was started more than once",
    ),
    _quiet(
        ("p", "pin_log", "pin log"),
        "Pin the job's log: the pane keeps it while the cursor moves, and it is shown with the other pinned logs.",
        needs="a job that was started",
    ),
    _quiet(("L", "logs", "logs"), "Show the pinned logs together, up to six."),
)
YES = _answer(("y enter", "answer('yes')", "yes"), "Yes.", id="yes", footer_key="y Enter")
NO = _answer(("n escape q", "answer('no')", "no"), "No: change nothing.", id="no", footer_key="n Esc")
LEAVE_COMMANDS = (
    _answer(
        ("b enter", "choose('HAND_OVER')", "hand over"),
        "Quit, and let a scheduler continue in the background.",
        id="hand_over",
        footer_key="b Enter",
    ),
    _answer(("s", "choose('STOP')", "stop"), "Quit, and start no new jobs.", id="stop"),
    _answer(("escape n q", "stay", "stay"), "Stay in the console."),
)
TAKE_LINE = _answer(("enter", "take_line", "take"), "Take the line under the cursor.")
SAVE_TEMPLATE = _answer(("s", "save_template", "save"), "Save the form as a template.")
COPY_COMMANDS = (
    _answer(("i y enter", "copy_part('id')", "id"), "Copy the job's id.", id="copy_id"),
    _answer(("n", "copy_part('name')", "name"), "Copy its name.", id="copy_name"),
    _answer(("c", "copy_part('command')", "command"), "Copy its command.", id="copy_command"),
    _answer(("m", "copy_part('image')", "image"), "Copy its image.", id="copy_image"),
    _answer(("k", "copy_part('container')", "container"), "Copy the id of its container.", id="copy_container"),
    _answer(("g", "copy_part('GPUs')", "GPUs"), "Copy the UUIDs of its GPUs.", id="copy_gpus"),
)
SEARCH_HELP = _answer(("slash", "search_help", "search"), "Search help for a key, or for words.")
CLOSE = _answer(("enter", "close", "close"), "Close the page.")
DIALOG_COMMANDS = (YES, NO, *LEAVE_COMMANDS, TAKE_LINE, SAVE_TEMPLATE, *COPY_COMMANDS, SEARCH_HELP, CLOSE)
WHAT_IF_COMMANDS = _of(
    WHAT_IF,
    _shown(("enter", "commit", "commit"), "Make the change that is shown."),
    _shown(("escape", "forget", "cancel"), "Change nothing."),
)
FURTHER = _of(
    WHAT_IF,
    _shown(("plus equals_sign", "further('raise')", "more"), "Raise the priority by another 10.", id="more"),
    _shown(("minus", "further('lower')", "less"), "Lower the priority by 10.", id="less"),
    _shown(("t", "further('top')", "top"), "Move it to the head of the queue instead.", id="top_instead"),
    _shown(("J", "drag(1)", "move"), "Move it one more place down.", footer_key="J/K", id="drag_down"),
    _unlisted(("K", "drag(-1)", "further up"), "Move it one more place up.", id="drag_up"),
)
TIMELINE_COMMANDS = _of(
    TIMELINE,
    _listed(("i", "zoom_time(1)", "zoom"), "Zoom in: less time on the screen.", footer_key="i/o", id="zoom_in"),
    _quiet(("o", "zoom_time(-1)", "zoom out"), "Zoom out: more time on the screen.", id="zoom_out"),
    _listed(("greater_than_sign shift+right", "look(1)", "later"), "Look further ahead.", footer_key="</>", id="later"),
    _quiet(("less_than_sign shift+left", "look(-1)", "earlier"), "Look back.", id="earlier"),
    _listed(("0", "present", "now"), "Back to the present, with the whole plan in sight.", id="now"),
    _unlisted(("right l", "bar(1)", "next bar"), "To the next job on this GPU.", id="bar_next"),
    _unlisted(("left", "bar(-1)", "previous bar"), "To the previous job on this GPU.", id="bar_before"),
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


def named(names: str) -> tuple[Command, ...]:
    """Return the commands of these names, which have blanks between them."""
    return tuple(map(BY_NAME.__getitem__, names.split()))


_IN_A_TAB = frozenset({"pause_recurring", "resume_recurring", "remove"})
FILTER_COMMANDS = named("filter clear_filter")
_PAGE = (BACK, *APP_COMMANDS, *MOVE_COMMANDS)
_PLACES = {
    "main screen": (
        *(command for command in MAIN_COMMANDS if command.name not in _IN_A_TAB),
        *EDIT_COMMANDS,
        *QUEUE_COMMANDS,
        *PANE_COMMANDS,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
        *GRID_COMMANDS,
        *LOG_COMMANDS,
        *LOG_JOB_COMMANDS,
    ),
    "tab of recurring jobs": (*STANDING_COMMANDS, *QUEUE_COMMANDS, *PANE_COMMANDS, *APP_COMMANDS, *MOVE_COMMANDS),
    "columns": (*COLUMN_COMMANDS, BACK, *MOVE_COMMANDS),
    "logs": (
        *JOB_COMMANDS,
        *LOG_COMMANDS,
        *(command for command in LOG_JOB_COMMANDS if command.name != "attempts"),
        *named("zoom pane_next pane_before"),
        *_PAGE,
    ),
    "screen of a job": (*JOB_COMMANDS, BACK, *APP_COMMANDS),
    "screen of a GPU": (*JOB_COMMANDS, *GPU_PAGE_COMMANDS, *_PAGE),
    "screen of processes": (PROCESSES, SHELL, COPY, *_PAGE),
    "process view": (
        PROCESS_VIEW,
        *PROCESS_COMMANDS,
        *FILTER_COMMANDS,
        BY_NAME["cancel"],
        BACK,
        *(command for command in APP_COMMANDS if command is not PROCESS_VIEW),
        *MOVE_COMMANDS,
    ),
    "page of a container": (STOP_CONTAINER, *LOG_COMMANDS, BY_NAME["error"], *_PAGE),
    "submit form": (*SUBMIT_COMMANDS, PALETTE),
    "timeline": (TIMELINE_SCREEN, *JOB_COMMANDS, *GPU_COMMANDS, *TIMELINE_COMMANDS, *_PAGE),
    "what-if panel": (*WHAT_IF_COMMANDS, *FURTHER, YES, NO),
    "questions": (YES, NO),
    "question at the end": LEAVE_COMMANDS,
    "lists to choose from": (TAKE_LINE, SAVE_TEMPLATE, BACK, *MOVE_COMMANDS),
    "list of themes": (TAKE_LINE, BACK, *MOVE_COMMANDS[:2]),
    "dialog that copies": (*COPY_COMMANDS, BACK),
    "help": (SEARCH_HELP, HELP, CLOSE, BACK, *MOVE_COMMANDS),
    "notices": (NOTICES, CLOSE, BACK, *MOVE_COMMANDS),
    "lines to type": (GIVE_UP,),
    "form of a reservation": (GIVE_UP, SEND),
}
OF_CLUSTERS = {(command.action_name, command.argument): command for command in COMMANDS if command.capability}
"""Commands that need a capability, by name and argument of their action."""
OF_VIEWS = frozenset(command.capability for command in COMMANDS if command.capability and not command.needs)
"""Capabilities that the queue as a whole has or lacks, whatever is selected."""
CHANGING = frozenset(command.action_name for command in COMMANDS if command.changes)
"""Actions that change more than the screen."""


def by_group(commands: tuple[Command, ...] = COMMANDS) -> dict[str, list[Command]]:
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups


@cache  # they never change, and each unavailable command needs them
def places() -> dict[str, tuple[Command, ...]]:
    """Return the commands by the place of their keys; those not named above belong to their group's place."""
    found = {place: (*commands, *ANYWHERE_COMMANDS) for place, commands in _PLACES.items()}
    placed = {command.name for commands in found.values() for command in commands}
    for command in COMMANDS:
        if command.name not in placed:
            found[command.group] = (*found.get(command.group, APP_COMMANDS), command)
    return found


_OF_PANES = named("zoom hide all_panes log_place")
MENUS = {
    "queue": (
        *STANDING_COMMANDS,
        *JOB_COMMANDS,
        GPU,
        *(command for command in EDIT_COMMANDS if command.name != "reserve"),
        *named("mark filter clear_filter sort columns fold"),
        *_OF_PANES,
    ),
    "gpus": (
        GPU,
        *GPU_COMMANDS,
        *named("reserve gpu_view gpu_processes graph_span"),
        *JOB_COMMANDS,
        *_OF_PANES,
    ),
    "log": (
        *named("pause_log log_search log_only log_wrap log_times copy_lines save_log clear_log error"),
        *named("attempt_before attempt_after attempts pin_log"),
        *_OF_PANES,
    ),
    "processes": (*PROCESS_COMMANDS, BY_NAME["cancel"]),
}
"""Commands of the menu of each pane and table, in order; only available ones are listed."""
