"""What the screens have in common on which things can be done to a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on, work
from textual.screen import Screen

from gputui.domain.job import Job
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import fit
from gputui.tui.commands import CHANGING, place_of
from gputui.tui.compositor import ExactCompositor
from gputui.tui.desk import Desk
from gputui.tui.messages import WishMade
from gputui.tui.present.detail import job_title
from gputui.tui.screens.once import ClosedOnce
from gputui.tui.shell import open_shell
from gputui.tui.widgets.line import KeyBar
from gputui.tui.wishes import WISHES

if TYPE_CHECKING:
    from gputui.tui.proposals import Proposal


class JobScreen(ClosedOnce[None], Screen[None]):
    """A screen with a subject: the job that commands act on."""

    def __init__(self, desk: Desk, snapshot: Snapshot = EMPTY) -> None:
        super().__init__()
        self._compositor = ExactCompositor()
        self._desk = desk
        self._snapshot = snapshot

    def on_unmount(self) -> None:
        """Keep no queue: a closed screen is in circles with its widgets, which are looked for every few minutes."""
        self._snapshot = EMPTY

    def subject(self) -> Job | None:
        """The job meant."""
        raise NotImplementedError

    def subjects(self) -> Sequence[Job]:
        """The jobs that a wish is about: several, where several are marked."""
        job = self.subject()
        return () if job is None else (job,)

    def action_wish(self, name: str) -> None:
        """Ask for it, for the jobs that are the subject now, however long a dialog stays open."""
        wish = WISHES[name]
        jobs = [job for job in self.subjects() if wish.may(job)]
        if not jobs:
            return
        if self.shows_what_if:
            from gputui.tui.proposals import of_key

            self.propose(of_key(jobs, name, self._snapshot))
            return
        call = wish.call(*(job.id for job in jobs))
        if not wish.confirm:
            self.post_message(WishMade(call))
            return
        from gputui.tui.screens.confirm import Confirm

        def answered(yes: bool | None) -> None:
            if yes:
                self.post_message(WishMade(call))

        which = f"job {job_title(jobs[0])}" if len(jobs) == 1 else f"{len(jobs)} jobs"
        self.app.push_screen(Confirm(f"{wish.confirm} {which}?", _what_cancel_does(jobs)), answered)

    @property
    def shows_what_if(self) -> bool:
        """Whether what a wish would do is shown before it is written down."""
        return self._desk.settings.console.what_if != "off"

    def propose(self, proposal: Proposal) -> None:
        """Show what that would do: the panel writes it down, or not."""
        from gputui.tui.screens.what_if import WhatIf

        self.app.push_screen(WhatIf(self._desk, self._snapshot, proposal))

    @work
    async def action_shell(self) -> None:
        """Open a shell beside what the job runs, on this terminal; the console is back when it ends."""
        if (job := self.subject()) is not None:
            await open_shell(self.app, self._desk.inside, job)

    def action_processes(self) -> None:
        """Show what the job runs inside."""
        if (job := self.subject()) is not None:
            from gputui.tui.screens.processes import Processes

            self.app.push_screen(Processes(self._desk, self._snapshot, job.id))

    def action_copy(self) -> None:
        """Ask what of the job is to be copied, and copy it: only ever by this key."""
        if (job := self.subject()) is not None:
            from gputui.tui.screens.copy import CopyDialog

            self.app.push_screen(CopyDialog(job), self._copied)

    def _copied(self, text: str | None) -> None:
        if text is not None:
            self.app.copy_to_clipboard(text)
            self.notify(f"copied: {fit(text, 60)}", markup=False, timeout=3)

    @on(KeyBar.Clicked)
    async def run_clicked(self, event: KeyBar.Clicked) -> None:
        """Do what the words say that were clicked, as their key would."""
        if place := place_of(event.command, self):
            await self.app.run_action(event.command.action, default_namespace=place)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done to this job now, or never here."""
        if self._desk.is_read_only and action in CHANGING:
            return False
        if action == "wish":
            return any(map(WISHES[str(parameters[0])].may, self.subjects()))
        if action in {"shell", "processes"}:
            job = self.subject()
            return job is not None and job.state is JobState.RUNNING
        if action in {"detail", "follow", "copy"}:
            return self.subject() is not None
        return True


def _what_cancel_does(jobs: Sequence[Job]) -> str:
    running = sum(job.state.is_active for job in jobs)
    if len(jobs) == 1:
        return "Its container is stopped; what it wrote so far stays." if running else "It will not be started."
    return f"{running} of them run and are stopped; what they wrote so far stays." if running else "None will start."
