"""A line as it is typed into a shell, read without running anything."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from gputui.domain.errors import InputError

_QUOTED = r"'[^']*'"
_PLACES = re.compile(
    rf"({_QUOTED})|\$\(pwd\)|`pwd`|\$\(id -u\)|\$\(id -g\)|\$\(whoami\)|\$\{{(?P<braced>PWD|HOME|USER)\}}"
    r"|\$(?P<bare>PWD|HOME|USER)\b|(?P<tilde>(?<=[\s=:])~(?=/))"
)
_BREAKS = re.compile(rf"({_QUOTED}|\"(?:\\.|[^\"\\])*\"|\\.)|\n+", re.DOTALL)
"""Ends of lines that no quotation holds: another command begins there."""
ENDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})
"""Words that end a command."""


def joined(text: str) -> str:
    """What is folded over lines by backslashes as one line; terminals end pasted lines by a carriage return alone."""
    return re.sub(r"\\[ \t]*\n", " ", re.sub(r"\r\n?", "\n", text.strip()))


def split(text: str, directory: Path, environ: Mapping[str, str]) -> list[str]:
    """The words of the line; where it is, and whose it is, stand for what a shell would put there."""
    known = {
        "$(pwd)": str(directory),
        "`pwd`": str(directory),
        "PWD": str(directory),
        "$(id -u)": str(os.getuid()),
        "$(id -g)": str(os.getgid()),
        "HOME": environ.get("HOME", "/"),
        "USER": environ.get("USER") or _user(),
        "$(whoami)": environ.get("USER") or _user(),
    }

    def filled(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = match["braced"] or match["bare"] or ("HOME" if match["tilde"] else match[0])
        return known[name]

    try:
        return shlex.split(_PLACES.sub(filled, _BREAKS.sub(lambda found: found[1] or " ; ", joined(text))))
    except ValueError as error:
        raise InputError("a quotation is not closed", where="the line") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without an account, as in many containers
        return str(os.getuid())
