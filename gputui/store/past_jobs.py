"""Jobs of the history files, decoded many at a time, for a year of accounting."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from gputui.domain.decoding import JsonDecoder, json_decoder
from gputui.domain.job import Job
from gputui.domain.job_record import JobRecord
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Spans, joined_spans
from gputui.store.codec import decode_lines
from gputui.store.files import open_file, os_errors
from gputui.store.migrations import SCHEMA

PART = 1 << 24
"""Bytes that are decoded at once; a longer line is left to the slower method."""
_HEAD = re.compile(rb'(\{"id":\d{1,18},)(?:"runs":\[[\d,\[\]]*\],)?"schema":%d,"job":\{' % SCHEMA)
"""Beginning of a line, up to its job."""


AnyJob = TypeVar("AnyJob", Job, JobRecord)


class _JobLine(Struct, Generic[AnyJob], frozen=True):
    """Line of a job, with the id moved into it."""

    job: AnyJob


def jobs_backwards(path: Path, kind: type[AnyJob]) -> Iterator[list[AnyJob] | None]:
    """Yield the jobs of a file in parts, last line first; None if a part needs the slower method."""
    decoder: JsonDecoder[_JobLine[AnyJob]] = json_decoder(_JobLine[kind])  # type: ignore[valid-type]
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - PART)
            file.seek(start)
            data = file.read(end - start)
            cut = data.find(b"\n") + 1 if start else 0
            if start and (not cut or cut == len(data)):
                yield None
                return
            yield _jobs(decoder, data[cut : data.rfind(b"\n") + 1])
            end = start + cut


def _jobs(decoder: JsonDecoder[_JobLine[AnyJob]], data: bytes) -> list[AnyJob] | None:
    """Return the jobs of complete lines, last one first; None if one of them is damaged or of an older schema."""
    moved = _with_ids_moved(data)
    lines = None if moved is None else decode_lines(decoder, moved)
    return None if lines is None else [line.job for line in reversed(lines)]


def _with_ids_moved(data: bytes) -> bytes | None:
    """Return the lines with each id moved into its job; None if a line has no head. The decoder finds other damage."""
    view, start = memoryview(data), 0
    parts: list[bytes | memoryview] = []
    while start < len(data):
        head = _HEAD.match(data, start)
        if head is None:
            return None
        start = data.index(b"\n", head.end()) + 1
        parts += (b'{"job":', head[1], view[head.end() : start])
    return b"".join(parts)


def latest(jobs: Iterable[AnyJob], gone: Spans) -> Iterator[AnyJob]:
    """Yield each job once, from jobs with the last first; without those in `gone`.

    Elements of an entry that ran again later are excluded from it.
    """
    alone: set[JobId] = set()
    together: Spans = gone
    job: AnyJob
    for job in jobs:
        if not job.runs:
            if job.id not in alone:
                alone.add(job.id)
                if job.id not in together:
                    yield job
            continue
        left = job.without([each for each in job.ids if each in alone])
        left = left.without(together) if left is not None else None
        together = joined_spans((*together.parts, *((run.id, run.end) for run in job.runs)))
        if left is not None:
            yield left
