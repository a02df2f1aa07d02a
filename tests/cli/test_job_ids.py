"""Elements of arrays are named as squeue shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputui.bootstrap import backend
from gputui.cli.job_ids import Named, parse
from gputui.domain.errors import InputError
from gputui.domain.job import ArrayRef, Job
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.cli.test_completions import completed
from tests.cli.test_logs import Logs, Stream
from tests.factories import NOW, job, running


def element(index: int, made: Job | None = None) -> Job:
    return (made or job()).evolve(array=ArrayRef(2, index, 4))


def fill(store: KeptStore) -> None:
    store.clear()
    over = running().evolve(state=JobState.COMPLETED, ended_at=NOW)
    put(store, job(), element(0, over), element(10, running()), element(20), element(30), element(40), job())


@pytest.fixture
def mixed(store: KeptStore) -> KeptStore:
    """Job 1; array 2 of jobs 2 to 6, whose indices are 0, 10, 20, 30 and 40: ended, running, and three that wait."""
    fill(store)
    return store


def acted_on(store: KeptStore, verb: str) -> list[str]:
    return [entry.target for entry in store.audit_log() if entry.verb == verb]


@cases(
    ("text", "named"),
    [
        ("7", [Named((7,))]),
        ("7,9", [Named((7,)), Named((9,))]),
        ("7-9", [Named((7, 8, 9))]),
        ("12_5", [Named((12,), (5,))]),
        ("12_[3-7]", [Named((12,), (3, 4, 5, 6, 7))]),
        ("12_[1,5-9:2%8], 7", [Named((12,), (1, 5, 7, 9)), Named((7,))]),
        ("12_0,12_1", [Named((12,), (0,)), Named((12,), (1,))]),
    ],
)
def test_ids_of_jobs_and_elements_are_read(text: str, named: Sequence[Named]) -> None:
    assert parse(text, "ID") == tuple(named)


@cases(
    "text",
    ["", ",", "7,", ",7", "7,,8", "x", "12_", "_5", "12_x", "12_-1", "12_5_6", "12_[", "12_[]", "12_[3", "12_[3]4",
     "12_[0-4,...]", "0_1", "1-200000", "1_[0-99999],2", "٣_1", "9" * 400, "1_" + "9" * 400]
)  # fmt: skip
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse(text, "ID")
    assert len(str(refusal.value)) < 300


def test_an_element_is_named_by_array_and_index(run: Run, mixed: KeptStore) -> None:
    for command in ("hold", "release", "cancel"):
        assert run(command, "2_20").code == 0
        assert acted_on(mixed, command) == ["job 4"]
    assert run("requeue", "2_10").code == 0
    assert acted_on(mixed, "requeue") == ["job 3"]
    assert run("priority", "2_[30,40]", "+7").code == 0
    assert [mixed.get(job_id).priority for job_id in (4, 5, 6)] == [50, 57, 57]
    assert run("priority", "2_40", "top").code == 0
    assert acted_on(mixed, "top") == ["job 6"]


def test_the_id_of_an_array_means_all_its_elements(run: Run, mixed: KeptStore) -> None:
    """A whole array means those of its elements to which the verb applies."""
    assert run("hold", "2").code == 0
    assert acted_on(mixed, "hold") == ["job 4", "job 5", "job 6"]
    assert run("requeue", "2").code == 0
    assert acted_on(mixed, "requeue") == ["job 3"]
    assert run("priority", "2", "80").code == 0
    assert acted_on(mixed, "priority") == ["job 3", "job 4", "job 5", "job 6"]
    assert run("cancel", "2", "1").code == 0
    assert acted_on(mixed, "cancel") == ["job 3", "job 4", "job 5", "job 6", "job 1"]


def test_ids_of_elements_and_ranges_of_ids_name_single_jobs(run: Run, mixed: KeptStore) -> None:
    assert run("cancel", "5").code == 0
    assert acted_on(mixed, "cancel") == ["job 5"]
    assert run("cancel", "1-3").code == 0
    assert acted_on(mixed, "cancel") == ["job 5", "job 1", "job 3"]


def test_an_array_without_a_suitable_element_is_refused(run: Run, store: KeptStore) -> None:
    put(store, job(), element(0, running()))
    result = run("hold", "2")
    assert result.code == 1
    assert "job 2_0 is RUNNING" in result.err


@cases("command", ["cancel", "hold", "requeue", "show", "logs", "explain"])
@cases(
    ("name", "says"),
    [("2_5", "array 2 has no element 5"), ("1_0", "job 1 is not an array"), ("9_0", "there is no job 9")],
)
def test_missing_elements_are_refused(run: Run, mixed: KeptStore, command: str, name: str, says: str) -> None:
    result = run(command, name)
    assert (result.code, result.out) == (3, "")
    assert says in result.err
    assert acted_on(mixed, command) == []


@cases("command", ["cancel", "hold"])
def test_an_unknown_id_prevents_the_whole_action(run: Run, mixed: KeptStore, command: str) -> None:
    assert run(command, "2_[20,25]").code == 3
    assert acted_on(mixed, command) == []


def test_show_explain_and_logs_take_exactly_one_id(run: Run, mixed: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("show", "2_30", "--json").out)["id"] == 5
    assert json.loads(run("show", "2", "--json").out)["id"] == 2
    assert json.loads(run("explain", "2_30", "--json").out)["id"] == 5
    logs = Logs(Stream())
    monkeypatch.setattr(backend, "open_logs", lambda options, store: logs)
    assert run("logs", "2_10").code == 0
    assert logs.asked == [(3, None, None, False)]
    for command in ("show", "explain", "logs"):
        for name in ("2_[10,20]", "1,2", "1-2"):
            result = run(command, name)
            assert (result.code, result.out) == (2, "")
            assert "names several jobs" in result.err


def test_elements_in_history_are_found(run: Run, mixed: KeptStore) -> None:
    with mixed.transaction() as transaction:
        transaction.put(transaction.get(2).evolve(ended_at=NOW.replace(year=2025)))
    mixed.maintain(NOW)
    assert 2 not in mixed.jobs()
    assert json.loads(run("show", "2_0", "--json").out)["id"] == 2


def test_names_of_elements_are_completed(store: KeptStore) -> None:
    put(store, job(), element(0), element(10), element(20))
    assert completed("gputui cancel 2_", 2) == ["2_0", "2_10", "2_20"]
    assert completed("gputui cancel 2", 2) == ["2"]


def test_a_job_starts_after_an_element(mixed: KeptStore, run: Run) -> None:
    """Array 2 has job 4 as element 20 and job 5 as element 30."""
    submitted = run("submit", "--after", "2_[20,30]", "--after-any", "1,2_10", "busybox", "true")
    made = mixed.get(int(submitted.out))
    assert (made.spec.after, made.spec.after_any) == ((4, 5), (1, 3))
    refused = run("submit", "--after", "2_0", "busybox", "true")
    assert refused.code == 2
    assert "--after: '2_0' has the first element, whose id means the whole array" in refused.err
    assert run("submit", "--after", "2_7", "busybox", "true").code == 3


@cases("verb", ["hold", "cancel"])
@cases("name", ["2_20", "4"])
def test_an_action_on_one_job_decodes_no_others(
    mixed: KeptStore, run: Run, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    def refuse(_: KeptStore) -> dict[int, Job]:
        raise AssertionError("all jobs were read")

    fill(mixed)
    monkeypatch.setattr(KeptStore, "jobs", refuse)
    assert run(verb, name).code == 0
    assert acted_on(mixed, verb) == ["job 4"]


class TestEntries:
    """Rows of an array whose waiting elements are one entry."""

    @pytest.fixture(autouse=True)
    def _array(self, run: Run) -> None:
        assert run("submit", "--name", "sweep", "--array", "0-99%8", "busybox").out == "1\n"

    def rows(self, run: Run, *options: str) -> dict[str, str]:
        """Return the state and priority of each row of the queue."""
        lines = [line.split() for line in run("queue", *options).out.splitlines()[1:]]
        return {words[0]: f"{words[1]} {words[2]}" for words in lines}

    def test_an_action_on_the_whole_array_leaves_one_entry(self, run: Run, store: KeptStore) -> None:
        for command in (("hold", "1"), ("release", "1"), ("priority", "1", "60"), ("cancel", "1")):
            assert run(*command).code == 0
        assert len(store.jobs()) == 1
        assert [len(acted_on(store, verb)) for verb in ("hold", "release", "priority", "cancel")] == [1, 1, 1, 1]

    def test_an_action_on_some_elements_splits_the_entry(self, run: Run, store: KeptStore) -> None:
        assert run("hold", "1_[10-19]").code == 0
        assert run("priority", "1_7", "+5").code == 0
        assert self.rows(run) == {"1_[0-6,8-9,20-99%8]": "PD 50", "1_7": "PD 55", "1_[10-19%8]": "PD 50"}
        assert len(store.jobs()) == 3
        assert run("release", "1").code == 0
        assert run("priority", "1", "50").code == 0
        assert self.rows(run) == {"1_[0-99%8]": "PD 50"}

    def test_an_element_is_shown_by_itself(self, run: Run) -> None:
        shown = json.loads(run("show", "1_42", "--json").out)
        assert (shown["id"], shown["array"]["indices"], shown["array"]["count"]) == (43, "42", 1)
        told = run("show", "43").out
        assert "job                   1_42 (id 43)" in told
        assert "its elements          100 PENDING" in told
        assert self.rows(run, "-f", "id:43") == {"1_42": "PD 50"}

    def test_ended_jobs_are_reported_together(self, run: Run, store: KeptStore) -> None:
        [entry] = store.jobs().values()
        taken, _ = entry.divided(range(1, 51))
        assert taken is not None
        with store.transaction() as transaction:
            transaction.put(taken.evolve(state=JobState.CANCELLED, ended_at=NOW))
        assert run("cancel", "1_[40-60]").err == (
            "cancelled 11 jobs: 1_[50-60%8]\n10 jobs have ended already: 1_[40-49%8]\n"
        )
        assert run("cancel", "1_49").err == "job 1_49 has ended already: it is CANCELLED\n"
        assert self.rows(run, "-a") == {"1_[61-99%8]": "PD 50", "1_[50-60%8]": "PD 50", "1_[0-49%8]": "CA 50"}

    def test_explain_of_an_array_explains_its_next_waiting_element(self, run: Run, store: KeptStore) -> None:
        put(store, job())
        with store.transaction() as transaction:
            transaction.put(replace(running(1), array=ArrayRef(1, 0, 8)))
        assert run("explain", "1").out.startswith("job 1_1 sweep: number 1 of 100 waiting")
        assert run("explain", "1_99").out.startswith("job 1_99 sweep: number 99 of 100 waiting")
        refused = run("explain", "1_0")
        assert (refused.code, "job 1_0 is RUNNING" in refused.err) == (1, True)

    def test_an_array_is_completed_as_one_word(self, run: Run) -> None:
        assert completed("gputui hold ", 2) == ["1"]
        assert completed("gputui hold 1_9", 2) == ["1_9", *(f"1_{number}" for number in range(90, 100))]
