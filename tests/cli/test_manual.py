"""Pages of the manual: one for each command, which man can show, and which are those in the repository."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gputui.cli.main import COMMANDS
from scripts._manual import pages
from tests.cases import cases

FILES = Path(__file__).parents[2] / "man"
MACROS = frozenset({".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi"})


@cache
def made() -> dict[str, str]:
    return pages()


def test_each_command_has_a_page() -> None:
    assert set(made()) == {"gputui.1", *(f"gputui-{name}.1" for name in COMMANDS)}
    listed = re.findall(r"^\\fBgputui\\-(.+)\\fR\(1\)$", made()["gputui.1"], re.MULTILINE)
    assert [name.replace(r"\-", "-") for name in listed] == list(COMMANDS)


@cases("name", ["gputui.1", *(f"gputui-{name}.1" for name in COMMANDS)])
def test_a_page_is_the_one_in_the_repository_and_plain_roff(name: str) -> None:
    page = made()[name]
    assert page == (FILES / name).read_text()
    assert page.isascii()
    assert {line.split()[0] for line in page.splitlines() if line.startswith(".")} <= MACROS
    assert not re.search(r"(?<!\\)-", re.sub(r"^\.TH.*$", "", page, flags=re.MULTILINE)), "a hyphen that roff may break"


def test_a_group_tells_of_each_command_in_it() -> None:
    page = made()["gputui-cluster.1"]
    assert '.SH "GPUTUI CLUSTER CHECK"' in page
    assert '.SH "GPUTUI CLUSTER INSTALL"' in page
