"""Times shown to operators: local, with the day if it is another one."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.job import Attempt, Job
from gputui.domain.state import PendingReason, Reason
from gputui.domain.text import minute
from gputui.tui.present.cells import in_full, second
from gputui.tui.present.detail import job_lines
from gputui.tui.present.job import JobContext
from tests.factories import NOW, job, uuid
from tests.tui.sample import secret_job

HOUR = timedelta(hours=1)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time zone to nine hours ahead of UTC."""
    monkeypatch.setenv("TZ", "XYZ-9")
    time.tzset()


def page(subject: Job, context: JobContext) -> dict[str, str]:
    lines = job_lines(subject, context)
    return {label: "".join(words for words, _ in cell) for label, cell in lines if label}


@pytest.mark.usefixtures("far_east")
class TestTimesOnJobPage:
    def test_times_are_local(self) -> None:
        shown = page(secret_job(), JobContext(NOW))
        assert "UTC" not in str(shown)
        assert shown["submitted"] == "2026-03-02 17:00:00 (4h00m ago) by alice"
        assert shown["ends"] == "2026-03-03 02:46:00 (in 5h46m) by its time limit"
        assert "from 18:46:00" in shown["attempts"]

    def test_times_in_reasons_are_local(self) -> None:
        waits = Reason(PendingReason.BEGIN_TIME, "begins at 14:00 UTC, in 2h00m", (NOW + 2 * HOUR,))
        shown = page(job(1), JobContext(NOW, {1: NOW + 2 * HOUR}, reasons={1: waits}))
        assert shown["why"] == "BeginTime: begins at 23:00, in 2h00m"
        assert shown["starts"] == "about 2026-03-02 23:00:00 (in 2h00m)"

    def test_another_day_is_named(self) -> None:
        old = Attempt(1, (uuid(0),), NOW - 50 * HOUR, "c0ffee", NOW - 50 * HOUR)
        again = replace(job(1), attempts=(old,), not_before=NOW + 4 * HOUR, topped_at=NOW - 200 * HOUR)
        shown = page(again, JobContext(NOW))
        assert "from Sat 19:00" in shown["attempts"]
        assert "not before Tue 01:00" in shown["state"]
        assert shown["priority"].endswith("put on top 02-22 13:00")


@pytest.mark.usefixtures("far_east")
def test_nearer_times_are_shorter() -> None:
    assert (second(NOW, NOW), minute(NOW, NOW)) == ("21:00:00", "21:00")
    assert (second(NOW + 5 * HOUR, NOW), minute(NOW - 30 * HOUR, NOW)) == ("Tue 02:00", "Sun 15:00")
    assert second(NOW + 400 * HOUR, NOW) == "03-19 13:00"
    assert in_full(NOW) == "2026-03-02 21:00:00"
