"""Rarer options of `docker run` in one text, as on a command line: a form has one field for all of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from gputui.domain.errors import InputError
from gputui.request import docker_only, draft, line
from gputui.request.docker_keys import RARER
from gputui.request.draft import Draft
from gputui.request.keys import BY_NAME, Kind

FIELD = draft.FURTHER
NAMES = tuple(name for name in BY_NAME if (name in RARER and name != "publish") or name == "label_file")
"""What of a draft is in the text."""


def folded(whole: Draft) -> str:
    """Return the text of a draft."""
    return " ".join(word for name in NAMES if (text := draft.text_of(whole, name)) for word in _words(name, text))


def _words(name: str, text: str) -> Iterator[str]:
    key = BY_NAME[name]
    if key.kind is Kind.FLAG:
        yield key.option
    elif key.is_several:
        for word in draft.words(text, name):
            yield f"{key.option} {shlex.quote(word)}"
    else:
        yield f"{key.option} {shlex.quote(text)}"


def unfolded(text: str) -> dict[str, str]:
    """Return the draft of a text; raises InputError, whose `where` is the field."""
    try:
        given, found = line.parsed(list(draft.words(text, FIELD)))
        _check(given, found.taken)
    except InputError as error:
        option = f"{error.where}: " if (error.where or "").startswith("-") else ""
        raise InputError(f"{option}{error.what}", where=FIELD, hint=error.hint) from error
    return {name: line.text_of(BY_NAME[name], given[name]) for name in NAMES if given[name] not in (None, (), False)}


def _check(given: Mapping[str, object], taken: list[str]) -> None:
    if taken:
        hint = docker_only.TAKEN.get(taken[0]) or docker_only.REFUSED.get(taken[0]) or "leave it out"
        raise InputError("is no option of a job", where=taken[0], hint=hint)
    if words := given["arguments"]:
        raise InputError(f"{str(words)[:60]} are no options", where=FIELD, hint="write --cap-add SYS_PTRACE")
    for name, value in given.items():
        if name in BY_NAME and name not in NAMES and value not in (None, (), False):
            raise InputError("has a field of its own", where=BY_NAME[name].option)


def of_form(fields: Draft) -> dict[str, str]:
    """Return the draft of a form's fields; a text that cannot be read stays as it is, under the field's name."""
    kept = {name: text for name, text in fields.items() if name != FIELD}
    text = draft.text_of(fields, FIELD)
    try:
        return {**kept, **unfolded(text)} if text else kept
    except InputError:
        return dict(fields)
