"""Ways into a running job: whose runtime is asked, by which name, what is refused, and when the owner is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gputui.domain.container import ExecRequest, ProcessRow
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive
from gputui.domain.state import JobState
from gputui.engine.job_exec import Entrance
from gputui.ports import Channel, JobExec, Permit
from gputui.ports.backend import Attach
from tests.cases import cases
from tests.factories import NOW, job, running

TERMINAL = Interactive(stdin=True, tty=True)
LS = ExecRequest(("ls", "-l"))
SUBMITTER = 1000
"""The uid that a runtime recorded for each attempt."""


class Streams:
    """Streams that nothing comes from."""

    is_tty = has_pending = False

    def __init__(self) -> None:
        self.on_input: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return -1

    def input_fileno(self) -> int:
        return -1

    def receive(self) -> list[tuple[bool, bytes]] | None:
        return None

    def send(self, data: bytes) -> None:
        del data
        self.on_input()

    def end_input(self) -> None:
        pass

    def resize(self, rows: int, columns: int) -> None:
        pass

    def exit_code(self) -> int | None:
        return 0

    def close(self) -> None:
        pass


class FakeExec:
    """A runtime's way into its attempts."""

    def __init__(self, error: GputuiError | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.error = error
        self.is_closed = False

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        self.asked.append(("processes", container_id))
        return (ProcessRow(7, "alice", "python"),)

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        permit(SUBMITTER)
        return self._answer("attach", name, interactive, detach_keys)

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        permit(SUBMITTER)
        return self._answer("execute", name, request)

    def _answer(self, *asked: object) -> Channel:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return Streams()

    def close(self) -> None:
        self.is_closed = True


class Door:
    """An entrance with its runtimes."""

    def __init__(self, error: GputuiError | None = None, **missing: None) -> None:
        self.docker, self.process = FakeExec(error), FakeExec(error)
        runtimes: dict[str, JobExec] = {"docker": self.docker, "process": self.process}
        self.made = 0
        self.typed: list[int] = []
        self.permitted: list[tuple[int, int | None]] = []
        self.recorded: list[tuple[int, str, ExecRequest | None]] = []

        def make() -> dict[str, JobExec]:
            self.made += 1
            return {name: runtime for name, runtime in runtimes.items() if name not in missing}

        self.entrance = Entrance(
            make,
            lambda: "store",
            lambda job, uid: self.permitted.append((job.id, uid)),
            lambda job_id: lambda: self.typed.append(job_id),
            lambda job, verb, request: self.recorded.append((job.id, verb, request)),
            may_try=self.may_try,
        )

    def may_try(self, job: Job) -> None:
        if job.spec.tenant == "bob":
            raise GputuiError("it is bob's")


def interactive(**changes: Any) -> Job:
    return running(7, interactive=TERMINAL, **changes)


def test_the_runtime_of_the_job_is_asked_by_the_name_of_the_launch() -> None:
    """Members may write the container id in the queue, so it proves nothing."""
    door = Door()
    door.entrance.enter(running(7), LS)
    door.entrance.enter(interactive(), Attach("ctrl-a"))
    assert door.docker.asked == [
        ("execute", "gputui-store-7-1", LS),
        ("attach", "gputui-store-7-1", TERMINAL, "ctrl-a"),
    ]
    door.entrance.enter(running(8, image=None), LS)
    assert door.process.asked == [("execute", "gputui-store-8-1", LS)]
    assert door.made == 1
    assert door.permitted == [(7, SUBMITTER), (7, SUBMITTER), (8, SUBMITTER)]
    door.entrance.close()
    assert door.docker.is_closed
    assert door.process.is_closed


def test_processes_shells_and_early_attaches() -> None:
    # processes are those of the container
    door = Door()
    assert [row.pid for row in door.entrance.processes(running(7))] == [7]
    assert door.docker.asked == [("processes", "c7")]
    # a shell is a command of gputui that says where it opens
    door = Door()
    shell = door.entrance.shell(running(7))
    assert shell.arguments[:5] == ("gputui", "exec", "-it", "7", "sh")
    assert shell.where == "container c7"
    assert "this host" in door.entrance.shell(running(7, image=None)).where
    with pytest.raises(GputuiError, match="it is bob's"):
        door.entrance.shell(running(7, tenant="bob"))
    # an interactive job can be attached to while it starts
    door = Door()
    door.entrance.enter(interactive().evolve(state=JobState.CONFIGURING), Attach())
    assert door.docker.asked == [("attach", "gputui-store-7-1", TERMINAL, "")]


@cases(
    ("one", "said"),
    [
        (running(7), "job 7 is not interactive"),
        (job(7, interactive=TERMINAL), "job 7 is PENDING: it is not running"),
        (interactive().evolve(state=JobState.COMPLETED, ended_at=NOW), "job 7 is COMPLETED: it is not running"),
        (interactive().with_attempt(ended_at=NOW), "job 7 is RUNNING: it is not running"),
    ],
)
def test_other_jobs_cannot_be_attached_to(one: Job, said: str) -> None:
    with pytest.raises(GputuiError, match=said):
        Door().entrance.enter(one, Attach())


@cases("how", ["shell", "processes", "enter"])
@cases("one", [job(7), running(7).with_attempt(container_id=None)])
def test_only_a_running_job_can_be_entered(how: str, one: Job) -> None:
    door = Door()
    arguments = (LS,) if how == "enter" else ()
    with pytest.raises(GputuiError, match="only available while it is RUNNING"):
        getattr(door.entrance, how)(one, *arguments)
    assert door.docker.asked == []


def test_host_jobs_input_and_the_record() -> None:
    # without a container engine host jobs can be entered
    door = Door(docker=None)
    with pytest.raises(GputuiError, match="job 7 runs in a container, and this console was started without"):
        door.entrance.enter(running(7), LS)
    door.entrance.enter(running(8, image=None), LS)
    # input counts as a sign of life where idleness ends the job
    door = Door()
    door.entrance.enter(running(7), LS).send(b"x")
    assert door.typed == []
    door.entrance.enter(running(8, idle_timeout=timedelta(hours=1)), LS).send(b"x")
    assert door.typed == [8]
    # what enters directly is recorded
    door = Door()
    door.entrance.enter(interactive(), Attach())
    door.entrance.enter(running(8), LS)
    assert door.recorded == [(7, "attach", None), (8, "exec", LS)]
