"""Requests that no option or form lets through, but any program may send: none of them stops the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.action import Action, AddRecurring, Cancel, Edit, EditJobs, Requeue, SetPriority, Signal
from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, LimitWarning, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from tests.cases import cases
from tests.engine.world import World
from tests.factories import spec

HUGE = 10**30
LATE, EARLY = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
REFUSED: dict[str, dict[str, Any]] = {
    "endless limit": {"time_limit": timedelta.max},
    "no limit at all": {"time_limit": timedelta(0)},
    "negative limit": {"time_limit": timedelta(seconds=-1)},
    "endless pause": {"backoff": timedelta.max, "retries": 1},
    "negative pause": {"backoff": timedelta.min, "retries": 1},
    "many retries": {"retries": HUGE},
    "negative retries": {"retries": -1},
    "last day": {"begin_at": LATE},
    "first day": {"begin_at": EARLY},
    "time without a zone": {"begin_at": datetime(2027, 1, 1)},  # noqa: DTZ001 - as a program may send it
    "nice": {"nice": HUGE},
    "negative priority": {"priority": -1},
    "high priority": {"priority": 101},
    "negative GPUs": {"gpus": GpuRequest(-1, -1)},
    "many GPUs": {"gpus": GpuRequest(HUGE, HUGE)},
    "GPUs the wrong way round": {"gpus": GpuRequest(3, 1)},
    "negative GPU memory": {"gpus": GpuRequest(1, 1, memory=-1)},
    "shared without a promise": {"gpus": GpuRequest(1, 1, share=True)},
    "negative step": {"gpu_memory_step": -1},
    "unknown signal": {"warning": LimitWarning(65, timedelta(1)), "time_limit": timedelta(2)},
    "negative warning": {"warning": LimitWarning(2, timedelta(-1)), "time_limit": timedelta(2)},
    "endless idleness": {"idle_timeout": timedelta.max},
    "name of many lines": {"name": "a\nb"},
    "name that clears the screen": {"name": "\x1b[2J"},
    "name that turns text round": {"name": "\u202eabc"},
    "long name": {"name": "x" * 129},
    "lone surrogate": {"name": "\ud800"},
    "tenant with a zero": {"tenant": "a\0"},
    "long comment": {"comment": "x" * 513},
    "zero in a command": {"command": ("a", "\0")},
    "long argument": {"command": ("x" * 2**17,)},
    "no such dependency": {"after": (-1,)},
    "sweep without values": {"sweep": (("", ""),)},
    "no number of CPUs": {"options": ContainerOptions(cpus=float("nan"))},
    "all CPUs there are": {"options": ContainerOptions(cpus=float("inf"))},
    "memory": {"options": ContainerOptions(memory=HUGE)},
    "endless grace": {"options": ContainerOptions(stop_timeout=10**12)},
    "zero in the environment": {"options": ContainerOptions(env=(("A", "\0"),))},
}
ARRAYS = {"negative index": (-1,), "twice": (1, 1), "large index": (HUGE,), "many": tuple(range(100_001))}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


@cases("name", REFUSED)
def test_a_value_that_no_job_may_have_is_refused(world: World, name: str) -> None:
    wrong = replace(spec(), **REFUSED[name])
    for action in (
        SubmitJobs((Submission(spec()), Submission(wrong))),
        AddRecurring(Recurrence("0 * * * *", "UTC"), Submission(wrong)),
    ):
        with pytest.raises(InputError):
            world.actions.act(action)
    assert not world.store.jobs()
    assert not world.store.recurring()


@cases("name", [each for each in REFUSED if "tenant" not in each])
def test_nor_does_an_edit_bring_it_in(world: World, name: str) -> None:
    values = dict(REFUSED[name])
    parts: dict[str, Any] = {
        part: {key: getattr(of, key) for key in of.__struct_fields__}
        for part in ("gpus", "options")
        if (of := values.pop(part, None)) is not None
    }
    [job_id] = world.actions.act(SubmitJobs((Submission(spec(), held=True),))).ids
    before = world.store.get(job_id)
    with pytest.raises((InputError, NotFoundError)):
        world.actions.act(EditJobs((job_id,), Edit(spec=values, **parts)))
    assert world.store.get(job_id) == before


@cases("limit", [timedelta.max, timedelta(0)])
def test_nor_does_one_of_a_running_job(world: World, limit: timedelta) -> None:
    [job_id] = world.actions.act(SubmitJobs((Submission(spec(1)),))).ids
    world.tick(2)
    assert world.store.get(job_id).state is JobState.RUNNING
    with pytest.raises(InputError):
        world.actions.act(EditJobs((job_id,), Edit(spec={"time_limit": limit})))


@cases("name", ARRAYS)
def test_elements_that_no_array_may_have_are_refused(world: World, name: str) -> None:
    with pytest.raises(InputError):
        world.actions.act(SubmitJobs((Submission(spec(), array=ARRAYS[name]),)))
    with pytest.raises(InputError):
        world.actions.act(SubmitJobs((Submission(spec(), array=(1, 2), array_limit=0),)))


@cases(
    "action",
    [
        Signal((1,), 0),
        Signal((1,), 65),
        Signal((1,), -9),
        SetPriority((1,), HUGE),
        AddRecurring(Recurrence("0," * 1000 + "0 * * * *", "UTC"), Submission(spec())),
        AddRecurring(Recurrence("0 * * * *", "UTC", name="\x1b[2J"), Submission(spec())),
        AddRecurring(Recurrence("0 * * * *", "../../etc/passwd"), Submission(spec())),
    ],
)
def test_other_actions_beyond_their_limits_are_refused(world: World, action: Action) -> None:
    world.actions.act(SubmitJobs((Submission(spec(1)),)))
    world.tick(2)
    with pytest.raises(InputError):
        world.actions.act(action)


def test_the_widest_values_that_are_allowed_stop_nothing(world: World) -> None:
    most = timedelta(days=3650)
    wide = replace(
        spec(),
        time_limit=most,
        idle_timeout=most,
        backoff=most,
        retries=1000,
        nice=10_000,
        priority=100,
        warning=LimitWarning(64, most - timedelta(seconds=1)),
        gpu_memory_step=2**53,
        gpus=GpuRequest(1, 1024, memory=1),
        options=ContainerOptions(memory=2**63 - 1, stop_timeout=3600, pids_limit=-1),
    )
    late = replace(wide, begin_at=datetime(2200, 1, 1, tzinfo=UTC))
    ids = world.actions.act(
        SubmitJobs((Submission(wide), Submission(late), Submission(wide, array=(0, 10**9), array_limit=2**53)))
    ).ids
    world.tick(5)
    world.actions.act(SetPriority(ids, -(10**9), relative=True))
    world.actions.act(Requeue(ids[:1]))
    world.tick(5)
    world.actions.act(Cancel(ids))
    world.tick(5)
    assert {job.state for job in world.store.jobs().values()} <= {JobState.CANCELLED, JobState.COMPLETING}
