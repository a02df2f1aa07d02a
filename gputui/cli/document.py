"""Generates the parts of docs/cli.md that follow from the declarations of commands and settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import click
from msgspec import NODEFAULT, Struct, structs

from gputui.cli.lazy import GROUPS
from gputui.cli.main import cli
from gputui.config import SIZES, TABLES
from gputui.domain.units import format_duration, format_size

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
            yield from _with_those_below(name)


def _with_those_below(name: str) -> Iterator[str]:
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
    yield from _options(command)
    if command.epilog:
        yield command.epilog.replace("\b\n", "```\n") + ("```" if "\b" in command.epilog else "")
        yield ""


def _options(command: click.Command) -> Iterator[str]:
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield "| option | does |"
        yield "|---|---|"
        for option in options:
            value = f" {option.metavar}" if option.metavar else ""
            names = (", ".join(option.opts) + value).replace("|", r"\|")
            yield f"| `{names}` | {option.help} |"
        yield ""


def settings() -> Iterator[str]:
    """Return a table of all settings with their defaults."""
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
        return f'`"{format_duration(value)}"`'
    if name in SIZES and isinstance(value, int):
        return f'`"{format_size(value).lower()}"`'
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{each}"' for each in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
