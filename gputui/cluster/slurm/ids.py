"""Ids of Slurm's jobs and of the elements of its arrays, and the words by which Slurm names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gputui.domain.cluster import array_of, element_id, element_runs, index_of, is_element
from gputui.domain.job_spec import JobId

_WORDS = re.compile(r"(\d{1,12})(?:_(\d{1,8}))?", re.ASCII)


def parts(job_id: JobId) -> tuple[int, int | None]:
    """Return Slurm's id of the job or array, and the index of an element."""
    return (array_of(job_id), index_of(job_id)) if is_element(job_id) else (job_id, None)


def words(job_id: JobId) -> str:
    """Return the id as Slurm writes it: `123`, or `123_4` for element 4 of array 123."""
    number, index = parts(job_id)
    return str(number) if index is None else f"{number}_{index}"


def of_words(text: str) -> JobId | None:
    """Return the id of `123` or `123_4`; None for anything else."""
    match = _WORDS.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) if match[2] is None else element_id(int(match[1]), int(match[2]))


def grouped(ids: Iterable[JobId]) -> Iterator[tuple[str, tuple[JobId, ...]]]:
    """Yield words that name one job, or many elements of one array, with their ids: `7`, `123_[0-9,12]`."""
    arrays: dict[int, list[int]] = {}
    for job_id in dict.fromkeys(ids):
        number, index = parts(job_id)
        if index is None:
            yield str(number), (job_id,)
        else:
            arrays.setdefault(number, []).append(index)
    for number, indices in arrays.items():
        named = ",".join(map(str, element_runs(number, sorted(indices))))  # without steps, which scancel does not know
        text = f"{number}_{named}" if len(indices) == 1 else f"{number}_[{named}]"
        yield text, tuple(element_id(number, index) for index in sorted(indices))
