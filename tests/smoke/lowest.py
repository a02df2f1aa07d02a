"""Prints a constraints file with the lowest version that pyproject.toml allows of each dependency.

python tests/smoke/lowest.py > lowest.txt && pip install -c lowest.txt '.[kubernetes,otel,web]'
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_LOWEST = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?>=(?P<version>[0-9.]+)")


def lowest(requirements: list[str]) -> list[str]:
    """Return a constraint for each requirement; every one must have a lower bound."""
    found = []
    for requirement in requirements:
        match = _LOWEST.match(requirement)
        if match is None:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
        found.append(f"{match['name']}=={match['version']}")
    return found


def main() -> None:
    """Print the constraints for the package and its extras `kubernetes`, `otel` and `web`."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    print("\n".join(lowest([*project["dependencies"], *extras["kubernetes"], *extras["otel"], *extras["web"]])))


if __name__ == "__main__":
    main()
