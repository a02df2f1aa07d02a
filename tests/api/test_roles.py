"""Every route, asked for by each role about the things of one user: only he and operators get through.

A new route needs a row here. The same for each action stands in tests/engine/test_rights.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui import __version__
from gputui.api.http import OWN, Acted, Answer, Focus, Forecast, NewJobs, Problem, Response, Stream, UndoRequest
from gputui.api.routes import ROUTES, Route, Scope
from gputui.domain.access import AuditEntry, Role
from gputui.domain.action import AddRecurring, Cancel, Hold
from gputui.domain.container import ExecRequest
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import AccessSettings, AdmissionSettings, Settings
from gputui.domain.state import JobState
from gputui.ports.backend import Attach, CommandLine, CommandResult
from tests.api.owner import ALICE, BOB, CAROL, ROLES, ROOT, SECRET, Collector, TestOwner
from tests.cases import cases
from tests.factories import NOW, spec, uuid

UPGRADE = {"upgrade": "gputui-stream/1", "connection": "upgrade"}
WAITING, RUNNING, ENDED = 1, 2, 3
CALLERS = {"the submitter": ALICE, "another user": BOB, "a viewer": CAROL, "an operator": ROOT}


class Row(Struct, frozen=True):
    """Request to a route."""

    job: int = RUNNING
    body: Any = None
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    others: int | None = None
    """Status for another user, where neither role nor scope of the route tell it."""
    fails: bool = False
    """True if it fails for another reason than the rights of the caller, where he has them."""


def _line() -> CommandLine:
    return CommandLine(__version__, ("queue",), "/")


ROWS: Mapping[str, Row] = {
    "about": Row(),
    "jobs": Row(query={"all": "true"}),
    "submit": Row(body=NewJobs((Submission(JobSpec(image="busybox", command=("true",), name="new")),))),
    "job": Row(),
    "edit": Row(WAITING, {"spec": {"comment": "changed"}}),
    "explain": Row(WAITING),
    "telemetry": Row(),
    "processes": Row(fails=True),  # there is no such container
    "log": Row(ENDED, fails=True),  # it was not kept
    "attach": Row(body=Attach(), headers=UPGRADE),
    "execute": Row(body=ExecRequest(("id",)), headers=UPGRADE),
    "act": Row(body=Hold((WAITING,)), others=403),
    "undo": Row(body=UndoRequest((1,)), others=404),
    "forecast": Row(body=Forecast((Cancel((RUNNING,)),)), others=403),
    "gpus": Row(),
    "controls": Row(),
    "recurring": Row(),
    "history": Row(),
    "audit": Row(),
    "images": Row(),
    "events": Row(),
    "focus": Row(body=Focus("none", uuid(0)), fails=True),
    "backup": Row(),
    "metrics": Row(),
    "openapi": Row(),
    "command": Row(body=_line()),
    "snapshot": Row(),
}
"""Rows by the names of the handlers."""


@contextmanager
def serving(state: Path) -> Iterator[TestOwner]:
    """Owner of a queue with jobs of alice, whatever of which may be secret is."""
    made = TestOwner(
        state,
        Settings(access=AccessSettings(users=("*",)), admission=AdmissionSettings(mounts=("/home/{user}",))),
        metrics=lambda: b"# HELP\n",
        backup=lambda: iter((b"",)),
        command=lambda caller, line: CommandResult(0),
    )
    for _ in range(3):
        made.submit(Submission(_secret(spec())))
    made.ask("POST", "/v1/actions", AddRecurring(Recurrence("@daily", "UTC"), Submission(_secret(spec()))), uid=ALICE)
    with made.store.transaction() as transaction:
        transaction.put(_with_attempt(transaction.get(RUNNING), JobState.RUNNING))
        transaction.put(_with_attempt(transaction.get(ENDED), JobState.FAILED))
        entry = AuditEntry(NOW, ALICE, "alice", "edit", f"job {WAITING}", "", f"env {SECRET}")
        transaction.audit(entry)
    jobs = tuple(made.store.jobs().values())
    made.picture = replace(made.picture, jobs=jobs, recurring=tuple(made.store.recurring().values()))
    yield made
    made.close()


def _secret(plain: JobSpec) -> JobSpec:
    options = replace(
        plain.options,
        env=(("KEY", SECRET),),
        volumes=(f"/home/alice/{SECRET}:/data",),
        labels=(("project", SECRET),),
        hostname=SECRET,
    )
    return replace(plain, options=options)


def _with_attempt(job: Job, state: JobState) -> Job:
    cause = Cause(CauseCode.NON_ZERO_EXIT, f"exit code 1; {SECRET}")
    is_over = state.is_terminal
    attempt = Attempt(
        number=1,
        gpus=(),
        claimed_at=NOW,
        started_at=NOW,
        container_id=SECRET,
        log_path=f"logs/{SECRET}",
        ended_at=NOW if is_over else None,
        error=f"line with {SECRET}",
        notes=(f"note with {SECRET}",),
        cause=cause if is_over else None,
    )
    ended = {"ended_at": NOW, "cause": cause, "exit_code": 1} if is_over else {}
    return job.evolve(state=state, attempts=(attempt,), **ended)


def _held(owner: TestOwner, uid: int) -> UndoRequest:
    """Have a user hold his job, and return what would undo that."""
    [change] = owner.ask("POST", "/v1/actions", Hold((WAITING,)), uid=uid).read(Acted).changes
    return UndoRequest((change.number,))


def _ask(
    owner: TestOwner, route: Route, uid: int, undo: UndoRequest | None = None, job_id: int | None = None, **headers: str
) -> Answer:
    """Ask as the row of the route says, unless another job is told; `undo` is the body of that route."""
    row = ROWS[route.handler]
    if undo is not None and route.handler == "undo":
        row = replace(row, body=undo)
    path = route.path.replace("{id}", str(job_id or row.job)).replace("{attempt}", "latest")
    return owner.answer(route.method, path, row.body, uid=uid, query=row.query, headers={**row.headers, **headers})


def _status(answer: Answer) -> int:
    return answer.status if isinstance(answer, Response) else 200


def _refused(route: Route, uid: int) -> int | None:
    """Return the status that the table of routes, or its row here, wants for a refusal; None: it is allowed."""
    row = ROWS[route.handler]
    if ROLES[uid] < route.role:
        return 403
    if uid in {BOB, CAROL} and route.scope is Scope.JOB and route.role > Role.VIEWER:
        return 403
    return row.others if uid == BOB else None


def test_every_route_has_a_row() -> None:
    assert ROWS.keys() == {route.handler for route in ROUTES}


def test_a_route_is_open_to_those_whom_the_table_names(tmp_path: Path) -> None:
    for number, (route, (who, uid)) in enumerate(product(ROUTES, CALLERS.items())):
        with serving(tmp_path / str(number)) as owner:
            _check(owner, route, uid, f"{route.handler} by {who}")


def _check(owner: TestOwner, route: Route, uid: int, what: str) -> None:
    undo = _held(owner, ALICE if uid != ROOT else ROOT) if route.handler == "undo" else None
    answer, refused = _ask(owner, route, uid, undo), _refused(route, uid)
    found = _status(answer)
    if refused:
        assert found == refused, what
    else:
        assert found != 403, what
        assert (found >= 400) is ROWS[route.handler].fails, (what, getattr(answer, "body", ""))
    if found == 403:
        assert isinstance(answer, Response)
        problem = owner.whole(answer).read(Problem)
        assert problem.rule, what
        assert [(user, rule) for user, rule, _ in owner.refusals] == [(owner.caller(uid).user, problem.rule)], what
    else:
        assert not owner.refusals, what


@cases("uid", [BOB, CAROL])
def test_nothing_that_others_ask_changes_a_users_jobs(tmp_path: Path, uid: int) -> None:
    with serving(tmp_path / "state") as owner:
        _ask_all(owner, uid)


def _ask_all(owner: TestOwner, uid: int) -> None:
    undo = _held(owner, ALICE)
    before = {job_id: owner.store.get(job_id) for job_id in (WAITING, RUNNING, ENDED)}
    recurring = dict(owner.store.recurring())
    for route in ROUTES:
        _ask(owner, route, uid, undo)
    assert {job_id: owner.store.get(job_id) for job_id in before} == before
    assert owner.store.recurring() == recurring
    assert not [user for user, _, _ in owner.streams if user != "alice"]


@cases("accept", ["application/json", OWN])
@cases("uid", [BOB, CAROL])
def test_no_answer_to_others_has_a_secret(tmp_path: Path, uid: int, accept: str) -> None:
    with serving(tmp_path / "state") as owner:
        _look_for_secrets(owner, uid, accept)


def _look_for_secrets(owner: TestOwner, uid: int, accept: str) -> None:
    for route in ROUTES:
        for job_id in (WAITING, RUNNING, ENDED):
            told = _text(_ask(owner, route, uid, job_id=job_id, accept=accept))
            assert SECRET not in told, (route.handler, told[:2000])
    owner.store.maintain(NOW + timedelta(days=400))
    assert owner.ask("GET", "/v1/history", uid=ALICE, headers={"accept": OWN}).body.count(SECRET.encode()) > 3
    assert SECRET.encode() not in owner.ask("GET", "/v1/history", uid=uid, headers={"accept": accept}).body


def _text(answer: Answer) -> str:
    if isinstance(answer, Response):
        return answer.body.decode()
    if isinstance(answer, Stream):
        out = Collector()
        answer.open(out)()
        return out.sent.decode()
    return ""
