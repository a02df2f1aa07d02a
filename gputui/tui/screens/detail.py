"""Everything about one job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.message import Message

from gputui.domain.job import Job, JobId
from gputui.domain.policy.durations import Durations
from gputui.domain.policy.explain import Explanation, explain
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import width
from gputui.tui.commands import APP_COMMANDS, BACK, JOB_COMMANDS, bindings
from gputui.tui.latest_worker import IsWanted, LatestWorker, Throttle, are_alike
from gputui.tui.log.pinned import started_attempt
from gputui.tui.present.cells import Cell, broken_cell, fitted
from gputui.tui.present.detail import (
    ExplanationState,
    Line,
    Live,
    array_lines,
    gpu_lines,
    gpus_of,
    job_lines,
    job_title,
)
from gputui.tui.present.gpu_graphs import job_graph_lines
from gputui.tui.present.gpu_words import index_of
from gputui.tui.present.job import JobContext
from gputui.tui.present.style import BLUE, GROUND, STRONG
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.screens.telemetry_loader import TelemetryLoaded, TelemetryLoader
from gputui.tui.services import Services
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.log_view import JobLog
from gputui.tui.widgets.status_bars import KeyBar

_COMMANDS = tuple(command for command in JOB_COMMANDS if command.action != "detail")
_LABEL, _GAP = 10, 2
_FRAME, _AROUND = 4, 4
"""Cells beside the page, and rows above and below its lines."""
_LOG_LEAST = 6
"""Fewest rows in which a log is shown."""
_BESIDE_FROM = 180
"""Columns from which the log stands beside the page."""
_COMPACT = 30
"""Screens with fewer rows are compact."""
_TALL = 56
"""Rows from which a page with the log below has some to spare."""
_AGED = timedelta(seconds=10)
"""Age at which an explanation is made again though nothing happened: time moves scores."""


class Explained(Message, bubble=False):
    """Explanation of the job's place in the queue."""

    def __init__(self, explanation: Explanation | None, failure: str = "") -> None:
        super().__init__()
        self.explanation = explanation
        self.failure = failure


class Detail(JobScreen):
    """Page of a job, kept up to date while it is open."""

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
    Detail.-beside #page { layout: horizontal; }
    Detail.-beside VerticalScroll { width: 1fr; height: 1fr; }
    Detail.-beside JobLog { width: 1fr; }
    """

    def __init__(
        self,
        services: Services,
        snapshot: Snapshot,
        job_id: JobId,
        follow: Callable[[JobId], None],
        job: Job | None = None,
    ) -> None:
        super().__init__(services, snapshot)
        self._job_id = job_id
        self._last_id = job.last_id if job is not None and job.runs else None
        """Last element of an entry, which the page is about as a whole: it is there for longest."""
        self._follow = follow
        self._job: Job | None = self._seen(snapshot) or job
        """Job as of the snapshot; as it was, where it is in the history only."""
        self._heading = CellLines(id="heading")
        self._body = CellLines(id="body", background=GROUND)
        self._log = JobLog(id="log")
        self._keys = KeyBar(id="keys")
        self._told = ExplanationState()
        self._explainer = LatestWorker(
            self.post_message, lambda error: Explained(None, f"{type(error).__name__}: {error}")
        )
        self._telemetry = TelemetryLoader(self.post_message, services.measured)
        self._pace = Throttle(rest=9)
        self._explained: tuple[Snapshot, datetime] | None = None
        """Snapshot and time of the explanation that was asked for last."""

    def compose(self) -> ComposeResult:
        """Yield heading, body, log and keys."""
        yield self._heading
        with Vertical(id="page"):
            with VerticalScroll():
                yield self._body
            yield self._log
        yield self._keys

    def on_mount(self) -> None:
        """Show what is known."""
        self.show_snapshot(self._snapshot)
        self.set_interval(self._services.pace.tick, lambda: self.show_snapshot(self._snapshot))

    def on_unmount(self) -> None:
        """Stop the worker."""
        self._explainer.close()
        self._telemetry.close()
        self._explained = None

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(lambda: self.show_snapshot(self._snapshot))  # the one of then, not of now

    def subject(self) -> Job | None:
        """Return the job that is shown."""
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the job as of the snapshot; a job that left the queue file stays as it was."""
        self._snapshot = snapshot
        self._job = self._seen(snapshot) or self._job
        if self._job is None or self.app.screen is not self or not self._keys.is_attached:
            return  # a picture may come before the page is there
        self._explain(self._job)
        self._telemetry.update(self._job)
        self._heading.show([((f" Job {job_title(self._job)}", STRONG),)])
        self._fill(self._job)
        commands = (c for c in _COMMANDS if c.in_footer)
        self._keys.show(tuple(c for c in commands if c.works_at(self)), (BACK, APP_COMMANDS[0]))

    def _seen(self, snapshot: Snapshot) -> Job | None:
        """Return the job, or the entry that the page was opened for, as far as it still waits."""
        if self._last_id is None:
            return snapshot.job(self._job_id)
        return snapshot.entry(self._last_id)

    def _fill(self, job: Job) -> None:
        """Fill the page, and show the end of the log beside it, or below it where there is room."""
        is_wide = self.size.width >= _BESIDE_FROM
        self.set_class(is_wide and started_attempt(job) > 0, "-beside")
        room = self._body.size.width or self.size.width - _FRAME
        lines = _laid_out(self._lines(job, room), room)
        lines += self._graphs(job, room, self.size.height - len(lines) - _AROUND - 1) if is_wide else []
        self._body.fill(lines)
        is_room = is_wide or self.size.height - len(lines) - _AROUND >= _LOG_LEAST
        self._log.show_of(job, self._services.logs, is_room=is_room)
        self.set_class(self._log.display and not is_wide, "-with-log")

    def _lines(self, job: Job, room: int) -> tuple[Line, ...]:
        snapshot = self._snapshot
        names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
        now, beside = self._services.clock.now(), snapshot.sharing()
        reasons = snapshot.reasons
        if job.array is not None and job.id not in reasons and (entry := snapshot.entry(job.id)) is not None:
            reasons = {job.id: each} if (each := reasons.get(entry.id)) else reasons  # it waits for what its entry does
        context = JobContext(now, reasons, snapshot.expected_starts, snapshot.progress, names, beside)
        is_compact = self.app.size.height < _COMPACT
        told = replace(self._told, is_compact=is_compact)
        live = self._live(job, now, room, is_compact=is_compact) if job.state.is_active else None
        has_graphs = self._services.pace.has_graphs and not is_compact
        telemetry = self._telemetry.lines(job, room - _LABEL - _GAP, has_graphs=has_graphs, is_tall=self._is_tall)
        lines = job_lines(job, context, told if job.state is JobState.PENDING else None, live, telemetry)
        return (lines[0], *array_lines(job, snapshot), *lines[1:])

    @property
    def _is_tall(self) -> bool:
        """Return whether the page has rows to spare: more than the log below it needs, or the log is beside it."""
        return self.size.height >= (_COMPACT if self.size.width >= _BESIDE_FROM else _TALL)

    def _live(self, job: Job, now: datetime, room: int, *, is_compact: bool) -> Live:
        """Return the readings of its GPUs and its expected duration."""
        picture = self._services.gpu_picture(self._snapshot, {}, now)
        has_graphs = self.size.width < _BESIDE_FROM
        gpus = gpu_lines(job, picture, room - _LABEL - _GAP, is_compact=is_compact, has_graphs=has_graphs)
        settings = self._services.settings
        alike = (each for each in self._snapshot.jobs if each.spec.tenant == job.spec.tenant)
        return Live(gpus, Durations(alike, settings.policy, settings.scheduler.max_time).expected(job))

    def _graphs(self, job: Job, room: int, rows: int) -> list[Cell]:
        """Return what fits below the lines of a wide page: the past of the GPUs that the job holds.

        Series that were measured for the job itself belong here too, before those of its GPUs.
        """
        if not job.state.is_active or not self._services.pace.has_graphs:
            return []
        picture = self._services.gpu_picture(self._snapshot, {}, self._services.clock.now())
        graphs = job_graph_lines(gpus_of(job, picture), room, rows)
        return [(), *graphs] if graphs else []

    def _explain(self, job: Job) -> None:
        """Ask for a new explanation where it may have changed."""
        snapshot, now = self._snapshot, self._services.clock.now()
        seen, at = self._explained or (EMPTY, now)
        is_new = self._explained is None or now - at >= _AGED or not are_alike(seen, snapshot)
        if job.state is not JobState.PENDING or not is_new or not self._pace.may_begin:
            return
        settings = self._services.settings
        self._explained = (snapshot, now)
        self._pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            del is_wanted
            return Explained(explain(snapshot, job.element(job.id), settings, now))

        self._explainer.ask(work)

    def on_explained(self, message: Explained) -> None:
        """Show the explanation."""
        self._pace.end()
        self._told = ExplanationState(message.explanation, message.failure)
        self.show_snapshot(self._snapshot)

    def on_telemetry_loaded(self, message: TelemetryLoaded) -> None:
        """Show the telemetry."""
        self._telemetry.take(message)
        self.show_snapshot(self._snapshot)

    def action_follow(self) -> None:
        """Follow the job's log on the main screen."""
        self._follow(self._job_id)
        self.dismiss()

    def action_back(self) -> None:
        """Close the page."""
        self.dismiss()

    def action_scroll(self, step: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def _laid_out(lines: tuple[Line, ...], room: int) -> list[Cell]:
    """Lay out labels in a column, and their texts beside them, wrapped."""
    first = max(_LABEL, *(width(label) for label, _ in lines)) + _GAP
    found: list[Cell] = []
    for label, about in lines:
        begun = fitted(((label, BLUE),), first)
        for line in broken_cell(about, room - first) or [()]:
            found.append((*begun, *line))
            begun = fitted((), first)
    return found
