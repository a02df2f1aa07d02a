"""Foreign text for a terminal: neutralised, without secrets, measured in cells, and laid out.

The output of a job, a name or an error cannot control the terminal that shows it. Control sequences are those of
ECMA-48 and xterm's ctlseqs; bidirectional controls those of Unicode's UAX #9.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

from gputui.domain.job_spec import Pairs

ELLIPSIS = "…"
JOINER = "\u200d"

_TRAILING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U0001f3fb-\U0001f3ff]")
"""Parts of a Hangul syllable after its first, and skin tones: drawn into the cell before them."""
# Python's tables are older than the terminal's: Unicode 16 widened these, and emoji were added among others.
_NEWLY_WIDE = re.compile("[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff\U0001d300-\U0001d376\U0001fa70-\U0001faff]")

_INVISIBLE = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # Mongolian selectors
    (0x200B, 0x200C),  # zero width space and non-joiner
    (0x200E, 0x200F),  # left-to-right and right-to-left marks
    (0x202A, 0x202E),  # embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),  # variation selectors: terminals disagree about the width they give
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),  # tags
)


@cache  # thousands of characters, which few commands need
def _clean() -> dict[int, str | None]:
    """Return the replacement of each character: pictures of controls, a space for line ends, nothing for invisible."""
    return {
        **{code: chr(0x2400 + code) for code in range(0x20)},
        **dict.fromkeys((0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x2028, 0x2029), " "),
        0x7F: "\u2421",
        **dict.fromkeys(range(0x80, 0xA0), None),
        0x85: " ",
        **{code: None for first, last in _INVISIBLE for code in range(first, last + 1)},
        **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    }


_DRAWN = re.compile(r"[ -~°·–…─-▟⠀-⣿]+")
"""Text with characters of bars and graphs, each of which takes one cell."""


def is_narrow(text: str) -> bool:
    """Return whether each character certainly takes one cell."""
    return (text.isascii() and text.isprintable()) or _DRAWN.fullmatch(text) is not None


def width(text: str) -> int:
    """Return the width of the text in terminal cells; of an emoji sequence, that of its first emoji."""
    if (text.isascii() and text.isprintable()) or _DRAWN.fullmatch(text) is not None:  # is_narrow, without a call
        return len(text)
    total, joined = 0, False
    for char in text:
        if not joined:
            total += _cells_of(char)
        joined = char == JOINER
    return total


@lru_cache(maxsize=4096)
def _cells_of(char: str) -> int:
    """Return the width of one character in cells: 0, 1 or 2."""
    category = unicodedata.category(char)
    if category in {"Mn", "Me", "Mc"} or ord(char) in _clean() or char == JOINER or _TRAILING.match(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" or _NEWLY_WIDE.match(char) else 1


_SGR = r"\x1b\[[0-9;:]{0,64}m"
"""Colour and style. Bounded, because a parser downstream may turn the digits into a number."""
# A string (OSC, DCS, …) that never ends loses only its introducer: the text after it is shown, not swallowed.
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


@cache
def _clean_log() -> dict[int, str | None]:
    """Return the translation for logs, where a bell or a backspace is noise, and the remaining escapes are colours."""
    return {**_clean(), 0x07: None, 0x08: None, 0x1B: "\x1b"}


def plain(text: str, limit: int | None = None) -> str:
    """Return the text without control characters, on one line, cut to `limit` characters."""
    if not (text.isascii() and text.isprintable()):
        text = _LONE_JOINER.sub("", _SEQUENCES.sub("", text).translate(_clean()))
    if limit is None or len(text) <= limit:
        return text
    return text[: limit - 1].rstrip(JOINER) + ELLIPSIS if limit > 0 else ""


def plain_log(line: str) -> str:
    """Return a log line with its colours but no other controls: overwritten progress is folded, tabs are expanded."""
    if _COLOUR.sub("", line).isprintable() and line.isascii():
        return line
    if "\r" in line:
        parts = line.split("\r")
        line = next((part for part in reversed(parts) if _SEQUENCES.sub("", part).strip()), "")
    line = _SEQUENCES_BUT_COLOUR.sub(r"\1", line)
    if "\t" in line:
        *cells, last = line.split("\t")
        done = []
        for cell in cells:
            used = width(_COLOUR.sub("", cell)) if not cell.isascii() or "\x1b" in cell else len(cell)
            done.append(cell + " " * (8 - used % 8))
        line = "".join(done) + last
    return _LONE_JOINER.sub("", line.translate(_clean_log()))


def plain_bytes(raw: bytes) -> str:
    """Return a job's output as text that is safe to show; bytes that are not UTF-8 become �."""
    return plain_log(raw.decode("utf-8", "replace"))


def fit(text: str, cells: int, align: Literal["left", "right", "center"] = "left") -> str:
    """Return the text, made plain, padded or cut with … to exactly that many cells."""
    text = plain(text)
    if (gap := cells - width(text)) < 0:
        text = _cut(text, cells)
        gap = cells - width(text)
    if gap <= 0:
        return text
    before = {"left": 0, "right": gap, "center": gap // 2}[align]
    return " " * before + text + " " * (gap - before)


def broken(text: str, cells: int) -> list[str]:
    """Return the text in lines of at most `cells` cells, at least one line.

    Broken between words, or within longer words.
    """
    first, *words = text.split(" ")
    *lines, line = _pieces(first, cells)
    for word in words:
        longer = f"{line} {word}"
        if width(longer) <= cells:
            line = longer
            continue
        *full, last = _pieces(word, cells)
        lines += [line, *full]
        line = last
    return [*lines, line]


def _pieces(word: str, cells: int) -> list[str]:
    pieces, piece, taken = [], "", 0
    for char in word:
        wide = _cells_of(char)
        if piece and taken + wide > cells:
            pieces.append(piece)
            piece, taken = "", 0
        piece, taken = piece + char, taken + wide
    return [*pieces, piece]


def _cut(text: str, cells: int) -> str:
    """Cut the text so that one cell is left for the ellipsis."""
    if cells <= 0:
        return ""
    used, joined = 0, False
    for end, char in enumerate(text):
        used += 0 if joined else _cells_of(char)
        joined = char == JOINER
        if used > cells - 1:
            return text[:end].rstrip(JOINER) + ELLIPSIS
    return text


BLOCK = 65536


def tail_start(size: int, lines: int, read: Callable[[int, int], bytes], block: int = BLOCK) -> int:
    """Return the offset at which the last `lines` lines begin, of `size` bytes that `read(at, count)` returns in parts.

    Reads from the end, `block` bytes at a time, and no further than necessary. A newline at the very end does not begin
    another line. With fewer lines than wanted it is 0.
    """
    if lines <= 0:
        return size
    wanted = lines + (size > 0 and read(size - 1, 1) == b"\n")
    at = size
    while at > 0:
        start = max(0, at - block)
        part = read(start, at - start)
        found = part.count(b"\n")
        if found >= wanted:
            end = len(part)
            for _ in range(wanted):
                end = part.rindex(b"\n", 0, end)
            return start + end + 1
        wanted -= found
        at = start
    return 0


def csv_field(text: str) -> str:
    """Return a field of a list as CSV has it."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|AUTH|COOKIE|API_?KEY|ACCESS_?KEY|_KEY$", re.IGNORECASE
)
"""Names of environment variables whose values are secrets."""
_MASK = "***"
_SHORTEST = 4
"""Shorter values are not replaced: `1` or `yes` would be found in every line."""
_WRITTEN = re.compile(
    r"(?P<keep>://[^\s/:@]{0,100}:|\b(?:bearer|basic)\s+|"
    r"\b[\w-]{0,40}(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key)"
    r"[\"']?\s{0,3}[=:]\s{0,3}[\"']?)(?P<value>[^\s\"',;)@]{4,})",
    re.IGNORECASE,
)
"""Secrets as programs print them: `https://user:secret@host`, `Bearer secret`, `api_key=secret`."""


def without_secrets(text: str, env: Pairs = ()) -> str:
    """Return the text with secrets replaced.

    Values of variables of `env` with such names, and text that looks like a secret.
    """
    values = {value for name, value in env if len(value) >= _SHORTEST and SECRET_NAME.search(name)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return _WRITTEN.sub(lambda found: found["keep"] + _MASK, text)
