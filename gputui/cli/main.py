"""The command line."""

from __future__ import annotations


def main() -> None:
    """Run it."""
    raise SystemExit(2)
