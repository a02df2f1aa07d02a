"""Commands of the process view: all processes on GPUs, and acts on those that are no job's."""

from __future__ import annotations

from gputui.tui.commands.command import GPUS, Command
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
