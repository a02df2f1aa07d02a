"""Short ids of jobs with long numbers: as many digits as tell them apart, and which job some digits name."""

from __future__ import annotations

import pytest

from gputui.domain.arrays import begun_by, digits_for, short_id
from gputui.domain.errors import InputError
from gputui.domain.job import ArrayRef, Job
from tests.factories import job

LONG = (726_912_345_678, 726_999_000_111, 810_000_000_001)
ELEMENT = job(1 << 51, array=ArrayRef(1_900_000_123, 7))


def jobs(*numbers: int) -> list[Job]:
    return [job(number) for number in numbers]


def test_short_ids() -> None:
    # short numbers are shown whole
    assert digits_for(jobs(1, 2, 67_000_000)) == 0
    assert digits_for([]) == 0
    assert short_id(job(7), 0) == "7"
    # as many digits are shown as tell the jobs apart
    assert digits_for(jobs(*LONG)) == 6
    assert digits_for(jobs(LONG[0], LONG[0] + 1000, LONG[2])) == 9
    assert digits_for(jobs(LONG[0], LONG[0] + 1)) == 0
    assert [short_id(each, 6) for each in (*jobs(LONG[0]), ELEMENT)] == ["726912", "190000_7"]
    # the first digits name a job
    known = [*jobs(*LONG, 5), ELEMENT]
    found = begun_by(8100, known)
    assert found is not None
    assert found.id == LONG[2]
    assert begun_by(19000, known) is ELEMENT
    assert begun_by(555555, known) is None
    assert begun_by(8, known) is None
    # digits that several jobs have are refused with their numbers
    with pytest.raises(InputError, match=r"several jobs begin with 7269 .*726912345678 and 726999000111"):
        begun_by(7269, jobs(*LONG))
