"""The words a person types to see only some jobs: `state:pd tenant:alice gpus>=4 name~bert -is:held`.

All terms must hold. A term is a field, an operator and a value, or a word that is looked for in the job's text; `-` or
`!` before it turns it round; quotes keep blanks together, and a quoted word is never a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gputui.domain.errors import InputError
from gputui.domain.filter_fields import FIELDS, Seen, Test, negated, shown_text
from gputui.domain.text import plain

__all__ = ["EVERY_JOB", "FIELDS", "Filter", "Seen", "parse_filter", "shown_text"]

MAX_LENGTH = 500
_WORD = re.compile(r"""(?P<not>[-!])?(?:"(?P<quoted>[^"]*)"?|(?P<bare>(?:[^\s"]|"[^"]*"?)+))""")
_TERM = re.compile(r"(?P<field>[a-z_]+)(?P<operator>!=|!~|>=|<=|[:=~<>])(?P<value>.*)", re.IGNORECASE | re.DOTALL)


class Term(NamedTuple):
    """One condition; `field` is empty for a word looked for in the text."""

    field: str
    holds: Test


@dataclass(frozen=True)
class Filter:
    """What a job must be to be shown."""

    text: str = ""
    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.terms)

    def matches(self, seen: Seen) -> bool:
        """Whether all its terms hold for this job."""
        return all(term.holds(seen) for term in self.terms)

    @property
    def fields(self) -> frozenset[str]:
        """The fields it names."""
        return frozenset(term.field for term in self.terms if term.field)

    @property
    def is_of_the_time(self) -> bool:
        """Whether what it shows changes by time alone."""
        return bool(self.fields & {"wait", "time"})

    @property
    def is_of_reasons(self) -> bool:
        """Whether it looks at why a job waits, as single words do."""
        return any(term.field in {"", "not", "reason"} for term in self.terms)

    @property
    def is_of_words(self) -> bool:
        """Whether it looks at nothing but the text: then a longer one shows no job that a shorter one left out."""
        return not self.fields


EVERY_JOB = Filter()


def parse_filter(text: str, *, where: str | None = None) -> Filter:
    """The filter those words mean; raises InputError, which tells the fields there are."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"is longer than {MAX_LENGTH} characters", where=where)
    return Filter(text, tuple(_terms(text, where)))


def _terms(text: str, where: str | None) -> Iterator[Term]:
    for match in _WORD.finditer(text):
        bare, quoted = match["bare"], match["quoted"]
        term = _word(quoted) if bare is None else _bare(bare, where)
        if term is not None:
            yield _turned(term) if match["not"] else term


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
        raise InputError(f"{name}{operator} wants a value", where=where, hint=f"as in {field.example}")
    try:
        return Term(name, field.test(operator, value, where))
    except InputError as error:
        hint = error.hint or f"as in {field.example}"
        raise InputError(f"in {plain(word, 60)}: {error.what}", where=where, hint=hint) from error


def _near(name: str) -> str:
    """The field whose name is most like it; empty where none is."""
    import difflib  # only where something is wrong

    longer = [field for field in FIELDS if field.startswith(name)]
    return next(iter([*longer, *difflib.get_close_matches(name, FIELDS, 1)]), "")


def _word(word: str) -> Term | None:
    needle = word.casefold()
    return Term("", lambda seen: needle in seen.text) if needle else None


def _turned(term: Term) -> Term:
    return Term(term.field or "not", negated(term.holds))
