"""A job as somebody writes it into a form: a text for each thing that can be asked for, by its name in a job file.

Texts are what follows the option on a command line. Several of a kind are words quoted as in a shell, a flag is
`yes`, and what is blank is not asked for. Where there is no image, the command is a process of the host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from gputui.domain.errors import InputError
from gputui.domain.job import Submission
from gputui.request import docker_specs, specs, submitter
from gputui.request.key import YES as YES
from gputui.request.keys import BY_NAME, Key, Kind
from gputui.request.submitter import Submitter

Draft: TypeAlias = Mapping[str, str]
MASK = "••••••"
"""What stands for the value of a variable that is not to be shown."""
FURTHER = "further"
"""Name of a form's text of docker's rarer options, in a draft only while it cannot be read."""
NAMES = ("image", "command", *BY_NAME)
"""All that a draft may have."""
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|AUTH|COOKIE|API_?KEY|ACCESS_?KEY|_KEY$", re.IGNORECASE
)


def asked(draft: Draft, by: Submitter) -> Submission:
    """The submission meant; raises InputError, whose `where` is the name of what is wrong."""
    check_further(draft)
    if not text_of(draft, "image") and not text_of(draft, "command"):
        raise InputError("name an image, or a command to run on this host", where="image")
    values = {name: value_of(draft, name) for name in BY_NAME if text_of(draft, name)}
    image = text_of(draft, "image") or None
    return submitter.submission(values, image, words(draft.get("command", ""), "command"), by, lambda name: name)


def faults(draft: Draft, by: Submitter) -> dict[str, InputError]:
    """What is wrong, by name, as far as it can be told at once."""
    found: dict[str, InputError] = {}
    try:
        check_further(draft)
    except InputError as error:
        found[FURTHER] = error
    for name in NAMES:
        try:
            _check(draft, name, by)
        except InputError as error:
            found[name] = error
    if not found:
        try:
            asked(draft, by)
        except InputError as error:
            found[error.where or "image"] = error
    return found


def check_further(draft: Draft) -> None:
    """Raise InputError for options of docker run that a form holds as one text, because they cannot be read."""
    if text := text_of(draft, FURTHER):
        from gputui.request import further  # which needs this module

        further.unfolded(text)
        raise InputError("is not taken apart", where=FURTHER)


def _check(draft: Draft, name: str, by: Submitter) -> None:
    value = value_of(draft, name)
    if name == "begin" and value is not None:
        specs.begin(str(value), name, by.now)


def value_of(draft: Draft, name: str) -> object:
    """What one of its texts means; None where it is blank."""
    text = text_of(draft, name)
    if not text:
        return None
    if name == "image":
        return _image(text)
    if name == "command":
        return words(text, name)
    key = BY_NAME[name]
    if key.kind is Kind.FLAG:
        return _flag(text, name)
    if key.kind is Kind.ONE:
        return key.read(text, name)
    return tuple(key.read(word, name) for word in _unmasked(words(text, name), key))


def text_of(draft: Draft, name: str) -> str:
    """One of its texts; empty where it is blank."""
    return draft.get(name, "").strip()


def words(text: str, where: str) -> tuple[str, ...]:
    """The words of a text, quoted as in a shell."""
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError("a quotation is not closed", where=where) from error


def typed(draft: Draft) -> dict[str, str]:
    """What of it is not blank, in the order of the names."""
    return {name: text for name in (*NAMES, FURTHER) if (text := text_of(draft, name))}


def _image(text: str) -> str:
    if re.search(r"\s", text):
        raise InputError("an image is one word", where="image", hint="the command goes into the field below")
    return docker_specs.image(text, "image")


def _flag(text: str, where: str) -> bool:
    if text != YES:
        raise InputError("is yes, or blank", where=where)
    return True


def _unmasked(listed: tuple[str, ...], key: Key) -> Iterator[str]:
    for word in listed:
        if word.partition("=")[2] == MASK:
            hint = "or leave it out"
            raise InputError(f"the value of {word.partition('=')[0]} is not known: type it", where=key.name, hint=hint)
        yield word


# the environment, whose values are nobody else's business


def env_names(draft: Draft) -> tuple[str, ...]:
    """The variables that it sets."""
    return tuple(word.partition("=")[0] for word in _env_words(draft))


def masked(draft: Draft) -> dict[str, str]:
    """The draft with no value of its environment."""
    shown = [f"{name}={MASK}" if equals else name for name, equals, _ in _env_pairs(draft)]
    return {**draft, "env": shlex.join(shown)} if shown else dict(draft)


def revealed(draft: Draft, hidden: Mapping[str, str]) -> dict[str, str]:
    """The draft with the values that were masked, as far as they are known."""
    if MASK not in draft.get("env", ""):
        return dict(draft)
    shown = [
        f"{name}={hidden[name]}" if value == MASK and name in hidden else f"{name}{equals}{value}"
        for name, equals, value in _env_pairs(draft)
    ]
    return {**draft, "env": shlex.join(shown)}


def without_secrets(draft: Draft) -> dict[str, str]:
    """The draft to be kept in a file: variables that look like secrets are taken from the environment there."""
    shown = [
        name if value == MASK or _SECRET.search(name) else f"{name}{equals}{value}"
        for name, equals, value in _env_pairs(draft)
    ]
    return {**draft, "env": shlex.join(shown)} if shown else dict(draft)


def _env_pairs(draft: Draft) -> list[tuple[str, str, str]]:
    return [word.partition("=") for word in _env_words(draft)]


def _env_words(draft: Draft) -> tuple[str, ...]:
    try:
        return words(draft.get("env", ""), "env")
    except InputError:
        return ()
