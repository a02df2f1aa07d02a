"""Range of numbers as the type of an option."""

from __future__ import annotations

from typing import Any

import click


class FiniteRange(click.FloatRange):
    """Range that refuses NaN, which compares with no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for one outside the range."""
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is not a number.", param, ctx)
        return found
