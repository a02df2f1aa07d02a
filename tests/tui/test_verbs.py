"""Verbs: each is declared once and completely, and all its uses follow from the declaration."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from gputui.cli.main import cli
from gputui.domain.access import Caller, Role
from gputui.domain.action import Action, DrainGpus, Pause, PlaceJobs, ResumeGpus, Unpause
from gputui.domain.conditions import with_keys
from gputui.domain.errors import AccessError, GputuiError
from gputui.domain.job import Job, Placed, Placing
from gputui.domain.policy.whatif import change_of
from gputui.domain.settings import AccessSettings, PolicySettings, Settings, TenantSettings
from gputui.domain.state import JobState
from gputui.domain.verbs import (
    GPU_VERBS,
    JOB_VERB,
    MOVE,
    RESERVE,
    ROW_FORM_VERBS,
    SCHEDULER_VERBS,
    SUBMIT,
    VERBS,
    BaseVerb,
    FormVerb,
    Verb,
    Who,
)
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from gputui.tui.actions import Undo, told
from gputui.tui.commands import CHANGING, COMMANDS, MENUS
from tests.cases import cases
from tests.factories import ACTOR, NOW, FakeClock, job, snapshot, view
from tests.memory_store import MemoryJobStore

KEYS = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
BESIDE = Placing((1,), Placed(2, 2, -1.0, 0.0, "alice", None, 70, 0, None))
MAY_BE_EMPTY = {
    "action",
    "id",
    "footer_key",
    "done_many",
    "shell_done_running",
    "proposal",
    "proposal_many",
    "question",
}
names = cases("verb", VERBS)
job_verbs = cases("verb", JOB_VERB.values())


FORM_VERBS: tuple[FormVerb[Any], ...] = (SUBMIT, *ROW_FORM_VERBS, RESERVE)


def store_for(verb: Verb[Job]) -> MemoryJobStore:
    """A store whose first job the verb can be used on."""
    store = MemoryJobStore()
    store.submit([job(held=verb.name == "release"), job(priority=70)], actor=ACTOR)
    if verb.name == "requeue":
        with store.transaction() as transaction:
            transaction.put(transaction.get(1).evolve(state=JobState.FAILED, ended_at=NOW))
    assert verb.may(store.get(1))
    return store


def action_of(verb: Verb[Job]) -> Action:
    return PlaceJobs((BESIDE,)) if verb is MOVE else verb.on((1,))


@names
def test_a_verb_declares_everything(verb: Verb[object]) -> None:
    for field in verb.__struct_fields__:
        assert getattr(verb, field) not in ("", ()) or field in MAY_BE_EMPTY, field
    assert verb.help.endswith(".")
    assert [verb.name] == [other.name for other in VERBS if other.name == verb.name]


@job_verbs
def test_a_verb_about_jobs_can_be_proposed_of_one_and_of_many(verb: Verb[Job]) -> None:
    assert verb.done_many
    assert "{subject}" in verb.done
    assert "{title}" in verb.proposal
    assert verb.proposal_many
    assert verb.wish.has_forecast


@cases("verb", FORM_VERBS)
def test_the_equivalent_of_a_verb_with_a_form_is_a_command(verb: FormVerb[object]) -> None:
    words = verb.shell.split()
    command: click.Command | None = cli
    while words and words[0].islower() and isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert isinstance(command, click.Command)
    assert command is not cli
    assert command.help


@cases("verb", [*VERBS, *FORM_VERBS])
def test_each_verb_has_one_command_of_the_console_with_its_texts(verb: BaseVerb[object]) -> None:
    action = verb.action or f"verb('{verb.name}')"
    [command] = [command for command in COMMANDS if command.action == action]
    assert (command.keys, command.title, command.help, command.group) == (verb.keys, verb.label, verb.help, verb.group)
    assert command.needs == verb.needs
    assert command.changes
    assert command.action_name in CHANGING
    assert f"| {verb.label} | {verb.help} | `{command.name}` |" in KEYS


@cases("verb", [*JOB_VERB.values(), *GPU_VERBS])
def test_the_menu_of_a_row_lists_each_verb(verb: Verb[object]) -> None:
    pane = "gpus" if verb in GPU_VERBS else "queue"
    assert verb.label in {command.title for command in MENUS[pane]}


@names
def test_keys_named_in_messages_are_those_of_commands(verb: Verb[object]) -> None:
    known = {command.name for command in COMMANDS}
    values = {"subject", "delta", "neighbour"}
    for template in (verb.done, verb.done_many):
        assert set(re.findall(r"\{(\w+)\}", template)) <= known | values


@names
def test_the_shell_has_a_command_for_each_verb(verb: Verb[object]) -> None:
    command: click.Command = cli
    for word in verb.shell.split():
        if isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            assert found is not None, word
            command = found
    assert not isinstance(command, click.Group)
    assert command.help == verb.shell_help


@job_verbs
def test_the_call_of_a_verb_changes_the_job_and_its_preview_the_forecast(verb: Verb[Job]) -> None:
    store = store_for(verb)
    before = store.get(1)
    action = action_of(verb)
    said = told(action, Actions(store, FakeClock(), ACTOR).act(action))
    assert store.get(1) != before
    assert with_keys(said, lambda name: f"<{name}>").startswith("job 1")
    picture = snapshot(jobs=(before,))
    assert change_of(action_of(verb), NOW)(picture).jobs != picture.jobs


@job_verbs
def test_a_repeated_verb_changes_nothing_or_is_refused(verb: Verb[Job]) -> None:
    store = store_for(verb)
    actions = Actions(store, FakeClock(), ACTOR)
    action = action_of(verb)
    actions.act(action)
    if verb.name in {"hold", "release", "cancel", "move"}:
        assert told(action, actions.act(action)) == "job 1: nothing to change"


@job_verbs
def test_an_undo_restores_the_state(verb: Verb[Job]) -> None:
    store = store_for(verb)
    before = store.get(1)
    undo = Undo(Actions(store, FakeClock(), ACTOR), dict)
    undo.carry_out(action_of(verb))
    if not verb.wish.is_final:
        undo.last()
        assert store.get(1).evolve(waiting_since=before.waiting_since) == before
    else:
        with pytest.raises(GputuiError):
            undo.last()


@cases("verb", SCHEDULER_VERBS)
def test_the_scheduler_is_paused_and_unpaused(verb: Verb[object]) -> None:
    store = MemoryJobStore()
    actions = Actions(store, FakeClock(), ACTOR)
    if verb.name == "unpause":
        actions.act(Pause("maintenance"))
    assert verb.may(store.controls())
    actions.act(Pause("maintenance") if verb.name == "pause" else Unpause())
    assert not verb.may(store.controls())


@cases("verb", GPU_VERBS)
def test_a_gpu_is_drained_and_resumed(verb: Verb[object]) -> None:
    store = MemoryJobStore()
    actions = Actions(store, FakeClock(), ACTOR)
    shown = view()
    if verb.name == "resume":
        actions.act(DrainGpus((shown.gpu.uuid,), "broken"))
    assert verb.may((shown, store.controls()))
    uuids = (shown.gpu.uuid,)
    action = DrainGpus(uuids, "broken") if verb.name == "drain" else ResumeGpus(uuids)
    said = told(action, actions.act(action), "GPU 3")
    assert said.startswith("GPU 3 ")
    assert not verb.may((shown, store.controls()))
    assert type(action) is verb.wish


@job_verbs
def test_rights_are_as_declared(verb: Verb[Job], refused: Callable[..., bool]) -> None:
    assert refused(verb, uid=0, role=Role.OPERATOR) is False
    assert refused(verb, uid=MINE, role=Role.USER) == (verb.who is not Who.OWNER)
    assert refused(verb, uid=MINE + 1, role=Role.USER)
    assert refused(verb, uid=MINE, role=Role.VIEWER)


MINE = 61_234
"""Uid of the submitter."""


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., bool]:
    """Return a check: is a user refused a verb that would take a job beyond its tenant's highest priority?"""

    def is_refused(verb: Verb[Job], *, uid: int, role: Role) -> bool:
        store = store_for(verb)
        with store.transaction() as transaction:
            transaction.put(transaction.get(1).evolve(submitted_uid=MINE))
        policy = PolicySettings(tenants=(TenantSettings("alice", max_priority=50),))
        permissions = UserPermissions(tmp_path, Settings(policy=policy, access=AccessSettings(users=("*",))))
        caller = Caller(uid, uid, (), "somebody", role)
        actions = Actions(store, FakeClock(), caller.actor, policy=policy, permissions=permissions, caller=caller)
        try:
            actions.act(action_of(verb))
        except AccessError:
            return True
        return False

    return is_refused
