"""Neutralises foreign text: nothing in the output of a job, a name or an error can act on the terminal that shows it.

Control sequences are those of ECMA-48 and xterm's ctlseqs; bidirectional controls those of Unicode's UAX #9.
"""

from __future__ import annotations

import re

from gputui.domain.text.characters import CLEAN, ELLIPSIS, JOINER, width

_SGR = r"\x1b\[[0-9;:]{0,64}m"
"""Colour and style. Bounded, because a parser downstream may turn the digits into a number."""
# A string (OSC, DCS, …) that never ends loses only its introducer: what follows it is shown, not swallowed.
# Its payload stops at every control character, so a line full of introducers is still read once.
_SEQUENCE = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\x0a-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SEQUENCES = re.compile(_SEQUENCE)
_SEQUENCES_BUT_COLOUR = re.compile(rf"({_SGR})|{_SEQUENCE}")
_COLOUR = re.compile(_SGR)

_EMOJI = r"[\u2190-\u2bff\U0001f000-\U0001faff]"
_LONE_JOINER = re.compile(rf"(?<!{_EMOJI}){JOINER}|{JOINER}(?!{_EMOJI})")

_CLEAN_LOG = {**CLEAN, 0x07: None, 0x08: None, 0x1B: "\x1b"}
"""Translation for logs, where a bell or a backspace is noise, and the escapes that are left are colours."""


def plain(text: str, limit: int | None = None) -> str:
    """The text without anything a terminal acts on, on one line, cut to `limit` characters."""
    if not (text.isascii() and text.isprintable()):
        text = _LONE_JOINER.sub("", _SEQUENCES.sub("", text).translate(CLEAN))
    if limit is None or len(text) <= limit:
        return text
    return text[: limit - 1].rstrip(JOINER) + ELLIPSIS if limit > 0 else ""


def plain_log(line: str) -> str:
    """The line of a log with its colours and nothing else that acts: overwritten progress is folded, tabs expanded."""
    if _COLOUR.sub("", line).isprintable() and line.isascii():
        return line
    if "\r" in line:
        line = _last_shown(line)
    line = _SEQUENCES_BUT_COLOUR.sub(r"\1", line)
    if "\t" in line:
        line = _expand(line)
    return _LONE_JOINER.sub("", line.translate(_CLEAN_LOG))


def plain_bytes(raw: bytes) -> str:
    """Return a job's output as text that is safe to show; bytes that are not UTF-8 become �."""
    return plain_log(raw.decode("utf-8", "replace"))


def _last_shown(line: str) -> str:
    """Return the text that stays visible when each carriage return starts the line anew."""
    parts = line.split("\r")
    return next((part for part in reversed(parts) if _SEQUENCES.sub("", part).strip()), "")


def _expand(line: str) -> str:
    """The line with tabs as spaces up to the next eighth cell, colours taking none."""
    *cells, last = line.split("\t")
    done = []
    for cell in cells:
        used = width(_COLOUR.sub("", cell)) if not cell.isascii() or "\x1b" in cell else len(cell)
        done.append(cell + " " * (8 - used % 8))
    return "".join(done) + last
