"""One declaration for each thing that can be done: keys, footer, help, palette and docs/keys.md are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

from gputui.tui.key_names import key_name

JOBS, QUEUE, GPUS, SCHEDULER, VIEW, MOVE, LOGS = "Jobs", "Queue", "GPUs", "Scheduler", "View", "Move", "Logs"
WHAT_IF, TIMELINE, FORM = "What-if", "Timeline", "Submit form"


@dataclass(frozen=True)
class Command:
    """Something an operator can do."""

    action: str
    """The action as Textual runs it: `wish('hold')`."""
    keys: tuple[str, ...]
    title: str
    """What the footer calls it: a word."""
    help: str
    """A sentence."""
    group: str
    in_footer: bool = True
    in_palette: bool = True
    footer_key: str = ""
    """What the footer shows in place of the first key."""
    id: str = ""
    """Its name, where the action does not make a good one."""
    changes: bool = False
    """Whether it changes anything but the screen: not to be had in a console that only looks on."""

    @property
    def name(self) -> str:
        """What the settings file calls it; it stays the same from release to release."""
        return self.id or _name_of(self.action)

    @property
    def key_names(self) -> str:
        """The keys as a person reads them."""
        return " ".join(key_name(key) for key in self.keys)

    @property
    def first_key(self) -> str:
        """The key the footer shows; empty where it has none."""
        return self.footer_key or (key_name(self.keys[0]) if self.keys else "")


def _name_of(action: str) -> str:
    """`hold` of `wish('hold')`, `grow` of `grow(1)`."""
    verb, _, rest = action.partition("(")
    argument = rest.strip("')")
    if verb == "wish":
        return argument
    return verb if argument in {"", "1"} else f"{verb}_{argument.replace('-1', 'back')}"


SHELL = Command(
    "shell",
    ("x",),
    "shell",
    "Open a shell in the job's container, or on the host with the job's GPUs; exit brings the console back.",
    JOBS,
    in_footer=False,
    changes=True,
)
PROCESSES = Command(
    "processes", ("X",), "processes", "Show the processes of the running job: CPU, memory, GPU memory.", JOBS, False
)
COPY = Command("copy", ("y",), "copy", "Copy the job's id, name, command or container: y y is the id.", JOBS, False)
JOB_COMMANDS = (
    Command("detail", ("enter",), "detail", "Show everything about the job.", JOBS),
    Command("follow", ("f",), "follow", "Follow the job's log.", JOBS),
    Command("wish('hold')", ("h",), "hold", "Keep the waiting job from starting.", JOBS, changes=True),
    Command("wish('release')", ("r",), "release", "Let the held job start.", JOBS, changes=True),
    Command(
        "wish('cancel')", ("c",), "cancel", "End the job, or take it out of the queue; asks first.", JOBS, changes=True
    ),
    Command(
        "wish('requeue')", ("R",), "requeue", "Run the job again; one that runs is stopped first.", JOBS, changes=True
    ),
    Command(
        "wish('raise')",
        ("plus", "equals_sign"),
        "prio",
        "Raise the job's priority by 10, up to 100.",
        JOBS,
        footer_key="+/-",
        changes=True,
    ),
    Command(
        "wish('lower')",
        ("minus",),
        "prio down",
        "Lower the job's priority by 10, down to 0.",
        JOBS,
        in_footer=False,
        changes=True,
    ),
    Command("wish('top')", ("t",), "top", "Put the waiting job at the head of the queue.", JOBS, changes=True),
    SHELL,
    PROCESSES,
    COPY,
)
GPU_COMMANDS = (
    Command("drain", ("d",), "drain", "Let no further job start on the GPU; asks for the reason.", GPUS, changes=True),
    Command("resume", ("d",), "resume", "Let jobs start on the drained GPU again.", GPUS, changes=True),
)
SUBMIT = Command("submit", ("s",), "submit", "Submit a new job with a form.", JOBS, changes=True)
BACK = Command("back", ("escape", "q"), "back", "Back to the screen before.", VIEW, in_palette=False)
GPU = Command("gpu", ("i",), "GPU", "Show everything about the GPU, or about the first one of the job.", GPUS, False)
GPU_PAGE_COMMANDS = (
    *GPU_COMMANDS,
    Command("other_gpu(1)", ("right", "l"), "next GPU", "To the next GPU.", GPUS, True, False, "←→", id="gpu_next"),
    Command("other_gpu(-1)", ("left",), "GPU before", "To the GPU before.", GPUS, False, False, id="gpu_before"),
    Command("next_job", ("tab",), "next job", "Mean the next of the jobs that share the GPU.", GPUS, True, False),
)
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
QUEUE_COMMANDS = (
    Command("mark", ("space",), "mark", "Mark the job: commands then act on all that are marked.", QUEUE, False),
    Command("mark_all", ("asterisk",), "mark all", "Mark all jobs that are shown and not over, or none.", QUEUE, False),
    Command("clear_marks", ("escape",), "unmark", "Mark no job any more.", QUEUE),
    Command(
        "filter",
        ("slash",),
        "filter",
        "Show only some jobs: words, or state:pd tenant:alice gpus>=4 name~bert -is:held.",
        QUEUE,
    ),
    Command("clear_filter", ("escape",), "show all", "Show all jobs again.", QUEUE),
    Command("finished", ("a",), "all/live", "Show or leave out jobs that have ended.", QUEUE, in_footer=False),
    Command("sort", ("S",), "sort", "Sort by the next column; after the last one as the plan has it.", QUEUE, False),
    Command("columns", ("vertical_line",), "columns", "Choose and order the columns of the queue.", QUEUE, False),
    Command("fold", ("o",), "unfold", "Open or close an array, or what waits for the job.", QUEUE, False),
    Command("fold_all", ("O",), "unfold all", "Open or close all arrays, and all that wait for others.", QUEUE, False),
    Command("tab('queue')", ("1",), "queue", "Turn to the jobs that wait and run.", QUEUE, False, id="tab_queue"),
    Command(
        "tab('finished')",
        ("2",),
        "finished",
        "Turn to the jobs that ended, those of the history too.",
        QUEUE,
        False,
        id="tab_finished",
    ),
    Command(
        "tab('recurring')",
        ("3",),
        "recurring",
        "Turn to what is submitted again and again.",
        QUEUE,
        False,
        id="tab_recurring",
    ),
    Command(
        "tab('reservations')",
        ("4",),
        "reservations",
        "Turn to the GPUs that are kept for somebody.",
        QUEUE,
        False,
        id="tab_reservations",
    ),
)
EDIT_COMMANDS = (
    Command("move(1)", ("J",), "move down", "Move the waiting job behind the next one.", QUEUE, False, changes=True),
    Command(
        "move(-1)",
        ("K",),
        "move up",
        "Move the waiting job before the one above it, by the least priority that does it.",
        QUEUE,
        False,
        id="move_up",
        changes=True,
    ),
    Command("edit", ("e",), "edit", "Edit what the waiting job asks for.", QUEUE, changes=True),
    Command(
        "clone", ("C",), "clone", "Submit another job like this one, after a look at it.", QUEUE, False, changes=True
    ),
    Command(
        "recur", ("E",), "again", "Submit a job like this one again and again; asks when.", QUEUE, False, changes=True
    ),
)
STANDING_COMMANDS = (
    Command("pause_recurring", ("h",), "pause", "Make no run of the recurring job.", QUEUE, changes=True),
    Command("resume_recurring", ("r",), "resume", "Make runs of the recurring job again.", QUEUE, changes=True),
    Command("remove", ("c",), "remove", "End the recurring job or the reservation; asks first.", QUEUE, changes=True),
)
"""They share their keys with wishes about jobs, and so they have to be declared in one place with these."""
MAIN_COMMANDS = (
    *JOB_COMMANDS,
    *STANDING_COMMANDS,
    SUBMIT,
    GPU,
    *GPU_COMMANDS,
    Command(
        "pause",
        ("P",),
        "pause",
        "Start no further job anywhere; running ones go on. Asks for the reason.",
        SCHEDULER,
        changes=True,
    ),
    Command("unpause", ("P",), "unpause", "Start jobs again.", SCHEDULER, changes=True),
    Command("timeline", ("T",), "timeline", "Show which job has which GPUs when: what runs, what is planned.", VIEW),
)
UNDO = Command(
    "undo",
    ("u",),
    "undo",
    "Take this console's last wish back, if nothing has changed since: priority, top, hold, drain, pause.",
    JOBS,
    in_footer=False,
    changes=True,
)
APP_COMMANDS = (
    Command("help", ("question_mark",), "help", "Show all keys.", VIEW),
    Command(
        "notices",
        ("exclamation_mark",),
        "notices",
        "Show all errors and warnings in full, and what has happened since the console was opened.",
        VIEW,
        in_footer=False,
    ),
    Command(
        "command_palette",
        ("colon", "ctrl+p"),
        "palette",
        "Find a command by its name.",
        VIEW,
        False,
        False,
        id="palette",
    ),
    Command(
        "leave", ("q", "ctrl+c"), "quit", "Quit; asks what becomes of the scheduler if it runs here.", VIEW, id="quit"
    ),
    UNDO,
    Command(
        "themes", ("ctrl+t",), "theme", "Choose how the console looks, seeing each; remembered.", VIEW, in_footer=False
    ),
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
        "Search the log for a regular expression; capitals count if any is typed.",
        LOGS,
        id="log_search",
    ),
    Command(
        "found(1)", ("n",), "next", "To the next line that was searched for.", LOGS, True, False, "n/N", "log_next"
    ),
    Command("found(-1)", ("N",), "previous", "To the line before that has it.", LOGS, False, False, id="log_previous"),
    Command("narrow", ("ampersand",), "only", "Show only lines that match an expression.", LOGS, id="log_only"),
    Command(
        "context(1)",
        ("right_parenthesis",),
        "more around",
        "Show more lines around each that matches.",
        LOGS,
        False,
        False,
        id="log_more_around",
    ),
    Command(
        "context(-1)",
        ("left_parenthesis",),
        "fewer around",
        "Show fewer lines around each that matches.",
        LOGS,
        False,
        False,
        id="log_fewer_around",
    ),
    Command(
        "error(-1)", ("E",), "error before", "To the error before in the log.", LOGS, False, False, id="error_before"
    ),
    Command("toggle_wrap", ("b",), "wrap", "Break long lines, or cut them at the right.", LOGS, False, id="log_wrap"),
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
        "Pick lines to copy: j and k pick further; the mouse picks too.",
        LOGS,
        False,
        id="pick_lines",
    ),
    Command(
        "copy_lines",
        ("y",),
        "copy lines",
        "Copy the picked lines, or those in sight, to the terminal's clipboard.",
        LOGS,
        False,
    ),
    Command("save_log", ("S",), "save log", "Save the whole log to a file; asks where.", LOGS, False),
    Command("clear_log", ("escape",), "show all", "Pick nothing, search nothing, show all lines.", LOGS, True, False),
    Command(
        "sideways(1)", ("right", "l"), "right", "Show what is cut off at the right.", LOGS, False, False, id="log_right"
    ),
    Command("sideways(-1)", ("left",), "left", "Back to the left.", LOGS, False, False, id="log_left"),
)
LOG_JOB_COMMANDS = (
    Command("error(1)", ("e",), "error", "To the first error in the job's log; there, to the next.", LOGS),
    Command(
        "attempt(-1)",
        ("comma",),
        "attempt before",
        "Show the log of the job's attempt before.",
        LOGS,
        False,
        id="attempt_before",
    ),
    Command(
        "attempt(1)",
        ("full_stop",),
        "attempt after",
        "Show the log of the job's next attempt.",
        LOGS,
        False,
        id="attempt_after",
    ),
    Command("attempts", ("A",), "attempts", "Show the logs of the job's last two attempts together.", LOGS, False),
    Command("pin_log", ("p",), "pin log", "Keep the job's log among those shown together, or not.", LOGS, False),
    Command("logs", ("L",), "logs", "Show the pinned logs together, up to six.", LOGS, False),
)
WHAT_IF_COMMANDS = (
    Command("commit", ("enter",), "commit", "Write the change down whose shifts are shown.", WHAT_IF, True, False),
    Command("forget", ("escape",), "forget", "Leave everything as it is.", WHAT_IF, True, False),
)
FURTHER = (
    Command(
        "further('raise')", ("plus", "equals_sign"), "more", "Another 10 of priority.", WHAT_IF, True, False, id="more"
    ),
    Command("further('lower')", ("minus",), "less", "10 of priority less.", WHAT_IF, True, False, id="less"),
    Command(
        "further('top')", ("t",), "top", "To the head of the queue instead.", WHAT_IF, True, False, id="top_instead"
    ),
)
TIMELINE_COMMANDS = (
    Command(
        "zoom_time(1)", ("i",), "in", "Zoom in: less time on the screen.", TIMELINE, True, True, "i/o", id="zoom_in"
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
        "bar(-1)", ("left",), "bar before", "To the job before on this GPU.", TIMELINE, False, False, id="bar_before"
    ),
)
COLUMN_COMMANDS = (
    Command("toggle_column", ("space",), "show/hide", "Show the column, or leave it out.", QUEUE, True, False),
    Command("shift(1)", ("J", "right"), "move", "Move the column on.", QUEUE, True, False, "J/K", id="column_down"),
    Command("shift(-1)", ("K", "left"), "up", "Move the column back.", QUEUE, False, False, id="column_up"),
    Command("usual", ("u",), "usual ones", "Back to the columns that there were at first.", QUEUE, True, False),
    Command("take", ("enter",), "take these", "Have these columns, and remember them.", QUEUE, True, False),
)
SUBMIT_COMMANDS = (
    Command("send", ("ctrl+s",), "submit", "Submit the job of the form.", FORM, True, False, "Enter", changes=True),
    Command("recent", ("ctrl+r",), "recent", "Fill the form from an earlier submission.", FORM, footer_key="^R"),
    Command("older(1)", ("ctrl+up",), "older", "Fill in the submission before.", FORM, False, False),
    Command("older(-1)", ("ctrl+down",), "newer", "Back towards the latest, and what was typed.", FORM, False, False),
    Command("templates", ("ctrl+l",), "templates", "Fill it from a template, or save one.", FORM, footer_key="^L"),
    Command("editor", ("ctrl+o",), "editor", "Open the job in your $EDITOR, as a job file.", FORM, footer_key="^O"),
    Command(
        "more", ("ctrl+n",), "more", "Show the rare fields, or hide them.", FORM, footer_key="^N", id="more_fields"
    ),
    Command("give_up", ("escape",), "leave", "Leave the form; asks if something was typed.", FORM, in_palette=False),
)
COMMANDS = (
    *MAIN_COMMANDS,
    *QUEUE_COMMANDS,
    *EDIT_COMMANDS,
    *COLUMN_COMMANDS,
    *PANE_COMMANDS,
    *APP_COMMANDS,
    BACK,
    *GPU_PAGE_COMMANDS[len(GPU_COMMANDS) :],
    *WHAT_IF_COMMANDS,
    *FURTHER,
    *TIMELINE_COMMANDS,
    *SUBMIT_COMMANDS,
    *MOVE_COMMANDS,
    *GRID_COMMANDS,
    *LOG_COMMANDS,
    *LOG_JOB_COMMANDS,
)
CHANGING = frozenset(command.action.partition("(")[0] for command in COMMANDS if command.changes)
"""Actions that change anything but the screen."""


def bindings(commands: tuple[Command, ...]) -> list[BindingType]:
    """What Textual is told."""
    return [
        Binding(",".join(command.keys), command.action, command.title, command.in_footer, id=command.name)
        for command in commands
        if command.keys
    ]


def by_group(commands: tuple[Command, ...] = COMMANDS) -> dict[str, list[Command]]:
    """The commands under their headings."""
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups


def keys_document() -> str:
    """docs/keys.md."""
    lines = [
        "# Keys",
        "",
        "Written by `python scripts/keys.py` from `gputui/tui/commands.py`; `?` in the console shows the same.",
        "Commands about a job act on the selected job, on the job that holds the selected GPU, or on the job whose log",
        "is shown, according to the pane that has the focus. The mouse selects, scrolls, and opens with a double",
        "click; the words in the last line can be clicked. The last column is what the settings file calls a command:",
        "see docs/operations.md, Keys of your own.",
    ]
    for group, commands in by_group().items():
        lines += ["", f"## {group}", "", "| keys | name | does | in settings |", "|---|---|---|---|"]
        lines += [
            f"| {_quoted(command)} | {command.title} | {command.help} | `{command.name}` |" for command in commands
        ]
    return "\n".join(lines) + "\n"


def _quoted(command: Command) -> str:
    return " ".join(f"`{key_name(key)}`" for key in command.keys)
