"""`gputui migrate` from a real queue to a cluster in memory, also interrupted at each step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.arrays import new_entries
from gputui.domain.cluster import Capability, element_id
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId, Submission
from gputui.domain.settings import StoreSettings
from gputui.domain.snapshot import Leader
from gputui.domain.state import JobState
from gputui.engine.cluster.migration import JobMove, Migration
from gputui.engine.leadership import Leadership
from gputui.ports import JobStore
from gputui.store import TinyJobStore
from tests.cli.test_completions import completed
from tests.cluster.commands import MakeCluster, Run
from tests.cluster.fake import FakeCluster
from tests.factories import ACTOR, NOW, FakeClock, job


class Killed(BaseException):
    """End of the process, as by a kill."""


class FlakyCluster(FakeCluster):
    """Cluster whose call number `dies_at` ends the process, before it takes effect or after."""

    dies_at = -1
    is_late = False
    calls = 0
    refuses = ""
    """Name of the jobs that it refuses."""

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        self.calls += 1
        is_last = self.calls == self.dies_at
        if is_last and not self.is_late:
            raise Killed
        if self.refuses and submissions[0].spec.name == self.refuses:
            raise ClusterRefusedError("Invalid account")
        found = super().submit(submissions, key, is_new=is_new)
        if is_last:
            raise Killed
        return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyJobStore]:
    """Yield the queue of this server, in the directory that the commands use."""
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    opened = TinyJobStore(tmp_path / "state", StoreSettings())
    yield opened
    opened.close()


@pytest.fixture
def engine(use: MakeCluster, clock: FakeClock) -> FlakyCluster:
    flaky = FlakyCluster(clock)
    use(flaky)
    return flaky


@pytest.fixture
def migration(store: TinyJobStore, engine: FlakyCluster, clock: FakeClock) -> Migration:
    return Migration(store, engine, "slurm", clock, ACTOR)


def put(store: JobStore, *jobs: Job) -> tuple[JobId, ...]:
    return store.submit(jobs, actor=ACTOR)


def elements(count: int, *, place: int = 0, limit: int | None = None, **changes: Any) -> Job:
    """Return a new array, before ids are given out."""
    [entry] = new_entries(job(**changes), Submission(job().spec, array=tuple(range(count)), array_limit=limit), place)
    return entry


def states(store: JobStore) -> dict[JobId, JobState]:
    return {job_id: store.get(job_id).state for entry in store.jobs().values() for job_id in entry.ids}


def theirs(engine: FakeCluster) -> dict[str, Job]:
    """Return the jobs of the cluster by their displayed ids."""
    return {each.shown_id: each for entry in engine.snapshot().jobs for each in map(entry.element, entry.ids)}


def by_word(moves: Iterable[JobMove]) -> dict[str, tuple[str, str]]:
    return {move.words: (move.new_word, move.why) for move in moves}


def test_a_table_of_old_and_new_ids_is_printed(run: Run, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="a", gpus=1), job(name="b", held=True))
    result = run("migrate")
    assert (result.code, result.err) == (0, "")
    assert [line.split() for line in result.out.splitlines()] == [
        ["JOB", "NAME", "FAKE", "NOTE"],
        ["1", "a", "1"],
        ["2", "b", "2"],
    ]
    assert theirs(engine)["2"].held
    assert not theirs(engine)["1"].held
    moved = store.get(1)
    assert (moved.state, moved.end_words) == (JobState.CANCELLED, "migrated to Fake job 1")
    assert [entry.after for entry in store.audit_log("job 1") if entry.verb == "migrate"][-1] == moved.end_words
    assert run("migrate").out == "no job waits here\n"
    assert len(theirs(engine)) == 2


def test_a_dry_run_changes_nothing(run: Run, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="a"), job(name="b", preemptible=True))
    before, version = dict(store.jobs()), store.version()
    result = run("migrate", "--dry-run")
    assert result.code == 1
    assert "would move" in result.out
    assert "stays: --preemptible: Fake decides" in result.out
    assert (dict(store.jobs()), store.version()) == (before, version)
    assert theirs(engine) == {}


def test_the_scheduler_is_to_be_stopped_first(
    run: Run, store: TinyJobStore, engine: FlakyCluster, tmp_path: Path
) -> None:
    put(store, job())
    leadership = Leadership(tmp_path / "state")
    assert leadership.acquire(Leader(os.getpid(), "here", "root", "serve", NOW))
    result = run("migrate")
    assert (result.code, result.out, store.get(1).state) == (1, "", JobState.PENDING)
    assert "stop `gputui serve`, and run gputui migrate again; running jobs go on" in result.err
    assert run("migrate", "--dry-run").code == 0
    leadership.release()
    assert run("migrate").code == 0
    assert len(theirs(engine)) == 1


def test_json_names_new_ids_and_reasons(run: Run, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="a"), job(name="b", gpus=9), elements(3, place=2, name="c", limit=2))
    a, b, c = sorted(json.loads(run("migrate", "--json").out), key=lambda each: each["ids"])
    assert (a["id"], a["new_id"], a["reason"]) == ("1", "1", None)
    assert (b["new_id"], b["new_ids"], b["reason"]) == (None, [], "Requested node configuration is not available")
    assert (c["ids"], c["new_ids"]) == ([3, 4, 5], [element_id(2, index) for index in range(3)])


def test_only_named_jobs_move(run: Run, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="a"), job(name="b"))
    assert run("migrate", "2").code == 0
    assert states(store) == {1: JobState.PENDING, 2: JobState.CANCELLED}


def test_arrays_stay_arrays(migration: Migration, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, elements(4, limit=2))
    assert by_word(migration.run(None)) == {"1_[0-3%2]": ("1", "")}
    assert sorted(theirs(engine)) == ["1_0", "1_1", "1_2", "1_3"]
    assert set(states(store).values()) == {JobState.CANCELLED}
    assert all(each.array and each.array.limit == 2 for each in theirs(engine).values())


def test_some_elements_of_an_array_move(migration: Migration, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, elements(4))
    migration.run((2, 4))
    assert sorted(theirs(engine)) == ["1_1", "1_3"]
    assert [number for number, state in states(store).items() if state is JobState.PENDING] == [1, 3]


def test_dependencies_are_translated(migration: Migration, store: TinyJobStore, engine: FlakyCluster) -> None:
    engine.submit_as("bob", Submission(job().spec))
    put(store, job(name="a"), elements(2, place=1, name="b"))
    put(store, job(name="c", after=(1,), after_any=(3,)), job(name="d", after=(2,)))
    assert set(by_word(migration.run(None)).values()) == {("2", ""), ("3", ""), ("4", ""), ("5", "")}
    found = {each.spec.name: each.spec for each in theirs(engine).values()}
    assert found["c"].after == (2,)
    assert found["c"].after_any == (element_id(3, 1),)
    assert found["d"].after == (3,)


def test_a_dependency_that_is_met_is_left_out(migration: Migration, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="a"), job(name="b", after=(1,)))
    with store.transaction() as transaction:
        transaction.put(store.get(1).evolve(state=JobState.COMPLETED))
    migration.run(None)
    assert [each.spec.after for each in theirs(engine).values()] == [()]


def test_jobs_that_wait_for_each_other_stay_together(
    migration: Migration, store: TinyJobStore, engine: FlakyCluster
) -> None:
    put(store, job(name="runs"), job(after=(1,)), job(name="first"), job(after=(3,), preemptible=True), job(after=(2,)))
    with store.transaction() as transaction:
        transaction.put(store.get(1).evolve(state=JobState.RUNNING))
    found = by_word(migration.run(None))
    assert found["2"] == ("", "it waits for job 1, which is RUNNING here")
    assert found["5"] == ("", "it waits for job 2, which stays here")
    assert found["3"] == ("", "job 4, which stays here, waits for it")
    assert "1" not in found
    assert theirs(engine) == {}
    assert all(not each.held for each in store.jobs().values())


def test_a_named_job_that_runs_stays(migration: Migration, store: TinyJobStore) -> None:
    put(store, job())
    with store.transaction() as transaction:
        transaction.put(store.get(1).evolve(state=JobState.RUNNING))
    assert by_word(migration.run((1,))) == {"1": ("", "it is RUNNING")}


def test_jobs_of_other_users_stay(migration: Migration, store: TinyJobStore) -> None:
    put(store, job(submitted_by="bob"))
    assert by_word(migration.run(None)) == {"1": ("", "bob submitted it")}


def test_missing_capabilities_keep_jobs_here(use: MakeCluster, clock: FakeClock, store: TinyJobStore, run: Run) -> None:
    use(FakeCluster(clock, lacking={Capability.ARRAYS: "Fake has no arrays"}))
    put(store, elements(2), job())
    result = run("migrate")
    assert result.code == 1
    assert "stays: Fake has no arrays" in result.out
    assert states(store) == {1: JobState.PENDING, 2: JobState.PENDING, 3: JobState.CANCELLED}


def test_a_refused_job_is_given_back_as_it_was(migration: Migration, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job(name="first"), job(name="bad", after=(1,), held=True), job(name="last", after=(2,)))
    before = store.get(3)
    engine.refuses = "bad"
    found = by_word(migration.run(None))
    assert found == {
        "1": ("1", ""),
        "2": ("", "Invalid account"),
        "3": ("", "it waits for job 2, which stays here"),
    }
    kept = store.get(2)
    assert (kept.state, kept.held, kept.spec.after) == (JobState.PENDING, True, ())
    assert kept.hold_reason == "waits for Fake job 1: release it once that has ended"
    assert store.get(3) == before


@pytest.mark.parametrize("reason", [None, "fans", "held after 3 starts; the last: a\nb", "being moved"])
def test_a_refused_job_keeps_the_reason_of_its_hold(
    migration: Migration, store: TinyJobStore, engine: FlakyCluster, reason: str | None
) -> None:
    put(store, job(name="bad", held=True, hold_reason=reason))
    engine.refuses = "bad"
    assert by_word(migration.run(None)) == {"1": ("", "Invalid account")}
    assert (store.get(1).held, store.get(1).hold_reason) == (True, reason)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dies_at", [1, 2, 3])
def test_a_move_that_was_killed_goes_on(
    migration: Migration, store: TinyJobStore, engine: FlakyCluster, dies_at: int, late: bool
) -> None:
    put(store, job(name="a", gpus=2), elements(3, place=1, name="b"), job(name="c", after=(1, 2), held=True))
    engine.dies_at, engine.is_late = dies_at, late
    with pytest.raises(Killed):
        migration.run(None)
    assert all(each.held and each.state is JobState.PENDING for each in store.jobs().values())
    assert not any(move.why for move in migration.plan((1,)))
    moves = migration.run((1,))
    assert not any(move.why for move in moves)
    found = sorted((each.spec.name, each.held, each.spec.after) for each in theirs(engine).values())
    assert found == [("a", False, ()), *[("b", False, ())] * 3, ("c", True, (1, 2))]
    assert set(states(store).values()) == {JobState.CANCELLED}
    assert migration.run(None) == ()


class DyingStore(TinyJobStore):
    """Queue whose transaction number `dies_at` ends the process when it begins."""

    dies_at = 0
    count = 0

    def transaction(self):  # type: ignore[no-untyped-def]
        self.count += 1
        if self.count == self.dies_at:
            raise Killed
        return super().transaction()


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_move_that_was_killed_at_its_notes_goes_on(
    tmp_path: Path, engine: FlakyCluster, clock: FakeClock, dies_at: int
) -> None:
    first = DyingStore(tmp_path / "queue", StoreSettings())
    put(first, job(name="a"), job(name="b", after=(1,)))
    first.count, first.dies_at = 0, dies_at
    with pytest.raises(Killed):
        Migration(first, engine, "slurm", clock, ACTOR).run(None)
    first.close()
    store = TinyJobStore(tmp_path / "queue", StoreSettings())
    moves = Migration(store, engine, "slurm", clock, ACTOR).run(None)
    assert by_word(moves) == {"1": ("1", ""), "2": ("2", "")}
    assert sorted(theirs(engine)) == ["1", "2"]
    assert set(states(store).values()) == {JobState.CANCELLED}
    store.close()


def test_an_interrupted_move_does_not_go_to_another_cluster(
    migration: Migration, store: TinyJobStore, engine: FlakyCluster, clock: FakeClock
) -> None:
    put(store, job())
    engine.dies_at = 1
    with pytest.raises(Killed):
        migration.run(None)
    other = FakeCluster(clock)
    moves = Migration(store, other, "slurm+ssh://login1", clock, ACTOR).run(None)
    assert [move.why for move in moves] == ["its move to slurm was interrupted: migrate there first"]
    assert theirs(other) == {}


def test_a_cluster_that_is_away_leaves_the_jobs_as_they_were(
    run: Run, store: TinyJobStore, engine: FlakyCluster
) -> None:
    put(store, job())
    before = store.get(1)
    engine.answers = False
    result = run("migrate")
    assert result.code == 1
    assert "does not answer" in result.err
    assert store.get(1) == before


def test_a_job_that_was_cancelled_here_meanwhile_is_cancelled_there(
    store: TinyJobStore, use: MakeCluster, clock: FakeClock, run: Run
) -> None:
    class Slow(FakeCluster):
        """Cluster during whose submission a user cancels the job here."""

        def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
            with store.transaction() as transaction:
                transaction.put(transaction.get(1).evolve(cancel_requested=True))
            return super().submit(submissions, key, is_new=is_new)

    engine = use(Slow(clock))
    put(store, job())
    result = run("migrate")
    assert result.code == 1
    assert "job 1 was changed here meanwhile: cancelled in Fake" in result.out
    assert [each.state for each in theirs(engine).values()] == [JobState.CANCELLED]


class BusyCluster(FakeCluster):
    """Cluster during whose forecasts and submissions something happens, once."""

    while_planned: Callable[[], object] | None = None
    while_submitted: Callable[[], object] | None = None

    def expected_start(self, submission: Submission) -> datetime | None:
        happens, self.while_planned = self.while_planned, None
        if happens is not None:
            happens()
        return super().expected_start(submission)

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        happens, self.while_submitted = self.while_submitted, None
        if happens is not None:
            happens()
        return super().submit(submissions, key, is_new=is_new)


@pytest.fixture
def busy(store: TinyJobStore, clock: FakeClock) -> tuple[Migration, BusyCluster]:
    cluster = BusyCluster(clock)
    return Migration(store, cluster, "slurm", clock, ACTOR), cluster


def change(store: TinyJobStore, **changes: Any) -> None:
    """Change job 1 of this server, as one of its users does."""
    with store.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(**changes))


def test_a_job_that_is_changed_while_the_move_is_planned_keeps_all_here(
    busy: tuple[Migration, BusyCluster], store: TinyJobStore
) -> None:
    migration, cluster = busy
    put(store, job(), job())
    cluster.while_planned = lambda: change(store, priority=70)
    with pytest.raises(GputuiError, match="job 1 was changed meanwhile: nothing was moved") as refusal:
        migration.run(None)
    assert refusal.value.hint == "run gputui migrate again"
    assert theirs(cluster) == {}
    assert [each.held for each in store.jobs().values()] == [False, False]
    assert by_word(migration.run(None)) == {"1": ("1", ""), "2": ("2", "")}


def test_a_cluster_that_goes_away_in_the_middle_is_tried_again_later(
    busy: tuple[Migration, BusyCluster], store: TinyJobStore
) -> None:
    migration, cluster = busy
    put(store, job(), job())

    def goes_away() -> None:
        cluster.answers = False

    cluster.while_submitted = goes_away
    with pytest.raises(ClusterUnavailableError, match="does not answer: the move was interrupted") as refusal:
        migration.run(None)
    assert refusal.value.hint is not None
    assert "run gputui migrate again, which submits none twice" in refusal.value.hint
    assert [each.held for each in store.jobs().values()] == [True, True]
    cluster.answers = True
    assert by_word(migration.run(None)) == {"1": ("1", ""), "2": ("2", "")}
    assert states(store) == {1: JobState.CANCELLED, 2: JobState.CANCELLED}


def test_two_moves_at_the_same_time_move_a_job_once(busy: tuple[Migration, BusyCluster], store: TinyJobStore) -> None:
    migration, cluster = busy
    put(store, job())
    others: list[dict[str, tuple[str, str]]] = []
    cluster.while_submitted = lambda: others.append(by_word(migration.run(None)))
    assert by_word(migration.run(None)) == {"1": ("1", "")}
    assert others == [{"1": ("1", "")}]
    assert list(theirs(cluster)) == ["1"]
    assert [entry.after for entry in store.audit_log() if entry.after.startswith("migrated")] == [
        "migrated to Fake job 1"
    ]


def test_a_job_that_the_cluster_does_not_cancel_again_is_told(
    busy: tuple[Migration, BusyCluster], store: TinyJobStore
) -> None:
    migration, cluster = busy
    put(store, job())
    cluster.refuses_cancel = "Access/permission denied"
    cluster.while_submitted = lambda: change(store, cancel_requested=True)
    [move] = migration.run(None)
    assert move.why == "job 1 was changed here meanwhile, and Fake did not cancel it: Access/permission denied"
    assert not theirs(cluster)["1"].state.is_terminal


def test_a_job_whose_user_waits_at_a_terminal_stays(migration: Migration, store: TinyJobStore) -> None:
    put(store, job(interactive=Interactive(tty=True)), job())
    found = by_word(migration.plan(None))
    assert "a terminal here waits for it" in found["1"][1]
    assert found["2"][1] == ""


def test_a_job_that_was_requeued_here_moves_again(
    migration: Migration, store: TinyJobStore, engine: FlakyCluster
) -> None:
    put(store, job())
    migration.run(None)
    with store.transaction() as transaction:
        transaction.put(store.get(1).evolve(state=JobState.PENDING, cause=None, ended_at=None))
    assert by_word(migration.run(None)) == {"1": ("2", "")}


def test_no_cluster_is_an_error(run: Run, store: TinyJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_CLUSTER", "")
    put(store, job())
    result = run("migrate")
    assert result.code == 2
    assert "no cluster is named" in result.err


def test_a_server_without_a_queue_gets_none(run: Run, engine: FlakyCluster, tmp_path: Path) -> None:
    state = tmp_path / "none"
    result = run("--state", str(state), "migrate")
    assert result.code == 3
    assert "there is no queue yet" in result.err
    assert not state.exists()


def test_an_unknown_job_is_not_found(run: Run, store: TinyJobStore, engine: FlakyCluster) -> None:
    put(store, job())
    assert run("migrate", "1,99").code == 3
    assert states(store) == {1: JobState.PENDING}


@pytest.mark.usefixtures("engine")
def test_a_shell_completes_the_jobs_of_this_server(store: TinyJobStore) -> None:
    put(store, job())
    assert completed("gputui migrate", 2) == ["1"]
    assert completed("gputui cancel", 2) == []
