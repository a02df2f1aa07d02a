"""Changes to jobs, recurring jobs and reservations in the queue pane: move, edit, clone, recur, remove."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_not
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.message import Message

from gputui.domain.action import (
    Action,
    AddRecurring,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    ResumeRecurring,
    Unreserve,
)
from gputui.domain.arrays import count
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, Placing
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.server_ids import server_of, shown_id
from gputui.domain.state import JobState
from gputui.tui.keymap import keymap_of
from gputui.tui.progress import IsWanted, LatestWorker
from gputui.tui.screens.job_screen import JobScreen, Predicate
from gputui.tui.screens.queue_controller import QueueController
from gputui.tui.services import Services

if TYPE_CHECKING:
    from gputui.domain.policy.reorder import Move
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import WindowView


class Drag:
    """Adds up steps, and keeps requested places that are not in the snapshot yet."""

    def __init__(self) -> None:
        self._ids: tuple[JobId, ...] = ()
        self._jobs: tuple[weakref.ref[Job], ...] = ()
        """Weak references to the jobs of the snapshot, since they may be the whole queue."""
        self._steps: tuple[int, ...] = ()
        self._wanted: tuple[Placing, ...] = ()
        """Places requested since the snapshot with these jobs."""

    def press(self, jobs: Sequence[Job], step: int) -> tuple[tuple[int, ...], tuple[Placing, ...]]:
        """Return the steps to make, and the places requested for these jobs since the snapshot."""
        ids = ids_of(jobs)
        if ids != self._ids:
            self._steps = ()
        before = [known() for known in self._jobs]
        if len(jobs) != len(before) or any(map(is_not, jobs, before)):  # there is a new snapshot
            self._wanted = ()
        self._ids, self._jobs = ids, tuple(map(weakref.ref, jobs))
        self._steps = (*self._steps, step)
        return self._steps, self._wanted

    def is_answered(self, job_ids: Sequence[JobId], steps: tuple[int, ...]) -> bool:
        """Return whether these are all requested steps; the next key then starts again."""
        if steps != self._steps or tuple(job_ids) != self._ids:
            return False
        self._steps = ()
        return True

    def want(self, places: tuple[Placing, ...]) -> None:
        """Record that these places were requested."""
        self._wanted = places


def ids_of(jobs: Sequence[Job]) -> tuple[JobId, ...]:
    """Return the ids of the jobs, including all elements of entries."""
    return tuple(job_id for job in jobs for job_id in job.ids)


class MoveFound(Message, bubble=False):
    """Message with the places in the queue that a move leads to."""

    def __init__(self, job_ids: tuple[JobId, ...], move: Move, steps: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.job_ids = job_ids
        self.move = move
        self.steps = steps
        """Number of key presses that it answers."""


class QueueEditor:
    """Carries out the editing commands of the queue pane."""

    def __init__(self, screen: JobScreen, services: Services, queue: QueueController) -> None:
        self._screen = screen
        self._services = services
        self._queue = queue
        self._mover = LatestWorker(screen.post_message, _not_moved)
        self._drag = Drag()
        self.conditions: dict[str, Predicate] = {
            "move": lambda _: bool(self._waiting()),
            "edit": lambda _: bool(self._editable()),
            "recur": lambda _: queue.has_focus and screen.subject() is not None,
            "clone": lambda _: screen.subject() is not None,
            "remove": lambda _: bool(self._recurring() or self._window()),
            "pause_recurring": lambda _: (entry := self._recurring()) is not None and not entry.paused,
            "resume_recurring": lambda _: (entry := self._recurring()) is not None and entry.paused,
        }

    def close(self) -> None:
        """Stop; results are no longer wanted."""
        self._mover.close()

    def _waiting(self) -> list[Job]:
        """Return the waiting jobs of the row under the cursor."""
        if not self._queue.has_focus:
            return []
        return [job for job in self._queue.table.jobs if job.state is JobState.PENDING]

    def _editable(self) -> list[Job]:
        """Return the waiting jobs of the row under the cursor, or its running job."""
        states = {JobState.CONFIGURING, JobState.RUNNING}
        running = [job for job in self._queue.table.jobs if job.state in states] if self._queue.has_focus else []
        return self._waiting() or running[:1]

    def _recurring(self) -> RecurringJob | None:
        table = self._queue.table
        if not self._queue.has_focus or table.sheet is not table.recurring or table.cursor is None:
            return None
        return table.recurring.entries.get(table.cursor)

    def _window(self) -> WindowView | None:
        table = self._queue.table
        if not self._queue.has_focus or table.sheet is not table.windows or table.cursor is None:
            return None
        return table.windows.views.get(table.cursor)

    def move(self, step: int) -> None:
        """Find the place past the neighbour; keys pressed meanwhile add up."""
        jobs = self._waiting()
        ids = ids_of(jobs)
        steps, wanted = self._drag.press(jobs, step)
        services, snapshot = self._services.scoped(self._screen.snapshot, server_of(ids[0]) if ids else "")
        settings, now = services.settings, services.clock.now()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import reorder, whatif

            del is_wanted
            order = reorder.queue_standings(whatif.change_of(PlaceJobs(tuple(wanted)), now)(snapshot), settings, now)
            return MoveFound(ids, reorder.move_by_steps(order, ids, steps), steps)

        self._mover.ask(work)

    def take_move(self, message: MoveFound) -> None:
        """Propose the move, or show why it is refused."""
        move, ids = message.move, message.job_ids
        if ids and not self._drag.is_answered(ids, message.steps):
            return
        if move.refusal:
            self._screen.notify(move.refusal, title="Not moved", severity="warning")
        if not ids:
            self._drag = Drag()
        if not ids or not move.places:
            return
        if self._screen.shows_what_if:
            from gputui.tui.proposals import JobProposal

            self._screen.propose(JobProposal(ids[0], "move", 0, ids[1:]).dragged(move))
        else:
            self._drag.want(move.places)
            self._screen.request(PlaceJobs(move.places))

    def edit(self) -> None:
        """Open the form with the request of the job; an array must be unfolded first."""
        waiting = self._editable()
        if count(waiting) > 1:
            key = keymap_of(self._screen).key("fold")
            self._screen.notify(f"elements of an array are edited one by one: {key} unfolds it")
        elif waiting:
            from gputui.tui.screens.submit import Submit

            scope = self._services.scoped(self._screen.snapshot, server_of(waiting[0].id))
            self._screen.app.push_screen(Submit.edit(*scope, waiting[0]))

    def clone(self) -> None:
        """Open the form of a new job with the request of this one."""
        if job := self._screen.subject():
            from gputui.tui.screens.submit import Submit

            scope = self._services.scoped(self._screen.snapshot, server_of(job.id))
            self._screen.app.push_screen(Submit.clone(*scope, job))

    def recur(self) -> None:
        """Ask for the schedule of a recurring job like this one."""
        job = self._screen.subject()
        if job is None:
            return
        from gputui.tui.screens.questions import Prompt

        def answered(expression: str | None) -> None:
            if not expression:
                return
            try:
                action = again(job, expression)
            except GputuiError as error:
                self._screen.notify(str(error), severity="error")
            else:
                self._screen.request(action, f"job {shown_id(job.id)}", server_of(job.id))

        detail = "Minute hour day month weekday, as in a crontab: 0 3 * * *  or  @daily"
        prompt = Prompt(f"Recurring job like #{job.shown_id}", "schedule", detail)
        self._screen.app.push_screen(prompt, answered)

    def pause_recurring(self) -> None:
        """Make no further runs of the recurring job."""
        if entry := self._recurring():
            self._screen.request(PauseRecurring((entry.id,)), shown_id(entry.id))

    def resume_recurring(self) -> None:
        """Submit runs of the recurring job again."""
        if entry := self._recurring():
            self._screen.request(ResumeRecurring((entry.id,)), shown_id(entry.id))

    def remove(self) -> None:
        """Ask whether to remove the recurring job or the reservation, and remove it."""
        from gputui.tui.screens.questions import Confirm

        entry, view = self._recurring(), self._window()
        if view is not None and view.source == "command" and self._screen.shows_what_if:
            from gputui.tui.proposals import WindowProposal

            self._screen.propose(WindowProposal(view.window, is_new=False))
            return
        if entry is not None:
            action: Action = RemoveRecurring((entry.id,))
            subject = shown_id(entry.id)
            question = f"Remove recurring job {shown_id(entry.id)}?"
            detail = "No further jobs are submitted; jobs that it submitted stay."
        elif view is not None:
            action, subject, question = Unreserve(view.window.name), "", f"Release reservation {view.window.name}?"
            detail = "Its GPUs are released."
        else:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._screen.request(action, subject)

        self._screen.app.push_screen(Confirm(question, detail), answered)


def again(job: Job, expression: str) -> AddRecurring:
    """Return the action that submits a job like this one by a cron expression; raises InputError."""
    from gputui.engine.actions.recurring import local_zone_name

    spec = replace(job.spec, begin_at=None, after=(), after_any=())
    return AddRecurring(Recurrence(expression, local_zone_name()), Submission(spec))


def _not_moved(error: Exception) -> Message:
    from gputui.domain.policy.reorder import Move

    return MoveFound((), Move(refusal=str(error)))
