"""Attendance of one job: the wait for its start, the conversation with each of its attempts, and its end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click

from gputui import bootstrap
from gputui.cli import ends
from gputui.cli.attached import detach_keys
from gputui.cli.attached.conversation import SHOWING, SIGNALS, Conversation, Ending, Leaving, Signals, size, write_all
from gputui.cli.session import Session
from gputui.cli.streams import discard, discard_stdout
from gputui.domain.errors import GputuiError, RuntimeFault
from gputui.domain.job import Attempt, Interactive, Job, JobId
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.ports import Channel, JobStore

if TYPE_CHECKING:
    from gputui.domain.snapshot import Snapshot

LEFT = 130
"""Exit code of somebody who leaves by Ctrl-C."""
_SHOWN_EVERY = 5.0
"""Seconds between two forecasts of the start while nothing changes."""
_PASSING = frozenset({"waits", "is starting"})
_TRY_EVERY = 0.05
"""Seconds between two tries to attach to a container that is being created."""
_SETTLED_WITHIN = 20.0
"""Seconds for which the scheduler may take to record the end of an attempt whose streams have ended."""


class Status:
    """Line on stderr that tells why a job waits: rewritten on a terminal, else printed when it changes."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""

    def show(self, words: str, *, is_passing: bool = False) -> None:
        """Show the words in place of those before; passing ones on a terminal alone."""
        if self._is_quiet or words == self._shown or (is_passing and not self._is_terminal):
            return
        self._shown = words
        if self._is_terminal:
            _, columns = size()
            self._write(f"\r\x1b[K{plain(words, max(20, columns - 1))}")
        else:
            self._write(f"gputui: {plain(words)}\n")

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown and self._is_terminal and not self._is_quiet:
            self._write("\r\x1b[K")
        self._shown = ""

    def say(self, words: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"gputui: {plain(words)}\n")

    @staticmethod
    def _write(text: str) -> None:
        """Write to stderr. One that is gone or full changes nothing of what becomes of the job."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            discard(2)


class Attendance:
    """Attends one job from this terminal. `is_owner`: the job is this command's, and Ctrl-C ends it."""

    def __init__(
        self, session: Session, store: JobStore, job_id: JobId, keys: str, *, is_owner: bool, is_quiet: bool = False
    ) -> None:
        self._session = session
        self._store = store
        self._id = job_id
        self._keys = keys
        self._is_owner = is_owner
        self._is_quiet = is_quiet
        self._status = Status(is_quiet=is_quiet)
        self._entrance = bootstrap.open_entrance(session.options, store)
        self._is_stopping = False
        self._was_attached: set[int] = set()
        """Numbers of the attempts that this terminal was attached to."""

    def run(self, attached: Callable[[], None] = lambda: None) -> int:
        """Wait, attach and wait again until the job has ended; return its exit code.

        `attached` is called when the first attempt may start.
        """
        with self._cleared(), Signals(SIGNALS) as signals, ends.changes_of(self._store) as changes:
            while True:
                job = self._wait_for_start(signals, changes)
                if job is None:
                    return LEFT
                if ends.has_ended(job):
                    attached()
                    return self._ended(job)
                attempt = job.attempts[-1]
                channel = self._attached(job)
                if channel is None:
                    self._pause(signals, changes)
                    continue
                attached()
                self._was_attached.add(attempt.number)
                if (code := self._converse(channel, signals)) is not None:
                    return code
                if not self._settled(changes, attempt.number):
                    return self._lost(channel)

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._status.clear()
            self._entrance.close()

    def _job(self) -> Job:
        return self._store.get(self._id)

    # waiting

    def _wait_for_start(self, signals: Signals, changes: ends.Changes) -> Job | None:
        """Return the job when an attempt starts or the job has ended; None when the user left."""
        while True:
            job = self._job()
            if ends.has_ended(job) or (job.state.is_active and self._is_new(job)):
                return job
            self._show(job)
            changes.wait(time.monotonic() + _SHOWN_EVERY, signals.fileno())
            if self._told_to_leave(signals):
                return None

    def _is_new(self, job: Job) -> bool:
        attempt = job.attempt
        return attempt is not None and not attempt.is_over and attempt.number not in self._was_attached

    def _told_to_leave(self, signals: Signals) -> bool:
        """Obey signals while the job waits: who submitted it here wants it no more."""
        if not any(number not in SHOWING for number in signals.take()):
            return False
        if self._is_owner:
            bootstrap.actions(self._store, self._session.options).cancel((self._id,))
            self._status.say(f"job {self._id} is cancelled")
        return True

    def _show(self, job: Job) -> None:
        """Show why the job waits, and until when."""
        snapshot = bootstrap.current_snapshot(self._session.options, self._store)
        words = _waits(snapshot, job, self._session, bootstrap.clock().now())
        is_passing = words in _PASSING
        if "no scheduler is running" not in words and not bootstrap.is_scheduled(self._session.options):
            words, is_passing = f"{words}; no scheduler is running: start `gputui` or `gputui serve`", False
        self._status.show(f"job {job.shown_id} {words}", is_passing=is_passing)

    # attaching

    def _attached(self, job: Job) -> Channel | None:
        """Return the streams of the attempt; None while there is nothing to attach to yet."""
        if job.spec.is_host and job.state is JobState.CONFIGURING:
            return None
        if job.state is JobState.CONFIGURING:
            self._status.show(f"job {job.shown_id} is starting", is_passing=True)
        try:
            channel = self._entrance.attach(job, self._keys)
        except RuntimeFault:
            if job.state is JobState.CONFIGURING or self._job() != job:
                return None
            raise
        except GputuiError:
            if self._job() != job:  # it went on meanwhile
                return None
            raise
        self._status.clear()
        return channel

    def _pause(self, signals: Signals, changes: ends.Changes) -> None:
        changes.wait(time.monotonic() + _TRY_EVERY, signals.fileno())
        if self._told_to_leave(signals):
            raise KeyboardInterrupt

    def _converse(self, channel: Channel, signals: Signals) -> int | None:
        """Talk to one attempt; return this command's exit code if the user left, None when the attempt has ended."""
        interactive = self._job().spec.interactive or Interactive()
        talk = Conversation(
            channel,
            signals,
            has_input=interactive.stdin,
            detach_keys=detach_keys.parse(self._keys),
            on_signal=self._interrupted,
        )
        try:
            outcome = talk.run(redraw=not self._is_owner or len(self._was_attached) > 1)
        except BrokenPipeError:
            discard_stdout()
            self._status.say(f"nobody reads the output any more; job {self._id} runs on: {self._again()}")
            return 128 + signal.SIGPIPE
        finally:
            channel.close()
        if outcome is Ending.ENDED:
            return None
        if outcome is Ending.DETACHED:
            click.echo(err=True)  # the cursor stands behind the job's prompt
            self._status.say(f"job {self._id} runs on; `gputui attach {self._id}` attaches again")
            return 0
        if outcome is Ending.HUNG_UP:
            return 128 + signal.SIGHUP
        self._status.say(f"job {self._id} {'is still ending' if self._is_stopping else 'runs on'}: {self._again()}")
        return LEFT

    def _again(self) -> str:
        return f"`gputui attach {self._id}` attaches again, `gputui cancel {self._id}` ends it"

    def _interrupted(self, number: int) -> None:
        """Ask the job to stop; the second time, leave."""
        del number
        if not self._is_owner or self._is_stopping:
            raise Leaving
        self._is_stopping = True
        bootstrap.actions(self._store, self._session.options).cancel((self._id,))
        self._status.say(f"job {self._id} is asked to stop; Ctrl-C again leaves at once")

    # ends

    def _settled(self, changes: ends.Changes, number: int) -> bool:
        """Wait until the queue knows that the attempt is over; return whether it does."""
        deadline = time.monotonic() + _SETTLED_WITHIN
        while not self._is_over(number):
            if not changes.wait(deadline):
                return False
        return True

    def _is_over(self, number: int) -> bool:
        job = self._job()
        return ends.has_ended(job) or all(each.is_over for each in job.attempts if each.number == number)

    def _lost(self, channel: Channel) -> int:
        """Return the exit code where the streams have ended and the queue says that the job runs."""
        code = channel.exit_code()
        if code is None:
            self._status.say(f"the connection to job {self._id} ended, and the job runs on: {self._again()}")
            return 1
        return code

    def _ended(self, job: Job) -> int:
        """Show output that this terminal has not seen, and how the job ended; return its exit code."""
        self._status.clear()
        attempt = job.attempt
        if attempt is not None and attempt.number not in self._was_attached and attempt.started_at is not None:
            self._print_output(job, attempt)
        if job.state is not JobState.COMPLETED and not self._is_quiet:
            self._status.say(ends.sentence(job))
        return ends.exit_code(job)

    def _print_output(self, job: Job, attempt: Attempt) -> None:
        try:
            for is_error, piece in bootstrap.output_of(self._session.options, self._store, job, attempt):
                write_all(2 if is_error else 1, piece)
        except GputuiError as error:
            self._status.say(str(error))


def _waits(snapshot: Snapshot, job: Job, session: Session, now: datetime) -> str:
    """Return `waits: needs 2 GPUs, ...; it should start at 14:05`."""
    if job.state is not JobState.PENDING:
        return f"is starting: {progress}" if (progress := snapshot.progress.get(job.id)) else "is starting"
    from gputui.domain.policy.timeline import timeline

    reason = snapshot.reasons.get(job.id)
    told = f"waits: {reason.local(now)}" if reason else "waits"
    start = snapshot.expected_starts.get(job.id) or timeline(snapshot, session.options.settings, now).starts.get(job.id)
    if start is None or start <= now or (reason is not None and reason.mentions(start)):
        return told
    here = start.astimezone()
    when = f"{here:%H:%M}" if here.date() == now.astimezone().date() else f"{here:%a %d %b %H:%M}"
    return f"{told}; it should start at {when}"
