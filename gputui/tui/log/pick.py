"""Lines of a log that are picked to be copied."""

from __future__ import annotations

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.lines import LogLines
from gputui.tui.log.pattern import text_of
from gputui.tui.present.log_stamp import without_stamp

MOST_COPIED = 100_000
"""Bytes that are copied at most: terminals drop longer sequences whole."""


class LogPick:
    """From one line to another, among those that are shown."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.head = 0

    def begin(self, number: int) -> None:
        """Pick this line."""
        self.start = self.head = number

    def extend(self, number: int) -> None:
        """Pick as far as this line."""
        if self.start is None:
            self.start = number
        self.head = number

    def drop(self) -> None:
        """Pick nothing."""
        self.start = None

    @property
    def is_on(self) -> bool:
        """Whether anything is picked."""
        return self.start is not None

    def has(self, number: int) -> bool:
        """Whether the line is picked."""
        return self.start is not None and min(self.start, self.head) <= number <= max(self.start, self.head)

    def numbers(self, lines: LogLines) -> list[int]:
        """The lines that are shown and picked."""
        if self.start is None:
            return []
        first, last = sorted((self.start, self.head))
        return [number for i in range(lines.index(first), len(lines)) if (number := lines.number(i)) <= last]


def copied_text(buffer: LogBuffer, numbers: list[int], *, is_stamped: bool) -> tuple[str, int]:
    """The lines without colours, and how many of them fit into what may be copied."""
    kept: list[str] = []
    room = MOST_COPIED
    for number in numbers:
        raw = buffer.line(number)
        text = text_of(without_stamp(raw) if is_stamped else raw)
        room -= len(text.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(text)
    return "\n".join(kept), len(kept)
