"""Purposes of the job form: to submit a new job, or to edit one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec.structs import replace

from gputui.domain.action import Edit, SubmitJobs, differs
from gputui.domain.errors import InputError
from gputui.domain.job import Job, JobState, element_spec
from gputui.domain.job_spec import Submission
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import listed, plain
from gputui.request import draft as drafts
from gputui.request import edits
from gputui.request.draft import Draft
from gputui.request.job_options import BY_NAME
from gputui.tui.commands.command import Command
from gputui.tui.commands.table import MORE_FIELDS, SUBMIT_COMMANDS
from gputui.tui.present.cells import Cell
from gputui.tui.present.job import job_title
from gputui.tui.proposals import EditProposal, edit_refusal
from gputui.tui.submission.form import FIELDS, START, Origin, draft_submission, faults, label, placed_faults, within
from gputui.tui.submission.preview import end_line

EMPTY: Draft = MappingProxyType({})
_ELSEWHERE = frozenset({"recent", "older", "templates"})
"""Actions that fill a form with another job."""
_IN_CLUSTER = frozenset({"time_limit", "priority", "hold"})
"""Fields of a waiting job that a cluster changes."""
_SECRET = frozenset({"env"})
_MOST_WORDS = 40
_WELCOME = "Enter shows the effects before the change is made."
_WELCOME_RUNNING = (
    f"The job runs: only its time limit (4h in all, or by +2h or -30m) and its comment can be changed. {_WELCOME}"
)


class Purpose:
    """The purpose of a form: what differs between a new job, which this is, and an edit."""

    first = "image"
    """The field that has the initial focus."""
    welcome = "Paste a whole docker run line anywhere to fill in the form."
    instead: Job | None = None
    """The job that is edited; None: the job is new."""
    is_remembered = True
    """True if the draft is stored among the last submissions."""

    def __init__(self, start: Draft = START, hidden: Mapping[str, str] = EMPTY, title: str = "Submit a job") -> None:
        self.start = start
        """Initial values of the fields."""
        self.hidden = hidden
        """Values of environment variables that are not shown."""
        self.title = title

    @classmethod
    def like(cls, job: Job, now: datetime) -> Purpose:
        """Return the purpose of a clone; values of the job's environment are copied without being shown."""
        spec = element_spec(job)
        draft = drafts.masked(drafts.draft_of_spec(spec, now))
        if spec.sweep and job.array and job.array.limit:
            draft |= {"sweep_limit": str(job.array.limit)}
        return Purpose(draft, drafts.env_values(spec), f"Submit a job like #{job.shown_id}")

    def commands(self) -> tuple[Command, ...]:
        return SUBMIT_COMMANDS

    def locked(self) -> Mapping[str, str]:
        """Return the fields that cannot be changed, each with the reason."""
        return EMPTY

    def changeable(self) -> tuple[str, ...]:
        """Return the names of the only fields to show; empty: all."""
        return ()

    def adjust(self, draft: Draft, said: str) -> tuple[Draft, str]:
        """Return a draft adjusted to the form, and the words to show with it."""
        return draft, said

    def beneath(self, draft: Draft) -> Draft:
        """Return the fields that a pasted command line leaves unchanged; of a new job not even hidden values."""
        self.hidden = EMPTY
        return EMPTY

    def faults(self, draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
        return faults(drafts.revealed(draft, self.hidden), origin, now)

    def changed(self, draft: Draft) -> tuple[str, ...]:
        return ()

    def outlook(self, draft: Draft, now: datetime) -> Cell | None:
        """Return the end of a running job; None for one that has not started."""
        return None

    def asked(self, draft: Draft, origin: Origin, now: datetime) -> Submission:
        """Return the resulting job; raises InputError."""
        return draft_submission(drafts.revealed(draft, self.hidden), origin, now)

    def follow(self, snapshot: Snapshot, now: datetime, *, is_touched: bool) -> tuple[Draft | None, str]:
        """Return a new draft if the form must follow the job, and words; without a draft they are a warning."""
        return None, ""

    def action(
        self, asked: Submission, draft: Draft, origin: Origin, now: datetime
    ) -> SubmitJobs | EditProposal | None:
        """Return the action or the proposal that the form sends; None if nothing would change."""
        return SubmitJobs((asked,))


class JobEdit(Purpose):
    """The purpose of a form for a waiting or running job: only changes are sent, and only if the job is unchanged."""

    first = "time_limit"
    is_remembered = False

    def __init__(self, job: Job, now: datetime, why_few: str = "") -> None:
        """`why_few` is a cluster's reason why only few fields can be changed; empty: it has none."""
        self._why_few = why_few
        self.welcome = _WELCOME if job.state is JobState.PENDING else _WELCOME_RUNNING
        self.title = f"Edit job {job_title(job)}"
        self.instead = job
        self._take(job, now)
        if why_few:
            self.welcome = f"Only {listed(map(label, self.changeable()))} can be changed: {why_few}."

    def _take(self, job: Job, now: datetime) -> None:
        self._job = job
        self.start = drafts.masked(edits.draft_of(job, now))
        self.hidden = drafts.env_values(job.spec)

    def commands(self) -> tuple[Command, ...]:
        """Return the form's commands except those that fill in another job."""
        others = _ELSEWHERE | {MORE_FIELDS.action_name} if self._has_few else _ELSEWHERE
        kept = (command for command in SUBMIT_COMMANDS if command.action_name not in others)
        return tuple(replace(command, title="save") if command.action_name == "send" else command for command in kept)

    def locked(self) -> Mapping[str, str]:
        locked = self._reasons()
        return dict.fromkeys(locked, "") if self._has_few else locked  # the form says it once, not at every field

    def _reasons(self) -> dict[str, str]:
        if not self._why_few:
            return edits.locked(self._job)
        few = _IN_CLUSTER if self._waits else {"time_limit"}
        return {name: self._why_few for name in drafts.NAMES if name not in few}

    @property
    def _has_few(self) -> bool:
        return bool(self._why_few) or not self._waits

    def changeable(self) -> tuple[str, ...]:
        """Return the few editable fields of a running job, or of one in a cluster; empty for others: all."""
        locked = self._reasons()
        return tuple(name for name in FIELDS if name in BY_NAME and name not in locked) if self._has_few else ()

    def adjust(self, draft: Draft, said: str) -> tuple[Draft, str]:
        """Return the draft with locked fields reset, and words on those that it would have changed."""
        locked = self.locked()
        why = self._reasons()
        told = [f"{label(name)}: {why[name]}" for name in edits.changed(self.start, draft) if name in locked]
        return {**draft, **{name: self.start.get(name, "") for name in locked}}, "; ".join(told) or said

    def beneath(self, draft: Draft) -> Draft:
        """Return the draft: options that a pasted command line does not contain stay as typed."""
        return draft

    def faults(self, draft: Draft, origin: Origin, now: datetime) -> dict[str, str]:
        """Return the error of each invalid field; a form without changes has none."""
        found = edits.faults(self._job, self._was, self._revealed(draft), origin.submitter(now))
        if found or not self.changed(draft) or not self._waits:
            return placed_faults(found)
        return faults(edits.settled(self._job, self._revealed(draft)), origin, now)

    def changed(self, draft: Draft) -> tuple[str, ...]:
        return edits.changed(self.start, draft)

    def outlook(self, draft: Draft, now: datetime) -> Cell | None:
        """Return when a running job ends by its limit, now and after the edit; None for one that waits."""
        if self._waits:
            return None
        try:
            text = drafts.value_of(edits.settled(self._job, draft), "time_limit")
        except InputError:
            return end_line(self._job, None, now)
        return end_line(self._job, text if isinstance(text, timedelta) else None, now)

    @property
    def _waits(self) -> bool:
        return self._job.state is JobState.PENDING

    @property
    def _was(self) -> Draft:
        return self._revealed(self.start)

    def _revealed(self, draft: Draft) -> Draft:
        return drafts.revealed(draft, self.hidden)

    def _edit(self, draft: Draft, origin: Origin, now: datetime) -> Edit:
        return edits.read(self._job, self._was, self._revealed(draft), origin.submitter(now))

    def asked(self, draft: Draft, origin: Origin, now: datetime) -> Submission:
        after = self._edit(draft, origin, now).on(self._job, now)
        asked = Submission(replace(after.spec, priority=after.priority), after.held)
        return within(asked, origin) if self._waits else asked

    def follow(self, snapshot: Snapshot, now: datetime, *, is_touched: bool) -> tuple[Draft | None, str]:
        """Return the job's new draft while there is no input; else why it can no longer be edited."""
        found = snapshot.job(self._job.id)
        if found and found.state is self._job.state and differs(self._job, found) and not is_touched:
            self._take(found, now)
            return self.start, "It was changed meanwhile; the form shows the job as it is now."
        return None, edit_refusal(self._job, snapshot)

    def action(self, asked: Submission, draft: Draft, origin: Origin, now: datetime) -> EditProposal | None:
        edit = self._edit(draft, origin, now)
        return EditProposal(self._job, edit, self._words(draft)) if edit else None

    def _words(self, after: Draft) -> str:
        """Return `time limit 1h -> 2h, GPUs 1 -> 2`."""
        told = []
        after = edits.settled(self._job, after)
        for name in self.changed(after):
            was, then = (plain(drafts.text_of(draft, name), _MOST_WORDS) or "none" for draft in (self.start, after))
            told.append(label(name) if name in _SECRET else f"{label(name)} {was} -> {then}")
        return ", ".join(told)
