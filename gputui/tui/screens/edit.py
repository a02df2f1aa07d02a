"""The form in which a waiting job is edited: that of a new job, filled with what this one asks for."""

from __future__ import annotations

from dataclasses import replace

from gputui.domain.edit import Edit, differs
from gputui.domain.job import Job, Submission
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.request import draft as drafts
from gputui.request import edits, written
from gputui.request.draft import Draft
from gputui.tui.commands import SUBMIT_COMMANDS
from gputui.tui.commands.command import Command
from gputui.tui.desk import Desk
from gputui.tui.edit_proposal import EditProposal, doubt_of
from gputui.tui.messages import WishMade
from gputui.tui.present.detail import job_title
from gputui.tui.screens.submit import Submit
from gputui.tui.submission.form import label, placed_faults, within
from gputui.tui.submission.lines import EMPTY
from gputui.tui.submission.wish import Answered

_ELSEWHERE = frozenset({"recent", "older", "templates"})
"""What fills a form with another job."""
_SECRET = frozenset({"env"})
_MOST_WORDS = 40


class EditJob(Submit):
    """Only what was changed is sent, and only while the job waits as it was when the form was opened."""

    first = "time_limit"
    welcome = "Enter shows what the change would do, before it is made."

    def __init__(self, desk: Desk, snapshot: Snapshot, job: Job) -> None:
        self._job = job
        self._before: Draft = drafts.masked(edits.draft_of(job, desk.clock.now()))
        hidden = written.hidden(job.spec)
        title = f"Edit job {job_title(job)}"
        super().__init__(desk, snapshot, self._before, hidden=hidden, title=title, instead=job)

    def on_mount(self) -> None:
        """Begin where it matters most; what stays as it is says why."""
        super().on_mount()
        self.body.keep_as_is(edits.locked(self._job))

    def commands(self) -> tuple[Command, ...]:
        """Those of the form that make sense here."""
        kept = (command for command in SUBMIT_COMMANDS if command.verb not in _ELSEWHERE)
        return tuple(replace(command, title="save") if command.verb == "send" else command for command in kept)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No other job is filled in."""
        return False if action in _ELSEWHERE else super().check_action(action, parameters)

    # what is in it

    def fill(self, draft: Draft, said: str = "", *, judge: bool = True, is_clean: bool = True) -> None:
        """Hold this instead; what cannot be changed stays, and says so."""
        locked = edits.locked(self._job)
        told = [f"{label(name)}: {locked[name]}" for name in edits.changed(self._before, draft) if name in locked]
        kept = {name: self._before.get(name, "") for name in locked}
        super().fill({**draft, **kept}, "; ".join(told) or said, judge=judge, is_clean=is_clean)

    def fill_line(self, text: str) -> None:
        """A command line asks for some things: all else stays as it is typed."""
        self._beneath = self.draft()
        super().fill_line(text)
        self._beneath = EMPTY

    def faults(self) -> dict[str, str]:
        """What is wrong with each field."""
        found = edits.faults(self._job, self._was, self._is, self.submitter)
        if not found and (names := edits.changed(self._before, self.draft())):
            self.body.set_changed(names)
            return super().faults()
        self.body.set_changed(edits.changed(self._before, self.draft()))
        return placed_faults(found)

    @property
    def _was(self) -> Draft:
        return drafts.revealed(self._before, self._hidden)

    @property
    def _is(self) -> Draft:
        return drafts.revealed(self.draft(), self._hidden)

    def _edit(self) -> Edit:
        return edits.read(self._job, self._was, self._is, self.submitter)

    def asked(self) -> Submission:
        """The job as it would be; raises InputError."""
        after = self._edit().on(self._job, self._desk.clock.now())
        return within(Submission(replace(after.spec, priority=after.priority), after.held), self._origin)

    # what becomes of it

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the picture in; a form in which nothing is typed follows the job."""
        super().show_snapshot(snapshot)
        now = snapshot.job(self._job.id)
        if not self.is_mounted or self._is_sent:
            return
        if now and now.state is JobState.PENDING and differs(self._job, now) and not self.is_touched:
            self._job, self._before = now, drafts.masked(edits.draft_of(now, self._desk.clock.now()))
            self._hidden = dict(written.hidden(now.spec))
            self.fill(self._before, "It was changed meanwhile: this is what it asks for now.")
        elif words := doubt_of(self._job, snapshot):
            self.say(words, is_bad=True)

    def send(self, asked: Submission) -> None:
        """Show what it would do, and have it written down from there."""
        del asked
        edit = self._edit()
        if not edit:
            self.notify(f"job {self._job.id}: nothing to change", markup=False, timeout=4)
            self.dismiss()
            return
        proposal = EditProposal(self._job, edit, self._words(), lambda error: self.post_message(Answered(error)))
        if self._desk.settings.console.what_if == "off":
            self._is_sent = True
            self.app.post_message(WishMade(proposal.call()))
            return
        from gputui.tui.screens.what_if import WhatIf

        self.app.push_screen(WhatIf(self._desk, self._snapshot, proposal))

    def _words(self) -> str:
        """`time limit 1h -> 2h, GPUs 1 -> 2`."""
        after, told = self.draft(), []
        for name in edits.changed(self._before, after):
            was, then = (plain(drafts.text_of(draft, name), _MOST_WORDS) or "none" for draft in (self._before, after))
            told.append(label(name) if name in _SECRET else f"{label(name)} {was} -> {then}")
        return ", ".join(told)

    def sent(self) -> None:
        """It is written down."""
        self.dismiss()
