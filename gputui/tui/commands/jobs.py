"""Commands about jobs and GPUs, of the job form, and of the console as a whole."""

from __future__ import annotations

from gputui.domain import verbs
from gputui.domain.cluster import Capability
from gputui.domain.verbs import GPU_VERBS, JOB_VERBS, RECURRING_VERBS, RUNNING_VERBS, SCHEDULER_VERBS
from gputui.tui.commands.command import FORM, GPUS, JOBS, VIEW, Command, command_of
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
        "open",
        ("enter",),
        "open",
        "Show the job, the container with its log, or the process.",
        GROUP,
        True,
        False,
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
    Command(
        "detail",
        ("enter",),
        "detail",
        "Show everything about the job.",
        JOBS,
        needs="a job, or a GPU",
    ),
    Command(
        "follow",
        ("f",),
        "log",
        "Go to the job's log; in the log, back to the queue.",
        JOBS,
        needs="a job",
    ),
    *map(command_of, JOB_VERBS),
    *map(command_of, RUNNING_VERBS),
    SHELL,
    PROCESSES,
    COPY,
)
GPU_COMMANDS = tuple(map(command_of, GPU_VERBS))
STANDING_COMMANDS = tuple(map(command_of, RECURRING_VERBS))
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
    *map(command_of, SCHEDULER_VERBS),
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
HELP = Command(
    "help",
    ("question_mark",),
    "help",
    "Show all keys.",
    VIEW,
)
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
    Command(
        "leave",
        ("q",),
        "quit",
        "Quit; asks about the scheduler if it runs here.",
        VIEW,
        id="quit",
    ),
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
    Command(
        "themes",
        ("ctrl+t",),
        "theme",
        "Choose the theme, with a preview; remembered.",
        VIEW,
        in_footer=False,
    ),
)
