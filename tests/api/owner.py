"""Owner of a queue without a socket: requests are given to its router as the server would give them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui import bootstrap
from gputui.api.events import EventHub
from gputui.api.handlers import Handlers, OwnerServices, Router
from gputui.api.http import Answer, NewJobs, Peer, Request, Response
from gputui.api.rights import Visibility
from gputui.bootstrap.backend import LocalBackend, Owned
from gputui.config import Options
from gputui.domain.access import Caller, Role
from gputui.domain.container import RuntimeStatus
from gputui.domain.decoding import decode_json
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import AccessSettings, Settings
from gputui.domain.snapshot import Leader, Node, Snapshot
from tests.factories import NOW, sample, spec, view

ROOT, ALICE, BOB, CAROL = 0, 1001, 1002, 1003
ROLES = {ROOT: Role.OPERATOR, ALICE: Role.USER, BOB: Role.USER, CAROL: Role.VIEWER}
NAMES = {ROOT: "root", ALICE: "alice", BOB: "bob", CAROL: "carol"}
SECRET = "hunter2"


class TestOwner:
    """Owner of a state directory with two GPUs, and what it was asked for besides."""

    __test__ = False

    def __init__(self, state: Path, settings: Settings | None = None, **services: Any) -> None:
        self.options = Options(state, settings=settings or Settings(access=AccessSettings(users=("*",))))
        self.store = bootstrap.open_store(self.options)
        self.asks_as: int | None = None
        """Uid of the caller, whatever the kernel says; None: the kernel's."""
        self.refusals: list[tuple[str, str, str]] = []
        self.streams: list[tuple[str, JobId, object]] = []
        self.visibility = Visibility(self.options.settings.access)
        now = datetime.now(UTC)
        views = tuple(view(index, sample=sample(index, at=now)) for index in range(2))
        self.leader = Leader(4711, "node1", "root", "serve", NOW)
        runtimes = tuple(RuntimeStatus(name, up=True, text="") for name in ("docker", "process"))
        node = Node("node1", views, runtimes=runtimes)
        self.picture = Snapshot(taken_at=now, nodes=(node,), leader=self.leader)
        self.services = OwnerServices(
            settings=self.options.settings,
            store_id=self.store.store_id,
            leader=lambda: self.leader,
            caller_of=lambda peer, headers: self.caller(peer.uid if self.asks_as is None else self.asks_as),
            backend=self.backend,
            latest=lambda: self.picture,
            visibility=self.visibility,
            subscribe=lambda call: lambda: None,
            refused=lambda caller, rule, what: self.refusals.append((caller.user, rule, what)),
            focus=lambda gpu: None,
            stream=lambda caller, job, wanted, link, early: self.streams.append((caller.user, job, wanted)),
            home=lambda uid: f"/home/{uid}",
            **services,
        )
        self.begin()

    def begin(self) -> None:
        """Begin as another owner would: with what the queue knows."""
        self.owned = Owned(self.store, lambda: self.picture, self.visibility)
        events = EventHub(self.services.latest, self.services.subscribe, self.visibility)
        self.router = Router(self.services, Handlers(self.services, events))

    @staticmethod
    def caller(uid: int) -> Caller:
        return Caller(uid, uid, (), NAMES[uid], ROLES[uid])

    def backend(self, caller: Caller) -> LocalBackend:
        return LocalBackend(self.options, caller=caller, owned=self.owned)

    def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        uid: int = ROOT,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return self.router(Request(method, path, query or {}, headers or {}, data, Peer(uid, uid, (), 1)))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        uid: int = ROOT,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Reply:
        """Return the answer to a request, which is a whole one; further keywords are its query."""
        found = self.answer(method, path, body, uid=uid, query=query, headers=headers)
        return self.whole(found)

    @staticmethod
    def whole(found: Answer) -> Reply:
        """Return an answer that has to be a whole one."""
        assert isinstance(found, Response), found
        return Reply(found.status, found.body, dict(found.headers), found.content_type)

    def submit(self, *submissions: Submission, uid: int = ALICE) -> tuple[JobId, ...]:
        """Submit jobs that wait; without any, one with a secret in its environment."""
        wanted = submissions or (secret_job(),)
        reply = self.ask("POST", "/v1/jobs", NewJobs(wanted), uid=uid)
        assert reply.status == 201, reply.body
        return tuple(reply.json["ids"])

    def close(self) -> None:
        self.store.close()


class Reply(Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    content_type: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def read(self, kind: Any) -> Any:
        return decode_json(self.body, kind)


def secret_job(**changes: Any) -> Submission:
    """Return a job with a secret in its environment."""
    made = spec(**{"tenant": "alice", **changes})
    return Submission(
        msgspec.structs.replace(made, options=msgspec.structs.replace(made.options, env=(("KEY", SECRET),)))
    )


class Collector:
    """Outlet that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_cut = False
        self.is_over = threading.Event()

    @property
    def waiting(self) -> int:
        return 0

    def send(self, data: bytes) -> bool:
        self.sent += data
        return True

    def close(self) -> None:
        self.is_over.set()

    def cut_off(self) -> None:
        self.is_cut = True
        self.is_over.set()
