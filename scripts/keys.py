"""Writes docs/keys.md from the console's commands."""

from __future__ import annotations

from pathlib import Path

from gputui.tui.commands.places import keys_document

if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "keys.md").write_text(keys_document(), encoding="utf-8")
