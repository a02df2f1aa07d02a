"""Lines of a job's output as styled text: colours are kept, other control sequences and line times removed."""

from __future__ import annotations

import re
from datetime import datetime

from rich.color import Color
from rich.style import Style

from gputui.domain.text import plain_bytes
from gputui.tui.present.cells import LOG_BRIGHT, LOG_NAMES, PLAIN, Span

_COLOURS = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_RAW_COLOURS = re.compile(rb"\x1b\[([0-9;:]{0,64})m")
MOST = 4096
"""Bytes of a line that are kept."""
_ATTRIBUTES = {
    1: Style(bold=True),
    2: Style(dim=True),
    3: Style(italic=True),
    4: Style(underline=True),
    22: Style(bold=False, dim=False),
    23: Style(italic=False),
    24: Style(underline=False),
    39: PLAIN,
}


def kept_part(whole: bytes) -> bytes:
    """Return what is kept of a line, with its time: its beginning, or the last state of a long progress bar."""
    if len(whole) <= MOST or b"\r" not in whole:
        return whole[:MOST]
    bare = without_stamp(whole)
    stamp = whole[: len(whole) - len(bare)]
    return stamp + bare[bare.rstrip(b"\r").rfind(b"\r") + 1 :][: MOST - len(stamp)]


def style_after(raw: bytes, style: Style) -> Style:
    """Return the style after a line that begins in `style`; only the part after its last reset counts."""
    at = max(raw.rfind(b"\x1b[0m"), raw.rfind(b"\x1b[m"))
    if at >= 0:
        style = PLAIN
    for match in _RAW_COLOURS.finditer(raw, max(0, at), MOST):
        style = _after(style, match[1].decode("ascii"))
    return style


def log_spans(raw: bytes, style: Style = PLAIN) -> list[Span]:
    spans: list[Span] = []
    text, at = plain_bytes(raw[:MOST]), 0
    for match in _COLOURS.finditer(text):
        if match.start() > at:
            spans.append((text[at : match.start()], style))
        style, at = _after(style, match[1]), match.end()
    if at < len(text):
        spans.append((text[at:], style))
    return [(value.replace("\x1b", ""), style) for value, style in spans]


def shown_text(text: str) -> str:
    return _COLOURS.sub("", text).replace("\x1b", "")


def highlighted(spans: list[Span], places: list[tuple[int, int]], style: Style) -> list[Span]:
    """Return the line with the given spans of its text, in order, in another style."""
    marked: list[Span] = []
    at = 0
    for value, own in spans:
        here = 0
        for start, end in places:
            begin, stop = max(start - at, here), min(end - at, len(value))
            if begin < stop:
                if begin > here:
                    marked.append((value[here:begin], own))
                marked.append((value[begin:stop], own + style))
                here = stop
        if here < len(value):
            marked.append((value[here:], own))
        at += len(value)
    return marked


def _after(style: Style, colours: str) -> Style:
    """Return the style after a colour sequence (ECMA-48 SGR with the 256-colour and RGB extensions)."""
    codes = [int(code[:4]) if code else 0 for code in re.split("[;:]", colours)]
    i = 0
    while i < len(codes):
        code = codes[i]
        i += 1
        if code in (38, 48):
            colour, used = _extended(codes[i:])
            i += used
            if colour is not None:
                style += Style(color=colour) if code == 38 else Style(bgcolor=colour)
        elif code == 0:
            style = PLAIN
        elif attribute := _ATTRIBUTES.get(code):
            style += attribute
        elif 30 <= code < 38 or 90 <= code < 98:
            style += Style(color=(LOG_BRIGHT if code >= 90 else LOG_NAMES)[code % 10])
        elif 40 <= code < 48 or 100 <= code < 108:
            style += Style(bgcolor=(LOG_BRIGHT if code >= 100 else LOG_NAMES)[code % 10])
    return style


def _extended(codes: list[int]) -> tuple[Color | None, int]:
    if codes[:1] == [5] and len(codes) >= 2:
        number = codes[1]
        if number < 16:
            return Color.parse((LOG_NAMES + LOG_BRIGHT)[number]), 2
        return (Color.from_ansi(number) if number < 256 else None), 2
    if codes[:1] == [2] and len(codes) >= 4:
        red, green, blue = (min(255, value) for value in codes[1:4])
        return Color.from_rgb(red, green, blue), 4
    return None, len(codes)


_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")
STAMP_WIDTH = len("10:02:04.123 ")


def without_stamp(raw: bytes) -> bytes:
    match = _STAMP.match(raw)
    return raw[match.end() :] if match else raw


def stamp_words(raw: bytes) -> str:
    """Return the local time of day to the millisecond; blanks if there is none."""
    match = _STAMP.match(raw)
    if match is None:
        return " " * STAMP_WIDTH
    thousandths = (match[2] or b"").ljust(3, b"0")[:3].decode("ascii")
    try:
        local = datetime.fromisoformat(f"{match[1].decode('ascii')}+00:00").astimezone()
    except (ValueError, OverflowError):  # such as a thirteenth month
        return " " * STAMP_WIDTH
    return f"{local:%H:%M:%S}.{thousandths} "
