"""Commands of the queue: marks, filter, columns, tabs, and the order by hand."""

from __future__ import annotations

from gputui.tui.commands.command import GPUS, QUEUE, Command

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
    Command(
        "edit", ("e",), "edit", "Edit what the waiting job asks for, in the form of a new one.", QUEUE, changes=True
    ),
    Command(
        "clone", ("C",), "clone", "Submit another job like this one, after a look at it.", QUEUE, False, changes=True
    ),
    Command(
        "recur", ("E",), "again", "Submit a job like this one again and again; asks when.", QUEUE, False, changes=True
    ),
    Command(
        "reserve",
        ("B",),
        "reserve",
        "Keep GPUs for somebody for a time; shows whose start would shift.",
        GPUS,
        False,
        changes=True,
    ),
)
STANDING_COMMANDS = (
    Command("pause_recurring", ("h",), "pause runs", "Make no run of the recurring job.", QUEUE, changes=True),
    Command("resume_recurring", ("r",), "resume runs", "Make runs of the recurring job again.", QUEUE, changes=True),
    Command("remove", ("c",), "remove", "End the recurring job or the reservation; asks first.", QUEUE, changes=True),
)
"""They share their keys with wishes about jobs, and so they have to be declared in one place with these."""
COLUMN_COMMANDS = (
    Command("toggle_column", ("space",), "show/hide", "Show the column, or leave it out.", QUEUE, True, False),
    Command("shift(1)", ("J", "right"), "move", "Move the column on.", QUEUE, True, False, "J/K", id="column_down"),
    Command("shift(-1)", ("K", "left"), "up", "Move the column back.", QUEUE, False, False, id="column_up"),
    Command("usual", ("u",), "usual ones", "Back to the columns that there were at first.", QUEUE, True, False),
    Command("take", ("enter",), "take these", "Have these columns, and remember them.", QUEUE, True, False),
)
