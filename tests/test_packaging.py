"""Packaging: bounds of dependencies, links, and the content of the source archive."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from gputui.config.settings_file import TABLES
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


def test_every_repository_link_of_the_readme_has_a_target() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.findall(r"https://github\.com/gputui/gputui/(?:blob|raw)/main/([^)#\s]+)(?:#([^)\s]+))?", readme)
    assert found
    for path, anchor in found:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors((ROOT / path).read_text()), f"{path}#{anchor}"


def test_the_source_archive_is_small() -> None:
    """Pictures for the tests and for the README are megabytes; both are in the repository."""
    archive = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
    files = [file for name in archive["include"] for file in (ROOT / name.lstrip("/")).rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)
    assert size < 5 * 1024**2  # it is compressed to about a third


def test_the_image_has_all_build_inputs_and_sets_existing_settings() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    included = PROJECT["tool"]["hatch"]["build"]["targets"]
    needed = [*included["sdist"]["include"], "/pyproject.toml"]
    assert {f"!{name.lstrip('/')}" for name in needed} <= set(ignored)
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    keys = {f"GPUTUI_{table}_{key}".upper() for table, kind in TABLES.items() for key in kind.__annotations__}
    named = set(re.findall(r"GPUTUI_\w+", dockerfile)) - {"GPUTUI_STATE"}
    assert named
    assert named <= keys
    extras = re.findall(r'"/src\[([\w,]+)\]"', dockerfile)
    assert set(extras[0].split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


@pytest.mark.prometheus
def test_prometheus_reads_the_settings_of_the_compose_file() -> None:
    words = ["promtool", "check", "config", str(ROOT / "deploy" / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_installed_dependency_is_on_the_page_of_licences() -> None:
    from scripts._dependencies import packages

    rows = dict(re.findall(r"^\| (\S+) \| ([^|]+) \|", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE))
    found = packages()
    assert set(found) <= set(rows)
    copyleft = {name for name, licence in rows.items() if "GPL" in licence or "General Public" in licence}
    assert {found[name] for name in copyleft & set(found)} <= {"report"}
