"""Pages of the manual, gputui(1) and gputui-COMMAND(1), made from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from gputui import __version__
from gputui.cli.document import root_context
from gputui.cli.lazy import COMMANDS, GROUPS
from gputui.cli.main import cli

_WEB = "https://github.com/gputui/gputui/tree/main/docs"


def pages() -> dict[str, str]:
    """Return the pages by the names of their files."""
    found = {"gputui.1": "\n".join(_main()) + "\n"}
    context = root_context()
    for name, about in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        found[f"gputui-{name}.1"] = "\n".join(_page(command, name, about, context)) + "\n"
    return found


def _main() -> Iterator[str]:
    context = root_context()
    yield from _head("gputui", "console and scheduler for GPU servers")
    yield from _body(cli, context)
    yield ".SH COMMANDS"
    for heading, commands in GROUPS.items():
        yield f".SS {_roff(heading)}"
        for name, about in commands.items():
            yield from (".TP", rf"\fBgputui\-{_roff(name)}\fR(1)", _roff(about))
    yield from (".SH FILES", ".TP", r"\fI/etc/gputui/config.toml\fR", "Settings of the site.")
    yield from (".TP", r"\fI~/.config/gputui/config.toml\fR", "Settings of a user.")
    yield from (".TP", r"\fI/var/lib/gputui\fR, \fI~/.local/state/gputui\fR", "State directory of root, and of others.")
    yield from (".SH SEE ALSO", _roff(_WEB))


def _page(command: click.Command, name: str, about: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=name)
    yield from _head(f"gputui-{name}", about)
    yield from _body(command, context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            own = click.Context(inner, parent=context, info_name=below)
            yield f'.SH "{_roff(own.command_path.upper())}"'
            yield from _usage(inner, own)
            yield from _description(inner)
            yield from _options(inner, own)
    yield from (".SH SEE ALSO", rf"\fBgputui\fR(1), {_roff(_WEB)}")


def _head(name: str, about: str) -> Iterator[str]:
    yield f'.TH "{_roff(name.upper())}" 1 "" "gputui {__version__}" "gputui manual"'
    yield from (".SH NAME", rf"{_roff(name)} \- {_roff(about)}")


def _body(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield from _usage(command, context)
    yield ".SH DESCRIPTION"
    yield from _description(command)
    yield from _options(command, context, ".SH OPTIONS")


def _usage(command: click.Command, context: click.Context) -> Iterator[str]:
    words = " ".join(command.collect_usage_pieces(context))
    yield rf"\fB{_roff(context.command_path)}\fR {_roff(words)}"


def _description(command: click.Command) -> Iterator[str]:
    for number, paragraph in enumerate(cleandoc(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        text = paragraph.strip()
        if text.startswith("\b"):  # lines that click keeps as they are
            yield from (".nf", *map(_roff, text.lstrip("\b\n").splitlines()), ".fi")
        elif text:
            yield _roff(" ".join(text.split()))


def _options(command: click.Command, context: click.Context, heading: str = "") -> Iterator[str]:
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if records and heading:
        yield heading
    for names, about in filter(lambda record: record[1], records):
        yield from (".TP", rf"\fB{_roff(names)}\fR", _roff(" ".join(about.split())))


def _roff(text: str) -> str:
    """Return the text in ASCII, with what roff would read as its own written otherwise."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)
