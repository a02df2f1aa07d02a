"""`gputui cron`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.cli import cron
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import GpuRequest
from gputui.domain.recurring import Missed, Overlap, RecurringJob, Skipped
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, put
from tests.cli.test_completions import completed
from tests.factories import FakeClock, job, recurring


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    """Set the time zone to New York."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def keep(store: KeptStore, *entries: RecurringJob) -> None:
    with store.transaction() as transaction:
        for entry in entries:
            transaction.add_recurring(entry)


def only(store: KeptStore) -> RecurringJob:
    [entry] = store.recurring().values()
    return entry


def test_add_prints_only_the_id_and_on_stderr_the_next_run(run: Run, store: KeptStore) -> None:
    result = run("cron", "add", "30 2 * * 1-5", "--", "--gpus", "2", "busybox", "echo", "--now")
    assert (result.code, result.out) == (0, "1\n")
    assert result.err == "recurring job 1: next run Tue 2026-03-03 02:30 EST\n"
    entry = only(store)
    assert (entry.expression, entry.zone, entry.added_by) == ("30 2 * * 1-5", "America/New_York", "alice")
    assert (entry.missed, entry.overlap, entry.name) == (Missed.ONCE, Overlap.SKIP, "")
    spec = entry.submission.spec
    assert (spec.image, spec.command, spec.gpus) == ("busybox", ("echo", "--now"), GpuRequest(2, 2))
    assert store.jobs() == {}
    assert f"{entry.next_at:%m-%d %H:%M}" == "03-03 07:30"


def test_add_takes_time_zone_missed_overlap_and_name(run: Run, store: KeptStore) -> None:
    options = ("--time-zone", "Europe/Berlin", "--missed", "skip", "--overlap", "allow", "--name", "nightly", "--json")
    result = run("cron", "add", "@daily", *options, "--", "--host", "--array", "0-2%1", "--", "true")
    assert json.loads(result.out) == {"id": 1}
    entry = only(store)
    assert (entry.zone, entry.missed, entry.overlap, entry.name) == (
        "Europe/Berlin",
        Missed.SKIP,
        Overlap.ALLOW,
        "nightly",
    )
    assert (entry.submission.array, entry.submission.array_limit) == ((0, 1, 2), 1)
    assert (entry.submission.spec.name, entry.submission.spec.is_host) == ("nightly", True)


def test_add_passes_its_name_on_to_jobs(run: Run, store: KeptStore) -> None:
    run("cron", "add", "@daily", "--name", "outer", "--", "--name", "inner", "busybox")
    assert (only(store).name, only(store).submission.spec.name) == ("outer", "inner")


@cases(
    ("arguments", "says"),
    [
        (["* * * *", "--", "busybox"], "cron: '* * * *' has 4 fields (write five"),
        (["0 0 31 2 *", "--", "busybox"], "never matches"),
        (
            ["@daily", "--time-zone", "Mars/Base", "--", "busybox"],
            "--time-zone: 'Mars/Base' is not a time zone on this host",
        ),
        (["@daily", "--missed", "twice", "--", "busybox"], "'twice' is not one of"),
        (["@daily", "--host", "--", "true"], "--host is not an option of cron add (those of submit come after --)"),
        (["@daily", "--", "--gpu", "2", "busybox"], "--gpu"),
        (["@daily", "--", "--priority", "200", "busybox"], "--priority: 200 is out of range"),
        (["@daily", "--", "--begin", "+1h", "busybox"], "--begin: a recurring job has no begin time"),
        (["@daily", "--", "-f", "jobs.toml"], "--file: does not apply"),
        (["@daily", "--", "--dry-run", "busybox"], "--dry-run: does not apply"),
        (["@daily", "--", "--json", "busybox"], "--json: does not apply"),
        (["@daily", "--name", "\x1b[2J", "--", "busybox"], "--name"),
        (["@daily"], "IMAGE: is missing"),
        ([], "missing argument"),
    ],
)
def test_invalid_entries_are_refused(run: Run, store: KeptStore, arguments: list[str], says: str) -> None:
    result = run("cron", "add", *arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert store.recurring() == {}


def test_dependencies_must_exist(run: Run, store: KeptStore) -> None:
    assert run("cron", "add", "@daily", "--", "--after", "7", "busybox").code == 3
    assert store.recurring() == {}


def test_list_shows_times_and_commands(run: Run, store: KeptStore, clock: FakeClock) -> None:
    at = clock.now()
    ran = recurring("*/15 * * * *", "Europe/Berlin", name="often", last_at=at, last_job_id=7)
    yearly = recurring("@yearly", last_at=at - timedelta(days=400), last_job_id=3)
    keep(store, ran, recurring(paused=True, array=(0, 1, 2), held=True), yearly)
    assert run("cron", "list").out == (
        "ID  NEXT         LAST         JOB  WHEN          ZONE           NAME   SUBMITS\n"
        " 1  03-02 07:15  03-02 07:00    7  */15 * * * *  Europe/Berlin  often  busybox true\n"
        " 2  paused       -              -  0 * * * *     UTC            -      --array 0-2 --hold busybox true\n"
        " 3  2026-12-31   2025-01-26     3  @yearly       UTC            -      busybox true\n"
    )


def test_list_without_recurring_jobs_says_so(run: Run) -> None:
    assert run("cron", "list").out == "no recurring jobs\n"
    assert json.loads(run("cron", "list", "--json").out) == []


def test_list_as_json(run: Run, store: KeptStore, clock: FakeClock) -> None:
    at = clock.now()
    entry = recurring(name="often", last_at=at, last_job_id=7, skipped=Skipped(at, "job 7 was RUNNING"))
    spec = replace(entry.submission.spec, options=replace(entry.submission.spec.options, env=(("TOKEN", "s3cret"),)))
    keep(store, replace(entry, submission=replace(entry.submission, spec=spec)), recurring(paused=True))
    result = run("cron", "list", "--json")
    assert "s3cret" not in result.out
    first, second = json.loads(result.out)
    assert {key: first[key] for key in ("id", "expression", "time_zone", "missed", "overlap", "paused")} == {
        "id": 1, "expression": "0 * * * *", "time_zone": "UTC", "missed": "once", "overlap": "skip", "paused": False
    }  # fmt: skip
    assert (first["next_run_at"], first["last_run_at"]) == ("2026-03-02T13:00:00Z", "2026-03-02T12:00:00Z")
    assert (first["last_job_id"], first["skipped"]["why"]) == (7, "job 7 was RUNNING")
    assert (first["submits"]["image"], first["submits"]["spec"]["env"]) == ("busybox", {"TOKEN": "***"})
    assert (second["paused"], second["next_run_at"]) == (True, None)


def test_remove_pause_and_resume(run: Run, store: KeptStore, clock: FakeClock) -> None:
    keep(store, recurring(), recurring(), recurring())
    assert run("cron", "remove", "1,3").code == 0
    assert list(store.recurring()) == [2]
    assert run("cron", "pause", "2").code == 0
    assert only(store).paused
    clock.advance(timedelta(hours=5).total_seconds())
    assert run("cron", "resume", "2").code == 0
    assert (only(store).paused, only(store).next_at) == (False, clock.now() + timedelta(hours=1))


@cases("command", ["remove", "pause", "resume"])
@cases(("given", "code"), [("9", 3), ("x", 2), ("1,9", 3), ("-1", 2)])
def test_invalid_ids_are_refused(run: Run, store: KeptStore, command: str, given: str, code: int) -> None:
    store.clear()
    keep(store, recurring())
    result = run("cron", command, given)
    assert (result.code, result.out) == (code, "")
    assert not only(store).paused


def test_jobs_name_the_recurring_job_that_submitted_them(run: Run, store: KeptStore) -> None:
    put(store, job(recurring=7), job(recurring=7, array=ArrayRef(2, 4)), job())
    assert [line.split("alice")[0].split()[3:] for line in run("queue").out.splitlines()[1:]] == [
        ["train", "(cron", "7)"],
        ["train", "(cron", "7)"],
        ["train"],
    ]
    assert [shown["recurring_id"] for shown in json.loads(run("queue", "--json").out)] == [7, 7, None]
    assert "a run of recurring job 7" in run("show", "1").out
    assert "recurring" not in run("show", "3").out
    assert [shown["id"] for shown in json.loads(run("queue", "--json", "--filter", "cron:7").out)] == [1, 2]


def test_show_marks_jobs_of_a_recurring_job(run: Run, store: KeptStore) -> None:
    keep(store, recurring())
    assert "1 is a recurring job" in run("show", "1").err
    assert "there is no job 2" in run("show", "2").err


def test_skipped_runs_are_listed(store: KeptStore, clock: FakeClock) -> None:
    at = clock.now()
    skipped = Skipped(at, "job 7 of an earlier run was RUNNING")
    entries = [recurring(skipped=skipped), recurring(skipped=skipped, last_at=at + timedelta(hours=1)), recurring()]
    assert list(cron.footnotes(entries, at)) == [f"0: the run of 03-02 07:00 was left out: {skipped.why}"]


def test_commands_and_ids_are_completed(store: KeptStore) -> None:
    keep(store, recurring(), recurring(name="\x1b[2J"))
    assert completed("gputui cron ", 2) == ["add", "list", "pause", "remove", "resume"]
    assert completed("gputui cron remove ", 3) == ["1", "2"]
    assert completed("gputui cron add --mis", 3) == ["--missed"]
