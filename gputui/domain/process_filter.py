"""Filter of the process view: `alice kind:foreign gpu:3 mem>10g age>2h image~jupyter -user:root`.

All terms must match. A term is a field, an operator and a value, or a word that is searched in the row's text; `-` or
`!` before a term negates it; quotes keep blanks together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.gpu_processes import GpuProcessRow
from gputui.domain.text import plain
from gputui.domain.units import parse_duration, parse_size

_WORD = re.compile(r"""(?P<not>[-!])?(?P<word>(?:[^\s"]|"[^"]*"?)+)""")
_TERM = re.compile(r"(?P<field>[a-z]+)(?P<operator>!=|>=|<=|[:=~<>])(?P<value>.*)", re.IGNORECASE | re.DOTALL)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, ":": eq, "!=": ne}
)
RowTest = Callable[[GpuProcessRow], bool]


class ProcessField(Struct, frozen=True):
    """A field of the filter: either texts or a number, and how a number is written."""

    example: str
    texts: Callable[[GpuProcessRow], tuple[str, ...]] | None = None
    number: Callable[[GpuProcessRow], float | None] | None = None
    read: Callable[[str], float] = float


def _percent(text: str) -> float:
    return float(text.removesuffix("%")) / 100


def _seconds(text: str) -> float:
    return parse_duration(text).total_seconds()


PROCESS_FIELDS: Mapping[str, ProcessField] = MappingProxyType(
    {
        "user": ProcessField("user:alice", lambda row: (row.user or "",)),
        "kind": ProcessField("kind:foreign", lambda row: ("foreign" if row.kind == "container" else "", row.kind)),
        "gpu": ProcessField("gpu:0", lambda row: row.gpus),
        "pid": ProcessField("pid:4711", lambda row: ("" if row.pid is None else str(row.pid),)),
        "job": ProcessField("job:7", lambda row: (row.job.partition(" ")[0].removeprefix("#"),)),
        "container": ProcessField("container~jupyter", lambda row: (row.container, row.container_id or "")),
        "image": ProcessField("image~pytorch", lambda row: (row.image,)),
        "command": ProcessField("command~train.py", lambda row: (row.command or "",)),
        "gpumem": ProcessField("gpumem>10g", number=lambda row: row.gpu_memory, read=parse_size),
        "mem": ProcessField("mem>64g", number=lambda row: row.memory, read=parse_size),
        "sm": ProcessField("sm<10", number=lambda row: row.sm, read=_percent),
        "cpu": ProcessField("cpu>100", number=lambda row: row.cpu, read=_percent),
        "age": ProcessField("age>2h", number=lambda row: row.age.total_seconds() if row.age else None, read=_seconds),
    }
)
"""Fields by name, in the order in which messages list them."""


class ProcessFilter(Struct, frozen=True):
    """Conditions that a row must meet to be shown."""

    text: str = ""
    tests: tuple[RowTest, ...] = ()

    def __bool__(self) -> bool:
        """Return whether it excludes anything."""
        return bool(self.tests)

    def matches(self, row: GpuProcessRow) -> bool:
        """Return whether all conditions hold."""
        return all(test(row) for test in self.tests)


def parse_process_filter(text: str) -> ProcessFilter:
    """Return the filter that this text describes; raises InputError."""
    if len(text) > 500:
        raise InputError("is longer than 500 characters")
    return ProcessFilter(text, tuple(_tests(text)))


def _tests(text: str) -> Iterator[RowTest]:
    for match in _WORD.finditer(text):
        if word := match["word"]:
            test = _test(word)
            yield _negated(test) if match["not"] else test


def _negated(test: RowTest) -> RowTest:
    return lambda row: not test(row)


def _test(word: str) -> RowTest:
    match = _TERM.fullmatch(word)
    if match is None or word.startswith('"'):
        return _in_text(word.replace('"', "").casefold())
    name, operator, value = match["field"].casefold(), match["operator"], match["value"].replace('"', "")
    field = PROCESS_FIELDS.get(name)
    if field is None:
        raise InputError(f"there is no field '{plain(name, 40)}'", hint=f"fields are {', '.join(PROCESS_FIELDS)}")
    if not value:
        raise InputError(f"{name}{operator} needs a value", hint=f"as in {field.example}")
    try:
        return _of_texts(field, operator, value) if field.texts else _of_number(field, operator, value)
    except (InputError, KeyError, ValueError, re.error):
        raise InputError(f"{plain(word, 60)} cannot be read", hint=f"as in {field.example}") from None


def _in_text(word: str) -> RowTest:
    return lambda row: word in " ".join((str(row.pid or ""), row.user or "", row.what, row.command or "")).casefold()


def _of_texts(field: ProcessField, operator: str, value: str) -> RowTest:
    texts = field.texts or (lambda row: ())
    if operator == "~":
        pattern = re.compile(value, re.IGNORECASE)
        return lambda row: any(pattern.search(text) for text in texts(row))
    if operator == "!=":
        return _negated(_of_texts(field, ":", value))
    if operator not in {":", "="}:
        raise ValueError(operator)
    wanted = frozenset(value.casefold().split(","))
    return lambda row: any(text.casefold() in wanted for text in texts(row))


def _of_number(field: ProcessField, operator: str, value: str) -> RowTest:
    """Return a numeric predicate; an unknown value never matches."""
    get, compare, figure = field.number or (lambda row: None), _COMPARE[operator], field.read(value)
    return lambda row: (at := get(row)) is not None and compare(at, figure)
