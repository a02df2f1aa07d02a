"""Rarer options of `docker run` as one text, as on a command line: a form has a single field for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gputui.domain.errors import InputError
from gputui.request import draft
from gputui.request.draft import Draft
from gputui.request.job_options import BY_NAME, OptionKind

FIELD = draft.FURTHER
NAMES = draft.FURTHER_NAMES


def folded(whole: Draft) -> str:
    return " ".join(word for name in NAMES if (text := draft.text_of(whole, name)) for word in _words(name, text))


def _words(name: str, text: str) -> Iterator[str]:
    key = BY_NAME[name]
    if key.kind is OptionKind.FLAG:
        yield key.option
    elif key.is_several:
        for word in draft.split_words(text, name):
            yield f"{key.option} {shlex.quote(word)}"
    else:
        yield f"{key.option} {shlex.quote(text)}"


def of_form(fields: Draft) -> dict[str, str]:
    """Return the draft of a form's fields; an unparseable text is kept under the field's name."""
    kept = {name: text for name, text in fields.items() if name != FIELD}
    text = draft.text_of(fields, FIELD)
    try:
        return {**kept, **draft.read_further(text)} if text else kept
    except InputError:
        return dict(fields)
