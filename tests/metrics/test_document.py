"""docs/observe.md agrees with the code."""

from __future__ import annotations

from pathlib import Path

from gputui.metrics.families import FAMILIES
from scripts.observe import updated

PATH = Path(__file__).parents[2] / "docs" / "observe.md"


def test_the_tables_of_the_metrics_page_are_up_to_date() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert updated(text) == text, "run python scripts/observe.py"
    assert all(f"`{family.name}`" in text for family in FAMILIES)
