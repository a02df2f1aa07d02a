"""Writes docs/licences.md: the licences of the installed dependencies, and the extras that bring them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._generated import settle

EXTRAS = ("", "report", "metrics", "otel", "web", "mcp", "kubernetes")
"""Those for users, the always installed ones first."""
_HEAD = """# Licences

gputui is under the [MIT licence](https://github.com/gputui/gputui/blob/main/LICENSE). It ships none of the packages
below; pip installs them. The names of the licences are those that each package states. `nox -s docs` writes this page.

| package | licence | needed for |
|---|---|---|
"""


def packages() -> dict[str, str]:
    """Return the extra that brings each dependency, by name; empty for what is always installed."""
    found: dict[str, str] = {}
    for extra in EXTRAS:
        for name in _below("gputui", extra, frozenset()):
            found.setdefault(name, extra)
    return found


def _below(name: str, extra: str, seen: frozenset[str]) -> Iterator[str]:
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        package = str(canonicalize_name(wanted.name))
        if package in seen or package == "gputui":
            continue
        try:
            distribution(package)
        except PackageNotFoundError:  # for another version of Python
            continue
        yield package
        for inner in ("", *wanted.extras):
            yield from _below(package, inner, seen | {package})


def licence(package: Distribution) -> str:
    """Return the licence as the package states it."""
    told = package.metadata
    if "License-Expression" in told:
        return told["License-Expression"]
    named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(named or told.get_all("License") or ["not stated"]).partition("\n")[0]


def page() -> str:
    """Return the page."""
    rows = [
        f"| {name} | {licence(distribution(name))} | {f'`gputui[{extra}]`' if extra else 'gputui'} |\n"
        for name, extra in sorted(packages().items(), key=lambda row: (EXTRAS.index(row[1]), row[0]))
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    place = Path(__file__).parent.parent / "docs"
    sys.exit(settle(place, {"licences.md": page()}, "licences.md", is_check="--check" in sys.argv))
