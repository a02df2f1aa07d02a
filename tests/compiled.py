"""Shared libraries of the tests, written in C."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def compiled(source: Path, name: str, *options: str, needs: str = "gcc") -> Path:
    """Return the library of that name, in a directory of its own; compiled when source or options have changed."""
    content = source.read_bytes() + " ".join(options).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"gputui-{source.stem}-{os.getuid()}-{digest}"
    library = place / name
    if not library.exists():
        from tests.needs import need  # with pytest, which the benchmarks that use this do without

        need(needs)
        place.mkdir(mode=0o700, exist_ok=True)
        compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
        made = place / f"{os.getpid()}.so"
        words = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*words, "-o", str(made), str(source), *options], check=True)
        made.replace(library)  # whole or not at all: several test processes may compile at once
    return library
