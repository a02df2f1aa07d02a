"""Filter language for jobs: `state:pd tenant:alice gpus>=4 name~bert -is:held`.

All terms must match. A term is a field, an operator and a value, or a word that is searched in the job's text; `-` or
`!` before a term negates it; quotes keep blanks together, and a quoted word is never a field.

This module also chooses and orders the jobs of a snapshot that are listed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from fnmatch import translate
from itertools import groupby
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

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
        """The id of the job that is meant."""
        return self.job.id if self.element is None else self.element


Test: TypeAlias = Callable[[FilterSubject], bool]


class FilterField(Struct, frozen=True):
    """A filter field; `test` builds the predicate for an operator and a value."""

    help: str
    example: str
    test: Callable[[str, str, str | None], Test]


def negated(test: Test) -> Test:
    """Return the negation of a predicate."""
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


class _TextField(Struct, frozen=True):
    """A field of texts: `:` and `=` match a whole text, with * and ?; `~` searches for a pattern."""

    get: Callable[[Job], Iterable[str]]
    known: frozenset[str] = frozenset()
    """The only texts that it may have, case-folded; empty: any."""

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        get = self.get
        if operator.startswith("!"):
            return negated(self(operator[1:], value, where))
        if operator == "~":
            pattern = _pattern(value, where)
            return lambda seen: any(pattern.search(text) for text in get(seen.job))
        if operator not in {":", "="}:
            raise InputError(f"text is not compared with {operator}", where=where, hint="use : or ~")
        wanted = [word for word in value.casefold().split(",") if word]
        _check_known(wanted, self.known, where)
        shapes = [re.compile(translate(word)) for word in wanted]
        return lambda seen: any(shape.match(text.casefold()) for text in get(seen.job) for shape in shapes)


def _nodes(job: Job) -> tuple[str, ...]:
    return tuple(job.attempt.node.split(",")) if job.attempt and job.attempt.node else ()


def _check_known(wanted: Iterable[str], vocabulary: frozenset[str], where: str | None) -> None:
    unknown = [word for word in wanted if vocabulary and word not in vocabulary and not {"*", "?"} & set(word)]
    if unknown:
        hint = "one of " + ", ".join(sorted(vocabulary))
        raise InputError(f"'{plain(unknown[0], 40)}' is not one of its values", where=where, hint=hint)


def _pattern(value: str, where: str | None) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # printed for `[[`
            return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise InputError(f"'{plain(value, 40)}' is not a pattern: {error}", where=where) from None


class _NumberField(Struct, frozen=True):
    """A numeric field: compared, or with `:` matched against a list of numbers and ranges such as 3-7."""

    get: Callable[[FilterSubject], float | None]

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        get = self.get
        if operator == ":":
            spans = [_span(part, where) for part in value.split(",") if part]
            return lambda seen: (at := get(seen)) is not None and any(low <= at <= high for low, high in spans)
        return _compared(get, operator, _figure(value, where), where)


def _ids(operator: str, value: str, where: str | None) -> Test:
    """Return the predicate for ids: numbers, ranges, and elements of arrays such as `7_5`."""
    parts = [part for part in value.split(",") if part]
    elements = [part for part in parts if operator in ":=" and _ELEMENT.fullmatch(part)]
    numbers = ",".join(part for part in parts if part not in elements)
    by_number = _NumberField(lambda seen: seen.id)
    if not elements:
        return by_number(operator, value, where)
    is_one = re.compile(rf"#\d+ #(?:{'|'.join(elements)})(?!\d)", re.ASCII).match
    has_number = by_number(":", numbers, where)
    return lambda seen: is_one(seen.text) is not None or has_number(seen)


def _span(text: str, where: str | None) -> tuple[float, float]:
    if match := _SPAN.fullmatch(text):
        return float(match[1]), float(match[2])
    return (_figure(text, where),) * 2


def _figure(text: str, where: str | None) -> float:
    try:
        return float(text.replace("_", "?"))  # Python reads 1_3, an element's id, as 13
    except ValueError:
        raise InputError(f"'{plain(text, 40)}' is not a number", where=where) from None


class _DurationField(Struct, frozen=True):
    """A duration field, compared with a value such as 2h."""

    get: Callable[[FilterSubject], timedelta | None]

    def __call__(self, operator: str, value: str, where: str | None) -> Test:
        def seconds(seen: FilterSubject) -> float | None:
            found = self.get(seen)
            return found.total_seconds() if found is not None else None

        limit = parse_duration(value, where=where).total_seconds()
        return _compared(seconds, "=" if operator == ":" else operator, limit, where)


def _compared(get: Callable[[FilterSubject], float | None], operator: str, figure: float, where: str | None) -> Test:
    """Return a numeric comparison; an unknown value never matches."""
    compare = _COMPARE.get(operator)
    if compare is None:
        raise InputError(f"numbers are not compared with {operator}", where=where, hint="use = != < <= > >= or :")
    return lambda seen: (value := get(seen)) is not None and compare(value, figure)


def _reason(operator: str, value: str, where: str | None) -> Test:
    """Return the predicate for reasons: the whole code, or with `~` a pattern in code and sentence."""
    if operator.startswith("!"):
        return negated(_reason(operator[1:], value, where))
    if operator == "~":
        pattern = _pattern(value, where)
        return lambda seen: seen.reason is not None and bool(pattern.search(f"{seen.reason.code} {seen.reason.text}"))
    if operator not in {":", "="}:
        raise InputError(f"text is not compared with {operator}", where=where, hint="use : or ~")
    wanted = [word for word in value.casefold().split(",") if word]
    _check_known(wanted, frozenset(code.casefold() for code in PendingReason), where)
    return lambda seen: seen.reason is not None and seen.reason.code.casefold() in wanted


def _label(operator: str, value: str, where: str | None) -> Test:
    """Return the predicate for labels, `label:key` or `label:key=value`."""
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
    """Return the number of GPUs that the job holds, else the maximum that it asks for."""
    asked = job.spec.gpus
    if job.gpus:
        return len(job.gpus)
    return float("inf") if asked.everything else len(asked.devices) or asked.maximum


def _utilization(seen: FilterSubject) -> float | None:
    told = seen.job.attempt.efficiency if seen.job.attempt else None
    return None if told is None or told.utilization is None else told.utilization * 100


def _waited(seen: FilterSubject) -> timedelta | None:
    """Return the time for which a waiting job has waited; None for other jobs."""
    return seen.now - seen.job.submitted_at if seen.job.state is JobState.PENDING else None


def _ran(seen: FilterSubject) -> timedelta | None:
    started = seen.job.started_at
    return None if started is None else (seen.job.ended_at or seen.now) - started


def _left(seen: FilterSubject) -> timedelta | None:
    return seen.job.limit_at - seen.now if seen.job.limit_at else None


def _state_words(job: Job) -> tuple[str, str]:
    return job.state.value, job.state.short


FIELDS: Mapping[str, FilterField] = MappingProxyType(
    {
        "state": FilterField(
            "in full or as squeue shortens it",
            "state:pd,r",
            _TextField(
                _state_words, frozenset(word.casefold() for state in JobState for word in (state.value, state.short))
            ),
        ),
        "is": FilterField(", ".join((*_FLAGS, IDLE)), "is:held", _is),
        "id": FilterField("the number", "id:12,20-29,7_5", _ids),
        "name": FilterField("the job's name", "name~bert", _TextField(lambda job: (job.name,))),
        "tenant": FilterField(
            "tenant it is charged to", "tenant:alice,bob", _TextField(lambda job: (job.spec.tenant,))
        ),
        "user": FilterField("user who submitted it", "user:alice", _TextField(lambda job: (job.submitted_by,))),
        "image": FilterField("of its container", "image~pytorch", _TextField(lambda job: (job.spec.image or "",))),
        "command": FilterField(
            "with its arguments", "command~train.py", _TextField(lambda job: (" ".join(element_spec(job).command),))
        ),
        "label": FilterField("of its container", "label:project=x", _label),
        "comment": FilterField("a note about it", "comment~ablation", _TextField(lambda job: (job.spec.comment,))),
        "gpus": FilterField(
            "number it holds, or asks for at most", "gpus>=4", _NumberField(lambda seen: gpu_count_of(seen.job))
        ),
        "server": FilterField(
            "of several in one console (--on)", "server:gpu1", _TextField(lambda job: (server_of(job.id),))
        ),
        "node": FilterField("node of a cluster on which it runs or ran", "node:gpu3", _TextField(_nodes)),
        "gpu": FilterField("the UUID of one it holds", "gpu~7905f7a", _TextField(lambda job: job.gpus)),
        "priority": FilterField("0 to 100", "priority>50", _NumberField(lambda seen: seen.job.priority)),
        "exit": FilterField("its exit code", "exit!=0", _NumberField(lambda seen: seen.job.exit_code)),
        "error": FilterField("why its last attempt failed", "error~memory", _TextField(lambda job: (job.end_words,))),
        "util": FilterField(
            "mean GPU utilization of its last attempt, in percent", "util<20", _NumberField(_utilization)
        ),
        "attempts": FilterField("begun so far", "attempts>1", _NumberField(lambda seen: len(seen.job.attempts))),
        "array": FilterField(
            "the id of its array", "array:12", _NumberField(lambda seen: seen.job.array.id if seen.job.array else None)
        ),
        "cron": FilterField(
            "the recurring job it is a run of", "cron:7", _NumberField(lambda seen: seen.job.recurring)
        ),
        "reason": FilterField("why it waits", "reason:Resources", _reason),
        "wait": FilterField("since it was submitted, of a waiting job", "wait>2h", _DurationField(_waited)),
        "time": FilterField("how long it has run", "time>1d", _DurationField(_ran)),
        "limit": FilterField("its time limit", "limit<=4h", _DurationField(lambda seen: seen.job.spec.time_limit)),
        "left": FilterField("remaining time of its limit", "left<10m", _DurationField(_left)),
        "age": FilterField(
            "since it was submitted", "age>1d", _DurationField(lambda seen: seen.now - seen.job.submitted_at)
        ),
    }
)
"""Filter fields by name, in the order in which help shows them."""


__all__ = ["EVERY_JOB", "FIELDS", "Filter", "FilterSubject", "parse_filter", "searched_text"]

MAX_LENGTH = 500
_WORD = re.compile(r"""(?P<not>[-!])?(?:"(?P<quoted>[^"]*)"?|(?P<bare>(?:[^\s"]|"[^"]*"?)+))""")
_IN_IDS = frozenset("#_0123456789 ")
_TERM = re.compile(r"(?P<field>[a-z_]+)(?P<operator>!=|!~|>=|<=|[:=~<>])(?P<value>.*)", re.IGNORECASE | re.DOTALL)


class Term(NamedTuple):
    """Condition of a filter; `field` is empty for a word searched in the text."""

    field: str
    holds: Test
    word: str = ""
    """The word looked for, case-folded."""

    def tells_apart(self, seen: FilterSubject) -> bool:
        """Return whether it may match one element of this entry and not another: only their ids differ."""
        if not self.word:
            return self.field == "id"
        return self.word not in seen.text and not _IN_IDS.isdisjoint(self.word)


class Filter(Struct, frozen=True):
    """Conditions that a job must meet to be shown."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        """Return whether it excludes anything."""
        return bool(self.terms)

    def matches(self, seen: FilterSubject) -> bool:
        return all(term.holds(seen) for term in self.terms)

    def part(self, seen: FilterSubject) -> Job | None:
        """Return the job if it matches; of an entry, the matching elements; None if there are none."""
        own = [term for term in self.terms if seen.job.runs and term.tells_apart(seen)]
        if not all(term.holds(seen) for term in self.terms if term not in own):
            return None
        return _chosen(own, seen) if own else seen.job

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that the filter uses."""
        return frozenset(term.field for term in self.terms if term.field)

    @property
    def is_of_reasons(self) -> bool:
        """Return whether the filter depends on the reasons for which jobs wait, as plain words do."""
        return any(term.field in {"", "not", "reason"} for term in self.terms)

    @property
    def is_of_words(self) -> bool:
        """Return whether the filter only searches the text.

        Then a longer filter never shows a job that a shorter one hid.
        """
        return not self.fields


EVERY_JOB = Filter()


def _chosen(terms: list[Term], seen: FilterSubject) -> Job | None:
    """Return the elements of the entry that match all these terms."""
    job, now, reason, text, *_ = seen
    each = (
        FilterSubject(job, now, reason, f"{id_words(job_id, job.array, index)}{text}", job_id)
        for job_id, index in zip(job.ids, job.indices, strict=True)
    )
    ids = [one.id for one in each if all(term.holds(one) for term in terms)]
    return job.divided(ids)[0] if ids else None


def parse_filter(text: str, *, where: str | None = None) -> Filter:
    """Parse a filter; raises InputError that lists the valid fields."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"is longer than {MAX_LENGTH} characters", where=where)
    return Filter(text, tuple(_terms(text, where)))


def _terms(text: str, where: str | None) -> Iterator[Term]:
    for match in _WORD.finditer(text):
        bare, quoted = match["bare"], match["quoted"]
        term = _word(quoted) if bare is None else _bare(bare, where)
        if term is not None:
            yield Term(term.field or "not", negated(term.holds), term.word) if match["not"] else term


def _bare(word: str, where: str | None) -> Term | None:
    match = _TERM.fullmatch(word)
    if match is None:
        return _word(word.replace('"', ""))
    name, operator, value = match["field"].casefold(), match["operator"], match["value"].replace('"', "")
    field = FIELDS.get(name)
    if field is None:
        near = _near(name)
        hint = f"{f'do you mean {near}? ' if near else ''}fields are {', '.join(FIELDS)}"
        hint += "; put the word in quotes to look for it as it is"
        raise InputError(f"there is no field '{plain(name, 40)}'", where=where, hint=hint)
    if not value:
        raise InputError(f"{name}{operator} needs a value", where=where, hint=f"as in {field.example}")
    try:
        return Term(name, field.test(operator, value, where))
    except InputError as error:
        hint = error.hint or f"as in {field.example}"
        raise InputError(f"in {plain(word, 60)}: {error.what}", where=where, hint=hint) from error


def _near(name: str) -> str:
    """Return the most similar field name; empty if none is similar."""
    import difflib  # only needed for an error

    longer = [field for field in FIELDS if field.startswith(name)]
    return next(iter([*longer, *difflib.get_close_matches(name, FIELDS, 1)]), "")


def _word(word: str) -> Term | None:
    needle = word.casefold()
    return Term("", lambda seen: needle in seen.text, needle) if needle else None


def seen(job: Job, snapshot: Snapshot) -> FilterSubject:
    """Return a job as filters see it."""
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
        yield from sorted(month, key=latest_first)


def latest_first(job: Job) -> tuple[float, int]:
    """Return the key by which ended jobs are sorted."""
    return -job.end.timestamp(), -job.id
