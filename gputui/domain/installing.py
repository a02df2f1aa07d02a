"""Tells how to add packages to an environment, by the tool that made it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath


def install_line(requirements: Sequence[str], prefix: str, *, has_pip: bool = True) -> str:
    """Return the command that adds packages to the environment at `prefix`; pip would miss one of pipx or uv."""
    quoted = [shlex.quote(requirement) for requirement in requirements]
    kind, name = PurePath(prefix).parts[-3:-1], PurePath(prefix).name
    if kind == ("pipx", "venvs"):
        return f"pipx inject {name} {' '.join(quoted)}"
    if kind == ("uv", "tools"):
        return f"uv tool install {' '.join(f'--with {each}' for each in quoted)} {name}"
    if not has_pip:
        return f"uv pip install --python {shlex.quote(prefix)} {' '.join(quoted)}"
    return f"pip install {' '.join(quoted)}"
