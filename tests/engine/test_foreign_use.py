"""Actions on foreign processes and containers: refusals and audit entries."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu_processes import ProcessTarget, SignalOutcome
from gputui.domain.state import JobState
from gputui.engine.actions.foreign_use import SIGNALS, ForeignUse, parse_signal
from tests.cases import cases
from tests.factories import ACTOR, NOW, FakeClock, running
from tests.foreign import JUPYTER, FakeContainers, FakeHost
from tests.memory_store import MemoryJobStore

TARGET = ProcessTarget(300, 30, "bob", "python eval.py", ("1",), "foreign")


class World:
    """A store with a running job, and foreign processes and containers."""

    def __init__(self, *, is_read_only: bool = False, containers: FakeContainers | None = None) -> None:
        self.store = MemoryJobStore()
        with self.store.transaction() as transaction:
            transaction.put(running(transaction.add(running(7)).id, on=("GPU-1",)))
        self.host, self.containers = FakeHost(), containers or FakeContainers()
        self.use = ForeignUse(
            lambda: self.store,
            FakeClock(),
            ACTOR,
            lambda: self.host,
            lambda: self.containers,
            is_read_only=is_read_only,
        )

    @property
    def audit(self) -> list[tuple[str, str, str]]:
        return [(entry.verb, entry.target, entry.after) for entry in self.store.audit_log()]


def test_how_a_signal_is_told() -> None:
    # a signal is audited before it is sent and with its result
    world = World()
    said = world.use.signal(TARGET, "TERM")
    assert said == "TERM to pid 300 of bob on GPU 1: python eval.py: ended after 0.2 s"
    assert world.host.sent == [(300, 15)]
    assert world.audit == [("signal", "pid 300", "TERM: requested"), ("signal", "pid 300", "TERM: ended after 0.2 s")]
    (first, _) = world.store.audit_log()
    assert (first.uid, first.user) == (ACTOR.uid, ACTOR.user)
    assert "python eval.py, started 2" in first.before
    # a surviving process is reported with its state
    world = World()
    world.host.outcome = SignalOutcome(has_ended=False, seconds=3, state="D")
    assert "still there after 3 s: it waits in the kernel" in world.use.signal(TARGET, "KILL")
    # a refusal is audited and nothing is sent
    world = World()
    world.host.error = GputuiError("pid 300 belongs to bob", hint="ask bob or root")
    with pytest.raises(GputuiError, match="belongs to bob"):
        world.use.signal(TARGET, "TERM")
    assert world.audit == [("signal", "pid 300", "TERM: refused: pid 300 belongs to bob (ask bob or root)")]


@cases("how", ["row", "container", "tag"])
def test_a_process_of_a_job_is_refused_and_cancel_is_offered(how: str) -> None:
    world = World()
    (job,) = world.store.jobs().values()
    target = TARGET
    assert job.attempt is not None
    if how == "row":
        target = replace(TARGET, job_id=job.id)
    elif how == "container":
        target = replace(TARGET, container_id=job.attempt.container_id)
    else:
        world.host.names = ("A=1", f"GPUTUI_ATTEMPT={world.store.store_id}:{job.id}:{job.attempt.number}")
    with pytest.raises(GputuiError, match="belongs to job") as told:
        world.use.signal(target, "KILL")
    assert told.value.hint == f"cancel the job: gputui cancel {job.id}"
    assert world.host.sent == []


@cases("name", SIGNALS)
def test_a_signal_is_sent_by_the_number_that_the_system_gives_it(name: str) -> None:
    world = World()
    world.use.signal(TARGET, name)
    assert world.host.sent == [(300, signal.Signals[f"SIG{name}"])]


@cases("how", ["container", "tag"])
def test_what_a_job_that_has_ended_left_behind_may_be_signalled(how: str) -> None:
    """There is nothing to cancel any more, and the process holds a GPU."""
    world = World()
    (job,) = world.store.jobs().values()
    with world.store.transaction() as transaction:
        transaction.put(job.evolve(state=JobState.COMPLETED, ended_at=NOW))
    assert job.attempt is not None
    target = replace(TARGET, container_id=job.attempt.container_id) if how == "container" else TARGET
    world.host.names = (f"GPUTUI_ATTEMPT={world.store.store_id}:{job.id}:{job.attempt.number}",)
    assert "ended after 0.2 s" in world.use.signal(target, "KILL")
    assert world.host.sent == [(300, 9)]


def test_how_a_container_is_stopped() -> None:
    # a container is stopped with its own timeout and audited
    world = World()
    assert world.use.stop("jupyter").endswith("with exit code 137: it ignored its stop signal and was killed")
    assert world.containers.stopped == [(JUPYTER.id, 7)]
    assert [(verb, target) for verb, target, _ in world.audit] == [("stop-container", "container jupyter-bob")] * 2
    assert next(iter(world.store.audit_log())).before == "f00df00df00d container jupyter-bob (lab:2) of bob"
    # a container that keeps running is reported
    containers = FakeContainers(replace(JUPYTER, restart="always"))
    containers.ends = False
    assert "still running" in World(containers=containers).use.stop("jupyter")
    # a read only console sends no signal and stops no container
    world = World(is_read_only=True)
    with pytest.raises(GputuiError, match="read-only"):
        world.use.signal(TARGET, "INT")
    with pytest.raises(GputuiError, match="read-only"):
        world.use.stop("jupyter")
    assert (world.host.sent, world.containers.stopped) == ([], [])


@cases(
    ("changes", "said"),
    [
        ({"store": "abc", "job": "12"}, "belongs to job 12 of the gputui queue abc"),
        ({"state": "exited"}, "does not run: it is exited"),
    ],
)
def test_a_container_of_a_job_or_one_that_has_ended_is_not_stopped(changes: dict[str, str], said: str) -> None:
    world = World(containers=FakeContainers(replace(JUPYTER, **changes)))
    with pytest.raises(GputuiError, match=said):
        world.use.stop("jupyter")
    assert world.containers.stopped == []
    assert said in world.audit[-1][2]


@cases(("text", "name"), [("term", "TERM"), ("SIGKILL", "KILL"), ("2", "INT")])
def test_names_of_signals(text: str, name: str) -> None:
    assert parse_signal(text, "--signal") == name


def test_other_signals_are_refused() -> None:
    with pytest.raises(InputError, match="INT, TERM, KILL"):
        parse_signal("STOP", "--signal")
