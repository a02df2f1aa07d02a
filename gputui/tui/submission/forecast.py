"""Has the form's job forecast while it is typed, on a thread of its own, when the typing pauses."""

from __future__ import annotations

from datetime import datetime, timedelta

from textual.message import Message
from textual.message_pump import MessagePump
from textual.timer import Timer

from gputui.domain.job import Job, Submission
from gputui.domain.policy.timeline import timeline
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.newest import Base, IsWanted, Newest, Pace, are_alike
from gputui.tui.submission.outlook import Prospect, prospect

_PAUSE = 0.25
"""Seconds without a key before anything is worked out."""
_AGED = timedelta(seconds=10)


class ProspectSeen(Message, bubble=False):
    """When the job would start."""

    def __init__(self, asked: Submission | None, found: Prospect) -> None:
        super().__init__()
        self.asked = asked
        self.found = found


class Forecaster:
    """The latest prospect of what is in the form, or None while it is worked out."""

    def __init__(
        self, screen: MessagePump, settings: Settings, snapshot: Snapshot, now: datetime, instead: Job | None = None
    ) -> None:
        self._screen = screen
        self._instead = instead
        """The waiting job that would ask for this; None: a new one."""
        self._settings = settings
        self._base = Base(snapshot, now)
        self._asked: Submission | None = None
        self._answer: ProspectSeen | None = None
        self._timer: Timer | None = None
        self._pace = Pace(rest=4)
        self._newest = Newest(screen.post_message, self._failed)

    @property
    def found(self) -> Prospect | None:
        """What is known of the job as it is now."""
        return self._answer.found if self._answer and self._answer.asked == self._asked else None

    @property
    def asked(self) -> Submission | None:
        """The job as it is now; None while something is wrong with it."""
        return self._asked

    def look_at(self, asked: Submission | None) -> None:
        """Forecast this one, once nothing else has come for a moment."""
        if asked == self._asked:
            return
        self._asked = asked
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(_PAUSE, self._ask) if asked else None

    def show_snapshot(self, snapshot: Snapshot, now: datetime) -> None:
        """Forecast anew where the picture is another one by now."""
        is_old = now - self._base.now >= _AGED or not are_alike(self._base.snapshot, snapshot)
        if is_old and self._pace.may_begin:
            self._base = Base(snapshot, now)
            self._ask()

    def take(self, message: ProspectSeen) -> None:
        """It is there."""
        self._pace.end()
        self._answer = message

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._base, self._answer = Base(EMPTY, self._base.now), None
        self._newest.close()

    def _ask(self) -> None:
        base, asked, settings, instead = self._base, self._asked, self._settings, self._instead
        if asked is None:
            return
        self._pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            if base.before is None:  # it serves every job thought of upon this picture
                base.before = timeline(base.snapshot, settings, base.now, is_wanted=lambda: base is self._base)
            found = prospect(base.snapshot, settings, base.now, asked, base.before, is_wanted, instead)
            return ProspectSeen(asked, found)

        self._newest.ask(work)

    def _failed(self, error: Exception) -> Message:
        return ProspectSeen(self._asked, Prospect(self._base.now, failure=f"{type(error).__name__}: {error}"))
