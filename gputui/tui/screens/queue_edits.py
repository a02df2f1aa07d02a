"""What changes jobs and standing wishes from the queue's pane, beside the wishes that every screen has."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.tui import wishes
from gputui.tui.commands import EDIT_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.keymap import keymap_of
from gputui.tui.messages import WishMade
from gputui.tui.newest import IsWanted, Newest, Pace
from gputui.tui.queue import tabs
from gputui.tui.queue.drag import Drag
from gputui.tui.screens.queue_screen import QueueScreen

if TYPE_CHECKING:
    from gputui.domain.policy.reorder import Move
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.window import WindowView


class MoveFound(Message, bubble=False):
    """What it takes to move jobs."""

    def __init__(self, job_ids: tuple[JobId, ...], move: Move, steps: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.job_ids = job_ids
        self.move = move
        self.steps = steps
        """Those that it is the answer to."""


class Ranked(Message, bubble=False):
    """The scores of waiting jobs."""

    def __init__(self, scores: dict[JobId, float]) -> None:
        super().__init__()
        self.scores = scores


class QueueEdits(QueueScreen):
    """A queue whose jobs can be moved and edited, and whose standing wishes can be ended."""

    BINDINGS: ClassVar = bindings(EDIT_COMMANDS)

    def __init__(self, desk: Desk, snapshot: Snapshot = EMPTY) -> None:
        super().__init__(desk, snapshot)
        self._mover = Newest(self.post_message, _not_moved)
        self._drag = Drag()
        self._ranker = Newest(self.post_message, lambda error: Ranked({}))
        self._ranked: Callable[[], Snapshot | None] = lambda: None
        """The picture whose scores were asked for last, while it is there still: it holds a whole queue."""
        self._pace = Pace(rest=9)

    def on_unmount(self) -> None:
        """Nothing is wanted any more."""
        self._mover.close()
        self._ranker.close()

    def update_tabs(self) -> None:
        """Work the scores out where somebody looks at them."""
        super().update_tabs()
        snapshot = self._snapshot
        wanted = "score" in self.table.live.chosen.keys or self._rows.sorting.column == "score"
        if wanted and self._ranked() is not snapshot and self._pace.may_begin:
            self._ranked = weakref.ref(snapshot)
            settings, now = self._desk.settings, self._desk.clock.now()
            self._pace.begin()

            def work(is_wanted: IsWanted) -> Message:
                from gputui.domain.policy import reorder

                del is_wanted
                return Ranked({each.job.id: each.score for each in reorder.standings(snapshot, settings, now)})

            self._ranker.ask(work)

    def on_ranked(self, message: Ranked) -> None:
        """Show them."""
        self._pace.end()
        self._rows.rank(message.scores)
        self.refresh_time()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done now."""
        if action in {"move", "edit"} and not self._waiting():
            return False
        if action == "recur" and not (self.is_in_queue and self.subject()):
            return False
        if action == "clone" and self.subject() is None:
            return False
        if action == "remove" and not (self._recurring() or self._window()):
            return False
        if action in {"pause_recurring", "resume_recurring"}:
            entry = self._recurring()
            if entry is None or entry.paused != (action == "resume_recurring"):
                return False
        return super().check_action(action, parameters)

    def _waiting(self) -> list[Job]:
        """The waiting jobs of the row under the cursor."""
        if not self.is_in_queue:
            return []
        return [job for job in self.table.jobs if job.state is JobState.PENDING]

    def _recurring(self) -> RecurringJob | None:
        if not self.is_in_queue or self.table.sheet is not self.table.recurring or self.table.cursor is None:
            return None
        return self.table.recurring.entries.get(self.table.cursor)

    def _window(self) -> WindowView | None:
        if not self.is_in_queue or self.table.sheet is not self.table.windows or self.table.cursor is None:
            return None
        return self.table.windows.views.get(self.table.cursor)

    def action_move(self, step: int) -> None:
        """Find out what it takes to go past the neighbour; keys pressed until that is known add up."""
        jobs = self._waiting()
        ids = tuple(job.id for job in jobs)
        steps, delta = self._drag.press(jobs, step)
        snapshot, settings, now = self._snapshot, self._desk.settings, self._desk.clock.now()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import reorder

            del is_wanted
            order = reorder.standings(snapshot, settings, now)
            return MoveFound(ids, reorder.drag(order, ids, steps, settings, delta), steps)

        self._mover.ask(work)

    def on_move_found(self, message: MoveFound) -> None:
        """Propose it, or say why it cannot be."""
        move, ids = message.move, message.job_ids
        if ids and not self._drag.is_answered(ids, message.steps):
            return
        if move.refusal:
            self.notify(move.refusal, title="Not moved", severity="warning", markup=False, timeout=8)
        if not ids:
            self._drag = Drag()
        if not ids or move.past is None:
            return
        if self.shows_what_if:
            from gputui.tui.proposals import JobProposal

            self.propose(JobProposal(ids[0], "raise", 0, ids[1:]).dragged(move))
        elif more := self._drag.wish(move.delta):
            self.post_message(WishMade(wishes.add_priority(ids, more)))

    def action_edit(self) -> None:
        """Open the form of what it asks for; of elements that share a row the first alone has one."""
        waiting = self._waiting()
        if len(waiting) > 1:
            key = keymap_of(self).key("fold")
            self.notify(f"elements of an array are edited one by one: {key} opens it", timeout=5)
        elif waiting:
            from gputui.tui.screens.edit import EditJob

            self.app.push_screen(EditJob(self._desk, self._snapshot, waiting[0]))

    def action_clone(self) -> None:
        """Open the form for a new job with what this one asked for."""
        if job := self.subject():
            from gputui.tui.screens.submit import Submit

            self.app.push_screen(Submit.clone(self._desk, self._snapshot, job))

    def action_recur(self) -> None:
        """Ask when a job like this one is to be submitted again."""
        job = self.subject()
        if job is None:
            return
        from gputui.tui.screens.prompt import Prompt

        def answered(expression: str | None) -> None:
            if expression:
                self.post_message(WishMade(tabs.again(job, expression)))

        detail = "Minute hour day month weekday, as in a crontab: 0 3 * * *  or  @daily"
        self.app.push_screen(Prompt(f"Submit a job like #{job.shown_id} again and again", "when", detail), answered)

    def action_pause_recurring(self) -> None:
        """Make no run of it."""
        if entry := self._recurring():
            self.post_message(WishMade(tabs.pause(entry)))

    def action_resume_recurring(self) -> None:
        """Make runs of it again."""
        if entry := self._recurring():
            self.post_message(WishMade(tabs.resume(entry)))

    def action_remove(self) -> None:
        """Ask, and end it."""
        from gputui.tui.screens.confirm import Confirm

        entry, view = self._recurring(), self._window()
        if view is not None and view.source == "command" and self.shows_what_if:
            from gputui.tui.window_proposals import WindowProposal

            self.propose(WindowProposal(view.window, is_new=False))
            return
        if entry is not None:
            call, question = tabs.remove(entry), f"Remove recurring job {entry.id}?"
            detail = "It is submitted no more; jobs that it submitted stay."
        elif view is not None:
            call, question = tabs.give_up(view.window.name), f"Give up reservation {view.window.name}?"
            detail = "Its GPUs are anybody's again."
        else:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.post_message(WishMade(call))

        self.app.push_screen(Confirm(question, detail), answered)


def _not_moved(error: Exception) -> Message:
    from gputui.domain.policy.reorder import Move

    return MoveFound((), Move(refusal=str(error)))
