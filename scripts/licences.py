"""Writes docs/licences.md: the licences of the installed dependencies, and the extras that bring them."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._dependencies import EXTRAS, licence, packages
from scripts._generated import settle

_HEAD = """# Licences

gputui is under the [Apache License 2.0](https://github.com/gputui/gputui/blob/main/LICENSE). It ships none of the
packages below; pip installs them. The names of the licences are those that each package states. `nox -s docs` writes
this page; a release has the same with versions, as a [bill of materials](releasing.md#bill-of-materials).

| package | licence | needed for |
|---|---|---|
"""


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
