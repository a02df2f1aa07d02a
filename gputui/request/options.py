"""The options of `gputui submit`, made of the one table, and the submission that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gputui.domain.errors import InputError
from gputui.domain.job import Submission
from gputui.request import docker_only, submitter
from gputui.request.keys import BY_NAME, KEYS, Key, Kind
from gputui.request.submitter import Submitter


class SubmitCommand(click.Command):
    """Refuses an option it does not know with what to write instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; options end at the image, or at `--`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = docker_only.hint(error.option_name)
            if hint is None:
                raise
            raise click.UsageError(f"{error.option_name} is not an option of submit ({hint})", ctx) from error


def _refuse(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        option = parameter.opts[0]
        raise click.UsageError(f"{option} is not an option of submit ({docker_only.hint(option)})", ctx)


def _option(key: Key) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (*key.short, key.option, key.name)
    if key.kind is Kind.FLAG:
        return click.option(*names, is_flag=True, help=key.help)
    many = key.kind in {Kind.MANY, Kind.PAIRS}
    return click.option(*names, multiple=many, metavar=key.metavar, help=key.help)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an option for every key, those of docker that change nothing, and those refused."""
    function = with_known(function)
    for options in (("-i", "--interactive"), ("-t", "--tty")):
        refused = click.option(*options, is_flag=True, hidden=True, expose_value=False, callback=_refuse)
        function = refused(function)
    return function


def with_known(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an option for every key, and those of docker that change nothing."""
    for key in reversed(KEYS):
        function = _option(key)(function)
    return click.option(*docker_only.IGNORED, "ignored", is_flag=True, hidden=True, expose_value=False)(function)


def submission_of(given: dict[str, Any], arguments: tuple[str, ...], host: bool, by: Submitter) -> Submission:
    """What the options and arguments ask for."""
    image, rest = (None, arguments) if host else (arguments[0] if arguments else "", arguments[1:])
    if image == "":
        raise InputError("is missing", where="IMAGE", hint="gputui submit [OPTIONS] IMAGE [COMMAND...]")
    values = {name: _read(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)}
    return submitter.submission(values, image, rest, by, _option_name)


def _read(key: Key, value: Any) -> object:
    if key.kind is Kind.FLAG:
        return value
    if key.kind is Kind.ONE:
        return key.read(unsigned(key, value), key.option)
    return tuple(key.read(unsigned(key, text), key.option) for text in value)


def unsigned(key: Key, text: str) -> str:
    """The value of `-m=16g` or `-e=A=1`, where docker takes the first sign away: no such value begins with one."""
    has_letter = any(len(name) == 2 for name in key.short)
    if not has_letter or (key.kind is Kind.PAIRS and "=" not in text[1:]):
        return text
    return text.removeprefix("=")


def _option_name(key: str) -> str:
    return BY_NAME[key].option if key in BY_NAME else key.upper()
