"""Writes the generated parts of docs/cli.md from the commands and settings themselves."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._manual import updated

if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "cli.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
