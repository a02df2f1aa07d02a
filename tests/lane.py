"""The lanes: the test line, which everybody runs, and the long one, which runs what takes minutes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet

_Test = TypeVar("_Test", bound=Callable[..., Any])
_Value = TypeVar("_Value")

IS_LONG = os.environ.get("GPUTUI_TEST_LANE") == "long"
"""Run the long lane: tests marked `long` or `torture`, and all examples of properties."""


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
