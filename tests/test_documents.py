"""Documents: links have targets, the gate runs the README's own command, and the glossary names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import cases

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
"""Links except pictures, which a script creates and checks."""


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


def test_the_gate_runs_the_readmes_test_command() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    _, command = [line for line in lines if line.startswith("python3 -m venv .venv ")]  # the other one is the demo's
    assert f'TEST = "{command}"' in (ROOT / "noxfile.py").read_text().splitlines()
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {"task check", "task test"} <= {" ".join(line.split()[-2:]) for line in lines}


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
