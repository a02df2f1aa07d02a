"""The form for a new job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from gputui.domain.errors import InputError
from gputui.engine.actions import Actions
from gputui.tui.desk import Desk
from gputui.tui.form import FIELDS, Draft, Origin, errors, submission
from gputui.tui.messages import WishMade
from gputui.tui.screens.dialog import Dialog

_HINTS = {
    "image": "python:3.11; empty: a command of this host",
    "command": "python train.py --epochs 3",
    "name": "what the queue calls it",
    "gpus": "0, 2, 2-4, all, device=0,1",
    "gpu_memory": "10g, or 10g share: beside others that share; empty: any",
    "priority": "0 to 100",
    "time_limit": "1h30m, 2-12:00:00; empty: none",
    "retries": "after a failure",
    "env": "NAME=value NAME2='two words'",
    "volumes": "/data:/data:ro",
}


class Submit(Dialog[None]):
    """Checked as it is typed; nothing is sent while a field is wrong."""

    BINDINGS: ClassVar = [
        ("escape", "give_up", "cancel"),
        ("ctrl+s", "send", "submit"),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    DEFAULT_CSS = """
    Submit .dialog { width: 76; }
    Submit VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    Submit .field { height: auto; }
    Submit .label { width: 12; color: $foreground 70%; }
    Submit Input { width: 1fr; margin-bottom: 0; background: $background; }
    Submit Input:focus { background: $background-lighten-2; }
    Submit .error { color: $error; margin-left: 13; display: none; }
    Submit .error.-shown { display: block; }
    Submit .keys { margin-top: 1; }
    """

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._origin = Origin(desk.user, str(Path.cwd()), os.environ, desk.settings.scheduler.host_jobs)

    def compose(self) -> ComposeResult:
        """A line for each field."""
        start = Draft()
        with Vertical(classes="dialog"):
            yield Static("Submit a job", classes="title", markup=False)
            with VerticalScroll(can_focus=False):
                for field in FIELDS:
                    with Horizontal(classes="field"):
                        yield Static(field.replace("_", " "), classes="label", markup=False)
                        yield Input(getattr(start, field), placeholder=_HINTS[field], id=field, compact=True)
                    yield Static("", id=f"{field}-error", classes="error", markup=False)
            yield Static("Enter  submit     Tab ↓ ↑  fields     Esc  leave it", classes="keys", markup=False)

    def draft(self) -> Draft:
        """What is typed now."""
        return Draft(**{field: self.query_one(f"#{field}", Input).value for field in FIELDS})

    @on(Input.Changed)
    def _check_typed(self, event: Input.Changed) -> None:
        """Show what is wrong with the field being typed in, and clear what has been put right."""
        found = errors(self.draft(), self._origin)
        for field in FIELDS:
            shown = self.query_one(f"#{field}-error", Static)
            if field == event.input.id or field not in found:
                self._show_error(shown, found.get(field, ""))

    def _show_error(self, shown: Static, text: str) -> None:
        shown.update(text)
        shown.set_class(bool(text), "-shown")

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Submit, or show what is wrong and go there."""
        try:
            asked = submission(self.draft(), self._origin)
        except InputError:
            self._show_all(errors(self.draft(), self._origin))
            return

        def submit(actions: Actions) -> str:
            ids = actions.submit([asked])
            return f"job {ids[0]} is submitted"

        self.post_message(WishMade(submit))
        self.dismiss()

    def _show_all(self, found: dict[str, str]) -> None:
        for field in FIELDS:
            self._show_error(self.query_one(f"#{field}-error", Static), found.get(field, ""))
        first = next(field for field in FIELDS if field in found)
        self.query_one(f"#{first}", Input).focus()

    def action_give_up(self) -> None:
        """Submit nothing."""
        self.dismiss()
