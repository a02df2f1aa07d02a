"""Commands of the what-if panel and of the timeline."""

from __future__ import annotations

from gputui.tui.commands.command import TIMELINE, WHAT_IF, Command

WHAT_IF_COMMANDS = (
    Command("commit", ("enter",), "commit", "Write the change down whose shifts are shown.", WHAT_IF, True, False),
    Command("forget", ("escape",), "forget", "Leave everything as it is.", WHAT_IF, True, False),
)
FURTHER = (
    Command(
        "further('raise')", ("plus", "equals_sign"), "more", "Another 10 of priority.", WHAT_IF, True, False, id="more"
    ),
    Command("further('lower')", ("minus",), "less", "10 of priority less.", WHAT_IF, True, False, id="less"),
    Command(
        "further('top')", ("t",), "top", "To the head of the queue instead.", WHAT_IF, True, False, id="top_instead"
    ),
    Command("drag(1)", ("J",), "move", "One place further down.", WHAT_IF, True, False, "J/K", id="drag_down"),
    Command("drag(-1)", ("K",), "further up", "One place further up.", WHAT_IF, False, False, id="drag_up"),
)
TIMELINE_COMMANDS = (
    Command(
        "zoom_time(1)", ("i",), "zoom", "Zoom in: less time on the screen.", TIMELINE, True, True, "i/o", id="zoom_in"
    ),
    Command("zoom_time(-1)", ("o",), "zoom out", "Zoom out: more time on the screen.", TIMELINE, False, id="zoom_out"),
    Command(
        "look(1)",
        ("greater_than_sign", "shift+right"),
        "later",
        "Look further ahead.",
        TIMELINE,
        True,
        True,
        "</>",
        id="later",
    ),
    Command("look(-1)", ("less_than_sign", "shift+left"), "earlier", "Look back.", TIMELINE, False, id="earlier"),
    Command("present", ("0",), "now", "Back to the present, with the whole plan in sight.", TIMELINE, id="now"),
    Command(
        "bar(1)", ("right", "l"), "next bar", "To the next job on this GPU.", TIMELINE, False, False, id="bar_next"
    ),
    Command(
        "bar(-1)", ("left",), "bar before", "To the job before on this GPU.", TIMELINE, False, False, id="bar_before"
    ),
)
