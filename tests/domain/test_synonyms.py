"""Words of other programs: palette, help and the shell find the same things by the same table."""

from __future__ import annotations

import click
from hypothesis import given
from hypothesis import strategies as st

from gputui.cli.main import COMMANDS as SHELL
from gputui.cli.main import cli
from gputui.domain.verbs import MEANINGS, Meaning, suggestion, words_of
from gputui.tui.commands import BY_NAME, by_group
from gputui.tui.screens.help import matching
from gputui.tui.screens.menu import Offer, find_commands
from tests.cases import cases

OFFERS = [Offer(command) for command in BY_NAME.values() if command.in_palette]
WANTED = {
    **dict.fromkeys(("kill", "scancel", "qdel", "rm", "stop"), ("cancel", "cancel")),
    **dict.fromkeys(("list", "status", "squeue", "ls"), ("tab_queue", "queue")),
    **dict.fromkeys(("sbatch", "qsub"), ("submit", "submit")),
    **dict.fromkeys(("extend", "deadline"), ("edit", "edit ID --time-limit +2h")),
    "rerun": ("requeue", "requeue"),
    "edit": ("edit", ""),
    "ps": ("processes", ""),
    "top": ("top", ""),
    **dict.fromkeys(("config", "settings"), ("columns", "settings are in ")),
    "quit": ("quit", "q leaves the console"),
}
"""What a word has to find: a command of the console, and one of the shell or a sentence; empty: it is one itself."""
meanings = cases("meaning", MEANINGS)


def in_palette(word: str) -> list[str]:
    return [found.offer.command.name for found in find_commands(OFFERS, word)]


def in_help(word: str) -> set[str]:
    return {command.name for _, commands in matching(list(by_group().items()), word) for command in commands}


@cases("word", WANTED)
def test_words_of_other_programs_find_the_same_everywhere(word: str) -> None:
    console, shell = WANTED[word]
    assert in_palette(word)[0] == console
    assert console in in_help(word)
    assert shell in suggestion(word, SHELL)
    assert (word in SHELL) is not bool(shell)


@meanings
def test_each_word_of_the_table_finds_what_the_table_says(meaning: Meaning) -> None:
    assert meaning.console or meaning.shell or meaning.hint
    for word in meaning.words.split(", "):
        for name in filter(None, meaning.console.split(", ")):
            assert word in words_of(name)
            assert name in in_help(word)
            assert not BY_NAME[name].in_palette or name in in_palette(word)
        told = suggestion(word, SHELL)
        assert word in SHELL or not (meaning.shell or meaning.hint) or told


@meanings
def test_each_command_of_the_table_exists(meaning: Meaning) -> None:
    command: click.Command | None = cli
    for word in filter(str.isalpha, meaning.shell.split()):
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word)
    assert command is not None
    assert meaning.words == meaning.words.strip()


@cases(
    ("typed", "meant"),
    [
        ("edit-job", "edit"),
        ("job_kill", "cancel"),
        ("list-jobs", "queue"),
        ("quue", "queue"),
        ("can", "cancel"),
        ("KILL", "cancel"),
        ("scontrol", "show or edit"),
        ("help", "--help"),
    ],
)
def test_parts_beginnings_and_mistyped_words(typed: str, meant: str) -> None:
    assert suggestion(typed, SHELL) == f"did you mean {meant}?"


@given(st.text(max_size=20))
def test_a_suggestion_is_one_line_about_something_known(typed: str) -> None:
    assert suggestion(typed, SHELL).isprintable()


@cases("typed", ["", "xyzzy", "hostname", "\x1b[2J"])
def test_nothing_is_made_up(typed: str) -> None:
    assert suggestion(typed, SHELL) == ""


@cases(
    ("group", "typed", "meant"),
    [("cron", "ls", "list"), ("cron", "rm", "remove"), ("tenant", "edit", "set"), ("state", "check", "verify")],
)
def test_commands_below_a_command_are_found_too(group: str, typed: str, meant: str) -> None:
    command = cli.get_command(click.Context(cli), group)
    assert isinstance(command, click.Group)
    assert suggestion(typed, command.list_commands(click.Context(command))) == f"did you mean {meant}?"


def test_short_words_are_found_in_the_help_where_words_begin() -> None:
    assert in_help("ls") == {"tab_queue"}
    assert "cancel" in in_help("rm")
    assert "drain" not in in_help("rm")
