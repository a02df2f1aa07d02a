"""Accounts that may not use the queue any more: nothing new of theirs starts, and what runs goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.bootstrap import hosting
from gputui.config import Options
from gputui.domain.access import Actor
from gputui.domain.action import AddRecurring, Release, ResumeRecurring
from gputui.domain.job_spec import Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import AccessSettings, PolicySettings, Settings
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from tests.cases import cases
from tests.engine.world import World
from tests.factories import ACTOR, spec

BOB = Actor(1002, "bob")
GONE = "alice may not use this queue any more (access.users)"


def test_waiting_jobs_of_a_former_user_are_held_and_those_of_others_start(world: World) -> None:
    running = world.submit(1)
    world.tick(2)
    waiting = world.submit(2)
    world.actions = Actions(world.store, world.clock, BOB)
    other = world.submit(1)
    world.former = {ACTOR.uid}
    world.tick(2)
    found = world.job(waiting)
    assert (found.held, found.hold_reason, found.held_by, found.attempts) == (True, GONE, "", ())
    assert [entry.after for entry in world.store.audit_log(f"job {waiting}")][-1] == f"held: {GONE}"
    assert world.job(running).state is JobState.RUNNING
    assert world.job(other).state is not JobState.PENDING
    world.actions.act(Release((waiting,)))
    world.tick()
    assert world.job(waiting).held, "released too early"
    world.former = set()
    world.actions.act(Release((waiting,)))
    world.tick(2)
    assert world.job(waiting).state is JobState.RUNNING


def test_a_job_that_would_start_again_is_held(world: World) -> None:
    one = world.submit(1, retries=1)
    world.tick(2)
    world.former = {ACTOR.uid}
    world.exit(one, 1)
    world.tick(3)
    assert (world.job(one).state, world.job(one).hold_reason) == (JobState.PENDING, GONE)


def test_a_recurring_job_of_a_former_user_is_paused_when_it_is_due(world: World) -> None:
    [one] = world.actions.act(AddRecurring(Recurrence("* * * * *", "UTC"), Submission(spec()))).ids
    world.former = {ACTOR.uid}
    for _ in range(2):
        world.tick(seconds=60)
        entry = world.store.recurring()[one]
        assert (entry.paused, entry.skipped and entry.skipped.why) == (True, f"paused: {GONE}")
        assert not world.store.jobs()
        world.actions.act(ResumeRecurring((one,)))
    world.former = set()
    world.tick(seconds=60)
    assert world.store.jobs()


@pytest.mark.needs("root")
@cases(
    ("users", "operators", "is_former"),
    [
        (("root",), (), True),
        ((), (), True),
        (("nobody",), (), False),
        (("65534",), (), False),
        (("*",), (), False),
        (("@nogroup",), (), False),
        (("@root",), (), True),
        (("root",), ("nobody",), False),
        (("root", "@a-group-that-no-database-knows"), (), False),
    ],
)
def test_who_is_a_former_user_is_in_the_settings_and_the_account_database(
    tmp_path: Path, users: tuple[str, ...], operators: tuple[str, ...], *, is_former: bool
) -> None:
    settings = Settings(access=AccessSettings(users=users), policy=PolicySettings(operators=operators))
    tells = hosting.former_users(Options(tmp_path, runtime="process", settings=settings))
    assert tells(65534) is is_former
    assert not tells(0)
    assert not tells(3_999_999), "without an account"


@pytest.mark.needs("root")
def test_a_private_queue_of_an_account_has_no_former_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 1, 1)
    tells = hosting.former_users(Options(tmp_path, runtime="process", settings=Settings()))
    assert not tells(65534)
    assert not tells(1)
