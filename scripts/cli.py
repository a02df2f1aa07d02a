"""Writes the generated parts of docs/cli.md from the commands and settings themselves."""

from __future__ import annotations

from pathlib import Path

from gputui.cli.document import updated

if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "cli.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
