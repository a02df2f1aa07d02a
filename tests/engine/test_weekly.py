"""The weekly report: due once a week, made once, sent to the hooks that want it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gputui.config import Options, ProbeSpec
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.event import Event
from gputui.domain.settings import HookSettings, parse_weekly
from gputui.engine.hooks import Announcer, WeeklyReport, made_report, stored_ends
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.engine.fakes import InlineExecutor
from tests.factories import ACTOR, NOW, FakeClock, job
from tests.memory_store import MemoryJobStore

MONDAY = NOW.replace(hour=8, minute=0)
"""NOW is a Monday."""
MADE = {"table": "TENANT JOBS", "report": {"total": {"gpu_hours": 12.5, "jobs": 3}}}


class Desk:
    """Maker of reports that remembers their periods."""

    def __init__(self) -> None:
        self.periods: list[tuple[datetime, datetime]] = []
        self.fault: Exception | None = None

    def __call__(self, since: datetime, until: datetime) -> Mapping[str, Any]:
        self.periods.append((since, until))
        if self.fault:
            raise self.fault
        return MADE


def weekly(directory: Path, desk: Desk) -> WeeklyReport:
    return WeeklyReport(directory, parse_weekly("Mon 08:00"), timedelta(hours=6), desk, InlineExecutor())


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_a_report_is_made_once_a_week_whichever_scheduler_runs(tmp_path: Path) -> None:
    desk = Desk()
    report = weekly(tmp_path, desk)
    assert report.update(MONDAY - timedelta(minutes=1)) is None
    assert report.update(MONDAY) is None
    event = report.update(MONDAY + timedelta(seconds=2))
    assert event is not None
    assert (event.id, event.name) == (f"report-{MONDAY.isoformat()}", "weekly_report")
    assert event.document("here")["report"] == MADE
    assert report.update(MONDAY + timedelta(hours=1)) is None
    again = weekly(tmp_path, desk)
    assert [again.update(MONDAY + timedelta(hours=2, seconds=each)) for each in (0, 1)] == [None, None]
    assert desk.periods == [(MONDAY - timedelta(days=7), MONDAY)]
    late = MONDAY + timedelta(days=7, hours=6, seconds=1)
    assert [again.update(late + timedelta(seconds=each)) for each in (0, 1)] == [None, None]


def test_a_failed_report_is_logged_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.fault = GputuiError("the queue is gone")
    report = weekly(tmp_path, desk)
    assert [report.update(MONDAY), report.update(MONDAY)] == [None, None]
    assert "the weekly report cannot be made: the queue is gone" in caplog.text
    assert len(desk.periods) == 1
    desk.fault = None
    later = [report.update(MONDAY + timedelta(minutes=minutes)) for minutes in (9, 10, 11, 30)]
    assert [event is not None for event in later] == [False, False, True, False]
    assert desk.periods == [(MONDAY - timedelta(days=7), MONDAY)] * 2


def test_a_report_whose_time_cannot_be_kept_is_sent_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "weekly-report").mkdir()
    report = weekly(tmp_path, Desk())
    sent = [report.update(MONDAY + timedelta(minutes=minutes)) for minutes in (0, 1, 20, 21)]
    assert [event is not None for event in sent] == [False, True, False, False]
    assert "the time of the weekly report is not kept" in caplog.text


def test_the_report_is_sent_to_hooks_that_subscribe(tmp_path: Path) -> None:
    heard: list[Event] = []
    store = MemoryJobStore()
    sinks = [("webhook", lambda event: event.name == "weekly_report", heard.append)]
    report = weekly(tmp_path, Desk())
    announcer = Announcer(stored_ends(store), HookSettings(), sinks, lambda name: InlineExecutor(), weekly=report)
    clock = FakeClock(MONDAY)
    for _ in range(3):
        announcer.update(store.jobs(), (), clock.now())
        clock.advance(2)
    assert [event.text for event in heard] == ["Weekly report: 12.5 GPU-hours, 3 jobs"]
    announcer.close()


def test_the_weekly_report_equals_that_of_the_command(tmp_path: Path) -> None:
    store = TinyJobStore(tmp_path / "state")
    store.submit([job()], actor=ACTOR)
    store.close()
    options = Options(state=tmp_path / "state", probe=ProbeSpec(1), runtime="process")
    made = made_report(options.arguments(), NOW - timedelta(days=7), NOW)
    assert made["page"].startswith("<!doctype html>")
    assert made["table"].startswith("2026-02-23 12:00 to 2026-03-02 12:00, by tenant")
    assert json.dumps(made["report"]["total"]["jobs"]) == "0"
    with pytest.raises(GputuiError, match="the period is empty"):
        made_report(options.arguments(), NOW, NOW)


@cases(
    ("text", "last"),
    [("Mon 08:00", "2026-03-30T06:00"), ("sunday 2:15", "2026-03-29T01:15"), ("Mon 15:00", "2026-03-23T14:00")],
)
def test_the_time_of_the_report_is_local_across_changes_of_clocks(text: str, last: str) -> None:
    zone, now = ZoneInfo("Europe/Berlin"), datetime.fromisoformat("2026-03-30T12:00+00:00")
    assert parse_weekly(text).last(now, zone).isoformat() == f"{last}:00+00:00"


@cases("text", ["Mon", "08:00", "Foo 08:00", "Mon 25:00", "every monday"])
def test_invalid_times_of_the_week_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a weekday"):
        parse_weekly(text)


def test_changes_of_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # weeks with a change of clocks have an hour more or less
    at, zone = parse_weekly("Mon 08:00"), ZoneInfo("Europe/Berlin")
    due = at.last(datetime.fromisoformat("2026-10-26T12:00+00:00"), zone)
    lengths = []
    for _ in range(52):
        due, after = at.before(due, zone), due
        lengths.append((after - due) / timedelta(hours=1))
    assert sorted(lengths) == [167, *[168] * 50, 169]
    # a time that clocks skip comes right after the change
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    at, now = parse_weekly("Sun 02:30"), datetime.fromisoformat("2026-03-30T12:00+00:00")
    found = {at.last(now, zone).isoformat() for zone in (None, ZoneInfo("Europe/Berlin"))}
    assert found == {"2026-03-29T01:30:00+00:00"}
