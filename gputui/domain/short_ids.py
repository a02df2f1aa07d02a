"""Short ids: the first digits of long job numbers, such as those of Kubernetes, as many as tell jobs apart."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, own_id, without_server
from gputui.domain.units import listed

LEAST_LONG = 10**9
"""Least number that is shortened; those of one machine and of Slurm stay below."""
_LEAST_DIGITS, _LEAST_TYPED = 6, 4
"""Digits that are shown at least, and that name a job at least."""
_NAMED = 3


def number_of(job: Job) -> JobId:
    """Return the number of a job on its server, for an element that of its array."""
    return own_id(job.array.id if job.array else job.id)


def digits_for(jobs: Iterable[Job]) -> int:
    """Return how many first digits tell the numbers of jobs apart; 0 if these are short."""
    numbers = {number for job in jobs if (number := number_of(job)) >= LEAST_LONG}
    if not numbers:
        return 0
    texts = list(map(str, numbers))
    return next((n for n in range(_LEAST_DIGITS, max(map(len, texts))) if len({t[:n] for t in texts}) == len(texts)), 0)


def short_id(job: Job, digits: int) -> str:
    """Return the displayed id without its server, its number shortened to so many digits; 0: not."""
    shown = without_server(job.shown_id)
    number, mark, index = shown.partition("_")
    return f"{number[:digits]}{mark}{index}" if digits and len(number) > digits else shown


def begun_by(typed: JobId, jobs: Iterable[Job]) -> Job | None:
    """Return the job, or a job of the array, whose long number begins with these digits; None if there is none.

    Raises InputError if several do.
    """
    text = str(typed)
    if len(text) < _LEAST_TYPED:
        return None
    found: dict[JobId, Job] = {}
    for job in jobs:
        number = number_of(job)
        if number >= LEAST_LONG and str(number).startswith(text):
            found.setdefault(number, job)
    if len(found) > 1:
        names = [*map(str, sorted(found)[:_NAMED]), *(["others"] if len(found) > _NAMED else [])]
        raise InputError(f"several jobs begin with {typed}", where="ID", hint=f"write more digits: {listed(names)}")
    return next(iter(found.values()), None)
