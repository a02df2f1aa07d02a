"""Drafts as job files, so that what a form holds is a file that `gputui submit -f` takes, and the other way round."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from gputui.domain.errors import InputError
from gputui.request import jobfile
from gputui.request.draft import Draft, check_further, typed
from gputui.request.keys import BY_NAME, KEYS, Kind
from gputui.request.submitter import Submitter

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def written(draft: Draft, *, with_others: bool = False) -> str:
    """The job file; `with_others` has a line, commented out, for each key that it does not use."""
    check_further(draft)
    texts = typed(draft)
    lines = ["[[job]]", *_head(texts)]
    lines += [f"{name} = {_value(name, text)}" for name, text in texts.items() if name in BY_NAME]
    if with_others:
        lines += ["", "# What else there is:"]
        lines += [f"# {key.name} = {_example(key.kind)}  # {key.help}" for key in KEYS if key.name not in texts]
    return "\n".join(lines) + "\n"


def _head(texts: Draft) -> Iterator[str]:
    yield f"image = {_text(texts['image'])}" if "image" in texts else "host = true"
    if "command" in texts:
        yield f"command = {_list(_words(texts['command']))}"


def _value(name: str, text: str) -> str:
    kind = BY_NAME[name].kind
    if kind is Kind.FLAG:
        return "true"
    if kind is Kind.ONE:
        return text if re.fullmatch(r"0|[1-9]\d{0,8}", text, re.ASCII) else _text(text)
    if kind is Kind.PAIRS:
        return _pairs(_words(text))
    return _list(_words(text))


def _pairs(listed: list[str]) -> str:
    """A table, where each has a value and a name of its own; else a list, which can say more."""
    pairs = [word.partition("=") for word in listed]
    if not all(equals for _, equals, _ in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
        return _list(listed)
    inner = (f"{name if _BARE.fullmatch(name) else _text(name)} = {_text(value)}" for name, _, value in pairs)
    return "{" + ", ".join(inner) + "}"


def _list(listed: list[str]) -> str:
    return "[" + ", ".join(map(_text, listed)) + "]"


def _text(text: str) -> str:
    """A basic string: TOML's escapes are those of JSON, but that DEL needs one too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _words(text: str) -> list[str]:
    """The words; of a text with an open quotation, what stands between blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _example(kind: Kind) -> str:
    return {Kind.FLAG: "true", Kind.MANY: "[]", Kind.PAIRS: "{}"}.get(kind, '""')


def read(path: Path, by: Submitter) -> dict[str, str]:
    """The draft in a file of one job; raises InputError that names file, job and key."""
    jobs = jobfile.tables(str(path))
    if len(jobs) != 1:
        hint = f"gputui submit -f {path} submits them all"
        raise InputError(f"has {len(jobs)} jobs, and a form takes one", where=str(path), hint=hint)
    jobfile.read(str(path), by)
    table, place = jobs[0]
    draft = {name: shlex.join(jobfile.texts(value, f"{place}.{name}")) for name, value in table.items() if _many(name)}
    draft |= {name: _one(value, f"{place}.{name}") for name, value in table.items() if not _many(name)}
    return typed(draft)


def _many(name: str) -> bool:
    return name == "command" or (name in BY_NAME and BY_NAME[name].kind in {Kind.MANY, Kind.PAIRS})


def _one(value: object, where: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return jobfile.texts(value, where)[0]
