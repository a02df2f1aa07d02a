"""Months of a server, from users' actions to what is left of them on the disk: everything adds up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.year import AGE, Year, differing, retention
from gputui.domain.settings import StoreSettings
from gputui.store.history import line_files

DAYS = 110


def test_records_of_months_add_up_also_after_what_is_too_old_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    year = Year(state, attempts=300, seed=7, days=DAYS, samples=10)
    year.play(lambda words: None)
    assert year.truth.attempts > 200
    assert differing(state, year.truth) == []
    oldest = datetime.now(UTC) - AGE - timedelta(days=2)
    assert all((files.kept().oldest_at or oldest) < oldest for files in line_files(state, StoreSettings()))
    found = {each.what: each.value for each in retention(state)}
    assert found["difference of the report's GPU-hours after it"] == 0
    assert all((files.kept().oldest_at or oldest) > oldest for files in line_files(state, StoreSettings()))
