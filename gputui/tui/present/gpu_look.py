"""Display options of GPUs: time span of graphs, and meaning of colours."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.settings import ConsoleSettings
from gputui.tui.preferences import Preferences

SPANS = {"live": 0, "10m": 600, "1h": 3600}
"""Seconds over the whole width of a graph, by name; 0: two per cell."""
COLOURS = ("judgement", "intensity")
_SECTION = "gpus"
"""Section of the preferences."""
_WORDS = {"live": "2 seconds a cell", "10m": "10 minutes across", "1h": "1 hour across"}
_MEANING = {"judgement": "by judgement: busy green, idle amber", "intensity": "by intensity: the more the redder"}


class GpuLook(Struct, frozen=True):
    """Choices of the user, and thresholds from the settings."""

    rules: ConsoleSettings = ConsoleSettings()
    span: str = "live"
    colours: str = "judgement"

    @property
    def seconds(self) -> int:
        """Seconds over the width of a graph; 0: two per cell."""
        return SPANS[self.span]

    @property
    def span_words(self) -> str:
        """Span of the graphs, as text."""
        return _WORDS[self.span]

    @property
    def colour_words(self) -> str:
        """Meaning of the colours, as text."""
        return _MEANING[self.colours]

    def with_next_span(self) -> GpuLook:
        """Return the look with graphs that go further back; after the longest, the shortest."""
        return replace(self, span=_after(self.span, tuple(SPANS)))

    def with_longest_span(self, recorded: timedelta) -> GpuLook:
        """Return the look with the longest span of which half is recorded, unless one was chosen: no graph is empty."""
        if self.seconds:
            return self
        filled = [name for name, seconds in SPANS.items() if seconds <= 2 * recorded.total_seconds()]
        return replace(self, span=filled[-1])

    def with_next_colours(self) -> GpuLook:
        """Return the look with the other meaning of colours."""
        return replace(self, colours=_after(self.colours, COLOURS))


def _after(one: str, known: tuple[str, ...]) -> str:
    return known[(known.index(one) + 1) % len(known)]


class LookChoice:
    """The user's chosen look, kept in the preferences; by default that of the settings."""

    def __init__(self, rules: ConsoleSettings, preferences: Preferences) -> None:
        self._preferences = preferences
        chosen = preferences.get(_SECTION)
        span, colours = chosen.get("span"), chosen.get("colours")
        self.current = GpuLook(
            rules,
            span if isinstance(span, str) and span in SPANS else "live",
            colours if isinstance(colours, str) and colours in COLOURS else rules.gpu_colours,
        )

    def take(self, look: GpuLook) -> None:
        """Use this look from now on."""
        self.current = look
        self._preferences.put(_SECTION, {"span": look.span, "colours": look.colours})
