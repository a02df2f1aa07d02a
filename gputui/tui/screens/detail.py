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
from gputui.domain.policy.durations import Durations
from gputui.domain.policy.explain import Explanation, explain
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.commands import APP_COMMANDS, BACK, JOB_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.gpu_rows import gpu_picture
from gputui.tui.newest import IsWanted, Newest, Pace, are_alike
from gputui.tui.present.cells import Cell, broken_cell, fitted
from gputui.tui.present.detail import Line, Live, job_lines, job_title
from gputui.tui.present.explained import Told
from gputui.tui.present.gpu import index_of
from gputui.tui.present.job import JobContext
from gputui.tui.present.job_gpus import gpu_lines
from gputui.tui.present.style import BLUE, GROUND, STRONG
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.job_log import JobLog
from gputui.tui.widgets.line import KeyBar

_COMMANDS = tuple(command for command in JOB_COMMANDS if command.action != "detail")
_LABEL, _GAP = 10, 2
_FRAME, _AROUND = 4, 4
"""Cells beside the page, and rows above and below its lines."""
_LOG_LEAST = 6
"""Rows of a log that are worth showing."""
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
    Detail { layout: vertical; }
    Detail VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; scrollbar-background: $background; }
    Detail.-with-log VerticalScroll { height: auto; }
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
        self._log = JobLog(id="log")
        self._keys = KeyBar(id="keys")
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
        yield self._log
        yield self._keys

    def on_mount(self) -> None:
        """Show what is known."""
        self.show_snapshot(self._snapshot)
        self.set_interval(self._desk.pace.tick, lambda: self.show_snapshot(self._snapshot))

    def on_unmount(self) -> None:
        """Nothing is wanted any more."""
        self._explainer.close()
        self._explained = None

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
        if self._job is None or self.app.screen is not self or not self._keys.is_attached:
            return  # a picture may come before the page is there
        self._explain(self._job)
        self._heading.show([((f" Job {job_title(self._job)}", STRONG),)])
        self._fill(self._job)
        commands = (c for c in _COMMANDS if c.in_footer)
        self._keys.show(tuple(c for c in commands if c.works_at(self)), (BACK, APP_COMMANDS[0]))

    def _fill(self, job: Job) -> None:
        """The page, and below it the end of the log where that leaves room for it."""
        room = self._body.size.width or self.size.width - _FRAME
        lines = _laid_out(self._lines(job, room), room)
        self._body.fill(lines)
        self._log.show_of(job, self._desk.logs, is_room=self.size.height - len(lines) - _AROUND >= _LOG_LEAST)
        self.set_class(self._log.display, "-with-log")

    def _lines(self, job: Job, room: int) -> tuple[Line, ...]:
        snapshot = self._snapshot
        names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
        now, beside = self._desk.clock.now(), snapshot.sharing()
        context = JobContext(now, snapshot.reasons, snapshot.expected_starts, snapshot.progress, names, beside)
        is_compact = self.app.size.height < _COMPACT
        told = replace(self._told, is_compact=is_compact)
        live = self._live(job, now, room, is_compact=is_compact) if job.state.is_active else None
        return job_lines(job, context, told if job.state is JobState.PENDING else None, live)

    def _live(self, job: Job, now: datetime, room: int, *, is_compact: bool) -> Live:
        """What its GPUs do, and how long it is planned to run."""
        picture = self._desk.pace.drawn(gpu_picture(self._snapshot, {}, self._desk.gpu_history, now))
        gpus = gpu_lines(job, picture, room - _LABEL - _GAP, is_compact=is_compact)
        settings = self._desk.settings
        alike = (each for each in self._snapshot.jobs if each.spec.tenant == job.spec.tenant)
        return Live(gpus, Durations(alike, settings.policy, settings.scheduler.max_time).of(job))

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
