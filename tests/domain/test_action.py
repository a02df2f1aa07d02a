"""Actions as values: what is sent arrives as it was, and a change of a job is the same wherever it is made."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import msgspec
import pytest

from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    Pause,
    PauseRecurring,
    PlaceJobs,
    Release,
    RemoveRecurring,
    RemoveTenant,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    SetStanding,
    SetTenant,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unreserve,
    Unsuspend,
    typed,
)
from gputui.domain.job import Placed, Placing
from gputui.domain.job_spec import Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import Window
from gputui.domain.snapshot import Controls, StandingRule
from gputui.domain.submit_action import SubmitJobs
from tests.cases import cases
from tests.factories import NOW, gpu, job, spec

HOUR = timedelta(hours=1)
EXAMPLES: tuple[Action, ...] = (
    Hold((1, 2)),
    Release((1,)),
    Cancel((1,)),
    Requeue((1,)),
    Signal((1,), 10),
    Suspend((1,)),
    Unsuspend((1,)),
    SetPriority((1,), -10, relative=True),
    Top((1,)),
    EditJobs(
        (1,),
        Edit(
            {"time_limit": HOUR, "command": ("a", "b"), "begin_at": NOW},
            {"minimum": 2},
            {"env": (("A", "1"),)},
            held=True,
        ),
        job(),
    ),
    PlaceJobs((Placing((1, 2), Placed(3, 3, -1.0, 0.0, "alice", HOUR, 70, 0, NOW)),)),
    SubmitJobs((Submission(spec(gpus=2), array=(0, 4)),)),
    DrainGpus(("GPU-a",), "fans"),
    ResumeGpus(("GPU-a",)),
    Pause("upgrade"),
    Unpause(),
    ReserveGpus(Window("night", NOW, NOW + HOUR, count=1), (gpu(),)),
    Unreserve("night"),
    SetStanding(StandingRule(70)),
    SetTenant("bob", {"weight": 2.0, "users": ("bob", "@lab"), "gpus": None}, clear=True),
    RemoveTenant("bob"),
    AddRecurring(Recurrence("@daily", "UTC"), Submission(spec())),
    PauseRecurring((1,)),
    ResumeRecurring((1,)),
    RemoveRecurring((1,)),
)


def test_there_is_an_example_of_every_action() -> None:
    assert {type(action) for action in EXAMPLES} == set(get_args(Action))


@cases("action", EXAMPLES)
def test_an_action_arrives_as_it_was_sent(action: Action) -> None:
    assert typed(msgspec.json.decode(msgspec.json.encode(action), type=Action)) == action


@cases(
    "data",
    [
        b'{"action":"edit","ids":[1],"edit":{"spec":{"time_limit":"soon"}}}',
        b'{"action":"tenant","name":"bob","changes":{"weight":"much"}}',
        b'{"action":"hold","ids":["x"]}',
        b'{"action":"dance"}',
    ],
)
def test_values_of_a_wrong_type_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        typed(msgspec.json.decode(data, type=Action))


def test_edits_and_drains() -> None:
    # an edit from elsewhere moves no job to another tenant
    sent = EditJobs((1,), Edit({"tenant": "bob", "name": "new", "unknown": 1}))
    assert typed(sent) == EditJobs((1,), Edit({"name": "new"}))
    # a renewed drain replaces the first and a resume ends it
    once = DrainGpus(("a", "b"), "fans").apply(Controls(), NOW, "ann")
    again = DrainGpus(("a",), "dust").apply(once, NOW + HOUR, "bob")
    assert {uuid: (drain.reason, drain.by) for uuid, drain in again.drains.items()} == {
        "b": ("fans", "ann"),
        "a": ("dust", "bob"),
    }
    freed = ResumeGpus(("a", "b")).apply(again, NOW + HOUR, "ann")
    assert not freed.drains
    assert freed.resumed == {"a": NOW + HOUR, "b": NOW + HOUR}
