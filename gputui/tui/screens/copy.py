"""What of a job is to go to the clipboard."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.domain.job import Job
from gputui.domain.text import fit, plain, width
from gputui.tui.commands import BACK, COPY_COMMANDS, bindings
from gputui.tui.key_names import key_name
from gputui.tui.keymap import keymap_of
from gputui.tui.present.detail import job_title
from gputui.tui.screens.dialog import Dialog

_SHOWN, _AROUND = 56, 40
"""Cells of a text where there is no room for more, and those that are no room."""


def copied(job: Job) -> dict[str, str]:
    """By what it is called: its text. Nothing that a terminal would act on."""
    spec, attempt = job.spec, job.attempt
    texts = {
        "id": str(job.id),
        "name": spec.name or "",
        "command": shlex.join(spec.command),
        "image": spec.image or "",
        "container": (attempt.container_id or "") if attempt else "",
        "GPUs": ",".join(attempt.gpus) if attempt else "",
    }
    return {name: plain(text, 100_000) for name, text in texts.items() if text}


class CopyDialog(Dialog[str | None]):
    """One more key says what; None when Escape was pressed."""

    BINDINGS: ClassVar = bindings((*COPY_COMMANDS, BACK))

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._texts = copied(job)
        self._question = f"Copy of job {job_title(job)}"

    def compose(self) -> ComposeResult:
        """The keys, and what each would copy."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            told = [keymap_of(self).told(command) for command in COPY_COMMANDS]
            room = max(len(command.first_key) for command in told)
            shown = max(_SHOWN, min(max(map(width, self._texts.values())), self.app.size.width - _AROUND))
            for command in told:
                if text := self._texts.get(command.argument):
                    words = f"{command.first_key:<{room}}  {command.title:<10}{fit(text, shown)}"
                    yield Static(words, classes="answers", markup=False)
            id_keys = " ".join(map(key_name, told[0].keys[1:]))
            the_id = f"{id_keys}  the id     " if id_keys else ""
            yield Static(f"\n{the_id}{self.answers((BACK, 'nothing'))}", classes="keys", markup=False)

    def action_copy_part(self, name: str) -> None:
        """That text."""
        if name in self._texts:
            self.dismiss(self._texts[name])

    def action_back(self) -> None:
        """Nothing is copied."""
        self.dismiss(None)
