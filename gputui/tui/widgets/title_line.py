"""Title line of a pane: a rule that separates it from the pane above, bright if the pane has the focus."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.strip import Strip

from gputui.tui.present.cells import Cell, Span, fitted, segments, width_of
from gputui.tui.present.style import BLUE, PLAIN, RAISED, TRACK

_RAISED = Style(bgcolor=RAISED)
FOCUSED, UNFOCUSED = "━", "─"


def title_line(spans: Sequence[Span], room: int, *, has_focus: bool, right: str = "", aside: Cell = ()) -> Strip:
    """Return the title, a rule up to the right edge, and the text at its end; `aside` only if there is room."""
    end: Cell = ((f" {right} ", PLAIN),) if right else ((" ", PLAIN), *aside, (" ", PLAIN))
    if aside and width_of(spans) + width_of(end) + 3 > room:
        end = ()
    end = end if right or aside else ()
    rule = room - width_of(spans) - width_of(end) - 1
    line = list(spans)
    if rule > 0:
        line += [(" ", PLAIN), ((FOCUSED if has_focus else UNFOCUSED) * rule, BLUE if has_focus else TRACK)]
    return Strip(segments(fitted((*line, *end), room), _RAISED), room)
