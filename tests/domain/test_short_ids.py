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


def test_short_numbers_are_shown_whole() -> None:
    assert digits_for(jobs(1, 2, 67_000_000)) == 0
    assert digits_for([]) == 0
    assert short_id(job(7), 0) == "7"


def test_as_many_digits_are_shown_as_tell_the_jobs_apart() -> None:
    assert digits_for(jobs(*LONG)) == 6
    assert digits_for(jobs(LONG[0], LONG[0] + 1000, LONG[2])) == 9
    assert digits_for(jobs(LONG[0], LONG[0] + 1)) == 0
    assert [short_id(each, 6) for each in (*jobs(LONG[0]), ELEMENT)] == ["726912", "190000_7"]


def test_the_first_digits_name_a_job() -> None:
    known = [*jobs(*LONG, 5), ELEMENT]
    found = begun_by(8100, known)
    assert found is not None
    assert found.id == LONG[2]
    assert begun_by(19000, known) is ELEMENT
    assert begun_by(555555, known) is None
    assert begun_by(8, known) is None


def test_digits_that_several_jobs_have_are_refused_with_their_numbers() -> None:
    with pytest.raises(InputError, match=r"several jobs begin with 7269 .*726912345678 and 726999000111"):
        begun_by(7269, jobs(*LONG))
