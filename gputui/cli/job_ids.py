"""Names of jobs on the command line: ids, or elements of an array in squeue's notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from gputui.cli.session import Session, is_elsewhere
from gputui.domain.arrays import elements_in_history
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain, quoted
from gputui.ports import Queue
from gputui.request import job_values

MAX_NAMED = 100_000
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")
_ELEMENT = re.compile(r"(\d+)_(?:(\d{1,9})|\[([^\]]*)\])", re.ASCII)
_Arrays: TypeAlias = Mapping[JobId, Mapping[int, JobId]]
_HINT = "write 7, 7,9 or 7-9; or 12_5, 12_[3-7] for elements of array 12"


class Named(Struct, frozen=True):
    """Name of one or several jobs as typed, not looked up yet."""

    ids: tuple[JobId, ...]
    indices: tuple[int, ...] = ()
    """Elements of the array whose id is the only one given; empty: the job itself, or its whole array."""

    @property
    def is_one(self) -> bool:
        return len(self.ids) == 1 and len(self.indices) < 2


def parse(text: str, where: str) -> tuple[Named, ...]:
    parts = _PART.findall(text)
    if not parts or text.count(",") != sum(part.count(",") for part in parts) + len(parts) - 1:
        raise InputError(f"{quoted(text)} is not a job id", where=where, hint=_HINT)
    named = []
    for part in map(str.strip, parts):
        if match := _ELEMENT.fullmatch(part):
            array, index, indices = match.groups()
            elements = (int(index),) if index else job_values.array(indices, where).indices
            named.append(Named((job_values.job_id(array, where),), elements))
        elif "_" in part:
            raise InputError(f"{quoted(part)} is not a job id", where=where, hint=_HINT)
        else:
            named.append(Named(job_values.job_ids(part, where)))
    if sum(max(len(each.ids), len(each.indices)) for each in named) > MAX_NAMED:
        raise InputError(f"{quoted(text)} names too many jobs", where=where, hint=f"at most {MAX_NAMED}")
    return tuple(named)


def resolve_one(queue: Queue, named: Named) -> JobId:
    """Return the job with this name; an array's id names its first element. Raises NotFoundError."""
    return next(_elements(queue, named)) if named.indices else named.ids[0]


def as_ids(queue: Queue, text: str, where: str) -> str:
    """Return `17,20` for `12_5,20`: elements of arrays by their own ids.

    The first element shares its id with the whole array, so naming it alone is refused.
    """
    ids: list[JobId] = []
    for named in parse(text, where):
        found = tuple(_elements(queue, named)) if named.indices else named.ids
        if named.indices and named.ids[0] in found:
            array = named.ids[0]
            hint = f"write {array} to wait for all of array {array}"
            text = f"{quoted(text)} has the first element, whose id means the whole array"
            raise InputError(text, where=where, hint=hint)
        ids += found
    return ",".join(map(str, ids))


def resolve_all(
    queue: Queue, names: Iterable[Named], suits: Callable[[Job], bool] = lambda _: True, *, with_ended: bool = False
) -> tuple[JobId, ...]:
    """Return the ids of all jobs named, each once; an array's id names all its elements that are still in the queue.

    Unsuitable elements of a whole array are left out, unless no element is suitable. `with_ended`: elements that have
    moved into the history belong to the array too.
    """
    found: dict[JobId, None] = {}
    arrays = queue.arrays()
    for named in names:
        if named.indices:
            found |= dict.fromkeys(_elements(queue, named, arrays))
            continue
        ids = named.ids if len(named.ids) > 1 else (queue.whole_id(named.ids[0]),)
        if len(ids) == 1 and (ids[0] in arrays or (with_ended and is_array(queue, ids[0]))):
            members = [job for job in queue.jobs().values() if job.array and job.array.id == ids[0]]
            if with_ended and (not members or elements_in_history(members)):
                known = {job_id for job in members for job_id in job.ids}
                old = (job for job in queue.past() if job.array and job.array.id == ids[0] and job.id not in known)
                past = {job.id: job for job in old}
                members = sorted([*past.values(), *members], key=lambda job: job.id)
            for job in [job for job in members if suits(job)] or members:
                found |= dict.fromkeys(job.ids)
        else:
            found |= dict.fromkeys(ids)
    return tuple(found)


def is_array(queue: Queue, job_id: JobId) -> bool:
    head = queue.get(job_id)
    return head.array is not None and head.array.id == job_id


def _elements(queue: Queue, named: Named, arrays: _Arrays | None = None) -> Iterator[JobId]:
    """Yield the ids of the elements; finished ones are looked up in history."""
    array = queue.whole_id(named.ids[0])
    places = (queue.arrays() if arrays is None else arrays).get(array, {})
    if not places.keys() >= set(named.indices):
        past = {job.array.index: job.id for job in queue.past() if job.array and job.array.id == array}
        places = {**past, **places}
    for index in named.indices:
        if index not in places:
            head = queue.get(array)
            if head.array is None or head.array.id != array:
                raise NotFoundError(f"job {array} is not an array", hint=f"write {array}")
            places = {**places, **queue.arrays().get(array, {})}  # a cluster was asked anew
            if index not in places:
                raise NotFoundError(f"array {array} has no element {index}")
        yield places[index]


MAX_COMPLETIONS = 200


class JobIds(click.ParamType[tuple[Named, ...]]):
    """Parameter type for jobs: `7`, `7,9`, `7-9`, `12_5` or `12_[3-7]`."""

    name = "ID"
    is_local = False
    """True if they are jobs of this server's own queue, also in cluster mode."""

    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        return parse(value, "ID") if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        if is_elsewhere(ctx):
            return []
        session = ctx.find_object(Session)
        try:
            with (session or Session()).existing_backend(is_local=self.is_local) as backend:
                entries = [job for job in backend.queue.jobs().values() if not job.state.is_terminal]
        except (GputuiError, OSError):  # a shell that completes shows no errors
            return []
        # `7` for each single job, and `12` once for the elements of an array
        entry_names = {str(job.id if job.array is None else job.array.id): job for job in reversed(entries)}
        elements = (  # `12_5` for each element of an array, and `7` for each single job
            (f"{job.array.id}_{index}" if job.array else str(job.id), job)
            for job in entries
            for index in (job.indices if job.array else (0,))
        )
        named = elements if "_" in incomplete else reversed(entry_names.items())
        found = islice(((word, job) for word, job in named if word.startswith(incomplete)), MAX_COMPLETIONS)
        return [CompletionItem(word, help=plain(f"{job.state.short} {job.name}", 40)) for word, job in found]


class OneJobId(JobIds):
    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        named = super().convert(value, param, ctx)
        if len(named) != 1 or not named[0].is_one:
            raise InputError(f"{quoted(str(value))} names several jobs", where="ID", hint="write 7 or 12_5")
        return named


ids_argument = click.argument("ids", nargs=-1, required=True, type=JobIds(), metavar="ID...")


def is_live(job: Job) -> bool:
    return not job.state.is_terminal


def flat(queue: Queue, ids: Sequence[tuple[Named, ...]], suits: Callable[[Job], bool] = is_live) -> tuple[JobId, ...]:
    """Return the ids of all jobs named, each once; of whole arrays only the elements for which `suits` is true."""
    names = [named for some in ids for named in some]
    try:
        return resolve_all(queue, names, suits)
    except NotFoundError as error:
        error.what += "; nothing was changed" if len(names) > 1 else ""
        raise


def check_known(queue: Queue, ids: Iterable[JobId]) -> None:
    jobs = queue.jobs()
    for job_id in ids:
        if job_id not in jobs:
            queue.get(job_id)
