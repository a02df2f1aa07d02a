"""Parameter sweeps: arrays over all combinations of values, and texts with these values in braces.

`lr=1e-3,1e-4` and `seed=0-9` make 20 elements; the last name varies fastest. In a text `{lr}` is replaced by the
element's value and `{index}` by its index. `{{word}}` becomes `{word}`. All other braces, `${NAME}` included, are
unchanged, so that JSON, awk and shells keep theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.job_spec import Pairs
from gputui.domain.text import listed, quoted

INDEX = "index"
"""Name that stands for the index of the element."""
VARIABLE = "GPUTUI_SWEEP_"
"""Prefix of the environment variables with an element's values."""
MAX_TEXT = 16 * 1024
"""Maximum number of characters of all values together; they are stored with each started element."""
MAX_SHOWN = 60
"""Maximum number of characters of values that are appended to a name."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_FIELD = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*|([^,"]*))(?:,|\Z)')
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_FRACTIONS = re.compile(r"\d*\.\d+-\d*\.?\d+(?::.*)?|\d+-\d*\.\d+(?::.*)?|\d+-\d+:.*", re.ASCII)
_PLACE = re.compile(r"\{\{([^{}]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


class _Part(Struct, frozen=True):
    """Consecutive values: one text, or the whole numbers of a range."""

    text: str = ""
    numbers: range | None = None
    width: int = 0
    """Number of digits with leading zeros: `00-09`."""

    @property
    def count(self) -> int:
        return 1 if self.numbers is None else len(self.numbers)


def check(sweep: Pairs, limit: int) -> int:
    """Return the number of elements; raise InputError for invalid names or values."""
    names = [name.upper() for name, _ in sweep]
    for name, text in sweep:
        if not _NAME.fullmatch(name):
            raise InputError(f"{quoted(name)} is not a name", hint="letters, digits and _, such as lr=1e-3,1e-4")
        if name.lower() == INDEX:
            raise InputError(f"{quoted(name)} stands for the index of the element", hint="choose another name")
        if names.count(name.upper()) > 1:
            raise InputError(f"{quoted(name)} is given twice", hint="names differ in more than their case")
        _parts(text)
    if sum(len(text) for _, text in sweep) > MAX_TEXT:
        hint = "use a range, or have the job read its values from a file by {index}"
        raise InputError(f"the values have more than {MAX_TEXT} characters", hint=hint)
    if (count := size(sweep)) > limit:
        raise InputError(f"makes {count} elements", hint=f"at most {limit}")
    return count


def size(sweep: Pairs) -> int:
    return math.prod(_count(text) for _, text in sweep)


def values_at(sweep: Pairs, index: int) -> dict[str, str]:
    """Return the values of the element with this index by name; raise IndexError where there is none."""
    if not 0 <= index < size(sweep):
        raise IndexError(index)
    found = {}
    for name, text in reversed(sweep):
        index, place = divmod(index, _count(text))
        found[name] = _value(text, place)
    return dict(reversed(found.items()))


def filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: _replacement(match, values), text) if "{" in text else text


def pieces(text: str, names: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the text in pieces, each literal text and the name whose value follows it; empty at the end."""
    literal, end = "", 0
    for match in _PLACE.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match[2] in names:
            yield literal, match[2]
            literal = ""
        else:
            literal += _replacement(match, {})
    yield literal + text[end:], ""


def values(text: str) -> Iterator[str]:
    """Yield the values of `1e-3,1e-4`, `0-9`, `0-10:2` or `"a,b",c`."""
    return (_value(text, place) for place in range(_count(text)))


def check_text(text: str, sweep: Pairs) -> None:
    """Raise InputError for a name in braces that the sweep does not have."""
    known = (*(name for name, _ in sweep), INDEX)
    for match in _PLACE.finditer(text):
        if match[2] is not None and match[2] not in known:
            hint = f"known are {listed(known)}; {{{{{match[2]}}}}} stands for the braces themselves"
            raise InputError(f"{quoted(match[0])} is not a name of the sweep", hint=hint)


def shown_name(name: str, sweep: Pairs, index: int) -> str:
    """Return the name of an element; values that the name does not contain are appended: `train lr=1e-3 seed=4`.

    For an index that the sweep does not have, return the name as written.
    """
    if not 0 <= index < size(sweep):
        return name
    values = values_at(sweep, index)
    found = filled(name, {**values, INDEX: str(index)})
    return found if found != name else f"{name} {words(values)}".lstrip()


def words(values: Mapping[str, str]) -> str:
    text = " ".join(f"{name}={value}" for name, value in values.items())
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def variables(values: Mapping[str, str]) -> Pairs:
    return tuple((f"{VARIABLE}{name.upper()}", value) for name, value in values.items())


def quoted_list(values: Iterable[str]) -> str:
    return ",".join('"' + value.replace('"', '""') + '"' for value in values)


def _replacement(match: re.Match[str], values: Mapping[str, str]) -> str:
    if match[2] is None:
        return "{" + match[1] + "}"
    return values.get(match[2], match[0])


@lru_cache(maxsize=256)
def _parts(text: str) -> tuple[_Part, ...]:
    """Return the values of `1e-3,1e-4`, `0-9`, `0-10:2` or `"a,b",c`; raise InputError."""
    parts: list[_Part] = []
    place = 0
    while place < len(text) or (parts and text.endswith(",") and place == len(text)):
        match = _FIELD.match(text, place)
        if match is None:
            raise InputError(f"{quoted(text[place:])} is not a list of values", hint='quote as in "a,b",c')
        parts.append(_Part(match[1].replace('""', '"')) if match[1] is not None else _part(match[2].strip()))
        if match.end() == len(text) and not match[0].endswith(","):
            break
        place = match.end()
    if not parts:
        raise InputError("has no values", hint="write lr=1e-3,1e-4 or seed=0-9")
    return tuple(parts)


@lru_cache(maxsize=256)
def _count(text: str) -> int:
    return sum(part.count for part in _parts(text))


def _value(text: str, place: int) -> str:
    for part in _parts(text):
        if place < part.count:
            return part.text if part.numbers is None else f"{part.numbers[place]:0{part.width}}"
        place -= part.count
    raise IndexError(place)


def _part(word: str) -> _Part:
    if not word:
        raise InputError("has an empty value", hint='write "" where that is meant')
    hint = "ranges are of whole numbers, 0-10 or 0-10:2; write the values one by one, or quote the text"
    match = _RANGE.fullmatch(word)
    if match is None and not _FRACTIONS.fullmatch(word):
        return _Part(word)
    if match is not None:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if first <= last and step:
            return _Part(numbers=range(first, last + 1, step), width=len(match[1]) if match[1].startswith("0") else 0)
        hint = f"write the smaller number first, or quote the text: '\"{word}\"'"
    raise InputError(f"{quoted(word)} is not a range", hint=hint)
