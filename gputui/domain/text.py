"""Text for people: foreign text made harmless for a terminal and measured in cells; times, sizes and numbers in words.

The output of a job, a name or an error cannot control the terminal that shows it. Control sequences are those of
ECMA-48 and xterm's ctlseqs; bidirectional controls those of Unicode's UAX #9.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Literal

from gputui.domain.errors import InputError
from gputui.domain.job_spec import Pairs

ELLIPSIS = "…"
JOINER = "\u200d"

# Patterns are texts, which `re` compiles when they are first used: few commands use any.
_TRAILING = "[\u1160-\u11ff\ud7b0-\ud7ff\U0001f3fb-\U0001f3ff]"
"""Parts of a Hangul syllable after its first, and skin tones: drawn into the cell before them."""
# Python's tables are older than the terminal's: Unicode 16 widened these, and emoji were added among others.
_NEWLY_WIDE = "[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff\U0001d300-\U0001d376\U0001fa70-\U0001faff]"

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
    category = unicodedata.category(char)
    if category in {"Mn", "Me", "Mc"} or ord(char) in _clean() or char == JOINER or re.match(_TRAILING, char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" or re.match(_NEWLY_WIDE, char) else 1


_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
"""Colour and style. Bounded, because a parser downstream may turn the digits into a number."""
# A string (OSC, DCS, …) that never ends loses only its introducer: the text after it is shown, not swallowed.
# Its payload stops at every control character, so a line full of introducers is still read once.
_SEQUENCES = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\x0a-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SEQUENCES_BUT_COLOUR = rf"({_COLOUR})|{_SEQUENCES}"

_EMOJI = r"[\u2190-\u2bff\U0001f000-\U0001faff]"
_LONE_JOINER = rf"(?<!{_EMOJI}){JOINER}|{JOINER}(?!{_EMOJI})"


@cache
def _clean_log() -> dict[int, str | None]:
    """Return the translation for logs, where a bell or a backspace is noise, and the remaining escapes are colours."""
    return {**_clean(), 0x07: None, 0x08: None, 0x1B: "\x1b"}


def plain(text: str, limit: int | None = None) -> str:
    """Return the text without control characters, on one line, cut to `limit` characters."""
    if not (text.isascii() and text.isprintable()):
        text = re.sub(_LONE_JOINER, "", re.sub(_SEQUENCES, "", text).translate(_clean()))
    if limit is None or len(text) <= limit:
        return text
    return text[: limit - 1].rstrip(JOINER) + ELLIPSIS if limit > 0 else ""


def plain_log(line: str) -> str:
    """Return a log line with its colours but no other controls: overwritten progress is folded, tabs are expanded."""
    if re.sub(_COLOUR, "", line).isprintable() and line.isascii():
        return line
    if "\r" in line:
        parts = line.split("\r")
        line = next((part for part in reversed(parts) if re.sub(_SEQUENCES, "", part).strip()), "")
    line = re.sub(_SEQUENCES_BUT_COLOUR, r"\1", line)
    if "\t" in line:
        *cells, last = line.split("\t")
        done = []
        for cell in cells:
            used = width(re.sub(_COLOUR, "", cell)) if not cell.isascii() or "\x1b" in cell else len(cell)
            done.append(cell + " " * (8 - used % 8))
        line = "".join(done) + last
    return re.sub(_LONE_JOINER, "", line.translate(_clean_log()))


def plain_bytes(raw: bytes) -> str:
    return plain_log(raw.decode("utf-8", "replace"))


def last_line(raw: bytes) -> str:
    """Return the last line that is not blank, as plain text of at most 200 characters; empty without one."""
    lines = [line.strip() for line in raw.decode(errors="replace").splitlines() if line.strip()]
    return plain(lines[-1], 200) if lines else ""


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
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


SECRET_NAME = r"(?i)TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|AUTH|COOKIE|API_?KEY|ACCESS_?KEY|_KEY$"  # noqa: S105 - a pattern
"""Names of environment variables whose values are secrets."""
_MASK = "***"
_SHORTEST = 4
"""Shorter values are not replaced: `1` or `yes` would be found in every line."""
_WRITTEN = (
    r"(?i)(?P<keep>://[^\s/:@]{0,100}:|\b(?:bearer|basic)\s+|"
    r"\b[\w-]{0,40}(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key)"
    r"[\"']?\s{0,3}[=:]\s{0,3}[\"']?)(?P<value>[^\s\"',;)@]{4,})"
)
"""Secrets as programs print them: `https://user:secret@host`, `Bearer secret`, `api_key=secret`."""


def without_secrets(text: str, env: Pairs = ()) -> str:
    """Return the text with secrets replaced.

    Values of variables of `env` with such names, and text that looks like a secret.
    """
    values = {value for name, value in env if len(value) >= _SHORTEST and re.search(SECRET_NAME, name)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return re.sub(_WRITTEN, lambda found: found["keep"] + _MASK, text)


_SIZE = r"(?ia)(\d+(?:\.\d+)?)\s*(?:([kmgtp])i?)?b?"
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
UNKNOWN = "–"
"""Placeholder of a missing reading: never a 0."""
MAX_SIZE = 2**60
"""Maximum size in bytes, 1 EiB: a larger one is a typing error, and would not fit the runtime's signed 64 bits."""

_PARTS = (
    r"(?ia)(?:(\d+(?:\.\d+)?)w)?(?:(\d+(?:\.\d+)?)d)?"
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?"
)
_CLOCK = r"(?a)(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?"
_WORDS = r"(?ia)(?<=\d)\s*(?:(s)econds?|(s)ecs?|(m)inutes?|(m)ins?|(h)ours?|(h)rs?|(d)ays?|(w)eeks?|([wdhms]))\b"
_BETWEEN = r"(?ia)(?<=[wdhms])(?:\s*,\s*|\s+and\s+|\s+)(?=\d)"
_HOURS = r"(?ia)(\d+)h([0-5]\d)"
_BARE = r"(?a)\d+(?:\.\d+)?"
MAX_DURATION = timedelta(days=3650)
"""Maximum duration, ten years: a longer one is a typing error; dates stay in range."""
DURATION_HINT = "write 90s, 1h30m, 2d or 2-12:00:00"


def parse_size(text: str, where: str | None = None) -> int:
    """Return the bytes of `16g`, `512m`, `1.5GiB` or `1048576`."""
    match = re.fullmatch(_SIZE, text.strip())
    if not match or len(text) > 40:
        raise InputError(f"{quoted(text)} is not a size", where=where, hint="write 16g, 512m or 1048576")
    # whole numbers stay whole: a float would round those above 2**53
    number = int(match[1]) if match[1].isdecimal() else float(match[1])
    size = int(number * 1024 ** _POWER[(match[2] or "").lower()])
    if not 0 < size <= MAX_SIZE:
        raise InputError(f"{quoted(text)} is out of range", where=where, hint="a size is above 0 and at most 1024p")
    return size


def format_size(size: int | None) -> str:
    """Return `16G`, `1.5G`, `512M`: at most four figures."""
    if size is None:
        return "-"
    value = float(size)
    for unit in "BKMGTP":
        if abs(value) < 1023.5 or unit == "P":
            break
        value /= 1024
    digits = f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
    return digits if unit == "B" else digits + unit


def parse_duration(text: str, where: str | None = None) -> timedelta:
    """Return the duration of `90s`, `1h30m`, `2d`, `1 day 2 hours`, `2-12:00:00`, or `0`, which needs no unit."""
    number = text.strip()
    if lacks_unit(text):
        hint = f"write {number}s, {number}m or {number}h; several units as 1h30m"
        raise InputError(f"{quoted(text)} has no unit", where=where, hint=hint)
    duration = None
    if len(text) <= 40:
        short = re.sub(_WORDS, lambda match: str(match[match.lastindex or 0]), number)
        duration = _duration(re.sub(_BETWEEN, "", short))  # `1 day and 2 hours` as `1d2h`
    if duration is None:
        raise InputError(f"{quoted(text)} is not a duration", where=where, hint=DURATION_HINT)
    if not timedelta(0) <= duration <= MAX_DURATION:
        raise InputError(f"{quoted(text)} is out of range", where=where, hint="at most 3650 days")
    return duration


def lacks_unit(text: str) -> bool:
    """Return whether it is a number above 0 without a unit, which `parse_duration` refuses."""
    number = text.strip()
    return len(text) <= 40 and re.fullmatch(_BARE, number) is not None and float(number) > 0


def parse_time_span(text: str, where: str | None = None) -> timedelta:
    duration = parse_duration(text, where=where)
    if not duration:
        raise InputError(f"{quoted(text)} is not above 0", where=where, hint=DURATION_HINT)
    return duration


def _duration(text: str) -> timedelta | None:
    try:
        if re.fullmatch(_BARE, text):
            return timedelta(0)
        if clock := re.fullmatch(_CLOCK, text):
            days, *parts = (int(part or 0) for part in clock.groups())
            if clock[1] is None and clock[4] is None:
                parts = [0, *parts]  # minutes:seconds; with days Slurm's days-hours:minutes
            return timedelta(days=days, hours=parts[0], minutes=parts[1], seconds=parts[2])
        if half := re.fullmatch(_HOURS, text):
            return timedelta(hours=int(half[1]), minutes=int(half[2]))
        if text and (match := re.fullmatch(_PARTS, text)):
            weeks, whole_days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
            return timedelta(weeks=weeks, days=whole_days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        return timedelta.max
    return None


def format_duration(duration: timedelta | None) -> str:
    """Return `45s`, `12m30s`, `3h05m`, `2d04h`: two units, so that columns stay narrow."""
    if duration is None:
        return "-"
    seconds = max(0, int(duration.total_seconds()))
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hour:
        return f"{hour}h{minute:02}m"
    if minute:
        return f"{minute}m{second:02}s"
    return f"{second}s"


def age_words(passed: timedelta) -> str:
    """Return `<1m`, `7m`, `2h14m` or `3d04h`, to the minute."""
    minutes = passed // timedelta(minutes=1)
    return format_duration(timedelta(minutes=minutes)).removesuffix("00s") if minutes > 0 else "<1m"


def format_limit(limit: timedelta | None) -> str:
    """Return `16m`, `2h30m` or `3d`: without units that are zero."""
    return re.sub(r"(?<=[dhm])00[hms]$", "", format_duration(limit))


def distance(before: datetime, after: datetime) -> str:
    """Return `38m10s earlier` or `4h later`."""
    shift = after - before
    return f"{format_limit(abs(shift))} {'later' if shift > timedelta(0) else 'earlier'}"


def minute(at: datetime, now: datetime) -> str:
    """Return `14:32` today, `Tue 14:32` within six days, else `03-24 14:32`: at most eleven cells."""
    here, today = at.astimezone(), now.astimezone().date()
    days = abs((here.date() - today).days)
    return f"{here:%H:%M}" if not days else f"{here:%a %H:%M}" if days < 7 else f"{here:%m-%d %H:%M}"


def local_time(at: datetime, now: datetime) -> str:
    """Return `18:00` for a time of today, else `Tue 2026-03-03 18:00 CET`, in the local zone."""
    here = at.astimezone()
    return f"{here:%H:%M}" if here.date() == now.astimezone().date() else f"{here:%a %Y-%m-%d %H:%M %Z}"


def plural(count: int, noun: str) -> str:
    """Return `1 GPU`, `3 GPUs`, `2 processes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def ranges(numbers: Iterable[int], joint: str = ",", least: int = 2) -> str:
    """Return `0-3,6` for 0, 1, 2, 3 and 6; fewer than `least` consecutive numbers are listed one by one."""
    spans: list[range] = []
    for number in numbers:
        if spans and number == spans[-1].stop:
            spans[-1] = range(spans[-1].start, number + 1)
        else:
            spans.append(range(number, number + 1))
    words = (f"{span[0]}-{span[-1]}" if len(span) >= least else joint.join(map(str, span)) for span in spans)
    return joint.join(words)


def listed(items: Iterable[object]) -> str:
    """Return `4`, `4 and 9`, `4, 9 and 12`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def quoted(text: str) -> str:
    """Return the text as a short quotation without control characters; typed text may contain anything."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    return ascii(shown) if not shown.isprintable() else f"'{shown}'"


def shown(text: str) -> str:
    """Return a short quotation in ASCII, without control characters."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def user_name(uid: int, nameless: str = "") -> str:
    """Return the name of the account with this uid; where there is none the number, behind the word `nameless`."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # an id without an account, as in many containers
        return f"{nameless}{uid}"
