"""What a filter can ask of a job, field by field."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import translate
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.domain.text import plain
from gputui.domain.units import parse_duration

_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "!=": ne}
)
_SPAN = re.compile(r"(\d+)-(\d+)")


class Seen(NamedTuple):
    """A job as a filter looks at it."""

    job: Job
    now: datetime
    reason: Reason | None = None
    """Why it waits."""
    text: str = ""
    """What is shown of it, case-folded: where single words are looked for."""


Test: TypeAlias = Callable[[Seen], bool]


@dataclass(frozen=True)
class Field:
    """Something of a job that can be asked for; `test` makes the question of an operator and a value."""

    help: str
    example: str
    test: Callable[[str, str, str | None], Test]


def negated(test: Test) -> Test:
    """True where the other is not."""
    return lambda seen: not test(seen)


def shown_text(job: Job, reason: Reason | None) -> str:
    """What single words are looked for in: what a row of the queue tells."""
    why = f"{reason.code} {reason.text}" if reason else ""
    held = "held" if _FLAGS["held"](job) else ""
    spec = job.spec
    words = (
        f"#{job.id}",
        f"#{job.shown_id}" if job.array else "",
        spec.name,
        spec.tenant,
        job.state,
        job.state.short,
        spec.image or "host",
        why,
        held,
    )
    return plain(" ".join(words)).casefold()


def _texts(get: Callable[[Job], Iterable[str]], known: Iterable[str] = ()) -> Callable[[str, str, str | None], Test]:
    """A field of one or more texts: `:` and `=` want one of the list whole, with * and ?; `~` finds a pattern in it."""
    vocabulary = frozenset(word.casefold() for word in known)

    def make(operator: str, value: str, where: str | None) -> Test:
        if operator.startswith("!"):
            return negated(make(operator[1:], value, where))
        if operator == "~":
            pattern = _pattern(value, where)
            return lambda seen: any(pattern.search(text) for text in get(seen.job))
        if operator not in {":", "="}:
            raise InputError(f"text is not compared with {operator}", where=where, hint="use : or ~")
        wanted = [word for word in value.casefold().split(",") if word]
        _check_known(wanted, vocabulary, where)
        shapes = [re.compile(translate(word)) for word in wanted]
        return lambda seen: any(shape.match(text.casefold()) for text in get(seen.job) for shape in shapes)

    return make


def _check_known(wanted: Iterable[str], vocabulary: frozenset[str], where: str | None) -> None:
    unknown = [word for word in wanted if vocabulary and word not in vocabulary and not {"*", "?"} & set(word)]
    if unknown:
        hint = "one of " + ", ".join(sorted(vocabulary))
        raise InputError(f"'{plain(unknown[0], 40)}' is none of its values", where=where, hint=hint)


def _pattern(value: str, where: str | None) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # printed for `[[`
            return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise InputError(f"'{plain(value, 40)}' is not a pattern: {error}", where=where) from None


def _number(get: Callable[[Job], float | None]) -> Callable[[str, str, str | None], Test]:
    """A field that is a number: compared, or with `:` one of a list of numbers and spans such as 3-7."""

    def make(operator: str, value: str, where: str | None) -> Test:
        if operator == ":":
            spans = [_span(part, where) for part in value.split(",") if part]
            return lambda seen: (at := get(seen.job)) is not None and any(low <= at <= high for low, high in spans)
        return _compared(lambda seen: get(seen.job), operator, _figure(value, where), where)

    return make


def _span(text: str, where: str | None) -> tuple[float, float]:
    if match := _SPAN.fullmatch(text):
        return float(match[1]), float(match[2])
    return (_figure(text, where),) * 2


def _figure(text: str, where: str | None) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"'{plain(text, 40)}' is not a number", where=where) from None


def _duration(get: Callable[[Seen], timedelta | None]) -> Callable[[str, str, str | None], Test]:
    """A field that is a duration, compared with one such as 2h."""

    def seconds(seen: Seen) -> float | None:
        value = get(seen)
        return value.total_seconds() if value is not None else None

    def make(operator: str, value: str, where: str | None) -> Test:
        limit = parse_duration(value, where=where).total_seconds()
        return _compared(seconds, "=" if operator == ":" else operator, limit, where)

    return make


def _compared(get: Callable[[Seen], float | None], operator: str, figure: float, where: str | None) -> Test:
    """Never true of what is not known."""
    compare = _COMPARE.get(operator)
    if compare is None:
        raise InputError(f"numbers are not compared with {operator}", where=where, hint="use = != < <= > >= or :")
    return lambda seen: (value := get(seen)) is not None and compare(value, figure)


def _reason(operator: str, value: str, where: str | None) -> Test:
    """The code whole, or with `~` a pattern in code and sentence."""
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
    """`label:key` or `label:key=value`."""
    if operator not in {":", "="}:
        raise InputError(f"labels are not compared with {operator}", where=where, hint="as in label:project=x")
    key, has_value, wanted = value.partition("=")
    return lambda seen: any(
        name == key and (not has_value or text == wanted) for name, text in seen.job.spec.options.labels
    )


_FAILED = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY})
_FLAGS: Mapping[str, Callable[[Job], bool]] = MappingProxyType(
    {
        "held": lambda job: job.held and job.state is JobState.PENDING,
        "waiting": lambda job: job.state in {JobState.PENDING, JobState.PREEMPTED},
        "active": lambda job: job.state.is_active,
        "live": lambda job: not job.state.is_terminal,
        "ended": lambda job: job.state.is_terminal,
        "failed": lambda job: job.state in _FAILED,
        "host": lambda job: job.spec.is_host,
        "array": lambda job: job.array is not None,
        "preemptible": lambda job: job.spec.preemptible,
        "retried": lambda job: len(job.attempts) > 1,
        "top": lambda job: job.topped_at is not None,
    }
)


def _is(operator: str, value: str, where: str | None) -> Test:
    if operator not in {":", "="}:
        raise InputError(f"is{operator} means nothing", where=where, hint="as in is:held")
    wanted = [word for word in value.casefold().split(",") if word]
    _check_known(wanted, frozenset(_FLAGS), where)
    tests = [_FLAGS[word] for word in wanted if word in _FLAGS]
    return lambda seen: any(test(seen.job) for test in tests)


def gpus_of(job: Job) -> float:
    """GPUs it holds, or else the most it asks for."""
    asked = job.spec.gpus
    if job.gpus:
        return len(job.gpus)
    return float("inf") if asked.everything else len(asked.devices) or asked.maximum


def _waited(seen: Seen) -> timedelta | None:
    """How long it has waited; known of waiting jobs alone."""
    return seen.now - seen.job.submitted_at if seen.job.state is JobState.PENDING else None


def _ran(seen: Seen) -> timedelta | None:
    started = seen.job.started_at
    return None if started is None else (seen.job.ended_at or seen.now) - started


def _state_words(job: Job) -> tuple[str, str]:
    return job.state.value, job.state.short


FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "state": Field(
            "in full or as squeue shortens it",
            "state:pd,r",
            _texts(_state_words, (word for state in JobState for word in (state.value, state.short))),
        ),
        "is": Field(", ".join(_FLAGS), "is:held", _is),
        "id": Field("the number", "id:12,20-29", _number(lambda job: job.id)),
        "name": Field("the job's name", "name~bert", _texts(lambda job: (job.spec.name,))),
        "tenant": Field("who it is charged to", "tenant:alice,bob", _texts(lambda job: (job.spec.tenant,))),
        "user": Field("who submitted it", "user:alice", _texts(lambda job: (job.submitted_by,))),
        "image": Field("of its container", "image~pytorch", _texts(lambda job: (job.spec.image or "",))),
        "command": Field("with its arguments", "command~train.py", _texts(lambda job: (" ".join(job.spec.command),))),
        "label": Field("of its container", "label:project=x", _label),
        "gpus": Field("held, or else asked for at most", "gpus>=4", _number(gpus_of)),
        "gpu": Field("the UUID of one it holds", "gpu~7905f7a", _texts(lambda job: job.gpus)),
        "priority": Field("0 to 100", "priority>50", _number(lambda job: job.priority)),
        "exit": Field("its exit code", "exit!=0", _number(lambda job: job.exit_code)),
        "attempts": Field("begun so far", "attempts>1", _number(lambda job: len(job.attempts))),
        "array": Field("the id of its array", "array:12", _number(lambda job: job.array.id if job.array else None)),
        "cron": Field("the recurring job it is a run of", "cron:7", _number(lambda job: job.recurring)),
        "reason": Field("why it waits", "reason:Resources", _reason),
        "wait": Field("since it was submitted, of a waiting job", "wait>2h", _duration(_waited)),
        "time": Field("that it has run", "time>1d", _duration(_ran)),
        "limit": Field("its time limit", "limit<=4h", _duration(lambda seen: seen.job.spec.time_limit)),
    }
)
"""By name, in the order in which help shows them."""
