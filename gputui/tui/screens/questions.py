"""Dialogs that ask a question: yes or no, a text, a choice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from gputui.domain.job import Job, element_spec
from gputui.domain.job_spec import shown_id
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain, width
from gputui.tui.actions import ExitChoice
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import (
    BACK,
    COPY_COMMANDS,
    GIVE_UP,
    LEAVE_COMMANDS,
    MOVE_COMMANDS,
    NO,
    SAVE_TEMPLATE,
    TAKE_LINE,
    YES,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import key_name
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.job import job_title
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.dialog import Dialog
from gputui.tui.widgets.line_table import CellLines
from gputui.tui.widgets.status_bars import Hints


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


class Prompt(Dialog[str | None]):
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


class Choose(Dialog[int | None]):
    """Question that returns the index of the chosen line; None after Escape."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings((TAKE_LINE, SAVE_TEMPLATE, BACK))]
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
        """Choose no existing template: save the form as a new one."""
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


class CopyDialog(Dialog[str | None]):
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


class LeaveDialog(Dialog[ExitChoice | None]):
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
