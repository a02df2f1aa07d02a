"""A queue of this machine asked by several users through the process that owns it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.api.rights import AccountNames, Visibility
from gputui.bootstrap import adapters
from gputui.bootstrap.backend import LocalBackend, Owned
from gputui.config import Options, parse_probe
from gputui.domain.access import Caller, Role
from gputui.domain.action import Cancel, Hold, Pause
from gputui.domain.container import ExecRequest
from gputui.domain.errors import AccessError, GputuiError
from gputui.domain.job import Attempt
from gputui.domain.job_spec import ContainerOptions, Interactive, JobId, Submission
from gputui.domain.settings import AccessSettings, AdmissionSettings, Settings, TenantSettings
from gputui.domain.snapshot import Controls, Snapshot
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.ports.backend import Attach, Backend, DirectBackend
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.factories import NOW, job, snapshot, spec, view

SECRET = "hunter2"
ROOT = Caller(0, 0, (), "root", Role.OPERATOR)
ALICE = Caller(61_001, 61_001, (), "alice", Role.USER)
BOB = Caller(61_002, 61_002, (), "bob", Role.USER)
EVE = Caller(61_003, 61_003, (), "eve", Role.VIEWER)


class Owner:
    """Process that owns a queue in which bob has a waiting job, an ended one, and one in history."""

    def __init__(self, state: Path, settings: Settings) -> None:
        self.options = Options(state, probe=parse_probe("sim:2:A100"), runtime="process", settings=settings)
        self.store = TinyJobStore(state, settings.store)
        self.published: Snapshot = snapshot(gpus=(view(0),))
        self.resolved: list[str] = []
        self._names = AccountNames()
        self._owned = Owned(self.store, lambda: self.published, Visibility(settings.access), self._resolve)
        self.waiting, self.ended, self.past = self._jobs()

    def of(self, caller: Caller) -> LocalBackend:
        return LocalBackend(self.options, caller=caller, owned=self._owned)

    def _resolve(self, name: str) -> tuple[int | None, bool]:
        self.resolved.append(name)
        return self._names.number(name)

    def tick(self) -> None:
        self.published = self.of(ROOT).read()

    def _jobs(self) -> tuple[JobId, ...]:
        secret = spec(
            tenant="bob",
            image=None,
            interactive=Interactive(stdin=True),
            options=ContainerOptions(env=(("TOKEN", SECRET),), volumes=(f"/home/bob/{SECRET}:/x",)),
        )
        made = [job(spec=secret, submitted_by="bob", submitted_uid=BOB.uid) for _ in range(3)]
        ids = self.store.submit(made, actor=BOB.actor)
        with self.store.transaction() as transaction:
            for number in ids[1:]:
                attempt = Attempt(1, started_at=NOW, ended_at=NOW, exit_code=1, error=SECRET)
                ended = transaction.get(number).evolve(
                    state=JobState.FAILED, ended_at=NOW if number == ids[2] else None, attempts=(attempt,)
                )
                transaction.put(ended.evolve(ended_at=NOW) if number == ids[2] else ended.evolve(ended_at=FAR))
        self.store.maintain(NOW.replace(year=NOW.year + 1))
        return ids


FAR = NOW.replace(year=NOW.year + 1)


@contextmanager
def serving(place: Path, *, show_logs: bool = False) -> Iterator[Owner]:
    (place / "state").mkdir(mode=0o700)
    made = Owner(place / "state", Settings(access=AccessSettings(users=("*",), show_logs=show_logs)))
    yield made
    made.store.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with serving(tmp_path) as made:
        yield made


def asked(owner: Owner, backend: LocalBackend) -> Mapping[str, Callable[[], Any]]:
    """Return a call for each part of a backend, about bob's jobs."""
    queue, own = backend.queue, (owner.waiting, owner.ended, owner.past)
    return {
        "about": backend.about,
        "snapshots": lambda: (backend.snapshots().version(), backend.snapshots().read()),
        "act": lambda: backend.act(Cancel((owner.waiting,))),
        "foresee": lambda: backend.foresee(Hold((owner.waiting,))),
        "undo": lambda: backend.undo(owner.of(ROOT).act(Hold((owner.waiting,))).changes),
        "job": lambda: [backend.job(each) for each in own],
        "history": lambda: [*backend.history()],
        "log": lambda: [*backend.log(owner.ended)],
        "enter": lambda: (backend.enter(owner.waiting, Attach()), backend.enter(owner.waiting, ExecRequest(("id",)))),
        "shell": lambda: backend.shell(owner.waiting),
        "processes": lambda: backend.processes(owner.waiting),
        "measured": lambda: [backend.measured(each) for each in own],
        "images": backend.images,
        "close": backend.close,
        "queue": lambda: (
            dict(queue.jobs()),
            [queue.get(each) for each in own],
            [*queue.past()],
            [*queue.records()],
            [*queue.audit_log()],
            [[*queue.audit_log(f"job {each}")] for each in own],
            queue.recurring(),
            queue.controls(),
            queue.arrays(),
            queue.unread(),
            queue.unreadable(),
        ),
        "is_scheduled": backend.is_scheduled,
        "known_gpus": backend.known_gpus,
        "gpus": lambda: backend.gpus(print),
        "with_gpus": lambda: backend.with_gpus(backend.read(), print),
        "why_unread": lambda: backend.why_unread(backend.job(owner.ended)),
        "output": lambda: [*backend.output(backend.job(owner.ended), backend.job(owner.ended).attempts[-1])],
        "submit_attached": lambda: backend.submit_attached(Submission(spec())),
        "await_start": lambda: backend.await_start(owner.waiting),
    }


OWN = {"act", "foresee", "undo", "log", "enter", "shell", "processes", "output"}
"""Parts that are for the submitter and operators."""


def parts() -> set[str]:
    from gputui.ports.backend import Performer

    kinds = (Performer, Backend, DirectBackend)
    return {name for kind in kinds for name in vars(kind) if not name.startswith("_")}


def test_each_part_of_a_backend_is_tried(owner: Owner) -> None:
    assert parts() <= asked(owner, owner.of(ROOT)).keys()


@cases("caller", [ALICE, EVE])
@cases("part", sorted(parts()))
def test_nothing_of_others_is_changed_or_told(tmp_path: Path, caller: Caller, part: str) -> None:
    with serving(tmp_path) as owner:
        _check(owner, caller, part)


def _check(owner: Owner, caller: Caller, part: str) -> None:
    before = owner.store.jobs()[owner.waiting]
    call = asked(owner, owner.of(caller))[part]
    if part in OWN:
        with pytest.raises(AccessError):
            call()
    elif part in {"images", "submit_attached"} and caller is EVE:
        with pytest.raises(AccessError, match=r"only users of the queue may|may look at this queue, not use it"):
            call()
    else:
        assert SECRET not in repr(call())
    if part != "undo":
        assert owner.store.jobs()[owner.waiting] == before


def test_users_hear_of_the_images_that_they_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = ["debian:12", "registry.example/secret:1", "tools:1", "0123abc"]
    monkeypatch.setattr(adapters, "local_images", lambda options: present)
    (tmp_path / "state").mkdir(mode=0o700)
    for patterns, told in (((), present), (("debian", "registry.example/*"), present[:2])):
        admission = AdmissionSettings(images=patterns, root_images=("tools",) if patterns else ())
        owner = Owner(tmp_path / "state", Settings(access=AccessSettings(users=("*",)), admission=admission))
        told = [*told, "tools:1"] if patterns else told
        assert (list(owner.of(ALICE).images()), list(owner.of(ROOT).images())) == (told, present)
        owner.store.close()


@cases("caller", [BOB, ROOT])
def test_submitters_and_operators_see_all(tmp_path: Path, caller: Caller) -> None:
    with serving(tmp_path) as owner:
        _see_all(owner, caller)


def _see_all(owner: Owner, caller: Caller) -> None:
    backend = owner.of(caller)
    for job_id in (owner.waiting, owner.ended, owner.past):
        assert SECRET in repr(backend.job(job_id))
        assert SECRET in repr(backend.queue.get(job_id))
    assert SECRET in repr([*backend.history()])
    for part in ("shell", "processes", "enter", "log"):
        with pytest.raises(GputuiError) as caught:  # the job has never run
            asked(owner, backend)[part]()
        assert not isinstance(caught.value, AccessError)
    backend.act(Cancel((owner.waiting,)))


def test_logs_of_all_are_for_users_where_the_site_shows_them(tmp_path: Path) -> None:
    with serving(tmp_path, show_logs=True) as owner:
        with pytest.raises(GputuiError) as caught:
            owner.of(ALICE).log(owner.ended)
        assert not isinstance(caught.value, AccessError)
        with pytest.raises(AccessError):
            owner.of(EVE).log(owner.ended)


def test_a_user_reads_the_audit_of_his_own_jobs(owner: Owner) -> None:
    owner.of(ROOT).act(Hold((owner.waiting,)))
    owner.of(ROOT).act(Pause())
    told = {caller.user: [each.verb for each in owner.of(caller).queue.audit_log()] for caller in (ALICE, BOB, EVE)}
    assert told == {"alice": [], "bob": ["submit"] * 3 + ["hold"], "eve": []}
    assert [each.verb for each in owner.of(BOB).queue.audit_log(f"job {owner.waiting}")] == ["submit", "hold"]
    assert not [*owner.of(BOB).queue.audit_log("scheduler")]


def test_a_written_change_is_shown_before_the_next_tick(owner: Owner) -> None:
    owner.tick()
    published = owner.published
    assert owner.of(ROOT).read() is published
    [new] = owner.of(ALICE).act(SubmitJobs((Submission(spec(tenant="", image=None)),))).ids
    for caller in (ALICE, ROOT, EVE):
        found = owner.of(caller).read()
        assert found.job(new) is not None
        assert new in found.reasons or new in found.expected_starts
        assert found.nodes == published.nodes
    owner.of(ROOT).act(Pause("work"))
    assert owner.of(EVE).read().controls.paused
    owner.tick()
    assert owner.of(ROOT).read() is owner.published


def test_the_owner_looks_up_accounts_for_a_caller_in_its_own_way(owner: Owner) -> None:
    with owner.store.transaction() as transaction:
        transaction.set_controls(Controls(tenants=(TenantSettings("lab", users=("nobody", "@daemon")),)))
    new = SubmitJobs((Submission(spec(tenant="lab", image=None)),))
    for key in ("", "k.0"):
        owner.resolved.clear()
        with pytest.raises(AccessError):
            owner.of(replace(ALICE, key=key)).act(new)
        assert owner.resolved == ["nobody", "@daemon"]


def test_a_backend_of_a_request_leaves_the_store_open(owner: Owner) -> None:
    with_store = owner.of(ALICE)
    with_store.close()
    assert owner.of(ALICE).job(owner.waiting).id == owner.waiting
    assert owner.of(ALICE).is_scheduled()
    assert [gpu.index for gpu in owner.of(ALICE).known_gpus()] == [0]
    about = owner.of(ALICE).about()
    assert (about.user, about.home) == ("alice", "")


def test_where_nobody_owns_who_can_write_the_directory_is_an_operator(tmp_path: Path) -> None:
    options = Options(tmp_path / "state", runtime="process", settings=Settings(access=AccessSettings(users=("*",))))
    backend = LocalBackend(options)
    [new] = backend.act(SubmitJobs((Submission(spec(image=None, priority=90)),))).ids
    assert backend.job(new).submitted_uid == os.getuid()
    backend.act(Pause())
    assert [each.uid for each in backend.queue.audit_log()] == [os.getuid()] * 2
    backend.close()


def test_under_sudo_the_audit_has_roots_uid_and_the_name_of_who_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid():
        pytest.skip("needs root")
    monkeypatch.setenv("SUDO_UID", "1")
    backend = LocalBackend(Options(tmp_path / "state", runtime="process"))
    [new] = backend.act(SubmitJobs((Submission(spec(image=None)),))).ids
    [entry] = backend.queue.audit_log()
    assert (entry.uid, entry.user, entry.via) == (0, "daemon", "sudo")
    assert (backend.job(new).submitted_uid, backend.job(new).submitted_by) == (0, "daemon")
    backend.close()


def test_a_caller_can_be_of_a_process_that_owns_nothing(owner: Owner) -> None:
    backend = LocalBackend(owner.options, caller=replace(ALICE, via="mcp"))
    with pytest.raises(AccessError):
        backend.act(Cancel((owner.waiting,)))
    assert SECRET not in repr(backend.job(owner.waiting))
    backend.close()
