"""What-if panel: the effect of a change, before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input

from gputui.domain.arrays import Names
from gputui.domain.policy.queue_order import Move, QueueStanding, move_by_steps, queue_standings
from gputui.domain.policy.whatif import Comparison, compared, timeline
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import plain
from gputui.tui.commands import FURTHER, WHAT_IF_COMMANDS, bindings
from gputui.tui.present.timeline import Outlook, Subject, what_if_lines
from gputui.tui.progress import ForecastBase, IsWanted, LatestWorker, Throttle, failure_words
from gputui.tui.proposals import JobProposal, Proposal
from gputui.tui.screens.dialogs import Leavable
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines
from gputui.tui.widgets.status_bars import KeyBar


@dataclass(eq=False)
class Foreseen(Message, bubble=False):
    proposal: Proposal | None
    comparison: Comparison | None
    failure: str = ""


@dataclass(eq=False)
class Dragged(Message, bubble=False):
    move: Move
    steps: tuple[int, ...] | None = None
    """Number of steps that this answers; None: any."""


class WhatIf(Leavable[bool], ModalScreen[bool]):
    """Panel at the bottom of the screen.

    It opens at once and fills in when the forecast is computed, without delaying keys.
    """

    BINDINGS: ClassVar = [
        *bindings((*WHAT_IF_COMMANDS, *FURTHER)),
        Binding("y", "commit", id="yes"),
        Binding("n,q", "forget", id="no"),
    ]
    LEAVES: ClassVar = "forget"
    DEFAULT_CSS = """
    WhatIf {
        align: center bottom; background: $background 25%;
        #panel {
            width: 100%; max-width: 124; height: auto; background: $surface;
            border: round $primary; border-title-color: $primary; padding: 0 1;
        }
        Input { border: none; height: 1; padding: 0 1; background: $background; }
    }
    """

    def __init__(self, services: Services, snapshot: Snapshot, proposal: Proposal) -> None:
        super().__init__()
        self._services = services
        self._snapshot = snapshot
        self.proposal: Proposal = proposal
        self._base = ForecastBase(snapshot, services.clock.now())
        self._answer = Foreseen(None, None)
        self._newest = LatestWorker(self.post_message, lambda error: Foreseen(None, None, failure_words(error)))
        self._mover = LatestWorker(self.post_message, lambda error: Dragged(Move(refusal=failure_words(error))))
        self._steps: tuple[int, ...] = ()
        """Keys pressed whose resulting place is not known yet."""
        self._order: tuple[ForecastBase, list[QueueStanding]] | None = None
        """Base of the known order, and the order itself."""
        self._refusal = ""
        self.pace = Throttle(rest=4)
        self._names = Names(snapshot.jobs)
        self._lines = CellLines(id="lines")

    def compose(self) -> ComposeResult:
        with Vertical(id="panel") as panel:
            panel.border_title = "What if"
            yield self._lines
            if self.proposal.asks_reason:
                yield Input(placeholder="Reason, shown to all users", compact=True, max_length=200)
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        is_order = isinstance(self.proposal, JobProposal) and self.proposal.is_order
        further = tuple(command for command in FURTHER if command.in_footer and is_order)
        self.query_one(KeyBar).show((*WHAT_IF_COMMANDS, *further))
        self.set_interval(self._services.pace.tick, self.tick)
        self._ask()
        self._draw()

    def on_unmount(self) -> None:
        self._newest.close()
        self._mover.close()
        self._snapshot, self._answer, self._order, self._names = EMPTY, Foreseen(None, None), None, Names()
        self._base = ForecastBase(EMPTY, self._base.now)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @property
    def comparison(self) -> Comparison | None:
        """Comparison for the current proposal; None while it is being computed."""
        return self._answer.comparison if self._answer.proposal == self.proposal else None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot.of_server(self._snapshot.server_name)
        if self._snapshot.jobs is not before.jobs:
            self._names = Names(self._snapshot.jobs)
        self.tick()

    def tick(self) -> None:
        now = self._services.clock.now()
        if self._base.is_old(self._snapshot, now) and self.pace.may_begin:
            self._base = ForecastBase(self._snapshot, now)
            self._ask()
        self._draw()

    def _ask(self) -> None:
        base, proposal, settings = self._base, self.proposal, self._services.settings
        self.pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            if base.snapshot.servers:
                return Foreseen(proposal, None, "each server has a queue of its own")
            if base.before is None:  # it serves every change based on this snapshot, so it is completed
                base.before = timeline(base.snapshot, settings, base.now, is_wanted=lambda: base is self._base)
            change = proposal.change(base.now)
            return Foreseen(proposal, compared(base.snapshot, change, settings, base.now, base.before, is_wanted))

        self._newest.ask(work)

    def on_foreseen(self, message: Foreseen) -> None:
        self.pace.end()
        self._answer = message
        self._draw()

    def _draw(self) -> None:
        if not self._lines.is_attached:
            return  # a snapshot may arrive before the panel is ready
        now, snapshot, proposal = self._services.clock.now(), self._snapshot, self.proposal
        subject = Subject(
            proposal.words(snapshot),
            frozenset(proposal.job_ids),
            proposal.cost(snapshot, now),
            proposal.doubt(snapshot) or self._refusal,
            proposal.fate(),
        )
        answer = self._answer
        is_current = answer.proposal == proposal
        outlook = Outlook(snapshot, now, answer.comparison, is_current, answer.failure, self._names, self._names.shown)
        room = self._lines.size.width or min(self.app.size.width, 124) - 4
        rows = max(5, min(20, self.app.size.height * 3 // 5 - 3))  # part of the screen behind stays visible
        self._lines.grow(what_if_lines(subject, outlook, room, rows))

    def action_further(self, verb: str) -> None:
        """Change the proposal by one more key: changes add up, and are written together."""
        self._steps, self._refusal = (), ""
        self._change(self.proposal.further(verb, self._snapshot))

    def _change(self, changed: Proposal) -> None:
        if changed != self.proposal:
            self.proposal = changed
            self._ask()
        self._draw()

    def action_drag(self, step: int) -> None:
        """Move one more place: keys pressed before the answer is known add up."""
        proposal, base, settings = self.proposal, self._base, self._services.settings
        steps = self._steps = (*self._steps, step)
        ids = proposal.job_ids

        def work(is_wanted: IsWanted) -> Message:
            known = self._order
            if known is None or known[0] is not base:
                known = (base, queue_standings(base.snapshot, settings, base.now))
            self._order = known if base is self._base else None  # based on another snapshot by now, or closed
            order = queue_standings(proposal.change(base.now)(base.snapshot), settings, base.now)
            return Dragged(move_by_steps(order, ids, steps, known[1]), steps)

        self._mover.ask(work)

    def on_dragged(self, message: Dragged) -> None:
        proposal, move = self.proposal, message.move
        if message.steps not in {None, self._steps} or not isinstance(proposal, JobProposal):
            return  # more keys have been pressed, or another verb has replaced them
        self._steps, self._refusal = (), move.refusal
        self._change(proposal.dragged(move))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys that change a proposal further, unless it is an order."""
        if action in {"further", "drag"}:
            return isinstance(self.proposal, JobProposal) and self.proposal.is_order
        return True

    @on(Input.Submitted)
    def action_commit(self) -> None:
        fields = self.query(Input)
        reason = plain(fields.first().value.strip(), 200) if fields else ""
        if (request := self.proposal.request(reason, self._snapshot.server_name)) is not None:
            self.app.post_message(request)
        self.dismiss(True)

    def action_forget(self) -> None:
        self.dismiss(False)
