"""Form for a reservation of GPUs."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import index_of
from gputui.domain.policy.reservations import check_conflicts, check_times
from gputui.domain.settings import Window
from gputui.domain.snapshot import EMPTY, Snapshot, WindowState
from gputui.domain.text import plain
from gputui.request import reservation as asked
from gputui.request.draft import YES
from gputui.request.times import span
from gputui.tui.actions import ActionRequested
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import GIVE_UP, SEND
from gputui.tui.proposals import WindowProposal, describe_window
from gputui.tui.screens.dialog import Dialog
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.services import Services
from gputui.tui.submission.fields import FlagField
from gputui.tui.widgets.status_bars import Hints

USUAL = "8h"
"""Default length of a reservation."""
LABELS = {"gpus": "GPUs", "start": "from", "nobody": "kept clear"}
HINTS = {
    "gpus": "4, all, or device=0,1",
    "start": "now; or 14:00, in 2h, Mon 9-17",
    "for": "duration: 2h, 3d; 8h by default",
    "until": "instead: 18:00, tomorrow 09:00",
    "tenant": "tenant whose jobs it is for (you)",
    "priority": "or all jobs of at least this priority: 80",
    "nobody": "of all jobs: for maintenance",
    "name": "generated if empty",
}


class Reserve(Dialog[None]):
    """Form of a reservation, checked as it is typed; Enter shows which jobs it would delay, a second Enter adds it."""

    BINDINGS: ClassVar = [
        *bindings((GIVE_UP, SEND)),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    LEAVES: ClassVar = "give_up"
    DEFAULT_CSS = """
    Reserve .dialog { width: 72; }
    Reserve VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    Reserve .title { margin-bottom: 0; }
    Reserve .field { height: 1; }
    Reserve .label { width: 12; color: $foreground 75%; }
    Reserve Input { width: 1fr; margin-bottom: 0; background: $background; }
    Reserve FlagField { width: 1fr; height: 1; color: $foreground 80%; }
    Reserve FlagField:focus { background: $background-lighten-2; }
    Reserve #told { color: $foreground 80%; margin-top: 1; width: 100%; height: 2; }
    Reserve #told.-wrong { color: $error; }
    """

    def __init__(self, services: Services, snapshot: Snapshot, uuid: str | None = None) -> None:
        super().__init__()
        self._services = services
        self._snapshot = snapshot
        self._gpus = tuple(view.gpu for view in snapshot.gpus)
        self._told = ("", False)
        chosen = next((index_of(view) for view in snapshot.gpus if view.gpu.uuid == uuid), None)
        self._first = {"gpus": "1" if chosen is None else f"device={chosen}"}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Reserve GPUs", classes="title", markup=False)
            with VerticalScroll(can_focus=False):
                for name in asked.FIELDS:
                    with Horizontal(classes="field"):
                        yield Static(LABELS.get(name, name), classes="label", markup=False)
                        if name == "nobody":
                            yield FlagField(HINTS[name], id=name, classes=None)
                        else:
                            yield Input(self._first.get(name, ""), placeholder=HINTS[name], id=name, compact=True)
            yield Static("", id="told", markup=False)
            how = f"Enter  which jobs it delays     Tab ↓ ↑  fields     {self.answers((GIVE_UP, 'leave'))}"
            yield Hints(how)

    def on_mount(self) -> None:
        self.query_one("#gpus", Input).focus()
        self._typed()

    def on_unmount(self) -> None:
        """Release the queue: the screen may stay in memory for a while."""
        self._snapshot = EMPTY

    @property
    def is_touched(self) -> bool:
        return any(field.value != self._first.get(field.id or "", "") for field in self.query(Input))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.of_server(self._snapshot.server_name)
        self._gpus = tuple(view.gpu for view in self._snapshot.gpus)
        if self.is_mounted:
            self._typed()

    def _window(self) -> Window:
        """Return the reservation as typed; raises GputuiError if it cannot be made."""
        given = {field.id or "": field.value for field in self.query(Input)}
        given["nobody"] = YES if self.query_one(FlagField).value else ""
        now = self._services.clock.now()
        has_end = given["for"].strip() or given["until"].strip() or span(given["start"].strip() or "now", "start", now)
        if not has_end:
            given["for"] = USUAL
        window = asked.read_reservation(
            {name: text.strip() for name, text in given.items()}, self._services.about.user, now, self._gpus
        )
        check_times(window, now)
        others = [view.window for view in self._snapshot.windows if view.state is not WindowState.RELEASED]
        if any(other.name == window.name for other in others):
            raise InputError(f"reservation {window.name} exists already", where="name", hint="choose another name")
        check_conflicts(window, others, self._gpus)
        return window

    @on(Input.Changed)
    @on(FlagField.Changed)
    def _typed(self) -> None:
        try:
            self._tell(describe_window(self._window(), self._snapshot))
        except GputuiError as error:
            name = _field(error)
            about = f"{LABELS.get(name, name)}: " if name in asked.FIELDS else ""
            self._tell(f"{about}{error.what}" + (f" ({error.hint})" if error.hint else ""), is_wrong=True)

    def _tell(self, words: str, *, is_wrong: bool = False) -> None:
        if self._told != (words, is_wrong):
            self._told = (words, is_wrong)
            told = self.query_one("#told", Static)
            told.update(plain(words, 300))
            told.set_class(is_wrong, "-wrong")

    @on(Input.Submitted)
    def action_send(self) -> None:
        try:
            window = self._window()
        except GputuiError as error:
            if (name := _field(error)) in asked.FIELDS:
                self.query_one(f"#{name}").focus()
            return
        proposal = WindowProposal(window, self._gpus)
        if self._services.shows_what_if:
            self.app.push_screen(WhatIf(self._services, self._snapshot, proposal), self._answered)
            return
        self.app.post_message(ActionRequested(proposal.action(), server=self._snapshot.server_name))
        self.dismiss()

    def _answered(self, is_made: bool | None) -> None:
        if is_made:
            self.dismiss()

    def action_give_up(self) -> None:
        self.dismiss()


def _field(error: GputuiError) -> str:
    name = (getattr(error, "where", None) or "").removeprefix("--")
    return {"end": "until"}.get(name, name)
