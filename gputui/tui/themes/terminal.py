"""Determines from the environment what a terminal can show."""

from __future__ import annotations

import locale
from collections.abc import Mapping

AUTO = "auto"
_DEEP = ("truecolor", "24bit")
_DEEP_TERMS = ("256color", "kitty", "direct", "truecolor")
_CATEGORIES = ("LC_ALL", "LC_CTYPE", "LANG")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values that Python puts into LC_CTYPE if the user's own locale is not installed (PEP 538)."""
_POOR_FONTS = ("linux", "vt100", "vt102", "vt220", "dumb")


def has_few_colours(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal has sixteen colours or does not report more, in Rich's judgement."""
    if environ.get("COLORTERM", "").strip().lower() in _DEEP:
        return False
    forced = environ.get("TEXTUAL_COLOR_SYSTEM", "").strip().lower()
    if forced not in ("", "auto"):
        return forced in ("standard", "windows")
    return environ.get("TERM", "").strip().lower().rpartition("-")[2] not in _DEEP_TERMS


def has_256_colours(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal shows exactly 256 colours, in Rich's judgement; usual under tmux."""
    if environ.get("COLORTERM", "").strip().lower() in _DEEP:
        return False
    forced = environ.get("TEXTUAL_COLOR_SYSTEM", "").strip().lower()
    if forced not in ("", "auto"):
        return forced == "256"
    return environ.get("TERM", "").strip().lower().rpartition("-")[2] in ("256color", "kitty")


def wants_ascii(setting: str, environ: Mapping[str, str]) -> bool:
    """Return whether to draw only ASCII: for locales without Unicode, and on the kernel's own console."""
    if setting != AUTO:
        return setting == "always"
    if environ.get("TERM", "") in _POOR_FONTS:
        return True
    keys = ("LC_ALL", "LANG") if environ.get("LC_CTYPE") in _COERCED and environ.get("LANG") else _CATEGORIES
    name = next((environ[key] for key in keys if environ.get(key)), "")
    if name in ("", "C", "POSIX"):  # says nothing about the terminal: Python assumes UTF-8 too
        return False
    _, dot, charset = name.partition(".")
    charset = charset.partition("@")[0] if dot else locale.getencoding()
    return charset.lower().replace("-", "") != "utf8"
