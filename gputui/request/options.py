"""The options of `gputui submit`, built from the table of options, and the resulting submission."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click

from gputui.domain.errors import InputError
from gputui.domain.job_spec import Submission
from gputui.request import submitter
from gputui.request.command_line import Tidied, raised, tidy
from gputui.request.job_options import BY_NAME, KEYS, JobOption, OptionKind
from gputui.request.submitter import Submitter

_TIDIED = "gputui.request.tidied"


class SubmitCommand(click.Command):
    """Parses options as docker run does, and reports all errors together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; options end at the image, or at `--`."""
        options = {
            name: not parameter.is_flag
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in parameter.opts
        }
        found = ctx.meta[_TIDIED] = tidy(args, options)
        if found.faults and _only_names_the_host(found):
            raise found.faults[0]
        return super().parse_args(ctx, found.words)


def _only_names_the_host(found: Tidied) -> bool:
    """Return whether the line is only `-h`, which probably asks for the help."""
    return not found.words and [fault.where for fault in found.faults] == ["-h"]


def tidied(ctx: click.Context) -> Tidied:
    """Return the findings from parsing this command's arguments."""
    found = ctx.meta.get(_TIDIED)
    return found if isinstance(found, Tidied) else Tidied()


def with_options(
    function: Callable[..., Any], completers: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Callable[..., Any]:
    """Return the function with an option for every key; `completers` complete their values in a shell, by key."""
    for key in reversed(KEYS):
        function = _option(key, completers.get(key.name))(function)
    return function


def _option(key: JobOption, completer: Callable[..., Any] | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (*key.short, key.option, key.name)
    if key.kind is OptionKind.FLAG:
        return click.option(*names, is_flag=True, help=key.help)
    several = key.is_several
    return click.option(*names, multiple=several, metavar=key.metavar, help=key.help, shell_complete=completer)


def submission_of(
    given: dict[str, Any], arguments: tuple[str, ...], host: bool, by: Submitter, found: Tidied | None = None
) -> Submission:
    """Return the submission for options and arguments; raises InputError, or InputErrors with all errors."""
    faults = list(found.faults) if found else []
    image, rest = (None, arguments) if host else (arguments[0] if arguments else "", arguments[1:])
    if image == "" and not faults:
        faults.append(InputError("is missing", where="IMAGE", hint="gputui submit [OPTIONS] IMAGE [COMMAND...]"))
    values: dict[str, object] = {}
    for name, value in given.items():
        if value not in (None, (), False):
            try:
                values[name] = _read(BY_NAME[name], value)
            except InputError as error:
                faults.append(error)
    raised(faults)
    return submitter.submission(values, image, rest, by, _option_name)


def _read(key: JobOption, value: Any) -> object:
    if key.kind is OptionKind.FLAG:
        return value
    if key.kind is OptionKind.ONE:
        return key.read(unsigned(key, value), key.option)
    return tuple(key.read(unsigned(key, text), key.option) for text in value)


def unsigned(key: JobOption, text: str) -> str:
    """Return the value of `-m=16g` or `-e=A=1` without its first sign, as docker does; no value begins with one."""
    has_letter = any(len(name) == 2 for name in key.short)
    if not has_letter or (key.kind is OptionKind.PAIRS and "=" not in text[1:]):
        return text
    return text.removeprefix("=")


def _option_name(key: str) -> str:
    return BY_NAME[key].option if key in BY_NAME else key.upper()
