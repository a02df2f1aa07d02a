"""`gputui reserve`: windows of time, and the standing rule."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.domain.policy.reservations import overlap_warnings
from gputui.domain.settings import Window
from gputui.domain.snapshot import Controls, StandingRule
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.domain.policy.test_decide import seen
from tests.factories import NOW, job, running, snapshot, uuid

HOUR = timedelta(hours=1)
FILE = """
[[policy.reservations]]
name = "course"
start = 2026-03-02T15:00:00+01:00
end = 2026-03-02T19:00:00+01:00
count = 6
tenant = "bob"
"""


@pytest.fixture(autouse=True)
def eight_gpus(store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(seen([])))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    monkeypatch.setenv("GPUTUI_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


def windows(store: KeptStore) -> tuple[Window, ...]:
    return store.controls().reservations


@pytest.mark.usefixtures("in_berlin")
def test_a_start_may_include_its_end(run: Run, store: KeptStore) -> None:
    assert run("reserve", "add", "--gpus", "4", "--start", "Mon 9-17").out == "r1\n"
    [window] = windows(store)
    assert [f"{at.astimezone():%a %H:%M}" for at in (window.start, window.end)] == ["Mon 09:00", "Mon 17:00"]
    refused = run("reserve", "add", "--gpus", "4", "--start", "Mon 9-17", "--for", "2h")
    assert "--start: has an end already (leave out --end and --for)" in refused.err


def test_add_prints_only_the_name_and_keeps_it(run: Run, store: KeptStore) -> None:
    result = run("reserve", "add", "--gpus", "4", "--start", "2026-12-01T09:00Z", "--for", "8h", "--tenant", "bob")
    assert (result.code, result.out) == (0, "r1\n")
    start = datetime(2026, 12, 1, 9, tzinfo=UTC)
    assert windows(store) == (Window("r1", start, start + 8 * HOUR, 4, tenant="bob"),)
    [entry] = store.audit_log("reservation r1")
    assert (entry.user, entry.verb, entry.before) == ("alice", "reserve", "")
    assert entry.after == "4 GPUs from 2026-12-01T09:00:00+00:00 to 2026-12-01T17:00:00+00:00 for bob"
    assert run("reserve", "add", "--gpus", "1", "--for", "1h").out == "r2\n"
    assert run("reserve", "add", "-q", "--gpus", "1", "--for", "1h").err == ""


@pytest.mark.usefixtures("in_berlin")
def test_add_says_which_times_it_has_read(run: Run) -> None:
    told = "any 4 GPUs from Tue 2026-03-03 00:00 CET to Tue 2026-03-03 08:00 CET, 8h00m, for alice\n"
    line = ("reserve", "add", "--gpus", "4", "--start", "tomorrow", "--for", "8h")
    assert run(*line, "--dry-run").err == f"reservation r1: {told}"
    assert run(*line).err == f"reservation r1: {told}"
    named = run("reserve", "add", "--gpu", "0,3", "--start", "Mon 9-17", "--nobody").err
    assert (
        named
        == "reservation r2: GPU 0, 3 from Mon 2026-03-09 09:00 CET to Mon 2026-03-09 17:00 CET, 8h00m, for nobody\n"
    )


def test_times_are_of_the_users_zone_unless_they_have_one(run: Run, store: KeptStore, in_berlin: None) -> None:
    run("reserve", "add", "--gpus", "1", "--start", "2026-12-01T09:00", "--end", "2026-12-01T12:00+00:00")
    assert windows(store)[0].start == datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert windows(store)[0].end == datetime(2026, 12, 1, 12, tzinfo=UTC)
    told = run("reserve", "list").out
    assert "2026-12-01 09:00  2026-12-01 13:00" in told
    assert "; released 2026-12-01 09:15 if unused" in told


def test_the_beneficiary_of_a_reservation_is_named(run: Run, store: KeptStore) -> None:
    for options in ([], ["--priority", "80"], ["--tenant", "bob", "--priority", "80"], ["--nobody"]):
        assert run("reserve", "add", "--gpus", "1", "--for", "1h", *options).code == 0
    found = [(window.tenant, window.priority) for window in windows(store)]
    assert found == [("alice", None), (None, 80), ("bob", 80), (None, None)]
    told = [line.split("command  ")[1].split(";")[0] for line in run("reserve", "list").out.splitlines()[1:]]
    assert told == ["alice", "priority 80 and above", "bob, and priority 80 and above", "nobody"]


def test_gpus_are_named_by_index_or_uuid_and_kept_by_uuid(run: Run, store: KeptStore) -> None:
    assert run("reserve", "add", "--gpu", "0,3", "--gpu", uuid(5), "--gpu", "3", "--for", "1h").code == 0
    assert windows(store)[0].gpus == (uuid(0), uuid(3), uuid(5))
    assert "  0,3,5  " in run("reserve", "list").out
    assert run("reserve", "add", "--gpu", "8", "--for", "1h").code == 3


@cases(
    ("words", "where"),
    [
        ("--gpus 1", "--end"), ("--gpus 1 --end +1h --for 1h", "--end"), ("--for 1h", "--gpus"),
        ("--gpus 1 --gpu 0 --for 1h", "--gpus"), ("--gpus 0 --for 1h", "--gpus"), ("--gpus 9 --for 1h", "--gpus"),
        ("--gpus 1 --start +2h --end +1h", "--end"), ("--gpus 1 --start +1h --end +1h", "--end"),
        ("--gpus 1 --start 2026-03-02T10:00Z --for 1h", "--end"), ("--gpus 1 --for 0", "--for"),
        ("--gpus 1 --start yesterday --for 1h", "--start"), ("--gpus 1 --for 1h --priority 101", "--priority"),
        ("--gpus 1 --for 1h --nobody --tenant bob", "--nobody"), ("--gpus 1 --for 1h --name a\x1bb", "--name"),
    ],
)  # fmt: skip
def test_impossible_reservations_are_refused(run: Run, store: KeptStore, words: str, where: str) -> None:
    result = run("reserve", "add", *words.split(" "))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"gputui: error: {where}: ")
    assert windows(store) == ()


def test_conflicting_reservations_are_named(run: Run, store: KeptStore, file: None) -> None:
    beside = ["reserve", "add", "--start", "2026-03-02T15:00Z", "--for", "1h"]
    result = run(*beside, "--gpus", "3")
    assert (result.code, result.out) == (1, "")
    assert "3 GPUs are too many: reservation course keeps 6 of 8 at that time" in result.err
    assert run(*beside, "--gpus", "3", "--dry-run").code == 1
    assert run(*beside, "--gpus", "2", "--name", "exam").out == "exam\n"
    assert "reservations course and exam keep 8 of 8" in run(*beside, "--gpus", "1").err
    taken = run(*beside, "--gpus", "1", "--name", "course")
    assert (taken.code, "--name: reservation course exists already" in taken.err) == (2, True)
    later = ["reserve", "add", "--start", "2026-03-02T18:00Z", "--for", "1h", "--gpus", "8"]
    assert run(*later).code == 0


def test_a_released_reservation_causes_no_conflict(run: Run, store: KeptStore) -> None:
    whole = Window("r1", NOW - HOUR, NOW + HOUR, 8, tenant="bob")
    with store.transaction() as transaction:
        transaction.set_controls(Controls(reservations=(whole,)))
    assert run("reserve", "add", "--gpus", "1", "--for", "1h").code == 1
    with store.transaction() as transaction:
        transaction.set_controls(Controls(reservations=(whole,), released={whole.key: NOW}))
    assert run("reserve", "add", "--gpus", "1", "--for", "1h").out == "r2\n"


def test_list_includes_reservations_of_the_settings_file(run: Run, store: KeptStore, file: None) -> None:
    run("reserve", "add", "--gpus", "2", "--for", "1h", "--tenant", "eve")
    with store.transaction() as transaction:
        controls = transaction.controls()
        [mine] = controls.reservations
        transaction.set_controls(replace(controls, claimed={mine.key: NOW}))
    mine_told, course = json.loads(run("reserve", "list", "--json").out)
    assert mine_told == {
        "name": "r1",
        "state": "ACTIVE",
        "start": "2026-03-02T12:00:00Z",
        "end": "2026-03-02T13:00:00Z",
        "count": 2,
        "gpus": [],
        "tenant": "eve",
        "priority": None,
        "source": "command",
        "claimed_at": "2026-03-02T12:00:00Z",
        "released_at": None,
        "lapses_at": None,
        "kept_gpus": [],
    }
    assert (course["name"], course["state"], course["source"]) == ("course", "UPCOMING", "file")
    times = [course[name] for name in ("start", "end", "lapses_at")]
    assert times == ["2026-03-02T14:00:00Z", "2026-03-02T18:00:00Z", "2026-03-02T14:15:00Z"]
    assert "claimed 2026-03-02 " in run("reserve", "list").out


def test_remove_deletes_a_reservation(run: Run, store: KeptStore, file: None) -> None:
    run("reserve", "add", "--gpus", "2", "--for", "1h", "--name", "mine")
    assert run("reserve", "remove", "mine").code == 0
    assert windows(store) == ()
    assert [entry.verb for entry in store.audit_log("reservation mine")] == ["reserve", "unreserve"]
    assert run("reserve", "remove", "mine").code == 3
    of_file = run("reserve", "remove", "course")
    assert (of_file.code, "is defined in the settings file" in of_file.err) == (1, True)


def test_a_reservation_added_again_is_judged_anew(run: Run, store: KeptStore) -> None:
    add = ["reserve", "add", "--gpus", "2", "--start", "2026-03-02T11:00Z", "--for", "2h", "--name", "mine"]
    assert run(*add).code == 0
    with store.transaction() as transaction:
        controls = transaction.controls()
        transaction.set_controls(replace(controls, released={windows(store)[0].key: NOW}))
    assert json.loads(run("reserve", "list", "--json").out)[0]["state"] == "RELEASED"
    assert run("reserve", "remove", "mine").code == 0
    assert run(*add).code == 0
    assert json.loads(run("reserve", "list", "--json").out)[0]["state"] == "ACTIVE"


def test_a_dry_run_shows_the_delayed_jobs(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, job(gpus=8, time_limit=2 * HOUR))
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(seen([])))
    result = run("reserve", "add", "--gpus", "8", "--start", "+1h", "--for", "3h", "--tenant", "bob", "--dry-run")
    assert result.code == 0
    assert result.out.splitlines()[1].endswith("4h later")
    assert windows(store) == ()


def test_add_warns_of_a_job_without_a_limit_on_the_named_gpus(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = running(7, on=[uuid(0)], name="notebook")
    short = running(8, on=[uuid(1)], time_limit=HOUR)
    long = running(9, on=[uuid(2)], time_limit=9 * HOUR)
    pictured = snapshot([endless, short, long], gpus=8)
    put(store, endless)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(pictured))
    window = Window("w", NOW + 2 * HOUR, NOW + 4 * HOUR, gpus=(uuid(0), uuid(1), uuid(2)))
    told = list(overlap_warnings(window, pictured, {uuid(i): str(i) for i in range(3)}))
    assert [each.split(":")[0] for each in told] == [
        "GPU 0 is held by job 7, which has no time limit",
        "GPU 2 is held by job 9, which may run 6h59m into it",
    ]
    result = run("reserve", "add", "--gpu", "0", "--start", "+1h", "--for", "3h", "--tenant", "bob")
    assert result.code == 0
    assert result.err.splitlines()[1].startswith("warning: GPU 0 is held by job 1, which has no time limit")


def test_the_standing_rule_is_set_and_removed(run: Run, store: KeptStore) -> None:
    assert run("reserve", "standing", "80").code == 0
    assert store.controls().standing == StandingRule(80)
    assert "jobs of priority 80 and above first (command)" in run("reserve", "list").out
    assert run("reserve", "standing", "off").code == 0
    assert store.controls().standing == StandingRule(None)
    assert run("reserve", "standing", "file").code == 0
    assert store.controls().standing is None
    assert run("reserve", "standing", "101").code == 2
    words = [(entry.verb, entry.after) for entry in store.audit_log("scheduler")]
    assert words[0] == ("standing", "GPUs go to jobs of priority 80 and above first")


def test_other_actions_keep_reservations(run: Run, store: KeptStore) -> None:
    run("reserve", "add", "--gpus", "2", "--for", "1h")
    for words in (["pause"], ["drain", "1"], ["resume", "1"], ["unpause"], ["tenant", "set", "bob", "--gpus", "1"]):
        assert run(*words).code == 0
    assert [window.name for window in windows(store)] == ["r1"]
