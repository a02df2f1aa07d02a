"""Lists of commands: the menu of a row, at the position of a right click, and the palette of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.fuzzy import FuzzySearch
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Input

from gputui.domain.arrays import count
from gputui.domain.gpu import GpuView, index_of
from gputui.domain.job import Job
from gputui.domain.text import broken, width
from gputui.tui.commands import COMMANDS, MENUS, Command, place_of
from gputui.tui.keymap import ALL_THERE, Lacking, keymap_of, why_not
from gputui.tui.keys import key_name
from gputui.tui.present.cells import AMBER, BLUE, DIM, PLAIN, STRONG, Cell, cell, fitted
from gputui.tui.present.job import job_title
from gputui.tui.screens.dialogs import Choose, ask
from gputui.tui.widgets.line_table import CellLines


class Offer(Struct, frozen=True):
    """A command found by name, on one screen at one moment."""

    command: Command
    why_not: str = ""
    """Reason why it is unavailable; empty if it is available."""

    @property
    def label(self) -> str:
        """Name with its group before it, since several commands are called `next`."""
        return f"{self.command.group}: {self.command.title}"


def offers(screen: Screen[Any], *, only_looks: bool = False, lacking: Lacking = ALL_THERE) -> list[Offer]:
    """Return the commands available in the focused pane, on the screen or in the app, followed by the others.

    `only_looks`: the console is read-only. `lacking`: what the cluster cannot do.
    """
    found = [
        Offer(command, why_not(command, screen, only_looks=only_looks, lacking=lacking))
        for command in COMMANDS
        if command.in_palette
    ]
    return sorted(found, key=lambda offer: bool(offer.why_not))


_SEARCH = FuzzySearch()
_BY_WORDS, _BEGINS_SYNONYM, _BEGINS_TITLE, _SYNONYM, _WHOLE = 0.0, 700.0, 800.0, 900.0, 1000.0
"""Scores of a command, by the way in which it was found.

By its description, by the beginning of a synonym or of its title, by a synonym, and by its whole name. Letters anywhere
in the name score between the first two.
"""
_LEAST = 3
"""Minimum number of letters of a title or synonym; fewer begin too many words."""


class Match(Struct, frozen=True):
    offer: Offer
    letters: frozenset[int] = frozenset()
    """Positions of the matching letters in the label, from 0."""


def find_commands(offers: Sequence[Offer], wanted: str) -> list[Match]:
    """Return the matches, best first, available ones first among equals; without a text, all available ones."""
    text = " ".join(wanted.split()).lower()
    if not text:
        return [Match(offer) for offer in offers if not offer.why_not]
    scored = [each for offer in offers if (each := _scored(offer, text)) is not None]
    scored.sort(key=lambda each: (-each[0], bool(each[1].offer.why_not)))
    return [found for _, found in scored]


def _scored(offer: Offer, text: str) -> tuple[float, Match] | None:
    name = offer.label
    if text in {name.lower(), offer.command.title.lower()}:
        return _WHOLE, Match(offer, _letters(name, text, len(text)))
    score, letters = _SEARCH.match(text, name)
    synonyms = [word.lower() for word in offer.command.synonyms]
    if text in synonyms:
        return _SYNONYM, Match(offer)
    if len(text) >= _LEAST and offer.command.title.lower().startswith(text):
        return _BEGINS_TITLE, Match(offer, _letters(name, offer.command.title, len(text)))
    if len(text) >= _LEAST and any(word.startswith(text) for word in synonyms):
        return _BEGINS_SYNONYM, Match(offer)
    if score > 0:
        return score, Match(offer, frozenset(letters))
    words = f"{offer.label} {offer.command.help} {' '.join(offer.command.synonyms)}".lower()
    return (_BY_WORDS, Match(offer)) if all(word in words for word in text.split()) else None


def _letters(name: str, title: str, count: int) -> frozenset[int]:
    """Return the positions of the first letters of the title, which is the end of the name."""
    first = len(name) - len(title)
    return frozenset(range(first, first + count))


class Pointed(Choose):
    """List that returns the index of the chosen line; None for Escape and for a click outside the box."""

    def place_at(self, event: events.MouseEvent) -> int | None:
        lines = self.query_one("#lines", CellLines).region
        if not lines.contains(event.screen_x, event.screen_y):
            return None
        place = self.first + event.screen_y - lines.y
        return place if place < len(self.texts) else None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if (place := self.place_at(event)) is not None:
            self.action_down(place - self.cursor)

    def on_click(self, event: events.Click) -> None:
        """Choose the line, or close on a click outside the box; a click on a hint presses its key."""
        place = self.place_at(event)
        if place is not None:
            event.prevent_default()
            self.action_down(place - self.cursor)
            self.action_take_line()
        elif not self.query_one(".dialog").region.contains(event.screen_x, event.screen_y):
            event.prevent_default()
            self.action_back()


_FRAME, _MARK = 4, 2
"""Cells of the box, and before each line."""


def open_menu(screen: Screen[Any], title: str, commands: Sequence[Command], at: Offset) -> None:

    def chosen(number: int) -> None:
        if (place := place_of(commands[number], screen)) is not None:
            screen.call_later(screen.app.run_action, commands[number].action, place)

    rows = [(command.title, key_name(command.keys[0]) if command.keys else "") for command in commands]
    names, keys = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = [f"{name:<{names}}  {key:>{keys}}" for name, key in rows]
    ask(screen.app, Menu(title, lines, at), chosen)


def open_row_menu(
    screen: Screen[Any],
    jobs: Sequence[Job],
    view: GpuView | None,
    pane: str | None,
    works: Callable[[Command], bool],
    at: Offset,
) -> None:
    """Open the menu of a row of a pane with the commands that work now, if there is any."""
    title = f"{count(jobs)} jobs" if len(jobs) > 1 else job_title(jobs[0]) if jobs else ""
    keymap = keymap_of(screen)
    commands = tuple(keymap.told(command) for command in MENUS.get(pane or "", ()) if works(command))
    if commands:
        open_menu(screen, title if view is None else f"GPU {index_of(view)}", commands, at)


class Menu(Pointed):
    """Menu that returns the index of the chosen line, by a click or as in any list."""

    DEFAULT_CSS: ClassVar = """
    Menu {
        align: left top; background: $background 0%;
        .dialog { width: auto; min-width: 0; max-width: 100%; max-height: 100%; padding: 0 1; }
        CellLines { margin-bottom: 0; }
    }
    """

    def __init__(self, title: str, lines: Sequence[str], at: Offset) -> None:
        super().__init__(title, lines, none="")
        self._at = at

    def compose(self) -> ComposeResult:
        """Yield only the lines; no key hints, since it closes like any menu."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        lines = max(width(self._heading) + _MARK, *(width(text) + _MARK for text in self.texts))
        self.query_one(CellLines).styles.width = lines
        right, low = self.app.size.width - lines - _FRAME, self.app.size.height - self.rows - 3
        self.query_one(".dialog").styles.offset = (max(0, min(self._at.x, right)), max(0, min(self._at.y, low)))

    @property
    def rows(self) -> int:
        return max(1, min(len(self.texts), self.app.size.height - 3))


_GAP, _AROUND, _SAID = 2, 9, 2
"""Cells between columns; rows of the box that are not commands; and rows of the sentence below them."""
_NONE = "No matching command."


class CommandFinder(Pointed):
    """Palette that returns the index of the chosen command; None for Escape and for a click outside the box."""

    BINDINGS: ClassVar = []
    DEFAULT_CSS: ClassVar = """
    CommandFinder {
        .dialog { width: 96%; max-width: 112; padding: 0 1; }
        Input { width: 100%; }
        #sentence { height: 2; margin-bottom: 0; }
    }
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        super().__init__("Commands", (), none=_NONE)
        self._offers = offers
        self._found: list[Match] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            box.border_subtitle = f"Enter OK   {self.key('back')} cancel"
            yield Input(placeholder="letters of the name, or words of the description", compact=True)
            yield CellLines(id="lines")
            yield CellLines(id="sentence")

    def on_mount(self) -> None:
        keymap, commands = keymap_of(self), [offer.command for offer in self._offers]
        self._keys = {each.name: key_name(key) for each in commands for key in keymap.told(each).keys[:1]}
        self._names_room = max((width(offer.label) for offer in self._offers), default=0)
        self._keys_room = max(map(width, self._keys.values()), default=0)
        self.find("")

    def find(self, wanted: str) -> None:
        self._found = find_commands(self._offers, wanted)
        self.texts = [found.offer.label for found in self._found]
        self.cursor = self.first = 0
        self.show_lines()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.find(event.value)

    @on(Input.Submitted)
    def action_take_line(self) -> None:
        """Choose that command if it is available; the sentence below says why not."""
        if not self._found:
            return
        offer = self._found[self.cursor].offer
        if offer.why_not:
            self.app.bell()
        else:
            self.dismiss(self._offers.index(offer))

    def show_lines(self) -> None:
        super().show_lines()
        if not self.is_attached:
            return
        sentence = self.query_one("#sentence", CellLines)
        offer = self._found[self.cursor].offer if self._found else None
        words, style = (offer.why_not or offer.command.help, AMBER if offer.why_not else DIM) if offer else ("", DIM)
        sentence.show([cell(line, style) for line in broken(words, max(1, sentence.size.width))[:_SAID]])

    @property
    def rows(self) -> int:
        working = sum(not offer.why_not for offer in self._offers)
        return max(1, min(working, self.app.size.height - _AROUND))

    @property
    def _height(self) -> int:
        return self.rows  # constant, so that the box keeps its size

    def _cell(self, place: int) -> Cell:
        found, here = self._found[place], place == self.cursor
        offer = found.offer
        said = offer.why_not or offer.command.help
        key, key_style = self._keys.get(offer.command.name, ""), DIM if offer.why_not else BLUE
        mark = ("▌ ", BLUE) if here else ("  ", DIM)
        style = DIM if offer.why_not else STRONG if here else PLAIN
        letters = tuple((letter, BLUE if at in found.letters else style) for at, letter in enumerate(offer.label))
        name = fitted(letters, self._names_room + _GAP)
        return (mark, *name, (f"{key:<{self._keys_room + _GAP}}", key_style), (said, DIM))
