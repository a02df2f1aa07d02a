"""Dependencies of gputui, as installed here: packages, who asks for which, and their licences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("", "report", "metrics", "otel", "web", "mcp", "kubernetes")
"""Extras for users, the always installed ones first."""


def packages() -> dict[str, str]:
    """Return the extra that brings each dependency, by name; empty for what is always installed."""
    found: dict[str, str] = {}
    for extra in EXTRAS:
        for asked in graph(extra).values():
            for name in asked:
                found.setdefault(name, extra)
    return found


def graph(*extras: str) -> Mapping[str, set[str]]:
    """Return the packages that gputui with these extras asks for, and that each of those asks for."""
    found: dict[str, set[str]] = {}
    coming, seen = [("gputui", extra) for extra in extras], set[tuple[str, str]]()
    while coming:
        name, extra = coming.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for package, inner in _asked(name, extra):
            found.setdefault(name, set()).add(package)
            coming += [(package, each) for each in ("", *inner)]
    return found


def _asked(name: str, extra: str) -> Iterator[tuple[str, set[str]]]:
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        package = str(canonicalize_name(wanted.name))
        if package == "gputui" or (wanted.marker is not None and not wanted.marker.evaluate({"extra": extra})):
            continue
        try:
            distribution(package)
        except PackageNotFoundError:  # for another version of Python
            continue
        yield package, wanted.extras


def licence(package: Distribution) -> str:
    """Return the licence as the package states it."""
    told = package.metadata
    if "License-Expression" in told:
        return told["License-Expression"]
    named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(named or told.get_all("License") or ["not stated"]).partition("\n")[0]
