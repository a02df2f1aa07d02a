"""A whole `docker run …` or `gputui submit …` line as a draft, read by the options of `submit` themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from gputui.domain.errors import InputError
from gputui.request import docker_only, docker_specs, shell
from gputui.request.command_line import Tidied, raised
from gputui.request.key import YES
from gputui.request.keys import BY_NAME, Key, Kind
from gputui.request.options import SubmitCommand, tidied, unsigned, with_options

_LINE = re.compile(
    r"\s*(?:[$#>]\s+)?(?:sudo\s+(?:-\S+\s+)*)?(?:\w+=\S*\s+)*(?:\S*/)?"
    r"(?:(?:nvidia-)?docker|podman|gputui)\s(?:[^'\"]*?\s)??(?:run|submit)(?:\s|\\|$)",
    re.ASCII,
)
_NOTHING = "a form has nothing to do with it"


@dataclass(frozen=True)
class Line:
    """What a line asks for."""

    draft: Mapping[str, str]
    dropped: tuple[tuple[str, str], ...] = ()
    """What of it a job cannot have, each with what to do instead."""


def is_line(text: str) -> bool:
    """Whether it begins as such a line does."""
    return len(text) < 1024**2 and bool(_LINE.match(text))


def read(text: str, directory: Path, environ: Mapping[str, str]) -> Line:
    """The draft that the line asks for; raises InputError where it is none."""
    words = shell.split(text, directory, environ)
    verb = next((place for place, word in enumerate(words) if word in {"run", "submit"}), None)
    if verb is None:
        raise InputError("is no docker run line", where="the line")
    end = next((place for place, word in enumerate(words) if word in shell.ENDS), len(words))
    dropped = [(word, _NOTHING) for word in words[end : end + 1]]
    given, found = parsed(words[verb + 1 : end])
    dropped += [(option, why) for option in dict.fromkeys(found.taken) if (why := _why(option))]
    arguments, host = given.pop("arguments"), given.pop("host")
    if not arguments:
        raise InputError("names no image", where="the line")
    image, command = ("", arguments) if host else (arguments[0], arguments[1:])
    draft = {"image": image, "command": shlex.join(command), "gpus": "0"}
    draft |= {name: text_of(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)}
    return Line(draft, tuple(dropped))


def _why(option: str) -> str:
    """Return why an option of docker's is left out, or what to write instead; empty for what jobs do anyhow."""
    if option in docker_only.ANYHOW:
        return ""
    return docker_only.TAKEN.get(option) or docker_only.REFUSED.get(option, "")


def parsed(words: list[str]) -> tuple[dict[str, Any], Tidied]:
    """Return the values of the options, and what of docker's changes nothing; raises what is wrong, all at once."""
    try:
        context = _command().make_context("submit", words)
    except click.UsageError as error:
        raise InputError(error.format_message().rstrip("."), where="the line") from error
    found = tidied(context)
    refused = [fault.where or "" for fault in found.faults if (fault.where or "") in docker_only.REFUSED]
    raised(fault for fault in found.faults if (fault.where or "") not in refused)
    found.taken += refused
    return dict(context.params), found


@lru_cache(maxsize=1)
def _command() -> click.Command:
    """The command `submit`, which does nothing."""

    def nothing(**given: object) -> None:
        del given

    function: Callable[..., Any] = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(nothing)
    function = click.option("--host", is_flag=True)(function)
    for option in ("--json", "--dry-run"):
        function = click.option(option, is_flag=True, expose_value=False)(function)
    settings = {"allow_interspersed_args": False}
    made = click.command("submit", cls=SubmitCommand, context_settings=settings, add_help_option=False)
    return made(with_options(function))


def text_of(key: Key, value: Any) -> str:
    if key.kind is Kind.FLAG:
        return YES
    if key.kind is Kind.ONE:
        text = str(unsigned(key, value)).strip()
        if key.name == "entrypoint":
            return docker_specs.entrypoint_text(text)
        # one field needs no quotes, and a form shows it
        return text.strip("\"'") if key.name == "gpus" and text.count('"') <= 2 else text
    return shlex.join(unsigned(key, word) for word in value)
