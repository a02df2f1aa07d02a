"""Times in reasons: stored in UTC, shown in local time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from gputui.domain.state import PendingReason, Reason, utc_moment

EAST = timezone(timedelta(hours=9))
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SOON, LATE = NOW + timedelta(hours=2), NOW + timedelta(hours=5)


def test_words_and_times_of_a_reason() -> None:
    # times are in the requested zone with the date of another day
    text = f"expected {utc_moment(SOON, NOW)}; would run past {utc_moment(LATE, NOW)}, in 14:00 boxes"
    reason = Reason(PendingReason.RESOURCES, text, (SOON, LATE))
    assert reason.text == "expected 14:00 UTC; would run past 17:00 UTC, in 14:00 boxes"
    assert reason.local(NOW, EAST) == "expected 23:00; would run past 2026-03-03 02:00, in 14:00 boxes"
    assert reason.local(NOW, UTC) == "expected 14:00; would run past 17:00, in 14:00 boxes"
    # another day in UTC may be today here
    next_day = NOW + timedelta(hours=13)
    reason = Reason(PendingReason.BEGIN_TIME, f"begins at {utc_moment(next_day, NOW)}", (next_day,))
    assert reason.text == "begins at 2026-03-03 01:00 UTC"
    assert reason.local(NOW, timezone(timedelta(hours=-8))) == "begins at 17:00"
    # words of users stay unchanged
    held = Reason(PendingReason.JOB_HELD_USER, "until 14:00 UTC, says bob")
    assert held.local(NOW, EAST) == "until 14:00 UTC, says bob"
    # a reason knows which times it mentions
    reason = Reason(PendingReason.RESOURCES, f"expected {utc_moment(SOON, NOW)}", (SOON,))
    assert reason.mentions(SOON + timedelta(seconds=30))
    assert not reason.mentions(LATE)
