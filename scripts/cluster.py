"""Writes the generated table of docs/cluster.md from the capabilities of the engines."""

from __future__ import annotations

from pathlib import Path

from gputui.bootstrap.cluster_document import updated

if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "cluster.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
