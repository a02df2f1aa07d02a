"""Writes the pages of the manual into man/; with --check says which are not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._generated import settle
from scripts._manual import pages

if __name__ == "__main__":
    sys.exit(settle(Path(__file__).parent.parent / "man", pages(), "*.1", is_check="--check" in sys.argv))
