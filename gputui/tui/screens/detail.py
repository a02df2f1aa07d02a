"""Everything about one job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message

from gputui.domain.job import Job, JobId
from gputui.domain.policy.explain import Explanation, explain
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.commands import APP_COMMANDS, BACK, JOB_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.newest import IsWanted, Newest, Pace, are_alike
from gputui.tui.present.cells import Cell, broken_cell, fitted
from gputui.tui.present.detail import Line, job_lines, job_title
from gputui.tui.present.explained import Told
from gputui.tui.present.gpu import index_of
from gputui.tui.present.job import JobContext
from gputui.tui.present.style import BLUE, GROUND, STRONG
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.line import KeyBar

_COMMANDS = tuple(command for command in JOB_COMMANDS if command.action != "detail")
_LABEL, _GAP = 10, 2
_FRAME = 4
"""Cells beside the page."""
_COMPACT = 30
"""Rows of a screen on which every line counts."""
_AGED = timedelta(seconds=10)
"""An explanation so old is made anew though nothing happened: time itself moves scores."""


class Explained(Message, bubble=False):
    """Why the job stands where it stands."""

    def __init__(self, explanation: Explanation | None, failure: str = "") -> None:
        super().__init__()
        self.explanation = explanation
        self.failure = failure


class Detail(JobScreen):
    """Follows the job while it is open."""

    BINDINGS: ClassVar = [
        *bindings(_COMMANDS),
        *bindings((BACK,)),
        Binding("enter", "back", "back", id="detail"),
        ("j", "scroll(1)", "down"),
        ("k", "scroll(-1)", "up"),
    ]
    CSS = """
    Detail VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; scrollbar-background: $background; }
    """

    def __init__(
        self,
        desk: Desk,
        snapshot: Snapshot,
        job_id: JobId,
        follow: Callable[[JobId], None],
        job: Job | None = None,
    ) -> None:
        super().__init__(desk, snapshot)
        self._job_id = job_id
        self._follow = follow
        self._job: Job | None = snapshot.job(job_id) or job
        """As it is in the picture; or as it was, where it is in the history alone."""
        self._heading = CellLines(id="heading")
        self._body = CellLines(id="body", background=GROUND)
        self._told = Told()
        self._explainer = Newest(self.post_message, lambda error: Explained(None, f"{type(error).__name__}: {error}"))
        self._pace = Pace(rest=9)
        self._explained: tuple[Snapshot, datetime] | None = None
        """Of which picture, and when, it was asked for."""

    def compose(self) -> ComposeResult:
        """Heading, body, keys."""
        yield self._heading
        with VerticalScroll():
            yield self._body
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show what is known."""
        self.show_snapshot(self._snapshot)
        self.set_interval(self._desk.pace.tick, lambda: self.show_snapshot(self._snapshot))

    def on_unmount(self) -> None:
        """Nothing is wanted any more."""
        self._explainer.close()

    def on_resize(self) -> None:
        """Lay it out for the room there is."""
        self.call_after_refresh(self.show_snapshot, self._snapshot)

    def subject(self) -> Job | None:
        """The job that is shown."""
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the job as it is in this picture; one that left the queue file stays as it was."""
        self._snapshot = snapshot
        self._job = snapshot.job(self._job_id) or self._job
        if self._job is None or self.app.screen is not self:
            return
        self._explain(self._job)
        self._heading.show([((f" Job {job_title(self._job)}", STRONG),)])
        self._body.fill(_laid_out(self._lines(self._job), self._body.size.width or self.size.width - _FRAME))
        commands = (c for c in _COMMANDS if c.in_footer)
        self.query_one(KeyBar).show(tuple(c for c in commands if c.works_at(self)), (BACK, APP_COMMANDS[0]))

    def _lines(self, job: Job) -> tuple[Line, ...]:
        snapshot = self._snapshot
        names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
        now, beside = self._desk.clock.now(), snapshot.sharing()
        context = JobContext(now, snapshot.reasons, snapshot.expected_starts, snapshot.progress, names, beside)
        told = replace(self._told, is_compact=self.app.size.height < _COMPACT)
        return job_lines(job, context, told if job.state is JobState.PENDING else None)

    def _explain(self, job: Job) -> None:
        """Have the explanation made anew where it is another one by now."""
        snapshot, now = self._snapshot, self._desk.clock.now()
        seen, at = self._explained or (EMPTY, now)
        is_new = self._explained is None or now - at >= _AGED or not are_alike(seen, snapshot)
        if job.state is not JobState.PENDING or not is_new or not self._pace.may_begin:
            return
        settings = self._desk.settings
        self._explained = (snapshot, now)
        self._pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            del is_wanted
            return Explained(explain(snapshot, job, settings, now))

        self._explainer.ask(work)

    def on_explained(self, message: Explained) -> None:
        """Show it."""
        self._pace.end()
        self._told = Told(message.explanation, message.failure)
        self.show_snapshot(self._snapshot)

    def action_follow(self) -> None:
        """Follow its log on the main screen."""
        self._follow(self._job_id)
        self.dismiss()

    def action_back(self) -> None:
        """Back to the main screen."""
        self.dismiss()

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def _laid_out(lines: tuple[Line, ...], room: int) -> list[Cell]:
    """The labels in a column, and beside each what it is about, in as many lines as that takes."""
    first = max(_LABEL, *(width(label) for label, _ in lines)) + _GAP
    found: list[Cell] = []
    for label, about in lines:
        begun = fitted(((label, BLUE),), first)
        for line in broken_cell(about, room - first) or [()]:
            found.append((*begun, *line))
            begun = fitted((), first)
    return found
