"""Requests of programs that ask for a user by `gputui mcp`: a priority and GPUs that the site allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.access import Caller, Role
from gputui.domain.action import (
    Action,
    AddRecurring,
    Edit,
    EditJobs,
    Hold,
    PlaceJobs,
    Release,
    Requeue,
    SetPriority,
    Top,
)
from gputui.domain.errors import AccessError
from gputui.domain.job import Placed, Placing
from gputui.domain.job_spec import GpuRequest, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import AccessSettings, Settings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.admission import gpus_at_once
from gputui.engine.actions.permissions import UserPermissions
from tests.cases import cases
from tests.engine.callers import actions_of
from tests.factories import NOW, job, spec
from tests.memory_store import MemoryJobStore

BOB = Caller(61_001, 61_001, (), "bob", Role.USER)
AGENT = replace(BOB, via="mcp")
ROOTS = Caller(0, 0, (), "root", Role.OPERATOR, via="sudo mcp")
PLACED = Placed(2, 2, 0.5, NOW.timestamp(), "bob", None, 50, 0, None)


class Site:
    """Queue whose agents may take two GPUs, and give priority 40."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o700)
        settings = Settings(access=AccessSettings(users=("*",), agent_priority=40, agent_gpus=2))
        self.permissions = UserPermissions(directory, settings)
        self.store = MemoryJobStore()

    def of(self, caller: Caller) -> Actions:
        return actions_of(caller, self.store, self.permissions, resolve=lambda name: (None, False))

    def submit(self, caller: Caller, *submissions: Submission) -> tuple[int, ...]:
        return self.of(caller).act(SubmitJobs(submissions)).ids

    def refused(self, caller: Caller, action: Action) -> str:
        """Return the rule that refuses the action, which changes nothing."""
        before = dict(self.store.jobs())
        with pytest.raises(AccessError) as asked:
            self.of(caller).act(action)
        assert dict(self.store.jobs()) == before
        return asked.value.rule


def wanting(
    gpus: int, *, elements: int = 0, limit: int | None = None, everything: bool = False, **changes: Any
) -> Submission:
    made = replace(spec(**{"tenant": "bob", "priority": 40, **changes}), gpus=GpuRequest(gpus, gpus, (), everything))
    return Submission(made, array=tuple(range(elements)), array_limit=limit)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "state").mkdir()
    return Site(tmp_path / "state")


@cases("caller", [AGENT, ROOTS])
def test_an_agent_gives_no_higher_priority_than_the_site_allows(tmp_path: Path, caller: Caller) -> None:
    site = Site(tmp_path)
    assert site.refused(caller, SubmitJobs((wanting(1, priority=41),))) == "agent-priority"
    (one, two) = site.submit(caller, wanting(0), wanting(0))
    for action in (SetPriority((one,), 41), Top((one,)), EditJobs((one,), Edit(spec={"priority": 60}))):
        assert site.refused(caller, action) == "agent-priority"
    if caller is ROOTS:
        places = PlaceJobs((Placing((one,), replace(PLACED, past=two)),))
        assert site.refused(caller, places) == "agent-priority"
    site.of(caller).act(SetPriority((one,), 10))
    site.of(caller).act(SetPriority((one,), 40))
    assert site.store.get(one).submitted_via == caller.via


def test_the_user_himself_is_not_bound(site: Site) -> None:
    (one,) = site.submit(BOB, wanting(8, priority=50))
    assert site.store.get(one).submitted_via == ""
    site.of(AGENT).act(Hold((one,)))
    site.of(AGENT).act(Release((one,)))


def test_jobs_of_agents_take_so_many_gpus_at_once_and_no_more(site: Site) -> None:
    assert site.refused(AGENT, SubmitJobs((wanting(3),))) == "agent-gpus"
    assert site.refused(AGENT, SubmitJobs((wanting(1, everything=True),))) == "agent-gpus"
    assert site.refused(AGENT, SubmitJobs((wanting(1), wanting(1), wanting(1)))) == "agent-gpus"
    (one,) = site.submit(AGENT, wanting(1))
    site.submit(BOB, wanting(8, priority=50))
    site.submit(replace(AGENT, uid=61_002, user="alice"), wanting(2, tenant="alice"))
    site.submit(AGENT, wanting(1), wanting(0))
    assert site.refused(AGENT, SubmitJobs((wanting(1),))) == "agent-gpus"
    with pytest.raises(AccessError, match="may have 2, and these 1 more"):
        site.of(AGENT).foresee(SubmitJobs((wanting(1),)))
    with site.store.transaction() as transaction:
        transaction.put(transaction.get(one).evolve(state=JobState.COMPLETED, ended_at=NOW))
    site.submit(AGENT, wanting(1))


def test_of_an_array_those_count_that_may_run_at_a_time(site: Site) -> None:
    assert site.refused(AGENT, SubmitJobs((wanting(1, elements=3),))) == "agent-gpus"
    first, *_ = site.submit(AGENT, wanting(1, elements=20, limit=2))
    with site.store.transaction() as transaction:  # two of them run
        for number in (first, first + 1):
            transaction.put(transaction.get(number).evolve(state=JobState.RUNNING, started_at=NOW))
    assert site.refused(AGENT, SubmitJobs((wanting(1),))) == "agent-gpus"
    site.submit(AGENT, wanting(0))
    assert gpus_at_once(site.store.jobs().values()) == 2


def test_an_agent_gets_no_more_gpus_by_edits_and_requeues(site: Site) -> None:
    one, two = site.submit(AGENT, wanting(1), wanting(1))
    (big,) = site.submit(BOB, wanting(8, priority=40))
    for wanted in (2, 3):
        edit = Edit(gpus={"minimum": wanted, "maximum": wanted})
        assert site.refused(AGENT, EditJobs((one,), edit)) == "agent-gpus"
    with site.store.transaction() as transaction:
        for number in (two, big):
            transaction.put(transaction.get(number).evolve(state=JobState.FAILED, ended_at=NOW))
    site.submit(AGENT, wanting(1))
    for number in (two, big):
        assert site.refused(AGENT, Requeue((number,))) == "agent-gpus"
    site.of(BOB).act(Requeue((two, big)))


def test_an_agent_adds_no_recurring_jobs_whose_runs_nobody_counts(site: Site) -> None:
    adding = AddRecurring(Recurrence("0 2 * * *", "UTC"), wanting(1))
    assert site.refused(AGENT, adding) == "agent-gpus"
    site.of(BOB).act(adding)


def test_without_a_limit_any_number_may_be_taken(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    site = Site(tmp_path / "state")
    access = replace(site.permissions.settings.access, agent_gpus=None)
    site.permissions = UserPermissions(tmp_path / "state", replace(site.permissions.settings, access=access))
    assert len(site.submit(AGENT, wanting(8), wanting(8))) == 2
    assert gpus_at_once([job(spec=wanting(8).spec)]) == 8
