"""Writes the generated tables of docs/observe.md from the code."""

from __future__ import annotations

from pathlib import Path

from gputui.metrics.provisioning import updated

if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "observe.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
