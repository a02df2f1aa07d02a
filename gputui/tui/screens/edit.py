"""The form in which a waiting job is edited."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from gputui.domain.edit import Edit
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.engine.actions import Actions
from gputui.request import edits
from gputui.tui.desk import Desk
from gputui.tui.messages import WishMade
from gputui.tui.present.detail import job_title
from gputui.tui.screens.dialog import Dialog


class EditJob(Dialog[None]):
    """Checked as it is typed; only what was changed is sent, and only while the job still waits."""

    BINDINGS: ClassVar = [
        ("escape", "give_up", "cancel"),
        ("ctrl+s", "send", "save"),
        ("down", "app.focus_next", "next"),
        ("up", "app.focus_previous", "previous"),
    ]
    DEFAULT_CSS = """
    EditJob .dialog { width: 78; }
    EditJob VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    EditJob .title { margin-bottom: 0; }
    EditJob .field { height: auto; }
    EditJob .label { width: 12; color: $foreground 75%; }
    EditJob .label.-changed { color: $primary; text-style: bold; }
    EditJob Input { width: 1fr; margin-bottom: 0; background: $background; }
    EditJob .error { color: $error; margin-left: 12; display: none; }
    EditJob .error.-shown { display: block; }
    """

    def __init__(self, desk: Desk, job: Job) -> None:
        super().__init__()
        self._desk = desk
        self._job = job
        self._before = edits.shown(job)

    def compose(self) -> ComposeResult:
        """A line for each field."""
        with Vertical(classes="dialog"):
            yield Static(f"Edit job {job_title(self._job)}", classes="title", markup=False)
            with VerticalScroll(can_focus=False):
                for name, text in self._before.items():
                    with Horizontal(classes="field"):
                        yield Static(name.replace("_", " "), id=f"{name}-label", classes="label", markup=False)
                        hint = edits.HINTS.get(name, "")
                        yield Input(plain(text, 5000), placeholder=hint, id=name, compact=True)
                    yield Static("", id=f"{name}-error", classes="error", markup=False)
            yield Static("Enter  save     Tab ↓ ↑  fields     Esc  leave it as it is", classes="keys", markup=False)

    def on_mount(self) -> None:
        """Begin where it matters most."""
        self.query_one("#time_limit", Input).focus()

    def _after(self) -> dict[str, str]:
        """What is typed now; a text that cannot be shown as it is counts as unchanged until it is typed over."""
        typed = {name: self.query_one(f"#{name}", Input).value for name in self._before}
        return {
            name: self._before[name] if text == plain(self._before[name], 5000) else text
            for name, text in typed.items()
        }

    def _edit(self) -> Edit:
        return edits.read(self._job, self._before, self._after(), self._desk.clock.now())

    @on(Input.Changed)
    def _typed(self) -> None:
        fault = None
        try:
            self._edit()
        except InputError as error:
            fault = error
        self._show(fault)

    def _show(self, fault: InputError | None) -> None:
        after = self._after()
        for name, text in self._before.items():
            self.query_one(f"#{name}-label").set_class(after[name] != text, "-changed")
            shown = self.query_one(f"#{name}-error", Static)
            is_here = fault is not None and fault.where == name
            shown.update(_words(fault) if fault and is_here else "")
            shown.set_class(is_here, "-shown")

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Have it written down, or show what is wrong."""
        try:
            edit = self._edit()
        except InputError as error:
            self._show(error)
            if error.where in self._before:
                self.query_one(f"#{error.where}", Input).focus()
            return
        job_id = self._job.id

        def write(actions: Actions) -> str:
            return f"job {job_id} is edited" if actions.edit(job_id, edit) else f"job {job_id}: nothing to change"

        if edit:
            self.app.post_message(WishMade(write))
        self.dismiss()

    def action_give_up(self) -> None:
        """Change nothing."""
        self.dismiss()


def _words(fault: InputError) -> str:
    return plain(f"{fault.what} ({fault.hint})" if fault.hint else fault.what, 300)
