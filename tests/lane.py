"""The lanes: the test line, which everybody runs, and the long one, which runs what takes minutes.

The test line leaves out tests of optional parts that have not changed; the gate runs all.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet

_Test = TypeVar("_Test", bound=Callable[..., Any])
_Value = TypeVar("_Value")

IS_LONG = os.environ.get("GPUTUI_TEST_LANE") == "long"
"""Run the long lane: tests marked `long` or `torture`, and all examples of properties."""

ROOT = Path(__file__).parent.parent
_CLUSTERS = ("gputui/cluster/", "gputui/engine/cluster/", "gputui/ports/", "tests/cluster/")
PARTS: Mapping[str, tuple[str, ...]] = {
    "cluster": _CLUSTERS,
    "slurm": (*_CLUSTERS, "tests/slurm/"),
    "kubernetes": (*_CLUSTERS, "tests/kubernetes/"),
    "replay": ("gputui/replay/", "gputui/domain/policy/", "tests/replay/"),
    "tracing": ("gputui/tracing.py", "tests/tracing/"),
    "web": ("gputui/web/", "tests/web/"),
    "mcp": ("gputui/mcp.py", "gputui/api/client.py", "tests/mcp/"),
}
"""Directories of tests of parts that the core does not import, and the paths with whose changes they run."""


def unchanged_parts(root: Path = ROOT) -> tuple[str, ...]:
    """Return the parts in which nothing differs from the upstream branch, none if git or the gate wants all of them."""
    if "GPUTUI_TEST_REQUIRE" in os.environ or IS_LONG:
        return ()
    try:
        upstream = _git(root, "rev-parse", "--verify", "-q", "@{upstream}") or "HEAD"
        changed = _git(root, "diff", "--name-only", upstream.strip()) + _git(
            root, "ls-files", "-o", "--exclude-standard"
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    paths = changed.splitlines()
    return tuple(part for part, places in PARTS.items() if not any(path.startswith(places) for path in paths))


def _git(root: Path, *words: str) -> str:
    check = words[0] != "rev-parse"
    return subprocess.run(("git", "-C", str(root), *words), capture_output=True, text=True, check=check).stdout


def examples(most: int) -> int:
    """Return how many examples of a property to try: `most` in the long lane, two fifths of them in the test line.

    Each run of the test line tries others, unless the test is derandomised.
    """
    return most if IS_LONG else most * 2 // 5


def seeds(most: int, *, at_once: int) -> list[int | ParameterSet]:
    """Return seeds from 0 on for `parametrize`: the first `at_once` for the test line, the others for the long lane."""
    return [in_its_lane(seed, is_long=seed >= at_once) for seed in range(most)]


def in_its_lane(value: _Value, *, is_long: bool) -> _Value | ParameterSet:
    """Return a value for `parametrize`, marked for the long lane if it is to be tried only there."""
    return pytest.param(value, marks=pytest.mark.long) if is_long else value


def in_the_long_lane(leaves: bool) -> Callable[[_Test], _Test]:
    """Return a decorator that takes a test out of the test line if the condition is met."""
    return pytest.mark.long if leaves else lambda test: test
