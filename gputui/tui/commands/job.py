"""Commands about a job, and about the GPU that it holds."""

from __future__ import annotations

from gputui.tui.commands.command import GPUS, JOBS, VIEW, Command

SHELL = Command(
    "shell",
    ("x",),
    "shell",
    "Open a shell in the job's container, or on the host with the job's GPUs; exit brings the console back.",
    JOBS,
    in_footer=False,
    changes=True,
    needs="a running job",
)
PROCESSES = Command(
    "processes",
    ("X",),
    "processes",
    "Show the processes of the running job: CPU, memory, GPU memory.",
    JOBS,
    False,
    needs="a running job",
)
COPY = Command(
    "copy",
    ("y",),
    "copy",
    "Copy the job's id, name, command or container, as one more key says.",
    JOBS,
    False,
    needs="a job",
)
JOB_COMMANDS = (
    Command("detail", ("enter",), "detail", "Show everything about the job.", JOBS, needs="a job, or a GPU"),
    Command("follow", ("f",), "follow", "Follow the job's log.", JOBS, needs="a job"),
    Command(
        "wish('hold')",
        ("h",),
        "hold",
        "Keep the waiting job from starting.",
        JOBS,
        changes=True,
        needs="a waiting job that is not held",
    ),
    Command("wish('release')", ("r",), "release", "Let the held job start.", JOBS, changes=True, needs="a held job"),
    Command(
        "wish('cancel')",
        ("c",),
        "cancel",
        "End the job, or take it out of the queue; asks first.",
        JOBS,
        changes=True,
        needs="a job that is neither over nor being cancelled",
    ),
    Command(
        "wish('requeue')",
        ("R",),
        "requeue",
        "Run the job again; one that runs is stopped first.",
        JOBS,
        changes=True,
        needs="a job that does not wait already",
    ),
    Command(
        "wish('raise')",
        ("plus", "equals_sign"),
        "prio",
        "Raise the job's priority by 10, up to 100.",
        JOBS,
        footer_key="+/-",
        changes=True,
        needs="a job that is not over, of priority below 100",
    ),
    Command(
        "wish('lower')",
        ("minus",),
        "prio down",
        "Lower the job's priority by 10, down to 0.",
        JOBS,
        in_footer=False,
        changes=True,
        needs="a job that is not over, of priority above 0",
    ),
    Command(
        "wish('top')",
        ("t",),
        "top",
        "Put the waiting job at the head of the queue.",
        JOBS,
        changes=True,
        needs="a waiting job",
    ),
    SHELL,
    PROCESSES,
    COPY,
)
GPU_COMMANDS = (
    Command(
        "drain",
        ("d",),
        "drain",
        "Let no further job start on the GPU; asks for the reason.",
        GPUS,
        changes=True,
        needs="the focus on a GPU that is not drained",
    ),
    Command(
        "resume",
        ("d",),
        "resume",
        "Let jobs start on the drained GPU again.",
        GPUS,
        changes=True,
        needs="the focus on a drained GPU",
    ),
)
SUBMIT = Command("submit", ("s",), "submit", "Submit a new job with a form.", JOBS, changes=True)
BACK = Command("back", ("escape", "q"), "back", "Back to the screen before.", VIEW, in_palette=False)
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
    Command("other_gpu(-1)", ("left",), "GPU before", "To the GPU before.", GPUS, False, False, id="gpu_before"),
    Command("next_job", ("tab",), "next job", "Mean the next of the jobs that share the GPU.", GPUS, True, False),
)
