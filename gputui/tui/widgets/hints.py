"""Hints that name keys, such as `Enter OK   Esc cancel`: a click on one acts like its key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from textual import events
from textual.geometry import Offset, Region
from textual.widget import Widget
from textual.widgets import Static

from gputui.tui.keys import NAMES, key_of

_NAMED = "|".join(sorted((re.escape(name) for name in NAMES.values() if len(name) > 1), key=len, reverse=True))
_KEY = rf"(?:(?:Ctrl|Alt|Shift)-\S+|F\d+|{_NAMED}|Backspace|Delete|Insert|\S)"


@cache
def _hint() -> re.Pattern[str]:
    """Return the pattern of `y Enter  yes` or `↓ ↑ scroll`: keys, and what they do."""
    return re.compile(rf"(?<!\S)(?P<keys>{_KEY}(?: {_KEY})*) +(?P<words>\S.*?)(?= {{2,}}{_KEY} |  {{3,}}|$)")


def key_at(text: str, x: int) -> str | None:
    """Return Textual's name of the key whose hint stands at cell `x` of a line; of several keys the one at `x`."""
    for hint in _hint().finditer(text):
        if hint.start() <= x < hint.end():
            keys = list(_words(hint["keys"], hint.start("keys")))
            return key_of(next((key for start, key in keys if start <= x < start + len(key)), keys[0][1]))
    return None


def _words(text: str, start: int) -> Iterator[tuple[int, str]]:
    return ((start + word.start(), word[0]) for word in re.finditer(r"\S+", text))


def press(widget: Widget, key: str | None) -> None:
    """Press that key; sent from the app, since a key that a screen sends would not bubble back to it."""
    if key is not None:
        widget.app.call_later(widget.app.simulate_key, key)


class Hints(Static):
    """Lines of hints; in a list of answers the whole line stands for its first key."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str = "keys") -> None:  # noqa: A002 - Textual's
        super().__init__(text, id=id, classes=classes, markup=False)

    def on_click(self, event: events.Click) -> None:
        """Press the key of the clicked hint."""
        lines, at = str(self.content).splitlines(), event.screen_offset - self.content_region.offset
        if not 0 <= at.y < len(lines):
            return
        is_answer = self.has_class("answers") and at.x < len(lines[at.y])
        press(self, key_at(lines[at.y], 0 if is_answer else at.x))


def edge_key_at(box: Widget, at: Offset) -> str | None:
    """Return the key whose hint stands at a place of the screen on the lower edge of a box."""
    edge, words = box.region, str(box.border_subtitle or "")
    if not words or at.y != edge.bottom - 1 or not edge.contains_point(at):
        return None
    drawn = box.render_lines(Region(0, edge.height - 1, edge.width, 1))[0].text
    start = drawn.find(words)
    return None if start < 0 else key_at(words, at.x - edge.x - start)
