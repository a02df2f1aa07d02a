"""docs/tour.md, as a new operator walks it: a real terminal, a real engine, five keys or five clicks for each task.

Every task is a row of `TASKS`: what to press, what to click, what the screen shows then, and what has become true. A
console walks through all of them by keyboard, and another one through the first by mouse; in the long lane both walk
through all in two sizes.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from tests.e2e.operator import MOST_KEYS
from tests.e2e.site import Site
from tests.e2e.terminal import Terminal
from tests.e2e.test_console import CONSOLE
from tests.runtime.dockerd import IMAGE, NETWORK

pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.tmux]

FAILS = (
    'for i in $(seq 300); do echo "step $i"; done; echo "Traceback (most recent call last):"; '
    'echo "torch.cuda.OutOfMemoryError: CUDA out of memory"; for i in $(seq 60); do echo "cleanup $i"; done; exit 1'
)
RUNS = 'trap "echo got-usr1" USR1; i=0; while true; do i=$((i+1)); echo "step $i"; sleep 0.2; done'
BIG = 2
"""Id of the job that runs."""
COMMENT = "long one"
"""Comment on it."""
SHARED = 6
"""GPU with the foreign processes."""
NOBODY = 65534
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@dataclass
class Tour:
    """An operator at one console."""

    site: Site
    terminal: Terminal
    store: TinyJobStore
    processes: list[subprocess.Popen[bytes]]
    """Processes of others on a GPU, the next one to be ended first."""
    containers: list[str]
    """Containers of others on GPUs, the next one to be stopped first."""
    steps: int = 0
    before: object = None
    """A value from before the task."""
    new: str = ""
    """Name of the job that the current task submits, fixed as it begins."""

    def job(self, job_id: int) -> Job:
        return self.store.get(job_id)

    @property
    def newest(self) -> Job:
        """The job that was submitted last."""
        return self.job(max(number for entry in self.store.jobs().values() for number in entry.ids))

    @property
    def words(self) -> dict[str, str]:
        """Return the names that a task uses; `new` is the name of the job that it submits."""
        newest = self.newest
        return {
            "container": self.containers[0] if self.containers else "",
            "pid": str(self.processes[0].pid) if self.processes else "",
            "left": str(len(self.processes)),
            "newest": newest.spec.name or "",
            "new": self.new,
        }


Step = Callable[[Tour], object]


def press(*keys: str) -> Step:
    """Press keys; each counts."""

    def step(tour: Tour) -> None:
        tour.steps += len(keys)
        tour.terminal.press(*keys)

    return step


def types(text: str) -> Step:
    """Type or paste words, which do not count."""
    return lambda tour: tour.terminal.press("-l", text.format(**tour.words))


def click(word: str, *, times: int = 1, button: int = 0) -> Step:
    """Click on a word; a double click is one gesture."""

    def step(tour: Tour) -> None:
        tour.steps += 1
        tour.terminal.click(word.format(**tour.words), times=times, button=button)

    return step


def twice(word: str) -> Step:
    """Double click on a row, which opens it."""
    return click(word, times=2)


def choose(row: str, line: str) -> tuple[Step, Step, Step]:
    """Open the menu of a row by the right button, and click on a line of it."""
    return click(row, button=2), sees("│ ▌ "), click(f"  {line}  ")


def sees(*words: str) -> Step:
    """Wait until all of these are on the screen."""
    return lambda tour: tour.terminal.until(*(word.format(**tour.words) for word in words))


def back(word: str) -> Step:
    """Press Escape on the screen with that word, which disappears; not counted."""
    return lambda tour: tour.terminal.leave(word)


def again(key: str) -> Step:
    """Press a key that reverses the task's change of the screen; not counted."""
    return lambda tour: tour.terminal.press(key)


def lacks(word: str) -> Step:
    """Wait until this is no longer on the screen."""
    return lambda tour: tour.terminal.until_gone(word.format(**tour.words))


def keep(value: Callable[[Tour], object]) -> Step:
    """Remember a value, to be compared with that after the task."""

    def step(tour: Tour) -> None:
        tour.before = value(tour)

    return step


Truth = Callable[[Tour], bool]


def changed(value: Callable[[Tour], object]) -> tuple[Step, Truth]:
    """Return a step that remembers this value before a task, and whether it has changed afterwards."""
    return keep(value), lambda tour: value(tour) != tour.before


def became(value: Callable[[Tour], bool]) -> tuple[Step, Truth]:
    """Return a step that remembers nothing, and the condition that must hold afterwards."""
    return lambda tour: None, value


SEEN = became(lambda tour: True)
"""Check of a task whose whole effect is on the screen."""


@dataclass(frozen=True)
class Task:
    """Task of an operator: keys, clicks, and its effect in queue, engine and processes."""

    name: str
    keys: tuple[Step, ...]
    mouse: tuple[Step, ...]
    effect: tuple[Step, Truth] = SEEN


def ended_by(number: signal.Signals) -> tuple[Step, Truth]:
    """Return a check that the foreign process has ended by that signal."""

    def is_over(tour: Tour) -> bool:
        if tour.processes[0].poll() is None:
            return False
        ended = tour.processes.pop(0)
        tour.site.gpus.change(without=[f"gpu {SHARED} process {ended.pid} "])
        assert ended.returncode == -number
        return True

    return became(is_over)


def container_stopped(tour: Tour) -> bool:
    """Return whether the foreign container has stopped."""
    if tour.containers[0] in tour.site.engine.docker("ps", "--format", "{{.Names}}").split():
        return False
    tour.containers.pop(0)
    return True


SMALL = (again("z"), again("1"))
OUT = (back("GPU USERS"),)
"""Steps from the process view to the main screen."""


def signal_task(name: str, key: str) -> Task:
    """Return the task of ending a foreign process, found by its user, with a signal."""
    return Task(
        f"end a process of nobody by {name}",
        (
            press("U"),
            sees("GPU USERS"),  # keys that come all at once would be pasted text
            press("/"),
            types("pid:{pid}"),
            sees("1 of "),
            press("Enter", key),
            sees(f"Send {name} to pid"),
            press("y"),
            lacks(f"Send {name}"),
            back("/pid:"),
            *OUT,
        ),
        (
            twice(f"{SHARED} H100"),
            sees("next GPU"),
            click("GPU users"),
            sees("GPU USERS  {left} of ", "{pid} nobody"),  # the row of the last one, which has ended, is gone
            *choose("{pid} nobody", f"send {name}"),
            sees(f"Send {name} to pid"),
            click("yes"),
            lacks(f"Send {name}"),
            back("/gpu:"),
            *OUT,
            back("next GPU"),
        ),
        ended_by(signal.Signals[f"SIG{name}"]),
    )


DOCKER_LINE = f"docker run --name {{new}} --network none --gpus 4 {IMAGE} sleep 600"
SEES_THE_STATE = sees("GPU 7 lost", "{container}", "torch.cuda.OutOfMemo", "util 0%  mem")
WHAT_IF = sees("What if", "Enter commit")
FILTER = "user:root state:running"
FILTERED = (sees(f"/{FILTER}", "jobs   Esc shows all", " 50 big"), back("/user"))
SHELL_IS_OPEN = sees("brings the console back")
LISTS_PROBLEMS = (sees("GPU 7 is lost and takes no job", "worst first"), back("worst first"))
SEES_THE_ERROR = (sees("▶Traceback (most recent call last):", "✗torch.cuda.OutOfMemoryError"), again("1"))
SEES_A_CONTAINER = (
    sees("CONTAINER  {container}", "lab starts", "/etc → /work (read-only)", "running for"),
    back("lab starts"),
)
HOW_WELL = (sees("peak memory 0/80G per GPU"), back("peak memory"))
WHY = (sees("{newest}", "needs 4 GPUs: ", "starts "), back("starts "))

TASKS = (
    Task("what is wrong, who uses which GPU, which job failed why", (SEES_THE_STATE,), (SEES_THE_STATE,)),
    Task("all problems", (press("!"), *LISTS_PROBLEMS), (click("GPU 7 lost"), *LISTS_PROBLEMS)),
    Task(
        "the error in the log of a failed job",
        (
            press("/"),
            types("state:failed"),
            sees("/state:failed", " jobs   Enter keep"),
            press("Enter", "e"),
            *SEES_THE_ERROR,
            back("/state:failed"),
        ),
        (click(" 50 bad"), sees("LOG #1 bad", "cleanup 60"), *choose("cleanup 59", "error"), *SEES_THE_ERROR),
    ),
    Task(
        "how well an ended job used its GPUs",
        (
            press("/"),
            types("short"),
            sees("/short", " jobs   Enter keep"),
            press("Enter", "Enter"),
            *HOW_WELL,
            back("/short"),
        ),
        (twice(" 50 short"), *HOW_WELL),
    ),
    Task(
        "submit a job by the docker run line that one has",
        (
            press("s"),
            sees("Submit a job", "suitable GPUs"),
            types(DOCKER_LINE),
            press("Enter"),
            sees("command      sleep 600"),
            press("Enter"),
            sees(" 50 {new}"),
        ),
        (
            click("s submit"),
            sees("Submit a job", "suitable GPUs"),
            types(DOCKER_LINE),
            sees("has no blanks"),
            click("Enter submit"),
            sees("command      sleep 600", " Start ~"),  # the form has grown to its height
            click("Enter submit"),
            sees(" 50 {new}"),
        ),
        changed(lambda tour: tour.newest.id),
    ),
    Task(
        "why it waits, and until when",
        (press("/"), types("{newest}"), sees("/{newest}", " jobs   Enter keep"), press("Enter", "Enter"), *WHY),
        (twice(" 50 {newest}"), *WHY),
    ),
    Task(
        "put it before others, after a look at whom that delays",
        (press("+"), sees("What if", "priority 50 -> 60"), press("Enter")),
        (*choose(" 50 {newest}", "prio"), sees("What if", "priority 50 -> 60"), click("commit")),
        changed(lambda tour: tour.newest.priority),
    ),
    Task(
        "hold it",
        (press("h"), WHAT_IF, press("Enter")),
        (*choose(" 60 {newest}", "hold"), WHAT_IF, click("commit")),
        changed(lambda tour: tour.newest.held),
    ),
    Task(
        "release it",
        (press("r"), WHAT_IF, press("Enter")),
        (*choose(" 60 {newest}", "release"), WHAT_IF, click("commit")),
        changed(lambda tour: tour.newest.held),
    ),
    Task(
        "cancel it",
        (press("c"), sees("cancel it"), press("y"), lacks("cancel it"), back("/mine")),
        (*choose(" 60 {newest}", "cancel"), sees("cancel it"), click("commit")),
        became(lambda tour: tour.newest.state is JobState.CANCELLED),
    ),
    Task(
        "give a running job more time",
        (
            press("/"),
            types("big"),
            sees("/big", " jobs   Enter keep"),
            press("Enter", "e"),
            sees("Edit job #2", "Ends "),
            types("+1h"),
            press("Enter"),
            WHAT_IF,
            press("Enter"),
        ),
        (
            *choose(" 50 big", "edit"),
            sees("Edit job #2", "Ends "),
            types("+1h"),
            sees("+1h"),
            click(" save"),
            WHAT_IF,
            click("commit"),
        ),
        changed(lambda tour: tour.job(BIG).spec.time_limit),
    ),
    Task(
        "write a comment on it",
        (
            press("e"),
            sees("Edit job #2", "Ends "),
            press("Tab"),
            types("by {new}"),
            press("Enter"),
            WHAT_IF,
            press("Enter"),
        ),
        (
            *choose(" 50 big", "edit"),
            sees("Edit job #2", "Ends "),
            click(COMMENT),
            types(", seen"),
            sees(", seen"),
            click(" save"),
            WHAT_IF,
            click("commit"),
        ),
        changed(lambda tour: tour.job(BIG).spec.comment),
    ),
    Task(
        "have it write a checkpoint",
        (press("I"), sees("USR1"), press("Enter"), sees("got-usr1")),
        (*choose(" 50 big", "signal"), twice("USR1  defined"), sees("got-usr1")),
    ),
    Task(
        "suspend it",
        (press("Z"), sees("suspended")),
        (*choose(" 50 big", "suspend"), sees("suspended")),
        became(lambda tour: tour.job(BIG).is_suspended),
    ),
    Task(
        "continue it",
        (press("Z"), lacks("suspended")),
        (*choose(" 50 big", "unsuspend"), lacks("suspended")),
        became(lambda tour: not tour.job(BIG).is_suspended),
    ),
    Task(
        "follow its log on the whole screen",
        (press("f", "z"), sees("LOG #2 big", "step "), lacks(" 50 bad"), *SMALL),
        (
            click(" 50 big"),
            sees("LOG #2 big", "step "),
            *choose("step ", "zoom"),
            lacks(" 50 bad"),
            again("z"),
            again("1"),
        ),
    ),
    Task(
        "keep its log in sight",
        (press("p"), sees("LOG #2 big  ● pinned")),
        (click(" 50 big"), click("LOG #2 big"), sees("LOG #2 big  ● pinned")),
    ),
    Task("let it go", (press("p"), lacks("● pinned")), (click("LOG #2 big"), lacks("● pinned"))),
    Task(
        "a shell in it, and back",
        (press("x"), SHELL_IS_OPEN, types("exit"), press("Enter"), sees("q quit"), back("/big")),
        (
            *choose(" 50 big", "shell"),
            SHELL_IS_OPEN,
            types("exit"),
            press("Enter"),
            sees("q quit"),
        ),
    ),
    Task(
        "the elements of a sweep",
        (
            press("/"),
            types("lr"),
            sees("/lr", " jobs   Enter keep"),
            press("Enter", "o"),
            sees("4_3", "lr=1e-4"),
            again("o"),
            back("/lr"),
        ),
        (*choose("▸lr", "unfold"), sees("4_3", "lr=1e-4")),
    ),
    Task(
        "only the jobs of a user that run",
        (press("/"), types(FILTER), press("Enter"), *FILTERED),
        (*choose(" 50 big", "filter"), types(FILTER), press("Enter"), *FILTERED),
    ),
    Task(
        "graphs over ten minutes",
        (press("M"),),
        choose("6 H100", "graph span"),
    ),
    Task(
        "no more jobs on a GPU",
        (press("BTab", "d"), sees("Reason"), types("dust"), press("Enter")),
        (*choose("0 H100", "drain"), sees("Reason"), types("dust"), press("Enter")),
        became(lambda tour: bool(tour.store.controls().drains)),
    ),
    Task(
        "jobs on it again",
        (press("d"), WHAT_IF, press("Enter"), again("1")),
        (*choose("0 H100", "resume"), WHAT_IF, click("commit")),
        became(lambda tour: not tour.store.controls().drains),
    ),
    Task(
        "which processes of a user are on the GPUs",
        (
            press("U"),
            sees("GPU USERS"),  # keys that come all at once would be pasted text
            press("/"),
            types("nobody"),
            press("Enter"),
            sees("{pid} nobody"),
            lacks("{container}"),
            back("/nobody"),
            *OUT,
            again("1"),
        ),
        (*choose("6 H100", "GPU users"), sees("{pid} nobody"), *OUT),
    ),
    signal_task("INT", "I"),
    signal_task("TERM", "T"),
    signal_task("KILL", "K"),
    Task(
        "whose container that is: its image, mounts and log",
        (press("U"), sees("{container}"), press("Enter"), *SEES_A_CONTAINER, *OUT),
        (
            twice("{container}"),
            click("GPU users"),
            sees("1 of "),
            click("{container}"),
            click("Enter open"),
            *SEES_A_CONTAINER,
            back("/gpu:"),
            *OUT,
            back("next GPU"),
        ),
    ),
    Task(
        "stop it",
        (
            press("U"),
            sees("{container}"),
            press("X"),
            sees("Stop container {container}"),
            press("y"),
            lacks("Stop "),
            *OUT,
        ),
        (
            twice("{container}"),
            click("GPU users"),
            sees("1 of "),
            click("stop container"),
            sees("Stop container {container}"),
            click("yes"),
            lacks("Stop container"),
            back("/gpu:"),
            *OUT,
            back("next GPU"),
        ),
        became(container_stopped),
    ),
)


def start_container(site: Site, name: str, gpu: int) -> str:
    """Start a foreign container on a GPU; return its name."""
    options = ("--name", name, "--network", NETWORK, "--stop-timeout", "0", "-v", "/etc:/work:ro")
    device = ("--gpus", f'"device={gpu}"')
    site.engine.docker("run", "-d", *options, *device, IMAGE, "sh", "-c", "echo lab starts; exec sleep 600")
    return name


@contextmanager
def occupied(site: Site) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[str]]]:
    """Occupy GPUs by processes and a container of others, as many as a walk ends, and lose one GPU."""
    processes = [subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY) for _ in SIGNALS]
    containers = [start_container(site, "lab-carol", 4)]
    site.gpus.change(*(f"gpu {SHARED} process {each.pid} 5000000000 C" for each in processes), "gpu 7 lost 1")
    try:
        yield processes, containers
    finally:
        for each in processes:
            each.kill()
            each.wait()


@contextmanager
def opened(site: Site, columns: int, lines: int) -> Iterator[Tour]:
    """Open a console that schedules, beside jobs of all kinds and GPUs in foreign use."""
    site.config.write_text('[scheduler]\nhand_over = "never"\n[console]\ntoast = "none"\n')
    site.shell(FAILS, "--gpus", "1", "--name", "bad")
    site.shell(RUNS, "--gpus", "2", "--name", "big", "--time-limit", "2h", "--comment", COMMENT)
    site.shell("sleep 3", "--gpus", "1", "--name", "short")
    site.submit("--hold", "--name", "lr", "--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0-1", IMAGE, "echo", "{lr}")
    with occupied(site) as (processes, containers), Terminal(CONSOLE, site.environ, columns, lines) as terminal:
        yield Tour(site, terminal, site.store(), list(processes), containers)
        terminal.press("q")
        terminal.until("EXIT 0")


def walk(tour: Tour, task: Task, steps: tuple[Step, ...]) -> None:
    """Perform one task, check its steps and its effect, and return to the main screen."""
    remember, is_true = task.effect
    remember(tour)
    tour.steps = 0
    tour.new = f"mine{tour.newest.id}"
    for step in steps:
        step(tour)
    assert tour.steps <= MOST_KEYS, task.name
    tour.terminal.until_that(lambda _: is_true(tour), task.name)
    tour.terminal.until_that(is_main)


def is_main(shown: str) -> bool:
    """Whether the main screen is there and nothing lies on it: what it shows is seen beside a dialog, too."""
    return all(word in shown for word in ("LOG ", "s submit", "q quit")) and "╭" not in shown


KEYS, MOUSE = "keys", "mouse"
NARROW, WIDE = (80, 24), (200, 50)
FIRST = 9
"""Tasks with every kind of click: on a word, twice on a row, in its menu, in the key bar, and in a dialog."""
WALKS = (
    pytest.param(KEYS, NARROW, len(TASKS), id="keys-80-24"),
    pytest.param(MOUSE, WIDE, FIRST, id="mouse-200-50-first"),
    pytest.param(KEYS, WIDE, len(TASKS), id="keys-200-50", marks=pytest.mark.long),
    pytest.param(MOUSE, NARROW, len(TASKS), id="mouse-80-24", marks=pytest.mark.long),
    pytest.param(MOUSE, WIDE, len(TASKS), id="mouse-200-50", marks=pytest.mark.long),
)


@pytest.mark.parametrize(("device", "size", "count"), WALKS)
def test_each_task_takes_five_keys_or_five_clicks(site: Site, device: str, size: tuple[int, int], count: int) -> None:
    with opened(site, *size) as tour:
        for task in TASKS[:count]:
            walk(tour, task, task.keys if device == KEYS else task.mouse)
