"""Actions on two servers at once: each job's action reaches its server, and what spans servers is refused."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.api.wire import Dial, Wire
from gputui.domain.action import (
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
    Requeue,
    ReserveGpus,
    ResumeRecurring,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unsuspend,
)
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job, Placed, Placing
from gputui.domain.job_spec import Submission, server_of
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import ServerSettings, Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.servers import RemoteBackend
from tests.cases import cases
from tests.factories import NOW, gpu, spec
from tests.servers.connections import Connections, local_ssh

_COMMAND = "{python} -P -m gputui --state {directory}/{name} --runtime process --probe sim:2:A100"


class Pair(Connections):
    """A console's connections to the queues of `a` and `b`, which nobody schedules."""

    def __init__(self, directory: Path) -> None:
        command = partial(_COMMAND.format, python=shlex.quote(sys.executable), directory=shlex.quote(str(directory)))
        super().__init__([ServerSettings(name, f"ssh://{name}", command(name=name)) for name in "ab"], 20.0)
        self.actions = self.there
        self.start()
        self.until(lambda shown: all(not server.problem for server in shown.servers) and shown.servers)

    def submit(self, server: str) -> int:
        [job_id] = self.actions.act(SubmitJobs((Submission(spec(image=None)),)), server=server).ids
        return job_id

    def is_paused(self, server: str) -> bool:
        return self.there.named(server).follower.snapshot.controls.paused

    def job(self, job_id: int, true: Callable[[Job], object] = lambda job: True) -> Job:
        """Return a job once it is so."""
        found = self.until(lambda shown: (job := shown.job(job_id)) and true(job)).job(job_id)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{local_ssh(directory)}:{os.environ['PATH']}")
        made = Pair(directory)
        yield made
        made.there.close(10)


@pytest.fixture(scope="module")
def ids(pair: Pair) -> tuple[int, int]:
    return pair.submit("a"), pair.submit("b")


def test_servers_that_do_not_answer_are_named_after_the_history_of_the_others() -> None:
    def dial(settings: ServerSettings) -> Dial:
        def fail(seconds: float) -> Wire:
            raise GputuiError(f"no way to {settings.name}")

        return fail

    silent = RemoteBackend([ServerSettings(name, f"ssh://{name}") for name in "ab"], lambda: NOW, "ann", dial)
    with pytest.raises(GputuiError, match="a: it does not answer: connecting; b: it does not answer: connecting"):
        list(silent.history())


def test_jobs_of_two_servers_are_held_released_and_raised_at_once(pair: Pair, ids: tuple[int, int]) -> None:
    assert [server_of(job_id) for job_id in ids] == ["a", "b"]
    assert pair.actions.act(Hold(tuple(ids))).ids == ids
    assert all(pair.job(job_id, lambda job: job.held) for job_id in ids)
    assert pair.actions.act(Release(tuple(ids))).ids == ids
    before = pair.job(ids[0]).priority
    assert pair.actions.act(SetPriority(tuple(ids), -7, relative=True)).ids == ids
    assert all(pair.job(job_id, lambda job: job.priority == before - 7 and not job.held) for job_id in ids)


def test_a_change_names_its_server_and_is_undone_there(pair: Pair, ids: tuple[int, int]) -> None:
    [change] = pair.actions.act(Hold(ids[1:])).changes
    assert change.subject({}).startswith("b: ")
    assert pair.actions.undo([change]) == [(change, "")]
    assert not pair.job(ids[1], lambda job: not job.held).held


def test_an_edit_reaches_the_server_of_the_job(pair: Pair, ids: tuple[int, int]) -> None:
    seen = pair.job(ids[0])
    assert pair.actions.act(EditJobs((ids[0],), Edit({"name": "renamed"}))).ids
    assert pair.job(ids[0], lambda job: job.spec.name == "renamed").id == seen.id


def test_a_pause_stays_on_its_server(pair: Pair) -> None:
    paused = pair.actions.act(Pause("upgrade"), server="a")
    pair.until(lambda _: pair.is_paused("a"))
    assert not pair.is_paused("b")
    unpaused = pair.actions.act(Unpause(), server="a")
    pair.until(lambda _: not pair.is_paused("a"))
    assert [change.server for change in (*paused.changes, *unpaused.changes)] == ["a", "a"]


def test_a_failure_names_the_servers_that_are_done(pair: Pair, ids: tuple[int, int]) -> None:
    with pytest.raises(GputuiError, match="hold is done on a"):
        pair.actions.act(Hold((ids[0], ids[1] + 99)))
    pair.actions.act(Release(tuple(ids[:1])))


@cases(
    ("act", "words"),
    [
        (lambda act, one, two: act.act(Pause()), "which server"),
        (lambda act, one, two: act.act(SubmitJobs((Submission(spec()),))), "which server"),
        (lambda act, one, two: act.act(Pause(), server="c"), "no server is called 'c'"),
        (
            lambda act, one, two: act.act(
                PlaceJobs((Placing((one,), Placed(two, two, -1.0, 0.0, "alice", None, 50, 0, None)),))
            ),
            "jobs of a and b have no common",
        ),
        (
            lambda act, one, two: act.act(SubmitJobs((Submission(spec(after=(two,))),)), server="a"),
            "a job of a cannot wait for one of another server",
        ),
        (
            lambda act, one, two: act.act(
                ReserveGpus(Window("night", NOW, NOW + timedelta(hours=1), gpus=("GPU-elsewhere",)), (gpu(),)),
                server="a",
            ),
            "a reservation of a has no GPUs of other servers",
        ),
        (lambda act, one, two: act.act(DrainGpus(("GPU-elsewhere",), "hot")), "no server has GPU GPU-elsewhere"),
        (lambda act, one, two: act.act(EditJobs((one + 99,), Edit({"name": "x"}))), "there is no job"),
    ],
)
def test_what_spans_servers_is_refused(
    pair: Pair, ids: tuple[int, int], act: Callable[[RemoteBackend, int, int], object], words: str
) -> None:
    with pytest.raises((InputError, GputuiError), match=words):
        act(pair.actions, *ids)


def test_placing_no_jobs_asks_no_server(pair: Pair) -> None:
    assert pair.actions.act(PlaceJobs(())).ids == ()


def test_a_recurring_job_is_paused_resumed_and_ended_on_its_server(pair: Pair) -> None:
    made = pair.actions.act(AddRecurring(Recurrence("0 3 * * *", "UTC"), Submission(spec(image=None))), server="b").ids[
        0
    ]
    assert server_of(made) == "b"

    def paused(shown: Snapshot) -> list[bool]:
        return [each.paused for each in shown.recurring if each.id == made]

    pair.until(lambda shown: paused(shown) == [False])
    pair.actions.act(PauseRecurring((made,)))
    pair.until(lambda shown: paused(shown) == [True])
    pair.actions.act(ResumeRecurring((made,)))
    pair.until(lambda shown: paused(shown) == [False])
    pair.actions.act(RemoveRecurring((made,)))
    pair.until(lambda shown: paused(shown) == [])


@cases(
    "act",
    [
        lambda act, ids: act.act(Suspend(tuple(ids))),
        lambda act, ids: act.act(Signal(tuple(ids), 10)),
        lambda act, ids: act.act(Requeue(tuple(ids))),
    ],
)
def test_the_refusal_of_a_server_arrives(
    pair: Pair, ids: tuple[int, int], act: Callable[[RemoteBackend, tuple[int, ...]], object]
) -> None:
    with pytest.raises(GputuiError) as refused:
        act(pair.actions, ids[1:])
    assert refused.value.what
    assert pair.job(ids[1]).state is JobState.PENDING


def test_jobs_of_two_servers_are_put_first_and_cancelled_at_once(pair: Pair, ids: tuple[int, int]) -> None:
    assert pair.actions.act(Top(tuple(ids))).ids == ids
    assert pair.actions.act(Unsuspend(tuple(ids))).ids == ()
    others = pair.submit("a"), pair.submit("b")
    assert pair.actions.act(Cancel(tuple(others))).ids == others
    assert all(pair.job(job_id, lambda job: job.cancel_requested or job.state.is_terminal) for job_id in others)


def test_a_change_by_an_earlier_owner_is_not_undone(pair: Pair, ids: tuple[int, int]) -> None:
    [change] = pair.actions.act(Hold(ids[:1])).changes
    earlier = replace(change, change=replace(change.change, owner="another"))
    assert pair.actions.undo([earlier]) == [(earlier, "was changed by an owner of the queue who has ended")]
    assert pair.job(ids[0], lambda job: job.held).held
