"""Jobs as callers see them: everything of their own, nothing secret of others'."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from weakref import ref

import msgspec
from msgspec.structs import replace

from gputui.api.rights import EVERYTHING, NOTHING_OWN, Visibility
from gputui.domain.access import AuditEntry, Caller, Role
from gputui.domain.container import EngineGpus, RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import GpuProcess, Holder
from gputui.domain.job import Attempt, Job, Stopping
from gputui.domain.job_spec import ContainerOptions, Inherited, JobSpec, PublishedPort
from gputui.domain.policy.plan import plan
from gputui.domain.settings import AccessSettings, Settings
from gputui.domain.snapshot import Node, Notice, Snapshot
from gputui.domain.state import PendingReason, Reason
from tests.cases import cases
from tests.factories import NOW, array, job, recurring, running, sample, view
from tests.factories import spec as make_spec

ROOT = Caller(0, 0, (), "root", Role.OPERATOR)
ALICE = Caller(1001, 1001, (), "alice", Role.USER)
BOB = Caller(1002, 1002, (), "bob", Role.USER)
EVE = Caller(1003, 1003, (), "eve", Role.VIEWER)
FORMER = replace(ALICE, role=Role.VIEWER)
SECRET = "hunter2"
SHOWN_OPTIONS = {"labels", "cpus", "memory", "shm_size", "entrypoint"}


def filled(kind: Any) -> Any:
    """Return a value of a type of options that has the secret in each of its texts."""
    text = str(kind)
    if "Pairs" in text or "tuple[tuple[str, str]" in text:
        return (("user", "ann"), ("api-token", SECRET))
    if "tuple[str" in text:
        return (SECRET,)
    return SECRET if "str" in text else None


def secret_job(**changes: Any) -> Job:
    """Return a job of bob's that has run, with a secret in everything that could have one."""
    kinds = {each.name: each.type for each in msgspec.structs.fields(ContainerOptions)}
    values = {name: value for name, kind in kinds.items() if (value := filled(kind)) is not None}
    options = ContainerOptions(**{**values, "entrypoint": None, "memory": 2**30})
    spec = make_spec(
        tenant="bob", options=options, warrant=f"1002/{SECRET}", inherited=Inherited(0o22, ((SECRET, 1),)), comment="hi"
    )
    made = running(7, spec=spec, submitted_by="bob", submitted_uid=BOB.uid, key=f"{SECRET}.1", **changes)
    cause = Cause(CauseCode.BAD_SPEC, f"cannot mount /home/bob/{SECRET}")
    attempt = replace(
        made.attempts[0],
        container_id=SECRET,
        cause=cause,
        log_path=SECRET,
        notes=(SECRET,),
        ports=(PublishedPort(1, 2, SECRET),),
        error=f"password {SECRET} is wrong",
    )
    return made.evolve(attempts=(attempt,), cause=cause, stopping=Stopping(cause, NOW))


@cases("caller", [ALICE, EVE, FORMER])
def test_others_see_no_secret_of_a_job(caller: Caller) -> None:
    whole = secret_job()
    seen = Visibility(AccessSettings()).job(whole, caller)
    assert msgspec.json.encode(whole).count(SECRET.encode()) > 20
    assert SECRET.encode() not in msgspec.json.encode(seen)


def test_others_see_who_runs_what_since_when_where_and_why() -> None:
    whole = secret_job()
    seen = Visibility(AccessSettings()).job(whole, ALICE)
    for name in set(Job.__struct_fields__) - {"spec", "attempts", "cause", "stopping", "key"}:
        assert getattr(seen, name) == getattr(whole, name), name
    hidden = {"options", "warrant", "inherited"}
    for name in set(JobSpec.__struct_fields__) - hidden:
        assert getattr(seen.spec, name) == getattr(whole.spec, name), name
    kept = {name for name in ContainerOptions.__struct_fields__ if getattr(seen.spec.options, name)}
    assert kept <= SHOWN_OPTIONS
    assert seen.spec.options.labels == (("user", "ann"),)
    assert seen.attempts[0].gpus == whole.attempts[0].gpus
    assert seen.cause == Cause(CauseCode.BAD_SPEC, "bad spec")


@cases("caller", [BOB, ROOT])
def test_submitters_and_operators_see_the_job_itself(caller: Caller) -> None:
    whole = secret_job()
    assert Visibility(AccessSettings()).job(whole, caller) is whole


def test_commands_are_shown_unless_the_site_hides_them() -> None:
    whole = job(3, command=("train", "--token", SECRET), sweep=(("token", SECRET),), submitted_uid=BOB.uid)
    assert Visibility(AccessSettings()).job(whole, ALICE).spec.command == whole.spec.command
    hiding = Visibility(AccessSettings(show_commands=False))
    assert SECRET.encode() not in msgspec.json.encode(hiding.job(whole, ALICE))
    assert hiding.job(whole, BOB) is whole


@cases(
    ("code", "text", "seen"),
    [
        (CauseCode.NON_ZERO_EXIT, "exit code 1", "exit code 1"),
        (CauseCode.CANCELLED, "cancelled by bob", "cancelled by bob"),
        (CauseCode.NON_ZERO_EXIT, f"exit code 1; {SECRET}", "exit code 1"),
        (CauseCode.PULL_FAILED, f"cannot pull {SECRET}", "pull failed"),
        (CauseCode.GPU_OUT_OF_MEMORY, SECRET, "gpu out of memory"),
    ],
)
def test_why_it_ended_is_told_in_our_words(code: CauseCode, text: str, seen: str) -> None:
    ended = job(3, cause=Cause(code, text))
    found = Visibility(AccessSettings()).job(ended, ALICE).cause
    assert found is not None
    assert (found.code, found.text) == (code, seen)


def test_a_job_as_others_see_it_is_one_object_for_all_of_them() -> None:
    visibility, whole = Visibility(AccessSettings()), secret_job()
    first = visibility.job(whole, ALICE)
    assert visibility.job(whole, EVE) is first
    assert visibility.masked(whole) is first
    changed = whole.evolve(priority=9)
    assert visibility.job(changed, ALICE).priority == 9
    assert visibility.job(whole, ALICE) == first


def test_entries_of_arrays_are_masked_like_jobs() -> None:
    entry = array(range(4), options=ContainerOptions(env=(("T", SECRET),)), submitted_uid=BOB.uid)
    visibility = Visibility(AccessSettings())
    seen = visibility.job(entry, ALICE)
    assert seen.runs == entry.runs
    assert not seen.element(8).spec.options.env
    assert visibility.job(entry.element(7), ALICE).id == 7
    assert not visibility.job(entry.element(7), ALICE).runs


def picture() -> Snapshot:
    mine, theirs = job(1, submitted_uid=ALICE.uid), secret_job()
    entry = recurring(id=9, uid=BOB.uid, spec=theirs.spec)
    processes = (
        GpuProcess(10, user="bob", command=f"/opt/{SECRET}/python train.py --token {SECRET}"),
        GpuProcess(11, user="alice", command="python mine.py"),
    )
    holder = Holder("process", f"python train.py {SECRET}", user="bob")
    gpu = replace(view(0), sample=sample(0, processes=processes), holders=(holder,))
    return Snapshot(taken_at=NOW, jobs=(mine, theirs), recurring=(entry,), nodes=(Node("n", (gpu,)),))


def test_operators_and_callers_of_a_class_see_the_same() -> None:
    whole = picture()
    assert Visibility(AccessSettings(show_commands=False)).snapshot(whole, ROOT) is whole
    assert Visibility.class_of(ROOT) == EVERYTHING
    assert Visibility.class_of(EVE) == Visibility.class_of(FORMER) == NOTHING_OWN
    assert len({Visibility.class_of(each) for each in (ALICE, BOB, EVE, ROOT)}) == 4
    old = job(3, submitted_by="alice", options=ContainerOptions(env=(("TOKEN", SECRET),)))
    assert not Visibility(AccessSettings()).job(old, ALICE).spec.options.env


def test_users_see_their_own_jobs_and_the_rest_as_others_do() -> None:
    whole = picture()
    visibility = Visibility(AccessSettings(show_commands=False))
    seen = visibility.snapshot(whole, ALICE)
    assert seen.jobs[0] is whole.jobs[0]
    assert seen.jobs[1] is visibility.masked(whole.jobs[1])
    assert SECRET in repr(whole)
    assert SECRET not in repr(seen)
    [node] = seen.nodes
    found = node.gpus[0].sample
    assert found is not None
    assert found.processes is not None
    assert [each.command for each in found.processes] == ["python", "python mine.py"]
    assert visibility.snapshot(whole, BOB).jobs[1] is whole.jobs[1]
    assert visibility.snapshot(whole, BOB).recurring == whole.recurring


def test_why_the_scheduler_holds_a_job_is_told_without_the_cause_that_it_quotes() -> None:
    why = f"held after 3 starts that the machine failed; the last: cannot mount {SECRET}"
    held = job(7, held=True, hold_reason=why, submitted_uid=BOB.uid)
    whole = Snapshot(jobs=(held,), reasons={7: Reason(PendingReason.JOB_HELD_USER, why)})
    visibility = Visibility(AccessSettings())
    seen = visibility.snapshot(whole, ALICE)
    assert seen.jobs[0].hold_reason == seen.reasons[7].text == "held after 3 starts that the machine failed"
    assert visibility.snapshot(whole, BOB).reasons == whole.reasons


def test_why_a_job_waits_for_its_next_attempt_is_told_without_its_last_error() -> None:
    cause = Cause(CauseCode.NON_ZERO_EXIT, "exit code 1")
    attempt = Attempt(1, started_at=NOW, ended_at=NOW, cause=cause, error=f"wrong password {SECRET}")
    waits = job(7, cause=cause, attempts=(attempt,), not_before=NOW + timedelta(seconds=9), submitted_uid=BOB.uid)
    whole = Snapshot(taken_at=NOW, jobs=(waits, job(8)))
    whole = replace(whole, reasons=plan(whole, Settings(), NOW).reasons)
    assert SECRET in whole.reasons[7].text
    seen = Visibility(AccessSettings()).snapshot(whole, ALICE)
    assert seen.reasons[7].text.endswith(": exit code 1")
    assert seen.reasons[7].text.startswith("attempt 2 at ")
    assert seen.reasons[8] == whole.reasons[8]


def test_notices_about_hooks_and_what_operators_alone_can_mend_are_for_operators() -> None:
    stops = (Notice("error", "no job starts", halts=True), Notice("information", "job 3 leaves GPU 0 idle"))
    told = (Notice("error", f"hooks.chat: exit code 1: {SECRET}"), Notice("warning", "no metrics"), *stops)
    status = RuntimeStatus("docker", False, "Docker is down", warnings=("live-restore is off",))
    gpus = EngineGpus(warnings=("no toolkit",))
    whole = Snapshot(nodes=(Node("n", runtimes=(replace(status, gpus=gpus),)),), notices=told)
    for shown in (True, False):
        visibility = Visibility(AccessSettings(show_commands=shown))
        seen = visibility.snapshot(whole, ALICE)
        assert seen.notices == stops
        assert seen.nodes[0].runtimes == (replace(status, warnings=(), gpus=EngineGpus()),), "that it is down"
        assert visibility.snapshot(whole, ROOT) is whole


def test_logs_are_for_submitters_and_for_users_where_the_site_shows_them() -> None:
    whole = secret_job()
    for shown in (False, True):
        visibility = Visibility(AccessSettings(show_logs=shown))
        may = {each.user: visibility.may_read_log(whole, each) for each in (ROOT, ALICE, BOB, EVE)}
        assert may == {"root": True, "alice": shown, "bob": True, "eve": False}


def entries() -> Iterator[AuditEntry]:
    for uid, target in ((1001, "job 1"), (0, "job 1"), (1002, "job 2"), (0, "scheduler"), (1001, "rule own-jobs")):
        yield AuditEntry(NOW, uid, str(uid), "hold", target, "", "")


@cases(("caller", "count"), [(ROOT, 5), (ALICE, 3), (BOB, 1), (EVE, 0), (FORMER, 0)])
def test_users_read_what_they_did_and_what_was_done_to_their_jobs(caller: Caller, count: int) -> None:
    own = {"job 1"} if caller.uid == ALICE.uid else set[str]()
    assert len([*Visibility(AccessSettings()).audit(entries(), own, caller)]) == count


def test_a_picture_of_ten_thousand_jobs_is_made_again_in_some_milliseconds() -> None:
    jobs = tuple(job(number, submitted_uid=1000 + number % 50) for number in range(1, 10_001))
    visibility, whole = Visibility(AccessSettings()), Snapshot(jobs=jobs)
    visibility.snapshot(whole, ALICE)
    best = 1.0
    for _ in range(5):
        begun = time.process_time()
        visibility.snapshot(whole, ALICE)
        best = min(best, time.process_time() - begun)
    assert best < 0.05


def test_masked_jobs_are_forgotten_with_their_jobs() -> None:
    visibility, first = Visibility(AccessSettings()), job(1)
    masked = ref(visibility.masked(first))
    for term in range(1, 20):
        visibility.snapshot(Snapshot(jobs=tuple(job(term * 500 + number) for number in range(500))), ALICE)
    gc.collect()
    assert masked() is None
