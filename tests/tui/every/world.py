"""Console in which every command has a subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.action import AddRecurring
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Drain, GpuProcess, GpuView
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import ConsoleSettings, Window
from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.tui.preferences import Preferences
from gputui.tui.screens.job_form import keep_submission
from tests.factories import GIB, NOW, running, spec, uuid
from tests.foreign import JUPYTER, FakeContainers, FakeHost
from tests.tui import plans
from tests.tui.console import Console
from tests.tui.sample import busy, jobs, rich_snapshot

SIZE = (240, 50)
LINES = [b"line %d %s" % (i, b"x" * 300) for i in range(200)]
LINES[150] = b"RuntimeError: CUDA out of memory"
LINES[170] = b"NCCL error: unhandled system error"
RESERVED = Window("r1", NOW, NOW + timedelta(hours=2), count=2, tenant="alice")
DRAINED = Drain("fan noise", "alice", NOW)


class NotedPreferences(Preferences):
    """Preferences that count how often one was changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def put(self, section: str, values: Mapping[str, object]) -> None:
        self.changes += 1
        super().put(section, values)


class Inside:
    """Fake that records requests for shells and processes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def shell(self, job_id: JobId) -> Shell:
        self.asked.append(("shell", job_id))
        return Shell(("/bin/true",), "nowhere")

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        self.asked.append(("processes", job_id))
        return (ProcessRow(4001, "root", "sh -c train", 0.0, 1024, timedelta(minutes=9)),)

    def close(self) -> None:
        pass


def picture() -> Snapshot:
    """Return a busy day on which job 101 is at its second attempt and 104 and 111 share GPU 2."""
    base = rich_snapshot()
    shared = busy(2, 104, job_ids=(104, 111))
    gpus = (*base.nodes[0].gpus[:2], shared, _occupied(base.nodes[0].gpus[3]), *base.nodes[0].gpus[4:])
    beside = running(111, on=(uuid(2),), name="beside", tenant="carol")
    listed = (*(_again(job) if job.id == 101 else job for job in jobs()), beside)
    return replace(base, nodes=(replace(base.nodes[0], gpus=gpus),), jobs=listed)


def _occupied(view: GpuView) -> GpuView:
    """Return the GPU with the process of the foreign container on it."""
    assert view.sample is not None
    process = GpuProcess(22110, GIB, "bob", "python -m ipykernel_launcher", JUPYTER.id, ticks=5)
    return replace(view, sample=replace(view.sample, processes=(process,), processes_at=NOW))


def _again(job: Job) -> Job:
    first = Attempt(
        1,
        (uuid(3),),
        NOW - timedelta(hours=3),
        "c0ffee",
        NOW - timedelta(hours=3),
        NOW - timedelta(hours=2, minutes=20),
        1,
        Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"),
    )
    return job.evolve(attempts=(first, replace(job.attempts[0], number=2)))


def world(*, read_only: bool = False, keys: dict[str, tuple[str, ...]] | None = None, what_if: str = "off") -> Console:
    """Return a console that writes actions without a preview, unless that is set."""
    preferences = NotedPreferences()
    keep_submission(preferences, {"image": "earlier", "gpus": "1", "command": ""})
    console = Console(
        picture(),
        console=ConsoleSettings(what_if, read_only=read_only, keys=keys or {}),
        preferences=preferences,
        templates=Path("no-such-directory"),
        inside=Inside(),
        host=FakeHost(),
        containers=FakeContainers(),
    )
    console.logs.lines[101] = LINES
    console.logs.attempts[101, 1] = [b"the first attempt"]
    console.actions.act(AddRecurring(Recurrence("0 3 * * *", "UTC", "nightly"), Submission(spec())))
    with console.store.transaction() as transaction:
        controls = transaction.controls()
        transaction.set_controls(replace(controls, reservations=(RESERVED,), drains={uuid(6): DRAINED}))
    view = WindowView(RESERVED, WindowState.ACTIVE, "command", gpus=(uuid(4), uuid(5)))
    recurring = tuple(console.store.recurring().values())
    console.snapshot = replace(console.snapshot, recurring=recurring, windows=(view,))
    return console


def foreseen() -> Console:
    """Return a console that shows the effect of an action before it writes it."""
    return Console(plans.contended(), what_if="always", policy=plans.KEPT, preferences=NotedPreferences())


Make = Callable[[], Console]
