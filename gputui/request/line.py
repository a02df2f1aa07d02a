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
from gputui.request import docker_only, shell
from gputui.request.draft import YES
from gputui.request.keys import BY_NAME, Key, Kind
from gputui.request.options import unsigned, with_known

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
    given = _parsed(words[verb + 1 : end], dropped)
    arguments, host = given.pop("arguments"), given.pop("host")
    if not arguments:
        raise InputError("names no image", where="the line")
    image, command = ("", arguments) if host else (arguments[0], arguments[1:])
    draft = {"image": image, "command": shlex.join(command), "gpus": "0"}
    draft |= {name: _text(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)}
    return Line(draft, tuple(dropped))


def _parsed(words: list[str], dropped: list[tuple[str, str]]) -> dict[str, Any]:
    try:
        return dict(_command().make_context("submit", words, obj=dropped).params)
    except click.NoSuchOption as error:
        raise InputError(f"{error.option_name} is no option of docker run or of submit", where="the line") from error
    except click.UsageError as error:
        raise InputError(error.format_message().rstrip("."), where="the line") from error


@lru_cache(maxsize=1)
def _command() -> click.Command:
    """The command `submit`, which takes all of docker's options, and notes those that a job cannot have."""

    def nothing(**given: object) -> None:
        del given

    function: Callable[..., Any] = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(nothing)
    function = click.option("--host", is_flag=True)(function)
    for number, option in enumerate((*docker_only.HINTS, *docker_only.FURTHER)):
        function = _dropping(option, number)(function)
    for option in ("--json", "--dry-run"):
        function = click.option(option, is_flag=True, expose_value=False)(function)
    made = click.command("submit", context_settings={"allow_interspersed_args": False}, add_help_option=False)
    return made(with_known(function))


def _dropping(option: str, number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    is_flag = option in docker_only.WITHOUT_VALUE

    def note(context: click.Context, parameter: click.Parameter, value: object) -> None:
        del parameter
        if value not in (None, (), False):
            context.obj.append((option, docker_only.hint(option) or "a job cannot have it"))

    settings: dict[str, Any] = {"is_flag": True} if is_flag else {"multiple": True}
    return click.option(option, f"dropped_{number}", expose_value=False, callback=note, **settings)


def _text(key: Key, value: Any) -> str:
    if key.kind is Kind.FLAG:
        return YES
    if key.kind is Kind.ONE:
        text = str(unsigned(key, value)).strip()
        return text.strip("\"'") if key.name == "gpus" else text
    return shlex.join(unsigned(key, word) for word in value)
