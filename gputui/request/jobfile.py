"""A file of `[[job]]` tables, all of which are submitted or none."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gputui.config import read_toml
from gputui.domain.errors import InputError
from gputui.domain.job import Submission
from gputui.request.command_line import raised
from gputui.request.keys import BY_NAME, Key, Kind
from gputui.request.submitter import Submitter, submission
from gputui.request.texts import quoted

_BESIDES = ("image", "host", "command")


def read(path: str, submitter: Submitter) -> tuple[Submission, ...]:
    """The submissions of a file; raises InputError that names file, job and key."""
    return tuple(_job(table, place, submitter) for table, place in tables(path))


def tables(path: str) -> list[tuple[dict[str, Any], str]]:
    """The tables of a file, not read yet, and how each is named in an error."""
    if "\0" in path:
        raise InputError("has a NUL character", where="--file")
    whole = read_toml(Path(path), path)
    for key in whole:
        if key != "job":
            raise InputError("unknown key", where=f"{path}: {_shown(key)}", hint="jobs are [[job]] tables")
    jobs = whole.get("job")
    if not isinstance(jobs, list) or not jobs:
        raise InputError("expected at least one [[job]] table", where=f"{path}: job")
    places = [f"{path}: job[{number}]" for number in range(1, len(jobs) + 1)]
    return [(_table(table, place), place) for table, place in zip(jobs, places, strict=True)]


def _table(table: object, place: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError("expected a table", where=place, hint="write [[job]]")
    return table


def _job(table: dict[str, Any], place: str, submitter: Submitter) -> Submission:
    def where(key: str) -> str:
        return f"{place}.{_shown(key)}"

    faults = list(_unknown(table, where))
    values: dict[str, object] = {}
    for name, value in table.items():
        if name in BY_NAME:
            try:
                values[name] = _value(BY_NAME[name], value, where(name))
            except InputError as error:
                faults.append(error)
    raised(faults)
    command = _texts(table.get("command", []), where("command"))
    return submission(values, _image(table, where), command, submitter, where)


def _unknown(table: dict[str, Any], where: Callable[[str], str]) -> Iterator[InputError]:
    """Yield an error for each key that there is not."""
    import difflib

    known = (*_BESIDES, *BY_NAME)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            yield InputError("unknown key", where=where(key), hint=f"did you mean {near[0]}?" if near else None)


def _image(table: dict[str, Any], where: Callable[[str], str]) -> str | None:
    """The image; None for a host job."""
    host, image = table.get("host", False), table.get("image")
    if not isinstance(host, bool):
        raise InputError("expected true or false", where=where("host"))
    if image is not None and not isinstance(image, str):
        raise InputError("expected text", where=where("image"))
    if host and image is not None:
        raise InputError("a host job has no image", where=where("image"))
    if not host and image is None:
        raise InputError("is missing", where=where("image"), hint="or write host = true")
    return image


def _value(key: Key, value: object, where: str) -> object:
    if key.kind is Kind.FLAG:
        if not isinstance(value, bool):
            raise InputError("expected true or false", where=where)
        return value
    if key.kind is Kind.PAIRS and not isinstance(value, dict | list):
        raise InputError("expected a table", where=where, hint='write {NAME = "value"}')
    if key.kind is Kind.ONE:
        return key.read(_text(value, where), where)
    if isinstance(value, dict) and key.kind is not Kind.PAIRS:
        raise InputError("expected text or a number", where=where)
    return tuple(key.read(text, where) for text in texts(value, where))


def texts(value: object, where: str) -> tuple[str, ...]:
    """A value, a list of them or a table of pairs, as each would be written after an option."""
    if isinstance(value, dict):
        value = [f"{name}={_text(inner, f'{where}.{_shown(name)}')}" for name, inner in value.items()]
    return _texts(value if isinstance(value, list) else [value], where)


def _text(value: object, where: str) -> str:
    """A value as it would be written after an option."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError("expected text or a number", where=where)
    try:
        return str(value)
    except ValueError as error:  # Python refuses to print a number of thousands of digits
        raise InputError("is too large a number", where=where) from error


def _texts(values: object, where: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise InputError("expected a list of texts", where=where, hint='write ["python", "train.py"]')
    return tuple(_text(value, f"{where}[{number}]") for number, value in enumerate(values, 1))


def _shown(key: str) -> str:
    return key if key.isidentifier() and key.isascii() and len(key) <= 40 else quoted(key)
