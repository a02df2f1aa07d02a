"""What of a job is to go to the clipboard."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.domain.job import Job
from gputui.domain.text import fit, plain
from gputui.tui.present.detail import job_title
from gputui.tui.screens.dialog import Dialog

_SHOWN = 56


def copied(job: Job) -> dict[str, tuple[str, str]]:
    """By key: what it is called, and its text. Nothing that a terminal would act on."""
    spec, attempt = job.spec, job.attempt
    texts = {
        "i": ("id", str(job.id)),
        "n": ("name", spec.name or ""),
        "c": ("command", shlex.join(spec.command)),
        "m": ("image", spec.image or ""),
        "k": ("container", (attempt.container_id or "") if attempt else ""),
        "g": ("GPUs", ",".join(attempt.gpus) if attempt else ""),
    }
    return {key: (name, plain(text, 100_000)) for key, (name, text) in texts.items() if text}


class CopyDialog(Dialog[str | None]):
    """One more key says what; None when Escape was pressed."""

    BINDINGS: ClassVar = [
        ("escape,q", "give_up", "cancel"),
        ("y,enter", "take('i')", "id"),
        *((key, f"take('{key}')", key) for key in "incmkg"),
    ]

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._texts = copied(job)
        self._question = f"Copy of job {job_title(job)}"

    def compose(self) -> ComposeResult:
        """The keys, and what each would copy."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            for key, (name, text) in self._texts.items():
                yield Static(f"{key}  {name:<10}{fit(text, _SHOWN)}", classes="answers", markup=False)
            yield Static("\ny Enter  the id     Esc  nothing", classes="keys", markup=False)

    def action_take(self, key: str) -> None:
        """That text."""
        if key in self._texts:
            self.dismiss(self._texts[key][1])

    def action_give_up(self) -> None:
        """Nothing is copied."""
        self.dismiss(None)
