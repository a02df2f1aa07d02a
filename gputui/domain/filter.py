"""Filter language for jobs and processes: `state:pd tenant:alice gpus>=4 name~bert -is:held`.

All terms must match. A term is a field, an operator and a value, or a word that is searched in the text of the row; `-`
or `!` before a term negates it; quotes keep blanks together, and a quoted word is never a field.

This module also chooses and orders the jobs of a snapshot that are listed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from fnmatch import translate
from itertools import groupby
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.idle_gpus import idle_jobs
from gputui.domain.job import ArrayRef, Job, element_spec
from gputui.domain.job_spec import JobId, server_of, shown_id
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.domain.text import parse_duration, plain, quoted

_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "!=": ne}
)
_ELEMENT = re.compile(r"\d{1,15}_\d{1,9}", re.ASCII)
_SPAN = re.compile(r"(\d+)-(\d+)")


class FilterSubject(NamedTuple):
    job: Job
    now: datetime
    reason: Reason | None = None
    """Reason for which it waits."""
    text: str = ""
    """Displayed text, case-folded, in which single words are searched; without the ids of an entry."""
    element: JobId | None = None
    """Id of the element, if the job is an entry and one element is meant."""
    leaves_idle: bool = False
    """True if it leaves GPUs idle."""

    @property
    def id(self) -> JobId:
        return self.job.id if self.element is None else self.element


Test: TypeAlias = Callable[[Any], bool]
"""Predicate of what a filter chooses from: jobs as `FilterSubject`, or rows of processes."""


class FilterField(Struct, frozen=True):
    """A filter field; `test` builds the predicate for an operator and a value."""

    help: str
    """Explanation for help; empty: errors show the example alone."""
    example: str
    test: Callable[[str, str, str | None], Test]


def negated(test: Test) -> Test:
    return lambda seen: not test(seen)


def searched_text(job: Job, reason: Reason | None) -> str:
    """Return the text that plain words are searched in: the text of a row of the queue."""
    why = f"{reason.code} {reason.text}" if reason else ""
    held = "held" if _FLAGS["held"](job) else ""
    spec = job.spec
    words = (
        "" if job.runs else id_words(job.id, job.array),
        job.name,
        spec.tenant,
        job.state,
        job.state.short,
        spec.image or "host",
        why,
        held,
        spec.comment,
        job.end_words if job.state.is_terminal else "",
    )
    return plain(" ".join(words)).casefold()


def id_words(job_id: JobId, array: ArrayRef | None, index: int | None = None) -> str:
    """Return `#17`, `#17 #12_5` for an element of an array."""
    if array is None:
        return f"#{shown_id(job_id)}"
    return f"#{shown_id(job_id)} #{shown_id(array.id)}_{array.index if index is None else index}"


class FilterText(Struct, frozen=True):
    """A field of texts: `:` and `=` match a whole text, with * and ?; `~` searches for a pattern."""

    get: Callable[[Any], Iterable[str]]
    known: frozenset[str] = frozenset()
    """The only texts that it may have, case-folded; empty: any."""

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        get = self.get
        if operator.startswith("!"):
            return negated(self(operator[1:], value, where))
        if operator == "~":
            pattern = _pattern(value, where)
            return lambda seen: any(pattern.search(text) for text in get(seen))
        shapes = [re.compile(translate(word)) for word in _listed(operator, value, self.known, where)]
        return lambda seen: any(shape.match(text.casefold()) for text in get(seen) for shape in shapes)


def _listed(operator: str, value: str, known: Collection[str], where: str | None) -> list[str]:
    """Return the words of a list, case-folded; raises InputError for a word that is not known, if any are."""
    if operator not in {":", "="}:
        raise InputError(f"text is not compared with {operator}", where=where, hint="use : or ~")
    wanted = [word for word in value.casefold().split(",") if word]
    unknown = [word for word in wanted if known and word not in known and not {"*", "?"} & set(word)]
    if unknown:
        hint = "one of " + ", ".join(sorted(known))
        raise InputError(f"'{plain(unknown[0], 40)}' is not one of its values", where=where, hint=hint)
    return wanted


def _pattern(value: str, where: str | None) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # printed for `[[`
            return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise InputError(f"'{plain(value, 40)}' is not a pattern: {error}", where=where) from None


class _NumberField(Struct, frozen=True):
    """A numeric field: compared, or with `:` matched against a list of numbers and ranges such as 3-7.

    If it `has_elements`, the list may have elements of arrays too, such as `7_5`.
    """

    get: Callable[[FilterSubject], float | None]
    has_elements: bool = False

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        get, parts = self.get, [part for part in value.split(",") if part]
        elements = [part for part in parts if self.has_elements and operator in ":=" and _ELEMENT.fullmatch(part)]
        if operator != ":" and not elements:
            return _compared(get, operator, figure(value, where=where), where)
        spans: list[tuple[float, float]] = []
        for part in parts:
            if match := _SPAN.fullmatch(part):
                spans.append((float(match[1]), float(match[2])))
            elif part not in elements:
                spans.append((figure(part, where=where),) * 2)

        def is_within(seen: FilterSubject) -> bool:
            return (at := get(seen)) is not None and any(low <= at <= high for low, high in spans)

        if not elements:
            return is_within
        is_one = re.compile(rf"#\d+ #(?:{'|'.join(elements)})(?!\d)", re.ASCII).match
        return lambda seen: is_one(seen.text) is not None or is_within(seen)


def figure(text: str, *, where: str | None = None) -> float:
    try:
        return float(text.replace("_", "?"))  # Python reads 1_3, an element's id, as 13
    except ValueError:
        raise InputError(f"'{plain(text, 40)}' is not a number", where=where) from None


class FilterQuantity(Struct, frozen=True):
    """A field of quantities as `read` reads them, such as 2h or 64g."""

    get: Callable[[Any], float | None]
    read: Callable[..., float]

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        return _compared(self.get, "=" if operator == ":" else operator, self.read(value, where=where), where)


def filter_duration(get: Callable[[Any], timedelta | None]) -> FilterQuantity:
    return FilterQuantity(
        lambda seen: None if (found := get(seen)) is None else found.total_seconds(),
        lambda text, where: parse_duration(text, where=where).total_seconds(),
    )


def _compared(get: Callable[[FilterSubject], float | None], operator: str, number: float, where: str | None) -> Test:
    compare = _COMPARE.get(operator)
    if compare is None:
        raise InputError(f"numbers are not compared with {operator}", where=where, hint="use = != < <= > >= or :")
    return lambda seen: (value := get(seen)) is not None and compare(value, number)


def _reason(operator: str, value: str, where: str | None) -> Test:
    """Return the predicate for reasons: the whole code, or with `~` a pattern in code and sentence."""
    if operator.startswith("!"):
        return negated(_reason(operator[1:], value, where))
    if operator == "~":
        pattern = _pattern(value, where)
        return lambda seen: seen.reason is not None and bool(pattern.search(f"{seen.reason.code} {seen.reason.text}"))
    wanted = _listed(operator, value, [code.casefold() for code in PendingReason], where)
    return lambda seen: seen.reason is not None and seen.reason.code.casefold() in wanted


def _label(operator: str, value: str, where: str | None) -> Test:
    if operator not in {":", "="}:
        raise InputError(f"labels are not compared with {operator}", where=where, hint="as in label:project=x")
    key, has_value, wanted = value.partition("=")
    return lambda seen: any(
        name == key and (not has_value or text == wanted) for name, text in seen.job.spec.options.labels
    )


IDLE = "idle"
"""Value of `is:` for running jobs that leave GPUs idle."""
_FLAGS: Mapping[str, Callable[[Job], bool]] = MappingProxyType(
    {
        "running": lambda job: job.state is JobState.RUNNING and not job.suspended,
        "waiting": lambda job: job.state in {JobState.PENDING, JobState.PREEMPTED},
        "held": lambda job: job.held and job.state is JobState.PENDING,
        "starting": lambda job: job.state is JobState.CONFIGURING,
        "ending": lambda job: job.state is JobState.COMPLETING,
        "suspended": lambda job: job.suspended and job.state is JobState.RUNNING,
        "completed": lambda job: job.state is JobState.COMPLETED,
        "failed": lambda job: job.state.is_failure,
        "cancelled": lambda job: job.state is JobState.CANCELLED,
        "preempted": lambda job: job.state is JobState.PREEMPTED,
        "active": lambda job: job.state.is_active,
        "live": lambda job: not job.state.is_terminal,
        "ended": lambda job: job.state.is_terminal,
        "host": lambda job: job.spec.is_host,
        "array": lambda job: job.array is not None,
        "preemptible": lambda job: job.spec.preemptible,
        "retried": lambda job: len(job.attempts) > 1,
        "top": lambda job: job.topped_at is not None,
    }
)
_STATES: Mapping[str, JobState] = MappingProxyType(
    {
        **{word.casefold(): state for state in JobState for word in (state.value, state.short)},
        "canceled": JobState.CANCELLED,
        **dict.fromkeys(("timed-out", "timed_out", "timed out"), JobState.TIMEOUT),
        **dict.fromkeys(("no-memory", "no_memory", "no memory"), JobState.OUT_OF_MEMORY),
    }
)
"""States as squeue and the queue's rows name them; `is:` takes these too, where they are not flags."""


def _is(operator: str, value: str, where: str | None) -> Test:
    if operator not in {":", "="}:
        raise InputError(f"is{operator} is not a comparison", where=where, hint="as in is:held")
    wanted = [word for word in value.casefold().split(",") if word]
    if unknown := next((word for word in wanted if word not in {*_STATES, *_FLAGS, IDLE}), None):
        others = ", ".join(state.lower() for state in JobState if state.lower() not in _FLAGS)
        hint = f"one of {', '.join((*_FLAGS, IDLE))}, or a state: {others}"
        raise InputError(f"'{plain(unknown, 40)}' is not one of its values", where=where, hint=hint)
    tests = [_FLAGS[word] for word in wanted if word in _FLAGS]
    states = {_STATES[word] for word in wanted if word in _STATES and word not in _FLAGS}
    wants_idle = IDLE in wanted
    return lambda seen: (
        seen.job.state in states or any(test(seen.job) for test in tests) or (wants_idle and seen.leaves_idle)
    )


def gpu_count_of(job: Job) -> float:
    asked = job.spec.gpus
    if job.gpus:
        return len(job.gpus)
    return float("inf") if asked.everything else len(asked.devices) or asked.maximum


FIELDS: Mapping[str, FilterField] = MappingProxyType(
    {
        "state": FilterField(
            "in full or as squeue shortens it",
            "state:pd,r",
            FilterText(
                lambda seen: (seen.job.state.value, seen.job.state.short),
                frozenset(word.casefold() for state in JobState for word in (state.value, state.short)),
            ),
        ),
        "is": FilterField(", ".join((*_FLAGS, IDLE)), "is:held", _is),
        "id": FilterField("the number", "id:12,20-29,7_5", _NumberField(lambda seen: seen.id, has_elements=True)),
        "name": FilterField("the job's name", "name~bert", FilterText(lambda seen: (seen.job.name,))),
        "tenant": FilterField(
            "tenant it is charged to", "tenant:alice,bob", FilterText(lambda seen: (seen.job.spec.tenant,))
        ),
        "user": FilterField("user who submitted it", "user:alice", FilterText(lambda seen: (seen.job.submitted_by,))),
        "image": FilterField(
            "of its container", "image~pytorch", FilterText(lambda seen: (seen.job.spec.image or "",))
        ),
        "command": FilterField(
            "with its arguments",
            "command~train.py",
            FilterText(lambda seen: (" ".join(element_spec(seen.job).command),)),
        ),
        "label": FilterField("of its container", "label:project=x", _label),
        "comment": FilterField(
            "a note about it", "comment~ablation", FilterText(lambda seen: (seen.job.spec.comment,))
        ),
        "gpus": FilterField(
            "number it holds, or asks for at most", "gpus>=4", _NumberField(lambda seen: gpu_count_of(seen.job))
        ),
        "server": FilterField(
            "of several in one console (--on)", "server:gpu1", FilterText(lambda seen: (server_of(seen.job.id),))
        ),
        "node": FilterField(
            "node of a cluster on which it runs or ran",
            "node:gpu3",
            FilterText(
                lambda seen: seen.job.attempt.node.split(",") if seen.job.attempt and seen.job.attempt.node else ()
            ),
        ),
        "gpu": FilterField("the UUID of one it holds", "gpu~7905f7a", FilterText(lambda seen: seen.job.gpus)),
        "priority": FilterField("0 to 100", "priority>50", _NumberField(lambda seen: seen.job.priority)),
        "exit": FilterField("its exit code", "exit!=0", _NumberField(lambda seen: seen.job.exit_code)),
        "error": FilterField(
            "why its last attempt failed", "error~memory", FilterText(lambda seen: (seen.job.end_words,))
        ),
        "util": FilterField(
            "mean GPU utilization of its last attempt, in percent",
            "util<20",
            _NumberField(
                lambda seen: (
                    None
                    if not (attempt := seen.job.attempt)
                    or not (figures := attempt.efficiency)
                    or figures.utilization is None
                    else figures.utilization * 100
                )
            ),
        ),
        "attempts": FilterField("begun so far", "attempts>1", _NumberField(lambda seen: len(seen.job.attempts))),
        "array": FilterField(
            "the id of its array", "array:12", _NumberField(lambda seen: seen.job.array.id if seen.job.array else None)
        ),
        "cron": FilterField(
            "the recurring job it is a run of", "cron:7", _NumberField(lambda seen: seen.job.recurring)
        ),
        "reason": FilterField("why it waits", "reason:Resources", _reason),
        "wait": FilterField(
            "since it was submitted, of a waiting job",
            "wait>2h",
            filter_duration(
                lambda seen: seen.now - seen.job.submitted_at if seen.job.state is JobState.PENDING else None
            ),
        ),
        "time": FilterField(
            "how long it has run",
            "time>1d",
            filter_duration(
                lambda seen: (seen.job.ended_at or seen.now) - seen.job.started_at if seen.job.started_at else None
            ),
        ),
        "limit": FilterField("its time limit", "limit<=4h", filter_duration(lambda seen: seen.job.spec.time_limit)),
        "left": FilterField(
            "remaining time of its limit",
            "left<10m",
            filter_duration(lambda seen: seen.job.limit_at - seen.now if seen.job.limit_at else None),
        ),
        "age": FilterField(
            "since it was submitted", "age>1d", filter_duration(lambda seen: seen.now - seen.job.submitted_at)
        ),
    }
)
"""Filter fields by name, in the order in which help shows them."""


MAX_LENGTH = 500
_WORD = r"""(?P<not>[-!])?(?:"(?P<quoted>[^"]*)"?|(?P<bare>(?:[^\s"]|"[^"]*"?)+))"""
_IN_IDS = frozenset("#_0123456789 ")
_TERM = r"(?is)(?P<field>[a-z_]+)(?P<operator>!=|!~|>=|<=|[:=~<>])(?P<value>.*)"


class Term(NamedTuple):
    """Condition of a filter; `field` is empty for a word searched in the text."""

    field: str
    holds: Test
    word: str = ""
    """The word looked for, case-folded."""


class Filter(Struct, frozen=True):
    """Conditions that a job, or a row of processes, must meet to be shown."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def matches(self, seen: Any) -> bool:
        return all(term.holds(seen) for term in self.terms)

    def part(self, seen: FilterSubject) -> Job | None:
        """Return the job if it matches; of an entry, the matching elements; None if there are none."""
        job, now, reason, text, *_ = seen
        own: list[Term] = []  # may match one element and not another, since only their ids differ
        if job.runs:
            for term in self.terms:
                is_of_ids = (
                    term.word not in text and not _IN_IDS.isdisjoint(term.word) if term.word else term.field == "id"
                )
                if is_of_ids:
                    own.append(term)
        if not all(term.holds(seen) for term in self.terms if term not in own):
            return None
        if not own:
            return job
        elements = (
            FilterSubject(job, now, reason, f"{id_words(job_id, job.array, index)}{text}", job_id)
            for job_id, index in zip(job.ids, job.indices, strict=True)
        )
        ids = [element.id for element in elements if all(term.holds(element) for term in own)]
        return job.divided(ids)[0] if ids else None

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(term.field for term in self.terms if term.field)

    @property
    def is_of_reasons(self) -> bool:
        return any(term.field in {"", "not", "reason"} for term in self.terms)

    @property
    def is_of_words(self) -> bool:
        """Return whether the filter only searches the text.

        Then a longer filter never shows a job that a shorter one hid.
        """
        return not self.fields


EVERY_JOB = Filter()


def parse_filter(text: str, *, where: str | None = None) -> Filter:
    """Parse a filter of jobs; raises InputError that lists the valid fields."""
    return Filter(text, tuple(parse_terms(text, FIELDS, lambda seen: seen.text, where)))


def parse_terms(
    text: str, fields: Mapping[str, FilterField], text_of: Callable[[Any], str], where: str | None = None
) -> Iterator[Term]:
    """Yield the terms of a filter with these fields; words are sought in the case-folded `text_of` a subject."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"is longer than {MAX_LENGTH} characters", where=where)
    for match in re.finditer(_WORD, text):
        bare, word = match["bare"], match["quoted"]
        if bare is not None and (parts := re.fullmatch(_TERM, bare)):
            term = _term(bare, parts, fields, where)
        elif needle := (word if bare is None else bare.replace('"', "")).casefold():
            term = Term("", lambda seen, needle=needle: needle in text_of(seen), needle)  # type: ignore[misc]
        else:
            continue
        yield Term(term.field or "not", negated(term.holds), term.word) if match["not"] else term


def _term(text: str, parts: re.Match[str], fields: Mapping[str, FilterField], where: str | None) -> Term:
    name, operator, value = parts["field"].casefold(), parts["operator"], parts["value"].replace('"', "")
    field = fields.get(name)
    if field is None:
        import difflib  # only needed for this error

        near = [*(each for each in fields if each.startswith(name)), *difflib.get_close_matches(name, fields, 1)]
        hint = f"{f'do you mean {near[0]}? ' if near else ''}fields are {', '.join(fields)}"
        hint += "; put the word in quotes to look for it as it is"
        raise InputError(f"there is no field '{plain(name, 40)}'", where=where, hint=hint)
    if not value:
        raise InputError(f"{name}{operator} needs a value", where=where, hint=f"as in {field.example}")
    try:
        return Term(name, field.test(operator, value, where))
    except InputError as error:
        if not field.help:
            raise InputError(f"{plain(text, 60)} cannot be read", where=where, hint=f"as in {field.example}") from None
        hint = error.hint or f"as in {field.example}"
        raise InputError(f"in {plain(text, 60)}: {error.what}", where=where, hint=hint) from error


def seen(job: Job, snapshot: Snapshot) -> FilterSubject:
    reason = snapshot.reasons.get(job.id)
    idle = job.state is JobState.RUNNING and job.id in idle_jobs(snapshot)
    return FilterSubject(job, snapshot.taken_at, reason, searched_text(job, reason), leaves_idle=idle)


def parse_states(texts: Iterable[str], where: str = "--state") -> frozenset[JobState]:
    """Return the states named by `PD`, `pending` or `R,CG`; empty when none is given."""
    known = {name: state for state in JobState for name in (state.value, state.short)}
    wanted = set()
    for text in (part for given in texts for part in given.split(",")):
        if text.strip().upper() not in known:
            hint = ", ".join(state.short for state in JobState)
            raise InputError(f"{quoted(text)} is not a state", where=where, hint=hint)
        wanted.add(known[text.strip().upper()])
    return frozenset(wanted)


def in_order(snapshot: Snapshot) -> list[Job]:
    """Sort the jobs: active by start time, waiting in the order of their turn, finished with the latest first."""
    place = {job_id: number for number, job_id in enumerate(snapshot.order)}

    def rank(job: Job) -> tuple[int, float, int]:
        if job.state.is_terminal:
            return (2, -job.ended_at.timestamp() if job.ended_at else 0.0, -job.id)
        if job.state.is_active:
            return (0, job.started_at.timestamp() if job.started_at else float("inf"), job.id)
        return (1, place.get(job.id, float("inf")), job.id)

    return sorted(snapshot.jobs, key=rank)


def meant(snapshot: Snapshot, job: Job, *, is_whole: bool) -> Job:
    """Return the job; for an array whose first element has started, its next waiting element."""
    if not is_whole or job.array is None or job.state is JobState.PENDING:
        return job
    alike = (each for each in snapshot.jobs if each.array and each.array.id == job.array.id)
    waiting = next((each for each in alike if each.state is JobState.PENDING), job)
    return waiting.element(waiting.id)


def by_month(jobs: Iterable[Job]) -> Iterator[Job]:
    """Sort jobs within each month; the months themselves already arrive in order."""
    for _, month in groupby(jobs, key=lambda job: (job.end.year, job.end.month)):
        left = sorted(month, key=latest_first, reverse=True)
        while left:
            yield left.pop()  # what was taken needs no room any more


def latest_first(job: Job) -> tuple[float, int]:
    return -job.end.timestamp(), -job.id
