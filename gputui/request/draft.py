"""A job as entered in a form: a text per option, by its name in a job file.

Texts are the values of options on a command line. Repeatable options are words quoted as in a shell, a flag is `yes`,
and blank means unset. Without an image, the command is a process of the host.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from gputui.domain.errors import InputError
from gputui.domain.job_spec import DEFAULT_BACKOFF, NORMAL_PRIORITY, ContainerOptions, JobSpec, LimitWarning, Submission
from gputui.domain.text import SECRET_NAME
from gputui.request import docker_values, job_values, submitter
from gputui.request.inherited import is_taken_over
from gputui.request.job_options import BY_NAME, DOCKER_KEYS, RARER, JobOption, OptionKind
from gputui.request.job_options import YES as YES
from gputui.request.job_values import duration_text, size_text
from gputui.request.submitter import Submitter

Draft: TypeAlias = Mapping[str, str]
MASK = "••••••"
"""Placeholder for the value of a variable that must not be shown."""
FURTHER = "further"
"""Name of the form's text with docker's rarer options; a draft contains it only if it cannot be parsed."""
NAMES = ("image", "command", *BY_NAME)
"""Names of all texts that a draft may have."""
FURTHER_NAMES = tuple(name for name in BY_NAME if (name in RARER and name != "publish") or name == "label_file")
"""Names of the options in the text `further`."""


def asked(draft: Draft, by: Submitter) -> Submission:
    """Return the submission; raises InputError, whose `where` is the name of the invalid text."""
    check_further(draft)
    if not text_of(draft, "image") and not text_of(draft, "command"):
        raise InputError("name an image, or a command to run on this host", where="image")
    values = {name: value_of(draft, name) for name in BY_NAME if text_of(draft, name)}
    image = text_of(draft, "image") or None
    return submitter.submission(values, image, split_words(draft.get("command", ""), "command"), by, lambda name: name)


def faults(draft: Draft, by: Submitter) -> dict[str, InputError]:
    """Return the errors by name, as far as they can be found at once."""
    found: dict[str, InputError] = {}
    try:
        check_further(draft)
    except InputError as error:
        found[FURTHER] = error
    for name in NAMES:
        try:
            value = value_of(draft, name)
            if name == "begin" and value is not None:
                job_values.begin(str(value), name, by.now)
        except InputError as error:
            found[name] = error
    if not found:
        try:
            asked(draft, by)
        except InputError as error:
            found[error.where or "image"] = error
    return found


def check_further(draft: Draft) -> None:
    """Raise InputError for unparseable options of docker run that a form holds as one text."""
    if text := text_of(draft, FURTHER):
        read_further(text)
        raise InputError("is not taken apart", where=FURTHER)


def read_further(text: str) -> dict[str, str]:
    """Return the draft of a text; raises InputError, whose `where` is the field."""
    from gputui.request import pasted_line  # few drafts contain it

    try:
        given, found = pasted_line.parsed(list(split_words(text, FURTHER)))
        if found.taken:
            hint = submitter.TAKEN.get(found.taken[0]) or submitter.REFUSED.get(found.taken[0]) or "leave it out"
            raise InputError("is not an option of a job", where=found.taken[0], hint=hint)
        if words := given["arguments"]:
            raise InputError(f"{str(words)[:60]} are not options", where=FURTHER, hint="write --cap-add SYS_PTRACE")
        for name, value in given.items():
            if name in BY_NAME and name not in FURTHER_NAMES and value not in (None, (), False):
                raise InputError("has a field of its own", where=BY_NAME[name].option)
    except InputError as error:
        option = f"{error.where}: " if (error.where or "").startswith("-") else ""
        raise InputError(f"{option}{error.what}", where=FURTHER, hint=error.hint) from error
    return {
        name: pasted_line.option_text(BY_NAME[name], given[name])
        for name in FURTHER_NAMES
        if given[name] not in (None, (), False)
    }


def further_text(whole: Draft) -> str:
    """Return the rarer options of a draft as one text, as on a command line: a form has a single field for them."""
    return " ".join(
        word for name in FURTHER_NAMES if (text := text_of(whole, name)) for word in _further_words(name, text)
    )


def _further_words(name: str, text: str) -> Iterator[str]:
    key = BY_NAME[name]
    if key.kind is OptionKind.FLAG:
        yield key.option
    elif key.kind in {OptionKind.MANY, OptionKind.PAIRS}:
        for word in split_words(text, name):
            yield f"{key.option} {shlex.quote(word)}"
    else:
        yield f"{key.option} {shlex.quote(text)}"


def of_form(fields: Draft) -> dict[str, str]:
    """Return the draft of a form's fields; an unparseable text is kept under the field's name."""
    kept = {name: text for name, text in fields.items() if name != FURTHER}
    text = text_of(fields, FURTHER)
    try:
        return {**kept, **read_further(text)} if text else kept
    except InputError:
        return dict(fields)


def value_of(draft: Draft, name: str) -> object:
    """Return the value of one text; None if blank."""
    text = text_of(draft, name)
    if not text:
        return None
    if name == "image":
        if re.search(r"\s", text):
            hint = "write the command into the field below"
            raise InputError("an image name has no blanks", where="image", hint=hint)
        return docker_values.image(text, "image")
    if name == "command":
        return split_words(text, name)
    key = BY_NAME[name]
    if key.kind is OptionKind.FLAG:
        if text != YES:
            raise InputError("must be yes or blank", where=name)
        return True
    if key.kind is OptionKind.ONE:
        return key.read(text, name)
    return tuple(key.read(word, name) for word in _unmasked(split_words(text, name), key))


def text_of(draft: Draft, name: str) -> str:
    """Return one text; empty if blank."""
    return draft.get(name, "").strip()


def split_words(text: str, where: str) -> tuple[str, ...]:
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError("a quotation is not closed", where=where) from error


def filled_texts(draft: Draft) -> dict[str, str]:
    """Return the texts that are not blank, in the order of the names."""
    return {name: text for name in (*NAMES, FURTHER) if (text := text_of(draft, name))}


def _unmasked(listed: tuple[str, ...], key: JobOption) -> Iterator[str]:
    for word in listed:
        if word.partition("=")[2] == MASK:
            hint = "or leave it out"
            raise InputError(f"the value of {word.partition('=')[0]} is not known: type it", where=key.name, hint=hint)
        yield word


# the environment, whose values are nobody else's business


def env_names(draft: Draft) -> tuple[str, ...]:
    return tuple(word.partition("=")[0] for word in _env_words(draft))


def masked(draft: Draft) -> dict[str, str]:
    """Return the draft without values of its environment."""
    shown = [f"{name}={MASK}" if equals else name for name, equals, _ in _env_pairs(draft)]
    return {**draft, "env": shlex.join(shown)} if shown else dict(draft)


def revealed(draft: Draft, hidden: Mapping[str, str]) -> dict[str, str]:
    """Return the draft with the masked values filled in again, if known."""
    if MASK not in draft.get("env", ""):
        return dict(draft)
    shown = [
        f"{name}={hidden[name]}" if value == MASK and name in hidden else f"{name}{equals}{value}"
        for name, equals, value in _env_pairs(draft)
    ]
    return {**draft, "env": shlex.join(shown)}


def draft_without_secrets(draft: Draft) -> dict[str, str]:
    """Return the draft for a file: variables that look like secrets are taken from the environment instead."""
    shown = [
        name if value == MASK or SECRET_NAME.search(name) else f"{name}{equals}{value}"
        for name, equals, value in _env_pairs(draft)
    ]
    return {**draft, "env": shlex.join(shown)} if shown else dict(draft)


def _env_pairs(draft: Draft) -> list[tuple[str, str, str]]:
    return [word.partition("=") for word in _env_words(draft)]


def _env_words(draft: Draft) -> tuple[str, ...]:
    try:
        return split_words(draft.get("env", ""), "env")
    except InputError:
        return ()


def draft_of_spec(spec: JobSpec, now: datetime) -> dict[str, str]:
    """Return the draft of a spec; a begin time in the past is left out.

    A host process finds its programs as its submitter does, so those variables are the next submitter's.
    """
    begin = spec.begin_at if spec.begin_at and spec.begin_at > now else None
    texts = {
        "image": spec.image or "",
        "command": shlex.join(spec.command),
        "gpus": job_values.gpus_text(spec.gpus),
        "gpu_memory": size_text(spec.gpus.memory),
        "gpu_model": spec.gpus.model or "",
        "share": YES if spec.gpus.share else "",
        "gpu_memory_step": size_text(spec.gpu_memory_step),
        "priority": "" if spec.priority == NORMAL_PRIORITY else str(spec.priority),
        "nice": str(spec.nice) if spec.nice else "",
        "time_limit": duration_text(spec.time_limit),
        "signal": _warning(spec.warning),
        "idle_timeout": duration_text(spec.idle_timeout),
        "retries": str(spec.retries) if spec.retries else "",
        "backoff": "" if spec.backoff == DEFAULT_BACKOFF else duration_text(spec.backoff),
        "retry_on": ",".join(spec.retry_on),
        "after": ",".join(map(str, spec.after)),
        "after_any": ",".join(map(str, spec.after_any)),
        "begin": begin.isoformat() if begin else "",
        "sweep": _pairs(spec.sweep),
        "tenant": spec.tenant,
        "preemptible": YES if spec.preemptible else "",
        "name": spec.name,
        "comment": spec.comment,
        **_container(spec.options, is_host=spec.is_host),
    }
    return {name: text for name, text in texts.items() if text}


def _container(options: ContainerOptions, *, is_host: bool) -> dict[str, str]:
    env = [(name, value) for name, value in options.env if not (is_host and is_taken_over(name))]
    texts = {key.name: key.written(getattr(options, key.field)) for key in DOCKER_KEYS if key.field}
    return {**texts, "env": _pairs(env), "label": _pairs(options.labels)}


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return shlex.join(f"{name}={value}" for name, value in pairs)


def env_values(spec: JobSpec) -> Mapping[str, str]:
    """Return the values of its environment, by name."""
    return dict(spec.options.env)


def _warning(warning: LimitWarning | None) -> str:
    if warning is None:
        return ""
    try:
        name = signal.Signals(warning.number).name.removeprefix("SIG")
    except ValueError:
        name = str(warning.number)
    return f"{name}@{duration_text(warning.before)}"
