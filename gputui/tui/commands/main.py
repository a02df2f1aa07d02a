"""Commands of the main screen, and those that work wherever one is."""

from __future__ import annotations

from gputui.tui.commands.command import JOBS, SCHEDULER, VIEW, Command
from gputui.tui.commands.job import GPU, GPU_COMMANDS, JOB_COMMANDS, SUBMIT
from gputui.tui.commands.queue import STANDING_COMMANDS

TIMELINE_SCREEN = Command(
    "timeline", ("T",), "timeline", "Show which job has which GPUs when: what runs, what is planned.", VIEW
)
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
        needs="a queue that is not paused",
    ),
    Command("unpause", ("P",), "unpause", "Start jobs again.", SCHEDULER, changes=True, needs="a paused queue"),
    TIMELINE_SCREEN,
)
WORK_COMMANDS = (
    Command(
        "give_up_work",
        ("escape",),
        "give up",
        "Give up what takes long, while its bar is shown at the upper edge; nothing of it is done then.",
        VIEW,
        in_footer=False,
        in_palette=False,
    ),
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
PALETTE = Command(
    "command_palette", ("colon", "ctrl+p"), "palette", "Find a command by its name.", VIEW, False, False, id="palette"
)
HELP = Command("help", ("question_mark",), "help", "Show all keys.", VIEW)
NOTICES = Command(
    "notices",
    ("exclamation_mark",),
    "notices",
    "Show all errors and warnings in full, and what has happened since the console was opened.",
    VIEW,
    in_footer=False,
)
APP_COMMANDS = (
    HELP,
    NOTICES,
    PALETTE,
    Command(
        "leave", ("q", "ctrl+c"), "quit", "Quit; asks what becomes of the scheduler if it runs here.", VIEW, id="quit"
    ),
    UNDO,
    Command(
        "themes", ("ctrl+t",), "theme", "Choose how the console looks, seeing each; remembered.", VIEW, in_footer=False
    ),
)
