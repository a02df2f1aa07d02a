"""Generates the parts of docs/cli.md that follow from the declarations of commands and settings, and the manual."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from inspect import cleandoc

import click
from msgspec import NODEFAULT, Struct, structs

from gputui import __version__
from gputui.cli.main import COMMANDS, GROUPS, cli
from gputui.config.settings_file import SIZES, TABLES
from gputui.domain.text import format_limit, format_size

BLOCKS = {"<!-- written by scripts/cli.py -->": "commands", "<!-- settings -->": "settings"}
END = "<!-- end -->"


def updated(text: str) -> str:
    """Return the document with its generated blocks up to date."""
    for begin, name in BLOCKS.items():
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        lines = commands() if name == "commands" else settings()
        text = before + begin + "\n\n" + "\n".join(lines) + "\n\n" + END + after
    return text


def root_context() -> click.Context:
    """Return the context of the main command, with its names for help, which all commands inherit."""
    return click.Context(cli, info_name="gputui", **cli.context_settings)


def commands() -> Iterator[str]:
    """Return the groups of commands: a heading, a synopsis and a table of options for each command."""
    for heading, names in GROUPS.items():
        yield f"### {heading}"
        yield ""
        for name in names:
            root = root_context()
            command = cli.get_command(root, name)
            assert command is not None
            context = click.Context(command, info_name=name, parent=root)
            yield from _command(command, context, f"gputui {name}")
            if isinstance(command, click.Group):
                for word, inner in command.commands.items():
                    below = click.Context(inner, info_name=word, parent=context)
                    yield from _command(inner, below, f"gputui {name} {word}")


def _command(command: click.Command, context: click.Context, words: str) -> Iterator[str]:
    yield f"#### `{words}`"
    yield ""
    yield (command.help or "").partition("\n")[0]
    yield ""
    yield f"`{words} {' '.join(command.collect_usage_pieces(context))}`"
    yield ""
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield "| option | does |"
        yield "|---|---|"
        for option in options:
            value = f" {option.metavar}" if option.metavar else ""
            names = (", ".join(option.opts) + value).replace("|", r"\|")
            yield f"| `{names}` | {option.help} |"
        yield ""
    if command.epilog:
        yield command.epilog.replace("\b\n", "```\n") + ("```" if "\b" in command.epilog else "")
        yield ""


def settings() -> Iterator[str]:
    yield "| key | default |"
    yield "|---|---|"
    for table, kind in TABLES.items():
        for field in structs.fields(kind):
            yield f"| `{table}.{field.name}` | {_default(field.name, field.default)} |"


def _default(name: str, value: object) -> str:
    if value is None:
        return "none"
    if value is NODEFAULT or isinstance(value, Struct):
        return "`{}`"
    if isinstance(value, timedelta):
        return f'`"{format_limit(value)}"`'
    if name in SIZES and isinstance(value, int):
        return f'`"{format_size(value).lower()}"`'
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{each}"' for each in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


_WEB = "https://github.com/gputui/gputui/tree/main/docs"


def pages() -> dict[str, str]:
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
            yield from _option_records(inner, own)
    yield from (".SH SEE ALSO", rf"\fBgputui\fR(1), {_roff(_WEB)}")


def _head(name: str, about: str) -> Iterator[str]:
    yield f'.TH "{_roff(name.upper())}" 1 "" "gputui {__version__}" "gputui manual"'
    yield from (".SH NAME", rf"{_roff(name)} \- {_roff(about)}")


def _body(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield from _usage(command, context)
    yield ".SH DESCRIPTION"
    yield from _description(command)
    yield from _option_records(command, context, ".SH OPTIONS")


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


def _option_records(command: click.Command, context: click.Context, heading: str = "") -> Iterator[str]:
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
