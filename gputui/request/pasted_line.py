"""A whole `docker run …` or `gputui submit …` line as a draft, parsed by the options of `submit`."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from gputui.domain.errors import InputError
from gputui.request import docker_values, submitter
from gputui.request.job_options import BY_NAME, YES, JobOption, OptionKind
from gputui.request.submitter import SubmitCommand, Tidied, raised, tidied, unsigned, with_options

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
    """Return whether the text looks like the beginning of such a line."""
    return len(text) < 1024**2 and bool(_LINE.match(text))


def read_line(text: str, directory: Path, environ: Mapping[str, str]) -> PastedLine:
    """Return the draft of the line; raises InputError if it is not such a line."""
    words = split_words(text, directory, environ)
    verb = next((place for place, word in enumerate(words) if word in {"run", "submit"}), None)
    if verb is None:
        raise InputError("is not a docker run line", where="the line")
    end = next((place for place, word in enumerate(words) if word in ENDS), len(words))
    dropped = [(word, _NOTHING) for word in words[end : end + 1]]
    given, found = parsed(words[verb + 1 : end])
    dropped += [(option, why) for option in dict.fromkeys(found.taken) if (why := _why(option))]
    arguments, host = given.pop("arguments"), given.pop("host")
    if not arguments:
        raise InputError("names no image", where="the line")
    image, command = ("", arguments) if host else (arguments[0], arguments[1:])
    draft = {"image": image, "command": shlex.join(command), "gpus": "0"}
    draft |= {
        name: option_text(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)
    }
    return PastedLine(draft, tuple(dropped))


def _why(option: str) -> str:
    """Return why a docker option is left out, or what to write instead; empty for options that jobs imply anyway."""
    if option in submitter.ANYHOW:
        return ""
    return submitter.TAKEN.get(option) or submitter.REFUSED.get(option, "")


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


def split_words(text: str, directory: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the words of the line; directory and environment replace what a shell would expand."""
    known = {
        "$(pwd)": str(directory),
        "`pwd`": str(directory),
        "PWD": str(directory),
        "$(id -u)": str(os.getuid()),
        "$(id -g)": str(os.getgid()),
        "HOME": environ.get("HOME", "/"),
        "USER": environ.get("USER") or _user(),
        "$(whoami)": environ.get("USER") or _user(),
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without an account, as in many containers
        return str(os.getuid())
