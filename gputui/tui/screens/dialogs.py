"""Dialogs: boxes in the middle over the dimmed screen; questions, and lists to choose from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gputui.domain.job import Job, element_spec
from gputui.domain.job_spec import shown_id
from gputui.domain.queue_columns import QUEUE_COLUMNS
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain, width
from gputui.tui.actions import ExitChoice
from gputui.tui.commands import (
    BACK,
    CLOSE,
    COLUMN_COMMANDS,
    COPY_COMMANDS,
    GIVE_UP,
    LEAVE_COMMANDS,
    MOVE_COMMANDS,
    NO,
    SAVE_TEMPLATE,
    TAKE_LINE,
    YES,
    Command,
    bindings,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import key_name
from gputui.tui.palette import AUTO
from gputui.tui.present.cells import BLUE, DIM, PLAIN, STRONG, Cell, Column, cell
from gputui.tui.present.job import job_title
from gputui.tui.textual_internals import SeenThrough, bind_if_free
from gputui.tui.themes import theme_names
from gputui.tui.widgets.line_table import CellLines, LineTable, RowOpened
from gputui.tui.widgets.queue_rows import ChosenColumns
from gputui.tui.widgets.status_bars import Hints, KeyBar, MessageLine, draw_line, edge_key_at, press

T = TypeVar("T")


class ClosedOnce(SeenThrough[T]):
    """Screen with a line of messages, whose `dismiss()` is idempotent: a second queued request is ignored."""

    def edge(self) -> Iterable[Widget]:
        return (MessageLine(),)

    def action_back(self) -> None:
        self.dismiss()

    def on_screen_resume(self) -> None:
        draw_line(self)

    on_screen_suspend = on_screen_resume

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()  # type: ignore[no-untyped-call]


class Leavable(ClosedOnce[T]):
    """A screen that Escape always closes, regardless of configured keys."""

    LEAVES: ClassVar = "back"
    """Action that closes it."""

    def on_mount(self) -> None:
        """Ensure that there is a key to close it; its own commands have their keys by now."""
        bind_if_free(self, Binding("escape", self.LEAVES, show=False))

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None:
            press(self, edge_key_at(event.widget, event.screen_offset))


class Dialog(Leavable[T], ModalScreen[T]):
    """A dialog over the screen, which goes on behind it."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 60%;
        .dialog {
            width: auto; min-width: 36; max-width: 96%; height: auto; max-height: 96%;
            background: $surface; border: round $primary; padding: 0 2;
        }
        Static { width: auto; height: auto; max-width: 100%; }
        .title { text-style: bold; margin-bottom: 1; }
        .detail { color: $foreground 80%; margin-bottom: 1; }
        .keys { color: $foreground 75%; }
        Input { border: none; height: 1; padding: 0 1; background: $background; margin-bottom: 1; width: 60; }
    }
    """

    def key(self, name: str) -> str:
        return keymap_of(self).key(name)

    def answers(self, *answers: tuple[Command, str]) -> str:
        told = ((keymap_of(self).told(command).first_key, words) for command, words in answers)
        return "     ".join(f"{key}  {words}" if key else words for key, words in told)


def ask(app: App[Any], question: Screen[T], then: Callable[[T], object]) -> None:
    """Open a dialog, and pass on its answer, unless that is no, or None for a dialog that was left."""

    def answered(answer: T | None) -> None:
        if answer is not None and answer is not False:
            then(answer)

    app.push_screen(question, answered)


_WIDEST, _FRAME = 112, 7
"""Maximum width of the box, and the cells around its lines."""


class ScrollingDialog(Dialog[None]):
    """Dialog with more text than fits: lines of cells in a scrolling box with its `heading`."""

    DEFAULT_CSS = """
    ScrollingDialog .page {
        width: 90%; max-width: 112; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    """
    heading = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "page(1)", "page down"),
        *bindings((*MOVE_COMMANDS, BACK, CLOSE)),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page") as body:
            body.border_title, body.border_subtitle = self.heading, self.how
            yield CellLines(id="lines")

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_lines)

    def show_lines(self) -> None:
        if self.is_attached:
            lines = self.query_one(CellLines)
            lines.fill(self.lines(lines.size.width or min(self.app.size.width * 9 // 10, _WIDEST) - _FRAME))

    def lines(self, room: int) -> list[Cell]:
        """Return the dialog's text, in lines of `room` cells."""
        raise NotImplementedError

    @property
    def how(self) -> str:
        return f"{self.key('down')} {self.key('up')} scroll   {self.key('back')} close"

    def action_close(self) -> None:
        self.dismiss()

    def action_down(self, step: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_first(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_last(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_page(self, step: int) -> None:
        body = self.query_one(VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)


class Confirm(Dialog[bool]):
    """Question with the answers yes and no; Escape means no."""

    BINDINGS: ClassVar = bindings((YES, NO))
    LEAVES: ClassVar = "answer('no')"

    def __init__(
        self,
        question: str,
        detail: str = "",
        follow: Callable[[Snapshot], str] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """`follow` returns the detail as of another snapshot, where it depends on that."""
        super().__init__(name=name)
        self._question = question
        self._detail = detail
        self._follow = follow

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            if self._detail:
                yield Static(self._detail, classes="detail", markup=False)
            yield Hints(self.answers((YES, "yes"), (NO, "no")))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        if self._follow is not None and self.is_mounted and (detail := self._follow(snapshot)) != self._detail:
            self._detail = detail
            self.query_one(".detail", Static).update(detail)

    def action_answer(self, word: str) -> None:
        self.dismiss(word == "yes")


class Prompt(Dialog[str]):
    """Question that returns a line of text; None after Escape."""

    BINDINGS: ClassVar = bindings((GIVE_UP,))
    LEAVES: ClassVar = "give_up"

    def __init__(self, title: str, label: str, detail: str = "") -> None:
        super().__init__()
        self._question = title
        self._label = label
        self._detail = detail

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            yield Static(self._detail, classes="detail", markup=False)
            yield Input(placeholder=self._label, compact=True, max_length=200)
            yield Hints(f"Enter  OK     {self.answers((GIVE_UP, 'cancel'))}")

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        self.dismiss(plain(event.value.strip(), 200))

    def action_give_up(self) -> None:
        self.dismiss(None)


SAVE = -1
"""Answer of the key that saves."""


class Choose(Dialog[int]):
    """Question that returns the index of the chosen line; None after Escape."""

    BINDINGS: ClassVar = bindings((*MOVE_COMMANDS, TAKE_LINE, SAVE_TEMPLATE, BACK))
    DEFAULT_CSS = "Choose .dialog { width: 96%; max-width: 100; } Choose CellLines { margin-bottom: 1; }"

    def __init__(self, title: str, lines: Sequence[str], *, none: str, saves: str = "") -> None:
        super().__init__()
        self._heading = title
        self.texts = [plain(line, 400) for line in lines]
        self._none = none
        self._saves = saves
        self.cursor = 0
        self.first = 0
        """Number of the first visible line."""

    def compose(self) -> ComposeResult:
        save = ((SAVE_TEMPLATE, self._saves),) if self._saves else ()
        with Vertical(classes="dialog"):
            yield Static(self._heading, classes="title", markup=False)
            yield CellLines(id="lines")
            yield Hints(self.answers((TAKE_LINE, "OK"), *save, (BACK, "cancel")))

    def on_resize(self) -> None:
        self.query_one("#lines", CellLines).make_room(self._height)
        self.call_after_refresh(self.show_lines)

    def show_lines(self) -> None:
        """Draw the lines with the chosen one in sight and no room left below, while the screen exists."""
        least, most = self.cursor - self.rows + 1, min(self.cursor, len(self.texts) - self.rows)
        self.first = max(0, min(max(self.first, least), most))
        if self.is_attached:
            shown = range(self.first, min(len(self.texts), self.first + self.rows))
            cells = [self._cell(place) for place in shown] if self.texts else [cell(self._none, DIM)]
            self.query_one("#lines", CellLines).show(cells)

    @property
    def _height(self) -> int:
        return max(1, min(len(self.texts), self.rows))

    @property
    def rows(self) -> int:
        return max(3, min(len(self.texts), self.app.size.height - 9))

    def _cell(self, place: int) -> Cell:
        text = self.texts[place]
        return (("▌ ", BLUE), (text, STRONG)) if place == self.cursor else (("  ", DIM), (text, PLAIN))

    def action_down(self, step: int) -> None:
        self.cursor = max(0, min(len(self.texts) - 1, self.cursor + step))
        self.show_lines()

    def action_page(self, step: int) -> None:
        self.action_down(step * max(1, self.rows - 1))

    def action_first(self) -> None:
        self.action_down(-len(self.texts))

    def action_last(self) -> None:
        self.action_down(len(self.texts))

    def action_take_line(self) -> None:
        self.dismiss(self.cursor if self.texts else None)

    def action_save_template(self) -> None:
        if self._saves:
            self.dismiss(SAVE)

    def on_click(self, event: events.Click) -> None:
        lines = self.query_one("#lines", CellLines)
        if not self.texts or not lines.region.contains(event.screen_x, event.screen_y):
            return
        place = min(len(self.texts) - 1, self.first + event.screen_y - lines.region.y)
        if place == self.cursor and event.chain > 1:
            self.action_take_line()
        else:
            self.action_down(place - self.cursor)

    def on_mouse_scroll_down(self) -> None:
        self.action_down(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_down(-1)


_SHOWN, _AROUND = 56, 40
"""Default cells of a text, and the cells around it."""


def copied(job: Job) -> dict[str, str]:
    """Return the texts of a job that can be copied, by name, without control characters."""
    spec, attempt = element_spec(job), job.attempt
    texts = {
        "id": job.shown_id if job.runs else shown_id(job.id),
        "name": spec.name or "",
        "command": shlex.join(spec.command),
        "image": spec.image or "",
        "container": (attempt.container_id or "") if attempt else "",
        "GPUs": ",".join(attempt.gpus) if attempt else "",
    }
    return {name: plain(text, 100_000) for name, text in texts.items() if text}


class CopyDialog(Dialog[str]):
    """Dialog in which a second key chooses the text to copy; None after Escape."""

    BINDINGS: ClassVar = bindings((*COPY_COMMANDS, BACK))

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._texts = copied(job)
        self._question = f"Copy of job {job_title(job)}"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            told = [keymap_of(self).told(command) for command in COPY_COMMANDS]
            room = max(len(command.first_key) for command in told)
            shown = max(_SHOWN, min(max(map(width, self._texts.values())), self.app.size.width - _AROUND))
            for command in told:
                if text := self._texts.get(command.argument):
                    words = f"{command.first_key:<{room}}  {command.title:<10}{fit(text, shown)}"
                    yield Hints(words, classes="answers")
            id_keys = " ".join(map(key_name, told[0].keys[1:]))
            the_id = f"{id_keys}  the id     " if id_keys else ""
            yield Hints(f"\n{the_id}{self.answers((BACK, 'nothing'))}")

    def action_copy_part(self, name: str) -> None:
        if name in self._texts:
            self.dismiss(self._texts[name])


LOST_INPUT = "Your input in the form will be lost."
_WORDS = (
    "hand over to a background scheduler: jobs start as before",
    "stop scheduling: running jobs continue, no new ones start",
    "stay here",
)
"""Texts of the commands, in order."""


class LeaveDialog(Dialog[ExitChoice]):
    """Dialog with the choices to hand over, stop, or stay."""

    BINDINGS: ClassVar = bindings(LEAVE_COMMANDS)
    LEAVES: ClassVar = "stay"

    def __init__(self, detail: str = "", *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._detail = detail

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Quit? The scheduler runs in this console.", classes="title", markup=False)
            if self._detail:
                yield Static(self._detail, classes="detail", markup=False)
            keys = [keymap_of(self).told(command).first_key for command in LEAVE_COMMANDS]
            room = max(map(len, keys))
            lines = (f"{key.ljust(room)}  {words}" for key, words in zip(keys, _WORDS, strict=True))
            yield Hints("\n".join(lines), classes="answers")

    def action_choose(self, name: str) -> None:
        self.dismiss(ExitChoice[name])

    def action_stay(self) -> None:
        self.dismiss(None)


class Themes(Leavable[None], ModalScreen[None]):
    """A list at the right edge, so that its effect stays visible."""

    BINDINGS: ClassVar = bindings((*MOVE_COMMANDS[:2], TAKE_LINE, BACK))
    DEFAULT_CSS = """
    Themes {
        align: right middle;
        background: transparent;
        .box { width: 30; height: auto; max-height: 90%; background: $surface; border: round $primary; padding: 0 1; }
        OptionList { height: auto; max-height: 1fr; border: none; padding: 0; background: $surface; }
        OptionList:focus { background-tint: transparent; }
    }
    """

    def __init__(self, chosen: str, try_on: Callable[[str], None], keep: Callable[[str], None]) -> None:
        super().__init__()
        self._chosen = chosen
        self._try_on = try_on
        self._keep_theme = keep

    def compose(self) -> ComposeResult:
        self._before = self.app.theme
        names = (AUTO, *theme_names())
        with Vertical(classes="box") as box:
            box.border_title = "Theme"
            key = keymap_of(self).key
            box.border_subtitle = f"{key('take_line')} keep   {key('back')} back"
            words = ("auto, by the settings" if name == AUTO else name for name in names)
            options = map(lambda text, name: Option(text, id=name), words, names)
            choices = OptionList(*options, markup=False, compact=True)
            choices.highlighted = names.index(self._chosen) if self._chosen in names else 0
            yield choices

    @on(OptionList.OptionHighlighted)
    def _look(self, event: OptionList.OptionHighlighted) -> None:
        self._try_on(str(event.option.id))

    @on(OptionList.OptionSelected)
    def _keep(self, event: OptionList.OptionSelected) -> None:
        self._keep_theme(str(event.option.id))
        self.dismiss()

    def action_back(self) -> None:
        self._try_on(self._before)
        self.dismiss()

    def action_down(self, step: int) -> None:
        names = self.query_one(OptionList)
        names.action_cursor_down() if step > 0 else names.action_cursor_up()

    def action_take_line(self) -> None:
        self.query_one(OptionList).action_select()


_COLUMNS = (Column("shown", "", 3), Column("title", "COLUMN", 10), Column("about", "WHAT", 20, flex=1))


class ColumnTable(LineTable[str]):
    """Table of columns: the shown ones in order, then the others."""

    COLUMNS: ClassVar = _COLUMNS
    noun = "column"
    DEFAULT_CSS = "ColumnTable { height: 1fr; max-height: 24; }"

    def __init__(self, absent: Mapping[str, str]) -> None:
        super().__init__(id="columns")
        self._absent = absent
        self._shown: frozenset[str] = frozenset()

    @property
    def chosen(self) -> ChosenColumns:
        return ChosenColumns(tuple(key for key in self.keys if key in self._shown))

    def become(self, chosen: ChosenColumns) -> None:
        self._shown = frozenset(chosen.keys)
        self._order([*chosen.keys, *(key for key in QUEUE_COLUMNS if key not in self._shown)])

    def _order(self, keys: Sequence[str]) -> None:
        self.show_rows(keys, {key: row for row, key in enumerate(keys)})

    @on(RowOpened)
    def action_toggle_column(self) -> None:
        """Show or hide a column in its place; the last shown one stays."""
        if key := self.cursor:
            self._shown = self._shown ^ {key} or self._shown
            self.redraw()

    def action_shift(self, step: int) -> None:
        if key := self.cursor:
            keys = [kept for kept in self.keys if kept != key]
            place = max(0, min(len(keys), list(self.keys).index(key) + step))
            self._order([*keys[:place], key, *keys[place:]])

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        is_shown = key in self._shown
        if column == "shown":
            return cell("[x]" if is_shown else "[ ]", BLUE if is_shown else DIM)
        shown = QUEUE_COLUMNS[key]
        words = shown.title if column == "title" else self._absent.get(key, shown.about)
        return cell(words, PLAIN if is_shown and key not in self._absent else DIM)


class ColumnChooser(Dialog[ChosenColumns]):
    BINDINGS: ClassVar = bindings((*COLUMN_COMMANDS, BACK))
    DEFAULT_CSS = """
    ColumnChooser .dialog { width: 84; height: 30; max-height: 96%; }
    ColumnChooser KeyBar { dock: none; }
    """

    def __init__(self, chosen: ChosenColumns, usual: ChosenColumns, absent: Mapping[str, str]) -> None:
        """`absent` are those for which the cluster has no values, each with its sentence."""
        super().__init__()
        self._chosen = chosen
        self._usual = usual
        self.table = ColumnTable(absent)
        self.parts = (self.table,)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Columns of the queue: the first ones stay longest on a narrow screen", classes="title")
            yield self.table
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(KeyBar).show(tuple(command for command in COLUMN_COMMANDS if command.in_footer), (BACK,))
        self.table.focus()
        self.call_after_refresh(self.table.become, self._chosen)

    def action_usual(self) -> None:
        self.table.become(self._usual)

    def action_take(self) -> None:
        self.dismiss(self.table.chosen)
