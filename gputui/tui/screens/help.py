"""Texts to read: help with all keys, the current pane's first, and notices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import Struct
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input

from gputui.domain.cluster import Capability
from gputui.domain.conditions import FAILED, INFORMATION, Condition, with_keys
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import broken, format_duration, minute, plain, width
from gputui.domain.verbs import GPUS, JOBS, QUEUE
from gputui.tui.commands import (
    COMMANDS,
    HELP,
    LEAVE_COMMANDS,
    LOGS,
    NOTICES,
    SEARCH_HELP,
    TIMELINE,
    TIMELINE_COMMANDS,
    Command,
    bindings,
    bound_to,
    by_group,
)
from gputui.tui.keymap import ALL_THERE, Lacking, keymap_of, lack
from gputui.tui.keys import order_words
from gputui.tui.notifications import Notification
from gputui.tui.present.cells import (
    BLUE,
    DIM,
    PLAIN,
    SEVERITY_MARKS,
    SEVERITY_STYLES,
    STRONG,
    Cell,
    Span,
    fitted,
    second,
)
from gputui.tui.screens.dialogs import ScrollingDialog
from gputui.tui.screens.panes import pane_of
from gputui.tui.services import Services
from gputui.tui.textual_internals import bindings_of
from gputui.tui.widgets.line_table import CellLines

if TYPE_CHECKING:
    from textual.app import App


_PANES = {"gpus": ("GPUs", GPUS), "queue": ("queue", JOBS), "log": ("log", LOGS), "rows": ("timeline", TIMELINE)}
"""Title and group of commands of each pane, by the id of its widget."""
_ACT_ON = (
    ("queue", "the selected job"),
    ("GPUs", "the job that holds the selected GPU; to drain or resume: {}"),
    ("log", "the job whose log is shown"),
)
_ORDER_OF_ENGINES = "The cluster's own: it decides which job starts next, and on which node."
_Row: TypeAlias = tuple[Span, str, Span]
_NOTHING: _Row = (("", PLAIN), "", ("", PLAIN))
_FIRST, _SECOND, _THIRD, _GAP = 11, 10, 10, 2
"""Minimum widths of the columns, and their gap."""
_BESIDE, _INDENT = 26, 4
"""Minimum cells of descriptions beside their keys, and their indentation below the keys."""
_SHORT = 4
"""Minimum number of letters that are found anywhere; fewer are in too many words."""


class Context(Struct, frozen=True):
    pane: str = ""
    """The id of the focused widget."""
    names: frozenset[str] = frozenset(command.name for command in COMMANDS)
    """The commands that have a key there."""
    lacking: Lacking = ALL_THERE
    """Capabilities that the cluster lacks."""

    @classmethod
    def of(cls, screen: Screen[object], lacking: Lacking = ALL_THERE) -> Context:
        nodes = screen.focused.ancestors_with_self if screen.focused else (screen, screen.app)
        names = {binding.id for node in nodes for binding in bindings_of(node) if binding.id}
        without_key = {name for name, keys in keymap_of(screen).keys.items() if not keys}
        focus = screen.focused
        return cls(pane_of(focus) or (focus.id if focus else "") or "", frozenset(names | without_key), lacking)


class Help(ScrollingDialog):
    BINDINGS: ClassVar = [*bound_to("close", HELP), *bindings((SEARCH_HELP,))]
    DEFAULT_CSS = """
    Help #box {
        width: 90%; max-width: 112; height: 90%; background: $surface; border: round $primary; padding: 0 1;
    }
    Help VerticalScroll {
        height: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
        padding: 0 1;
    }
    Help Input { width: 100%; margin: 0 1; display: none; }
    Help Input.-open { display: block; }
    """

    def __init__(self, context: Context | None = None) -> None:
        super().__init__()
        self._asked_from = context or Context()

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Keys"
            box.border_subtitle = f"{self.key('search_help')} search   {self.how}"
            yield Input(placeholder="a key, or words of the description", compact=True)
            with VerticalScroll():
                yield CellLines(id="keys")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.show_lines()

    def lines(self, room: int) -> list[Cell]:
        wanted, told = self.query_one(Input).value, keymap_of(self).told
        lacking = self._asked_from.lacking
        found = arranged(self._asked_from)
        groups = [(heading, [told(command) for command in commands]) for heading, commands in found]
        order = _ORDER_OF_ENGINES if Capability.WHAT_IF in lacking else order_words()
        order = "" if wanted.strip() else order
        return help_lines(matching(groups, wanted), room, with_keys(order, keymap_of(self).key), lacking)

    def action_search_help(self) -> None:
        field = self.query_one(Input)
        field.add_class("-open")
        field.focus()

    @on(Input.Changed)
    def _typed(self) -> None:
        self.show_lines()
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @on(Input.Submitted)
    def _done(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_back(self) -> None:
        field = self.query_one(Input)
        if not field.has_class("-open"):
            self.dismiss()
            return
        field.value = ""
        field.remove_class("-open")
        self.query_one(VerticalScroll).focus()


def arranged(context: Context) -> list[tuple[str, Sequence[Command]]]:
    """Return the groups under their headings: the pane's own first, those of other screens last."""
    words, first = _PANES.get(context.pane, ("", ""))
    here = by_group(tuple(command for command in COMMANDS if command.name in context.names))
    found: list[tuple[str, Sequence[Command]]] = []
    if first in here:
        found.append((f"{first}, while the {words} has the focus" if words != first else first, here.pop(first)))
    if first == JOBS and QUEUE in here:
        found.append((QUEUE, here.pop(QUEUE)))
    found += here.items()
    elsewhere = by_group(tuple(command for command in COMMANDS if command.name not in context.names))
    found += [(f"{group}, elsewhere", commands) for group, commands in elsewhere.items()]
    lacking = context.lacking
    if not lacking:
        return found
    # what is lacking stands at the end, and keys of screens that never open then nowhere
    never: Sequence[Command] = (*TIMELINE_COMMANDS, *LEAVE_COMMANDS) if Capability.WHAT_IF in lacking else ()
    kept = [(heading, [each for each in group if each not in never]) for heading, group in found]
    absent = [each for _, group in kept for each in group if lack(each, lacking)]
    groups: list[tuple[str, Sequence[Command]]] = [
        (heading, rest) for heading, group in kept if (rest := [each for each in group if each not in absent])
    ]
    return [*groups, ("Not here, and why", absent)] if absent else groups


def matching(groups: Iterable[tuple[str, Sequence[Command]]], wanted: str) -> list[tuple[str, list[Command]]]:
    """Return the commands that have every word in keys, names, synonyms or description; a single character is a key."""
    found = []
    for heading, commands in groups:
        kept = [command for command in commands if _matches(command, heading, wanted.strip())]
        if kept:
            found.append((heading, kept))
    return found


def _matches(command: Command, heading: str, wanted: str) -> bool:
    if len(wanted) == 1:
        return wanted in command.key_names.split()
    names = f"{command.key_names} {command.title} {command.name} {' '.join(command.synonyms)}"
    text = f"{names} {command.help} {heading}".lower()
    return all(  # a short word, such as `ls`, is found only where a word begins
        word in text if len(word) >= _SHORT else re.search(rf"(?<!\w){re.escape(word)}", text) is not None
        for word in wanted.lower().split()
    )


def help_lines(
    groups: Sequence[tuple[str, Sequence[Command]]], room: int, order: str, lacking: Lacking = ALL_THERE
) -> list[Cell]:
    """Return the keys under their headings, in lines of `room` cells; long sentences are wrapped.

    `order` is the sentence on the order of the queue; empty if only some keys are shown.
    """
    rows: list[_Row] = []
    for heading, commands in groups:
        name, _, where = heading.partition(", ")
        rows += [_NOTHING] if rows else []
        rows.append(((name, STRONG), "", (where, DIM)))
        for each in commands:
            keys: Span = (f"  {each.key_names}", BLUE) if each.keys else ("  no key", DIM)
            rows.append((keys, each.title, (lack(each, lacking) or each.help, DIM)))
    if not groups:
        rows.append((("nothing", DIM), "", ("No key matches. The palette finds commands by name.", DIM)))
    if order:
        rows += [_NOTHING, (("Order", STRONG), "", (order, DIM))]
        rows += [_NOTHING, (("Acts on", STRONG), "", ("", PLAIN))]
        drained = "its node" if Capability.DRAIN_GPU in lacking else "the GPU itself"
        rows += [((f"  {pane}", BLUE), "", (words.format(drained), DIM)) for pane, words in _ACT_ON]
    return _lines(rows, room)


def _lines(rows: Sequence[_Row], room: int) -> list[Cell]:
    first = max(_FIRST, *(width(keys) for (keys, _), _, _ in rows)) + _GAP
    second = max(_SECOND, *(width(title) for _, title, _ in rows)) + _GAP
    lines: list[Cell] = []
    if room - first - second < _BESIDE:  # the descriptions are below keys and titles
        for (keys, style), title, (words, words_style) in rows:
            lines.append((*fitted(((keys, style),), first if title else room), (title, PLAIN)))
            sentence = broken(words, max(_THIRD, room - _INDENT)) if words else ()
            lines += [((" " * _INDENT, PLAIN), (line, words_style)) for line in sentence]
        return lines
    for (keys, style), title, (words, words_style) in rows:
        sentence = broken(words, max(_THIRD, room - first - second))
        begun = (*fitted(((keys, style),), first), *fitted(((title, PLAIN),), second))
        lines.append((*begun, (sentence[0], words_style)))
        lines += [((" " * (first + second), PLAIN), (rest, words_style)) for rest in sentence[1:]]
    return lines


_NOTICES_FIRST = 12
"""Cells of the first column: the severity."""
_WORDS = {"error": "error", "warning": "warning", "information": "news"}


class Notices(ScrollingDialog):
    """Notices with their severity as a word: current ones first, worst first; then past ones, latest first."""

    BINDINGS: ClassVar = bound_to("close", NOTICES)
    heading = "Notices"

    def __init__(self, look: Callable[[], tuple[tuple[Condition, ...], Sequence[Notification], datetime]]) -> None:
        """`look` returns the present conditions, past events, and the time."""
        super().__init__()
        self._look = look

    def on_mount(self) -> None:
        self.show_lines()

    def lines(self, room: int) -> list[Cell]:
        return notice_lines(*self._look(), room)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.show_lines()


def notice_lines(
    found: tuple[Condition, ...], happenings: Sequence[Notification], now: datetime, room: int
) -> list[Cell]:
    """Return current conditions and past notices, in lines of `room` cells; a sentence where there are none."""
    lines: list[Cell] = [_row(("Now", STRONG), "worst first" if found else "No error and no warning.", DIM)]
    for condition in found:
        lines += _broken(condition.severity, ((plain(condition.text, 2000), PLAIN),), room)
        told = "since before this console was opened"
        if condition.since is not None:
            age = format_duration(max(now - condition.since, timedelta(0)))
            told = f"{'seen ' if condition.is_seen else ''}since {minute(condition.since, now)} ({age})"
        told += f" · {plain(condition.todo, 300)}" if condition.todo else ""
        lines += [_row(("", PLAIN), line, DIM) for line in broken(told, max(10, room - _NOTICES_FIRST))]
    lines += [(), _row(("Before", STRONG), "while this console was open" if happenings else "Nothing yet.", DIM)]
    for happening in reversed(happenings):
        at: Span = (f"{second(happening.at, now)}  ", DIM)
        lines += _broken(happening.severity, (at, (plain(happening.text, 1000), PLAIN)), room)
    return lines


def _row(first: Span, words: str, style: Style) -> Cell:
    return (*fitted((first,), _NOTICES_FIRST), (words, style))


def _broken(severity: str, spans: Sequence[Span], room: int) -> Iterator[Cell]:
    """Return a notice's lines: the first with its severity, the others indented."""
    *before, (text, style) = spans
    first, *rest = broken("".join(words for words, _ in before) + text, max(10, room - _NOTICES_FIRST))
    begun = sum(len(words) for words, _ in before)
    word = SEVERITY_MARKS.get(severity, "") + _WORDS.get(severity, severity)
    word_style = SEVERITY_STYLES.get(severity, PLAIN)
    yield (*fitted(((word, word_style),), _NOTICES_FIRST), *before, (first[begun:], style))
    for line in rest:
        yield _row(("", PLAIN), line, style)


Place = tuple[str, str]


def place_of(condition: Condition, snapshot: Snapshot) -> Place | None:
    """Return the kind and id of what it is about; None for a condition that is no alarm, or about no page."""
    if condition.severity == INFORMATION:
        return None
    if condition.place[0]:
        return condition.place
    if condition.kind == FAILED and condition.subject.isdigit():
        return "job", condition.subject
    return ("gpu", condition.subject) if any(v.gpu.uuid == condition.subject for v in snapshot.gpus) else None


class AlarmPages(Struct, eq=False):
    _services: Services
    _page: Screen[None] | None = None
    _last: Place | None = None

    def open_next(
        self, app: App[Any], snapshot: Snapshot, found: Sequence[Condition], follow: Callable[[JobId], None]
    ) -> bool:
        """Open the page of the worst alarm; on such a page, that of the next one. Return whether there is any."""
        known = (place_of(condition, snapshot) for condition in found)
        places = list(dict.fromkeys(place for place in known if place is not None))
        if not places:
            return False
        is_on_page = self._page is not None and app.screen is self._page
        after = places.index(self._last) + 1 if is_on_page and self._last in places else 0
        kind, name = self._last = places[after % len(places)]
        page: Screen[None]
        if kind == "job":
            page = self._services.pages.detail(self._services, snapshot, int(name), follow)
        elif kind == "gpu":
            from gputui.tui.screens.pages import GpuDetailScreen

            page = GpuDetailScreen(self._services, snapshot, name, follow)
        else:
            from gputui.tui.screens.process_view import GpuProcessesScreen

            page = GpuProcessesScreen(self._services, snapshot, follow, at=name)
        if is_on_page:
            app.switch_screen(page)
        else:
            app.push_screen(page)
        self._page = page
        return True
