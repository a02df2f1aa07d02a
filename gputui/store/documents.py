"""Facts read from stored documents without decoding them: ids, elements of arrays, counts, caps on submissions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gputui.domain.entries import ArrayPlaces
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Run, Runs, Spans, divided, joined_spans
from gputui.domain.state import JobState

Document = dict[str, Any]
_LONGEST_ID = 18
"""Digits of an id that fits into 64 bits."""
Rows = Mapping[str, Mapping[str, Any]]


def is_id(key: str) -> bool:
    """Return whether a key is that of a job; by hand anything may be there."""
    return key.isascii() and key.isdigit() and len(key) <= _LONGEST_ID


def runs_in(document: object) -> Runs:
    """Return the runs of an entry; empty for a single job and for an unreadable document."""
    listed = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not all(map(_is_run, listed)):
        return ()
    return tuple(Run(*numbers) for numbers in listed)


def _is_run(numbers: object) -> bool:
    if not isinstance(numbers, list | tuple) or not 3 <= len(numbers) <= 4:
        return False
    return all(type(number) is int for number in numbers) and numbers[2] > 0 and numbers[-1] > 0


def count_in(document: object) -> int:
    """Return the number of jobs that a document represents."""
    return sum(run.count for run in runs_in(document)) or 1


def id_ranges(table: Mapping[str, Any]) -> Iterator[tuple[JobId, JobId]]:
    """Yield the ranges of ids in a table as (first, end), skipping hand-written keys that are not ids."""
    for key, document in table.items():
        if is_id(key):
            if isinstance(document, dict) and "runs" in document:
                yield from ((run.id, run.end) for run in runs_in(document))
            yield int(key), int(key) + 1


def ids_in(table: Mapping[str, Any]) -> Spans:
    """Return the ids of all jobs in a table, elements included."""
    return joined_spans(id_ranges(table))


def highest_id(table: Mapping[str, Any]) -> JobId:
    """Return the highest id in a table; 0 if it is empty."""
    return max((end for _, end in id_ranges(table)), default=1) - 1


def elements_of(table: Mapping[str, Any]) -> dict[JobId, ArrayPlaces]:
    """Return the ids of elements by array and index, without documents that cannot be read as elements."""
    found: dict[JobId, ArrayPlaces] = {}
    for key, document in table.items():
        array = document.get("array") if isinstance(document, dict) else None
        if not isinstance(array, dict):
            continue
        array_id, index = array.get("id"), array.get("index")
        if isinstance(array_id, int) and isinstance(index, int) and is_id(key):
            found.setdefault(array_id, ArrayPlaces()).add(runs_in(document) or (Run(int(key), index, 1),))
    return found


def part_of_entry(document: Document, runs: Runs) -> tuple[str, Document]:
    """Return key and document of an entry reduced to these elements."""
    is_one = len(runs) == 1 and runs[0].count == 1
    rest = {name: value for name, value in document.items() if name != "runs"}
    rest["array"] = {**document.get("array", {}), "index": runs[0].index}
    return str(runs[0].id), rest if is_one else {**rest, "runs": [list(run) for run in runs]}


def without_ids(key: str, document: Document, ids: Spans) -> tuple[str, Document] | None:
    """Return key and document of a job or entry without these ids; None if nothing is left."""
    runs = runs_in(document)
    if not runs:
        return None if int(key) in ids else (key, document)
    taken, left = divided(runs, ids)
    if not taken:
        return key, document
    return part_of_entry(document, left) if left else None


def iter_ids(table: Mapping[str, Any]) -> Iterator[JobId]:
    """Yield the ids of all jobs in a table, elements included; some ids occur twice."""
    return chain.from_iterable(range(start, end) for start, end in id_ranges(table))


def resolve_overlaps(table: Mapping[str, Document], apart: Spans) -> dict[str, Document]:
    """Return the jobs of a table that was recovered from several sources, each job in exactly one document.

    An element with its own document has left its entry. Of two overlapping entries the smaller one is later, because
    entries only lose elements. Elements with ids in `apart` get their own documents.
    """
    entries = sorted((count_in(document), key) for key, document in table.items() if runs_in(document))
    jobs = {key: document for key, document in table.items() if not runs_in(document)}
    known = ids_in(jobs)
    for _, key in entries:
        taken, left = divided(divided(runs_in(table[key]), known)[1], apart)
        parts = [run.part(job_id, job_id + 1) for run in taken for job_id in run.ids]
        jobs.update(part_of_entry(table[key], runs) for runs in (*((part,) for part in parts), left) if runs)
        known = joined_spans((*known.parts, *((run.id, run.end) for run in (*taken, *left))))
    return jobs


def caps_waiting(controls: Rows) -> bool:
    """Return whether any tenant has limits on users, waiting jobs or priority; submit must then load the queue."""
    rows = controls.get("1", {}).get("tenants", ())
    return any(name in tenant for tenant in rows for name in ("pending", "max_priority", "users"))


def count_waiting(jobs: Rows) -> Mapping[str, int]:
    """Return the number of waiting jobs per tenant, without decoding jobs."""
    waiting = str(JobState.PENDING)
    counts: Counter[str] = Counter()
    for job in jobs.values():
        spec = job.get("spec") if isinstance(job, dict) and job.get("state") == waiting else None
        if isinstance(spec, dict):
            counts[spec.get("tenant", "")] += count_in(job)
    return counts
