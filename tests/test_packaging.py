"""The package's metadata: bounds, links, and what is in the source archive."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.smoke.lowest import lowest
from tests.test_documents import anchors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_has_a_lower_bound_that_the_smoke_test_installs() -> None:
    dependencies = PROJECT["project"]["dependencies"]
    assert len(lowest(dependencies)) == len(dependencies)
    with pytest.raises(SystemExit, match="no lower bound"):
        lowest(["click"])


def test_the_readme_works_on_a_package_index() -> None:
    readme = (ROOT / "README.md").read_text()
    relative = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if not link.startswith(("https://", "#"))]
    assert relative == []
    urls = PROJECT["project"]["urls"]
    assert urls["Repository"] == "https://github.com/gputui/gputui"


def test_every_link_of_the_readme_into_the_repository_leads_somewhere() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.findall(r"https://github\.com/gputui/gputui/(?:blob|raw)/main/([^)#\s]+)(?:#([^)\s]+))?", readme)
    assert found
    for path, anchor in found:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors((ROOT / path).read_text()), f"{path}#{anchor}"


def test_the_source_archive_is_small() -> None:
    """Pictures for the tests and for the README are megabytes; both are in the repository."""
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    files = [file for name in included for file in (ROOT / name.lstrip("/")).rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)
    assert size < 4 * 1024**2  # it is compressed to about a third
