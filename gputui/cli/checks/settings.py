"""Checks of where settings come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputui.cli.checks.check import Check, ok, warn


def of_sources(site: str | None, own: str | None, ignored: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[Check]:
    """Name the files that settings come from, and the settings that the site does not let a user change."""
    found = [f"{site} (the site's)"] if site else []
    found += [f"{own} ([console] and overridable keys)" if site else own] if own else []
    yield ok("settings", " and ".join(found) or "no settings file: the defaults hold")
    for source, keys in ignored:
        why = f"{site} decides about policy, store, runtime and hooks, whoever schedules."
        hint = f"remove them from {source}, or have the site allow them at the top of {site}:\n"
        hint += f"overridable = [{', '.join(_quoted(key) for key in keys)}]"
        yield warn("settings", f"{source}: ignored {', '.join(keys)}", why, hint)


def _quoted(key: str) -> str:
    return f'"{key}"'
