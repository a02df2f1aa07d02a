"""Answers of the handlers, over a store, with the rights of several users."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gputui.api.events import EventHub
from gputui.api.handlers import Handlers, Router
from gputui.api.http import (
    JOBS,
    OWN,
    RECORDS,
    Acted,
    Forecast,
    Forecasted,
    Handoff,
    NewIds,
    NewJobs,
    Problem,
    Stream,
    Undone,
    UndoRequest,
)
from gputui.bootstrap.upkeep import backup_parts
from gputui.domain.action import Cancel, EditJobs, Hold, Release, SetPriority
from gputui.domain.as_json import job_json, json_text
from gputui.domain.container import ExecRequest
from gputui.domain.errors import AccessError, InputError, InputErrors, NotFoundError, StoreFullError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.state import JobState
from gputui.ports.backend import Attach, LogRequest
from tests.api.owner import ALICE, BOB, CAROL, ROOT, SECRET, Collector, TestOwner, secret_job
from tests.cases import cases
from tests.factories import NOW, running, spec

KEY = {"idempotency-key": "k-1"}


def jobs_of(*names: str) -> NewJobs:
    return NewJobs(tuple(Submission(spec(name=name)) for name in names))


def end(owner: TestOwner, *ids: JobId, after: timedelta = timedelta()) -> None:
    """Let jobs end, one second after another."""
    with owner.store.transaction() as transaction:
        for number, job_id in enumerate(ids):
            job = transaction.get(job_id)
            at = NOW + after + timedelta(seconds=number)
            transaction.put(job.evolve(state=JobState.COMPLETED, held=False, exit_code=0, ended_at=at))


# Lists


def test_jobs_are_what_the_command_prints_with_json(owner: TestOwner) -> None:
    ids = owner.submit(secret_job(name="a"), secret_job(name="b"))
    snapshot = owner.backend(owner.caller(ROOT)).snapshots().read()
    shown = json_text([job_json(owner.store.get(job_id), snapshot) for job_id in ids]) + "\n"
    assert owner.ask("GET", "/v1/jobs").body.decode() == shown
    assert SECRET not in shown


def test_jobs_come_in_pages(owner: TestOwner) -> None:
    ids = owner.submit(*(secret_job(name=f"job{number}") for number in range(5)))
    first = owner.ask("GET", "/v1/jobs", limit="2")
    second = owner.ask("GET", "/v1/jobs", limit="2", after=first.headers["Next"])
    third = owner.ask("GET", "/v1/jobs", limit="2", after=second.headers["Next"])
    assert [job["id"] for reply in (first, second, third) for job in reply.json] == list(ids)
    assert "Next" not in third.headers


def test_jobs_are_chosen(owner: TestOwner) -> None:
    ids = owner.submit(*(secret_job(name=name) for name in "abc"))
    end(owner, ids[2])
    wanted: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "ab"),
        ({"all": "true"}, "abc"),
        ({"state": "CD"}, "c"),
        ({"state": "pending,completed"}, "abc"),
        ({"tenant": "nobody"}, ""),
        ({"filter": "name:b"}, "b"),
        ({"filter": "-name:b"}, "a"),
    )
    for query, names in wanted:
        found = owner.whole(owner.answer("GET", "/v1/jobs", query=query)).json
        assert "".join(job["name"] for job in found) == names, query


def test_a_filter_sees_no_more_than_its_caller(owner: TestOwner) -> None:
    owner.submit(secret_job(name="a"))
    with owner.store.transaction() as transaction:
        job = transaction.get(1)
        options = replace(job.spec.options, labels=(("project", "hidden"),))
        transaction.put(job.evolve(spec=replace(job.spec, options=options)))
    assert owner.ask("GET", "/v1/jobs", uid=ALICE, filter="label:project=hidden").json
    assert not owner.ask("GET", "/v1/jobs", uid=BOB, filter="label:project=hidden").json


def test_history_comes_in_pages_while_more_jobs_end(owner: TestOwner) -> None:
    ids = owner.submit(*(secret_job(name=f"job{number}") for number in range(6)))
    end(owner, *ids[:5])
    owner.store.maintain(NOW + timedelta(days=400))
    first = owner.ask("GET", "/v1/history", limit="2")
    end(owner, ids[5], after=timedelta(hours=1))
    owner.store.maintain(NOW + timedelta(days=400))
    second = owner.ask("GET", "/v1/history", limit="2", cursor=first.headers["Next"])
    third = owner.ask("GET", "/v1/history", limit="2", cursor=second.headers["Next"])
    found = [job["id"] for reply in (first, second, third) for job in reply.json]
    assert found == [5, 4, 3, 2, 1]
    assert {owner.ask("GET", "/v1/history", cursor=each).status for each in ("x", "1e300-1", "nan-1")} == {422}


def bytes_read() -> int:
    """Return how much this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def put_in_history(owner: TestOwner, months: int, each: int) -> list[JobId]:
    """Put jobs into the history, those of a month ended at the same time; return them, the latest first."""
    ids = owner.submit(*(secret_job() for _ in range(months * each)))
    with owner.store.transaction() as transaction:
        for job_id in ids:
            at = NOW + timedelta(days=31) * ((job_id - ids[0]) // each)
            transaction.put(transaction.get(job_id).evolve(state=JobState.COMPLETED, held=False, ended_at=at))
    owner.store.maintain(NOW + timedelta(days=4000))
    return list(ids[::-1])


def pages(owner: TestOwner, limit: int) -> Iterator[list[JobId]]:
    query, has_more = {"limit": str(limit)}, True
    while has_more:
        reply = owner.whole(owner.answer("GET", "/v1/history", query=query))
        yield [job["id"] for job in reply.json]
        query["cursor"] = reply.headers.get("Next", "")
        has_more = bool(query["cursor"])


def whole(owner: TestOwner, accept: str) -> list[bytes]:
    """Return the lines of the whole history."""
    answer, out = owner.answer("GET", "/v1/history", headers={"accept": accept}), Collector()
    assert isinstance(answer, Stream)
    answer.open(out)
    assert out.is_over.wait(30)
    return out.sent.splitlines()


def test_history_in_pages_or_whole_is_read_once_however_long_it_is(owner: TestOwner) -> None:
    ids = put_in_history(owner, months=24, each=20)
    list(pages(owner, limit=400))
    size = sum(path.stat().st_size for path in owner.options.state.glob("history-*"))
    begun = bytes_read()
    found = list(pages(owner, limit=15))
    read = bytes_read() - begun
    assert [job_id for page in found for job_id in page] == ids
    assert read < 6 * size  # each of the 32 pages reads one month or two of 24
    for accept in (JOBS, RECORDS):
        begun = bytes_read()
        *lines, end_of_all = whole(owner, accept)
        assert bytes_read() - begun < 2 * size
        told = [one["id"] for line in lines for one in json.loads(line)]
        assert (sorted(told, reverse=True), len(lines), end_of_all) == (ids, 5, b"[]")


def test_an_answer_that_fails_in_its_middle_is_logged_once_and_cut(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    def parts() -> Iterator[bytes]:
        yield b"the beginning"
        raise StoreFullError("the disk is gone")

    made, out = replace(owner.services, backup=parts), Collector()
    owner.router = Router(made, Handlers(made, EventHub(made.latest, made.subscribe, made.visibility)))
    answer = owner.answer("POST", "/v1/backup")
    assert isinstance(answer, Stream)
    answer.open(out)
    assert out.is_over.wait(30)
    assert out.is_cut
    [record] = [each for each in caplog.records if each.name == "gputui.api.handlers"]
    assert record.getMessage() == "the answer to POST /v1/backup failed"
    assert record.exc_info


def test_a_job_that_ran_again_is_in_one_page(owner: TestOwner) -> None:
    ids = put_in_history(owner, months=3, each=2)
    with owner.store.transaction() as transaction:
        again = transaction.get(ids[-1]).to(JobState.PENDING, ended_at=None)
        transaction.put(again)
        transaction.put(again.evolve(state=JobState.COMPLETED, ended_at=NOW + timedelta(days=100)))
    owner.store.maintain(NOW + timedelta(days=4000))
    assert list(pages(owner, limit=1)) == [[job_id] for job_id in (ids[-1], *ids[:-1])]


def test_gpus_name_their_node(owner: TestOwner) -> None:
    found = owner.ask("GET", "/v1/gpus", uid=CAROL).json
    assert [(gpu["index"], gpu["node"]) for gpu in found] == [(0, "node1"), (1, "node1")]


@cases("path", ["/v1/controls", "/v1/recurring", "/v1/images", "/v1/audit", "/openapi.json"])
def test_the_other_lists_are_json(owner: TestOwner, path: str) -> None:
    assert owner.ask("GET", path).status == 200
    assert isinstance(owner.ask("GET", path).json, list | dict)


# A job


def test_a_job_is_told_whole_to_its_submitter_alone_and_to_our_clients_as_stored(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    mine, others = (owner.ask("GET", f"/v1/jobs/{job_id}", uid=uid) for uid in (ALICE, BOB))
    assert mine.json["spec"]["env"] == {"KEY": "***"}
    assert others.json["spec"]["env"] == {}
    assert [entry["verb"] for entry in mine.json["audit"]] == ["submit"]
    assert others.json["audit"] == []
    [job_id] = owner.submit()
    mine, others = (
        owner.ask("GET", f"/v1/jobs/{job_id}", uid=uid, headers={"accept": OWN}).read(Job) for uid in (ALICE, BOB)
    )
    assert mine == owner.store.get(job_id)
    assert SECRET not in str(others)


def test_a_wait_is_explained(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    told = owner.ask("GET", f"/v1/jobs/{job_id}/explain", uid=CAROL).json
    assert (told["id"], told["position"]) == (job_id, 1)
    end(owner, job_id)
    assert owner.ask("GET", f"/v1/jobs/{job_id}/explain").status == 409


def test_streams_are_handed_over(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    with owner.store.transaction() as transaction:
        transaction.put(running(job_id, submitted_uid=ALICE))
    upgrade = {"upgrade": "gputui-stream/1", "connection": "upgrade"}
    assert owner.ask("POST", f"/v1/jobs/{job_id}/attach", Attach(), uid=ALICE).status == 426
    for answer in (
        owner.answer("POST", f"/v1/jobs/{job_id}/attach", Attach("ctrl-q"), uid=ALICE, headers=upgrade),
        owner.answer("GET", f"/v1/jobs/{job_id}/attempts/1/log", uid=ALICE, query={"follow": "1", "tail": "5"}),
        owner.answer("POST", "/v1/jobs", jobs_of("new"), uid=ALICE, headers=upgrade),
    ):
        assert isinstance(answer, Handoff)
        answer.take(None, b"")  # type: ignore[arg-type]
    assert owner.streams == [
        ("alice", job_id, Attach("ctrl-q")),
        ("alice", job_id, LogRequest(1, 5, follow=True)),
        ("alice", job_id + 1, Attach(from_start=True)),
    ]


@cases(
    "request_",
    [
        ExecRequest(()),
        ExecRequest(("",)),
        ExecRequest(("id\0",)),
        ExecRequest(("x" * 200_000,)),
        ExecRequest(("id",), term="x\0"),
        ExecRequest(("id",), rows=-1),
        ExecRequest(("id",), columns=70_000),
    ],
)
def test_what_no_engine_runs_is_refused(owner: TestOwner, request_: ExecRequest) -> None:
    [job_id] = owner.submit()
    with owner.store.transaction() as transaction:
        transaction.put(running(job_id, submitted_uid=ALICE))
    upgrade = {"upgrade": "gputui-stream/1", "connection": "upgrade"}
    assert owner.ask("POST", f"/v1/jobs/{job_id}/exec", request_, uid=ALICE, headers=upgrade).status == 422


# New jobs


def test_jobs_are_submitted_all_or_none(owner: TestOwner) -> None:
    good, bad = Submission(spec(name="good")), Submission(spec(name="bad", after=(99,)))
    reply = owner.ask("POST", "/v1/jobs", NewJobs((good, bad)), uid=ALICE)
    assert (reply.status, owner.ask("GET", "/v1/jobs").json) == (404, [])
    assert owner.ask("POST", "/v1/jobs", NewJobs((good, good)), uid=ALICE).read(NewIds).ids == (1, 2)
    assert owner.store.get(1).submitted_uid == ALICE


def test_a_dry_run_tells_starts_and_submits_nothing(owner: TestOwner) -> None:
    told = owner.ask("POST", "/v1/jobs", jobs_of("a", "b"), uid=ALICE, dry_run="true").read(NewIds)
    assert len(told.expected) == 2
    assert all(told.expected)
    assert owner.ask("GET", "/v1/jobs").json == []


def test_a_repeated_submission_is_one_job(owner: TestOwner) -> None:
    replies = [owner.ask("POST", "/v1/jobs", jobs_of("a", "b"), uid=ALICE, headers=KEY) for _ in range(3)]
    assert [(reply.status, reply.read(NewIds).ids) for reply in replies] == [
        (201, (1, 2)),
        (200, (1, 2)),
        (200, (1, 2)),
    ]


def test_the_next_owner_knows_the_key(owner: TestOwner) -> None:
    array = NewJobs((Submission(spec(), array=(3, 4, 5)), Submission(spec())))
    first = owner.ask("POST", "/v1/jobs", array, uid=ALICE, headers=KEY)
    owner.begin()
    again = owner.ask("POST", "/v1/jobs", array, uid=ALICE, headers=KEY)
    assert (first.status, again.status) == (201, 200)
    assert first.read(NewIds) == again.read(NewIds) == NewIds((1, 2, 3, 4))


def test_a_key_is_of_one_user_and_one_request(owner: TestOwner) -> None:
    assert owner.ask("POST", "/v1/jobs", jobs_of("a"), uid=ALICE, headers=KEY).status == 201
    bobs = NewJobs((Submission(spec(name="a", tenant="bob")),))
    assert owner.ask("POST", "/v1/jobs", bobs, uid=BOB, headers=KEY).status == 201
    for _ in range(2):
        assert owner.ask("POST", "/v1/jobs", jobs_of("b"), uid=ALICE, headers=KEY).status == 422
        assert owner.ask("POST", "/v1/actions", Hold((1,)), uid=ALICE, headers=KEY).status == 422
        owner.begin()
    assert owner.ask("POST", "/v1/jobs", jobs_of("c"), uid=ALICE, headers={"idempotency-key": "a b"}).status == 422


def test_a_repeated_action_is_carried_out_once(owner: TestOwner) -> None:
    owner.submit(secret_job(), secret_job(), secret_job())
    lower = SetPriority((1, 2), -5, relative=True)
    for _ in range(2):
        assert owner.ask("POST", "/v1/actions", lower, uid=ALICE, headers=KEY).read(Acted).ids == (1, 2)
        owner.begin()
    assert [owner.store.get(job_id).priority for job_id in (1, 2, 3)] == [45, 45, 50]


# Actions


def test_an_action_is_undone_by_its_number(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    done = owner.ask("POST", "/v1/actions", Hold((job_id,)), uid=ALICE).read(Acted)
    [change] = done.changes
    assert (change.subject, change.done) == (f"job {job_id}", "may start again")
    undo = UndoRequest((change.number,))
    assert owner.ask("POST", "/v1/undo", undo, uid=BOB).status == 404
    assert owner.ask("POST", "/v1/undo", undo, uid=ALICE).read(Undone).why == ("",)
    assert not owner.store.get(job_id).held
    owner.begin()
    assert owner.ask("POST", "/v1/undo", undo, uid=ALICE).status == 404


def test_actions_are_tried_dry_released_by_json_and_refused_where_the_state_does_not_suit(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    told = owner.ask("POST", "/v1/actions", Hold((job_id,)), uid=ALICE, dry_run="1").read(Acted)
    assert json.loads(bytes(told.jobs[0]))["held"]
    assert not owner.store.get(job_id).held
    [job_id] = owner.submit()
    owner.ask("POST", "/v1/actions", Hold((job_id,)), uid=ALICE)
    body = msgspec.json.encode({"action": "release", "ids": [job_id]})
    assert msgspec.json.decode(body, type=Release | EditJobs) == Release((job_id,))
    assert owner.ask("POST", "/v1/actions", body, uid=ALICE).status == 200
    assert not owner.store.get(job_id).held
    [job_id] = owner.submit()
    end(owner, job_id)
    assert owner.ask("POST", "/v1/actions", Hold((job_id,))).status == 409


@cases("body", [{"spec": {"begin_at": "0001-01-01T00:00:00+14:00"}}, {"spec": {"options": {"privileged": True}}}])
def test_an_edit_of_what_no_job_has_is_refused(owner: TestOwner, body: object) -> None:
    [job_id] = owner.submit()
    assert owner.ask("PATCH", f"/v1/jobs/{job_id}", body, uid=ALICE).status == 422


def test_an_edit_may_name_what_was_seen(owner: TestOwner) -> None:
    [job_id] = owner.submit()
    path, seen = f"/v1/jobs/{job_id}", owner.ask("GET", f"/v1/jobs/{job_id}", uid=ALICE).headers["ETag"]
    first = owner.ask("PATCH", path, {"spec": {"comment": "one"}}, uid=ALICE, headers={"if-match": seen})
    late = owner.ask("PATCH", path, {"spec": {"comment": "two"}}, uid=ALICE, headers={"if-match": seen})
    assert (first.status, late.status, owner.store.get(job_id).spec.comment) == (200, 412, "one")
    now = owner.ask("GET", path, uid=ALICE).headers["ETag"]
    assert now != seen
    assert owner.ask("PATCH", path, {"spec": {"comment": "2"}}, uid=ALICE, headers={"if-match": now}).status == 200
    assert owner.ask("PATCH", path, {"spec": {"comment": 2}}, uid=ALICE).status == 422


def test_a_forecast_tells_which_starts_move(owner: TestOwner) -> None:
    owner.submit(*(Submission(spec(2, name=name, time_limit=timedelta(hours=1))) for name in "ab"))
    told = owner.ask("POST", "/v1/forecast", Forecast((Cancel((1,)),)), uid=ALICE).read(Forecasted)
    assert [move.id for move in told.starts if move.after is not None] == [2]
    assert not told.is_cut
    assert owner.ask("POST", "/v1/forecast", Forecast((Cancel((1,)),) * 101), uid=ALICE).status == 422
    wrong = {"actions": [{"action": "edit", "ids": [1], "edit": {"spec": {"time_limit": "soon"}}}]}
    assert owner.ask("POST", "/v1/forecast", wrong, uid=ALICE).status == 422
    refused = owner.ask("POST", "/v1/forecast", Forecast((Cancel((1,)),)), uid=BOB)
    assert (refused.status, owner.refusals[-1][0]) == (403, "bob")


def test_a_backup_is_an_archive_of_the_queue(owner: TestOwner) -> None:
    owner.submit()
    made = replace(owner.services, backup=lambda: backup_parts(owner.options, NOW))
    owner.router = Router(made, Handlers(made, EventHub(made.latest, made.subscribe, made.visibility)))
    answer = owner.answer("POST", "/v1/backup")
    assert isinstance(answer, Stream)
    out = Collector()
    answer.open(out)
    assert out.is_over.wait(30)
    with tarfile.open(fileobj=io.BytesIO(out.sent)) as archive:
        assert "queue.json" in archive.getnames()


# Errors


@cases(
    "error",
    [
        InputError("wrong", where="--gpus", hint="right"),
        NotFoundError("there is no job 7"),
        StoreFullError("the disk is full"),
        AccessError("not yours", rule="own-jobs", hint="ask"),
        InputErrors((InputError("one"), InputError("two", where="x"))),
    ],
)
def test_errors_are_the_same_on_the_other_side(error: Any) -> None:
    from gputui.api.http import answer_to, error_of
    from gputui.domain.decoding import decode_json

    made = error_of(decode_json(answer_to(error).body, Problem))
    assert (type(made), str(made), made.exit_code) == (type(error), str(error), error.exit_code)
    assert getattr(made, "rule", "") == getattr(error, "rule", "")


def test_every_error_has_a_status() -> None:
    from gputui.api.http import problem_of
    from gputui.domain import errors

    made: Callable[..., Any]
    for name, made in vars(errors).items():
        if (
            isinstance(made, type)
            and issubclass(made, errors.GputuiError)
            and made.__init__ is errors.GputuiError.__init__
        ):
            assert 400 <= problem_of(made("x")).status < 600, name
