"""A job as entered in a form: a text per option, by its name in a job file.

Texts are the values of options on a command line. Repeatable options are words quoted as in a shell, a flag is `yes`,
and blank means unset. Without an image, the command is a process of the host.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import click
from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.domain.job_spec import DEFAULT_BACKOFF, NORMAL_PRIORITY, JobSpec, Submission
from gputui.domain.text import SECRET_NAME
from gputui.request import docker_values, job_values, submitter
from gputui.request.caller import is_taken_over
from gputui.request.job_options import BY_NAME, DOCKER_KEYS, RARER, JobOption, OptionKind
from gputui.request.job_options import YES as YES
from gputui.request.job_values import duration_text, size_text
from gputui.request.submitter import SubmitCommand, Submitter, Tidied, raised, tidied, unsigned, with_options

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
    try:
        given, found = parsed(list(split_words(text, FURTHER)))
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
        name: option_text(BY_NAME[name], given[name]) for name in FURTHER_NAMES if given[name] not in (None, (), False)
    }


def further_text(draft: Draft) -> str:
    """Return the rarer options of a draft as one text, as on a command line: a form has a single field for them."""
    found = []
    for name in FURTHER_NAMES:
        key, text = BY_NAME[name], text_of(draft, name)
        if text and key.kind is OptionKind.FLAG:
            found.append(key.option)
        elif text:
            words = split_words(text, name) if key.kind in {OptionKind.MANY, OptionKind.PAIRS} else (text,)
            found += [f"{key.option} {shlex.quote(word)}" for word in words]
    return " ".join(found)


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
    values = []
    for word in split_words(text, name):
        variable, _, value = word.partition("=")
        if value == MASK:
            raise InputError(f"the value of {variable} is not known: type it", where=name, hint="or leave it out")
        values.append(key.read(word, name))
    return tuple(values)


def text_of(draft: Draft, name: str) -> str:
    return draft.get(name, "").strip()


def split_words(text: str, where: str) -> tuple[str, ...]:
    if "\0" in text:
        raise InputError("has a NUL character", where=where)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError("a quotation is not closed", where=where) from error


def filled_texts(draft: Draft) -> dict[str, str]:
    return {name: text for name in (*NAMES, FURTHER) if (text := text_of(draft, name))}


# the environment, whose values are nobody else's business


def env_names(draft: Draft) -> tuple[str, ...]:
    return tuple(name for name, _, _ in _env_pairs(draft))


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
        name if value == MASK or re.search(SECRET_NAME, name) else f"{name}{equals}{value}"
        for name, equals, value in _env_pairs(draft)
    ]
    return {**draft, "env": shlex.join(shown)} if shown else dict(draft)


def _env_pairs(draft: Draft) -> list[tuple[str, str, str]]:
    try:
        return [word.partition("=") for word in split_words(draft.get("env", ""), "env")]
    except InputError:
        return []


def draft_of_spec(spec: JobSpec, now: datetime) -> dict[str, str]:
    """Return the draft of a spec; a begin time in the past is left out.

    A host process finds its programs as its submitter does, so those variables are the next submitter's.
    """
    begin = spec.begin_at if spec.begin_at and spec.begin_at > now else None
    warning = ""
    if spec.warning is not None:
        number = spec.warning.number
        known = number in signal.Signals.__members__.values()
        name = signal.Signals(number).name.removeprefix("SIG") if known else str(number)
        warning = f"{name}@{duration_text(spec.warning.before)}"
    env = [(name, value) for name, value in spec.options.env if not (spec.is_host and is_taken_over(name))]
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
        "signal": warning,
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
        **{key.name: key.written(getattr(spec.options, key.field)) for key in DOCKER_KEYS if key.field},
        "env": _pairs(env),
        "label": _pairs(spec.options.labels),
    }
    return {name: text for name, text in texts.items() if text}


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return shlex.join(f"{name}={value}" for name, value in pairs)


_LINE = re.compile(
    r"\s*(?:[$#>]\s+)?(?:sudo\s+(?:-\S+\s+)*)?(?:\w+=\S*\s+)*(?:\S*/)?"
    r"(?:(?:nvidia-)?docker|podman|gputui)\s(?:[^'\"]*?\s)??(?:run|submit)(?:\s|\\|$)",
    re.ASCII,
)
_NOTHING = "not needed in a form"


class PastedLine(Struct, frozen=True):
    draft: Mapping[str, str]
    dropped: tuple[tuple[str, str], ...] = ()
    """Options that a job cannot have, each with its replacement."""


def is_line(text: str) -> bool:
    return len(text) < 1024**2 and bool(_LINE.match(text))


def read_line(text: str, directory: Path, environ: Mapping[str, str]) -> PastedLine:
    """Return the draft of the line; raises InputError if it is not such a line."""
    words = line_words(text, directory, environ)
    verb = next((place for place, word in enumerate(words) if word in {"run", "submit"}), None)
    if verb is None:
        raise InputError("is not a docker run line", where="the line")
    end = next((place for place, word in enumerate(words) if word in ENDS), len(words))
    dropped = [(word, _NOTHING) for word in words[end : end + 1]]
    given, found = parsed(words[verb + 1 : end])
    for option in dict.fromkeys(found.taken):
        why = submitter.TAKEN.get(option) or submitter.REFUSED.get(option, "")  # or what to write instead
        if why and option not in submitter.ANYHOW:
            dropped.append((option, why))
    arguments, host = given.pop("arguments"), given.pop("host")
    if not arguments:
        raise InputError("names no image", where="the line")
    image, command = ("", arguments) if host else (arguments[0], arguments[1:])
    draft = {"image": image, "command": shlex.join(command), "gpus": "0"}
    draft |= {
        name: option_text(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)
    }
    return PastedLine(draft, tuple(dropped))


def parsed(words: list[str]) -> tuple[dict[str, Any], Tidied]:
    """Return the values of the options, and docker's ineffective ones; raises all errors at once."""
    try:
        context = _command().make_context("submit", words)
    except click.UsageError as error:
        raise InputError(error.format_message().rstrip("."), where="the line") from error
    found = tidied(context)
    refused = [fault.where or "" for fault in found.faults if (fault.where or "") in submitter.REFUSED]
    raised(fault for fault in found.faults if (fault.where or "") not in refused)
    found.taken += refused
    return dict(context.params), found


@lru_cache(maxsize=1)
def _command() -> click.Command:
    """Return the command `submit` as a parser of its options; it is never invoked."""
    function: Callable[..., Any] = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(lambda: None)
    function = click.option("--host", is_flag=True)(function)
    for option in ("--json", "--dry-run"):
        function = click.option(option, is_flag=True, expose_value=False)(function)
    settings = {"allow_interspersed_args": False}
    made = click.command("submit", cls=SubmitCommand, context_settings=settings, add_help_option=False)
    return made(with_options(function))


def option_text(key: JobOption, value: Any) -> str:
    if key.kind is OptionKind.FLAG:
        return YES
    if key.kind is OptionKind.ONE:
        text = str(unsigned(key, value)).strip()
        if key.name == "entrypoint":
            return docker_values.entrypoint_text(text)
        # one field needs no quotes, and a form shows it
        return text.strip("\"'") if key.name == "gpus" and text.count('"') <= 2 else text
    return shlex.join(unsigned(key, word) for word in value)


_QUOTED = r"'[^']*'"
_PLACES = re.compile(
    rf"({_QUOTED})|\$\(pwd\)|`pwd`|\$\(id -u\)|\$\(id -g\)|\$\(whoami\)|\$\{{(?P<braced>PWD|HOME|USER)\}}"
    r"|\$(?P<bare>PWD|HOME|USER)\b|(?P<tilde>(?<=[\s=:])~(?=/))"
)
_BREAKS = re.compile(rf"({_QUOTED}|\"(?:\\.|[^\"\\])*\"|\\.)|\n+", re.DOTALL)
"""Line ends outside of quotations: another command begins there."""
ENDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})
"""Words that end a command."""


def join_lines(text: str) -> str:
    """Join lines continued by backslashes; terminals end pasted lines with a carriage return only."""
    return re.sub(r"\\[ \t]*\n", " ", re.sub(r"\r\n?", "\n", text.strip()))


def line_words(text: str, directory: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the words of the line; directory and environment replace what a shell would expand."""
    user = environ.get("USER", "")
    if not user:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # an id without an account, as in many containers
            user = str(os.getuid())
    known = {
        "$(pwd)": str(directory),
        "`pwd`": str(directory),
        "PWD": str(directory),
        "$(id -u)": str(os.getuid()),
        "$(id -g)": str(os.getgid()),
        "HOME": environ.get("HOME", "/"),
        "USER": user,
        "$(whoami)": user,
    }

    def filled(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = match["braced"] or match["bare"] or ("HOME" if match["tilde"] else match[0])
        return known[name]

    try:
        return shlex.split(_PLACES.sub(filled, _BREAKS.sub(lambda found: found[1] or " ; ", join_lines(text))))
    except ValueError as error:
        raise InputError("a quotation is not closed", where="the line") from error
