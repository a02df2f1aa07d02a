"""Time zones by name, and the name of this host's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, tzinfo
from pathlib import Path

from gputui.domain.errors import InputError
from gputui.domain.units import quoted

_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")
_DIRECTORY = "/zoneinfo/"


def zone(name: str) -> tzinfo:
    """The time zone of that name of the IANA database; raises InputError."""
    if name == "UTC":
        return UTC  # known on hosts without the database too
    from zoneinfo import ZoneInfo  # it takes milliseconds, and no other command needs it

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        hint = "write it as in Europe/Berlin; they come with the package tzdata"
        raise InputError(f"{quoted(name)} is no time zone here", where="--time-zone", hint=hint) from error


def local_name(environ: Mapping[str, str] = os.environ, localtime: Path = _LOCALTIME, text: Path = _TIMEZONE) -> str:
    """The name of this host's time zone, as TZ, /etc/localtime or /etc/timezone have it.

    Raises InputError where they do not tell it, unless the host is at UTC: a guess would run jobs at wrong times.
    """
    if environ.get("TZ"):
        wished = [environ["TZ"].removeprefix(":")]
    else:
        wished = [_after_directory(localtime), _first_line(text)]
    name = next((each for each in wished if each and _is_known(each)), None)
    if name is None and (time.timezone or time.daylight):
        hint = "give it, as in --time-zone Europe/Berlin"
        raise InputError("the name of this host's time zone cannot be told", where="--time-zone", hint=hint)
    return name or "UTC"


def _after_directory(localtime: Path) -> str:
    try:
        return os.readlink(localtime).rpartition(_DIRECTORY)[2]  # noqa: PTH115 - a name, not where it leads
    except OSError:
        return ""


def _first_line(text: Path) -> str:
    try:
        return text.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_known(name: str) -> bool:
    try:
        zone(name)
    except InputError:
        return False
    return True
