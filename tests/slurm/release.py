"""The release of Slurm that the test bed runs: this host's, or one that unpack_slurm.sh has unpacked."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

NAMED = "GPUTUI_TEST_SLURM"


def unpacked() -> Path | None:
    """Return the directory that unpack_slurm.sh filled; None if this host's own Slurm runs."""
    named = os.environ.get(NAMED)
    return Path(named) if named else None


@cache
def version() -> tuple[int, int]:
    """Return the release, such as (24, 11)."""
    program = (unpacked() or Path("/usr")) / "sbin/slurmctld"
    told = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    year, month, *_ = told.split()[-1].split(".")
    return int(year), int(month)
