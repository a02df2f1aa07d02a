"""Documents: links have targets, and CI runs the README's own command."""

from __future__ import annotations

import re
from pathlib import Path

import click

from gputui.cli.main import cli
from tests.cases import cases

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh-CN.md")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
"""Links except pictures, which a script creates and checks."""


def readme_commands() -> list[str]:
    """Return the one-line code blocks of the README."""
    return re.findall(r"^```\n(python3 -m venv \.venv .*)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_the_readme_has_two_command_lines() -> None:
    demo, tests = readme_commands()
    assert demo.endswith(" .venv/bin/gputui demo")
    assert " .venv/bin/pytest " in tests


def test_the_gate_runs_the_readmes_test_command() -> None:
    assert f'TEST = "{readme_commands()[1]}"' in (ROOT / "noxfile.py").read_text().splitlines()
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {"task check", "task test"} <= {" ".join(line.split()[-2:]) for line in lines}


@cases("document", DOCUMENTS)
def test_links_have_existing_targets(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        place = document.parent / target if target else document
        assert place.exists(), f"{document.name} points to {target}"
        assert not anchor or anchor in anchors(place.read_text()), f"{document.name} points to {target}#{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_chinese_readme_has_the_same_code() -> None:
    """Code blocks are equal, and each command of its table is in the English one."""
    english, chinese = ((ROOT / name).read_text() for name in READMES)
    blocks = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    assert blocks.findall(chinese) == blocks.findall(english) != []
    commands = set(re.findall(r"`gputui (\w+)", chinese))
    assert len(commands) > 12
    assert commands <= set(re.findall(r"`gputui (\w+)", english))


def test_the_readmes_name_the_twelve_commands_that_matter() -> None:
    tables = [re.findall(r"^\| `gputui (\w+)", (ROOT / name).read_text(), re.MULTILINE) for name in READMES]
    assert tables[0] == tables[1]
    assert len(set(tables[0])) == 12
    assert set(tables[0]) <= set(cli.list_commands(click.Context(cli)))


def test_the_glossary_names_classes_of_the_code() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "gputui").rglob("*.py"))
    defined = set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    named = set(re.findall(r"`([A-Z]\w+)`", (ROOT / "docs" / "glossary.md").read_text()))
    assert len(named) > 60
    assert named - defined == set()


def test_modules_that_documents_name_exist() -> None:
    documents = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", ROOT / "docs" / "internals.md"]
    for document in documents:
        named = set(re.findall(r"`((?:\w+/)+\w+\.py)", document.read_text(encoding="utf-8")))
        missing = {each for each in named if not any((place / each).exists() for place in (ROOT, ROOT / "gputui"))}
        assert not {each for each in missing if "NAME" not in each}, document.name
