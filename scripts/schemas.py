"""Writes the JSON schemas into docs/schemas/; with --check says which are not up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gputui.request.job_file import SCHEMAS

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file

from scripts._generated import settle

if __name__ == "__main__":
    files = {f"{name}.schema.json": json.dumps(made(), indent=2) + "\n" for name, made in SCHEMAS.items()}
    place = Path(__file__).parent.parent / "docs" / "schemas"
    sys.exit(settle(place, files, "*.json", is_check="--check" in sys.argv))
