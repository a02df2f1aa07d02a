"""`gputui run` and `gputui attach`: a job, its output, and input for it, until it ends."""

from __future__ import annotations

import signal
import time
from contextlib import closing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import completing, conversation, terminal, wait
from gputui.cli.conversation import SHOWING, Conversation, Ending, Leaving, Output, Signals, check_terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.main import INTERRUPTED
from gputui.cli.session import Session, pass_session
from gputui.cli.submit import check_runtime, confirm_times, tell, with_elements
from gputui.cli.terminal import discard, discard_stdout
from gputui.cli.wait import print_log, wait_until_started, was_started
from gputui.domain.action import Cancel
from gputui.domain.errors import AccessError, CapabilityError, ClusterError, GputuiError, InputError, RuntimeFault
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId
from gputui.domain.spec_values import check_gpus
from gputui.domain.state import NO_SCHEDULER, JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.text import local_time, plain
from gputui.ports import Channel
from gputui.ports.backend import Attach, AwaitedChannel, DirectBackend, LogRequest
from gputui.request import submitter
from gputui.request.submitter import SubmitCommand

if TYPE_CHECKING:
    from gputui.domain.snapshot import Snapshot


_SHOWN_EVERY = 5.0
"""Seconds between two forecasts of the start while nothing changes."""
_PASSING = frozenset({"waits", "is starting"})
_TRY_EVERY = 0.05
"""Seconds between two attempts to attach to a container that is being created."""
_AGAIN_EVERY = 1.0
"""Seconds between two tries to attach to an attempt whose streams have ended although it runs."""
_SETTLED_WITHIN = 60.0
"""Seconds that the engine may be away, and the scheduler may take to record an end, before this command gives up."""


class Status(Struct, kw_only=True):
    """Line on stderr that tells why a job waits: rewritten on a terminal, else printed when it changes."""

    is_quiet: bool = False
    _is_terminal: bool = field(default_factory=lambda: terminal.is_tty(terminal.ERR))
    _shown: str = ""

    def show(self, words: str, *, is_passing: bool = False) -> None:
        """Replace the shown line; on anything but a terminal, print only words that are not passing."""
        if self.is_quiet or words == self._shown or (is_passing and not self._is_terminal):
            return
        self._shown = words
        if self._is_terminal:
            _, columns = conversation.terminal_size()
            self._write(f"\r\x1b[K{plain(words, max(20, columns - 1))}")
        else:
            self._write(f"gputui: {plain(words)}\n")

    def clear(self) -> None:
        if self._shown and self._is_terminal and not self.is_quiet:
            self._write("\r\x1b[K")
        self._shown = ""

    def say(self, words: str) -> None:
        self.clear()
        self._write(f"gputui: {plain(words)}\n")

    @staticmethod
    def _write(text: str) -> None:
        """Write to stderr; errors are ignored, since a closed or full stderr must not affect the job."""
        try:
            terminal.write(text, err=True)
            terminal.flush(err=True)
        except OSError:
            discard(2)


class Attendance(Struct, eq=False):
    """Attaches this terminal to one job."""

    _session: Session
    _backend: DirectBackend
    _id: JobId
    _keys: str
    is_owner: bool
    """True if this command submitted the job, and Ctrl-C ends it."""
    status: Status = field(default_factory=Status)
    awaited: AwaitedChannel | None = None
    """Streams of the next attempt, from its start on."""
    _is_stopping: bool = False
    _was_attached: set[int] = field(default_factory=set)
    """Numbers of the attempts that this terminal has attached to."""
    _unreached_until: float | None = None
    """Time on the monotonic clock until which a running attempt may be out of reach; None while it is not."""
    _await_again_at: float = float("-inf")

    def run(self) -> int:
        try:
            with Signals(conversation.SIGNALS) as signals, closing(wait.Changes(self._backend)) as changes:
                while True:
                    job = self._wait_for_start(signals, changes)
                    if job.has_ended:
                        return self._ended(job)
                    attempt = job.attempts[-1]
                    channel = self._attached(job)
                    if channel is None:
                        pause = _TRY_EVERY if self._unreached_until is None else _AGAIN_EVERY
                        changes.wait(time.monotonic() + pause, signals.fileno(), *self._news())
                        self._obey(signals)
                        continue
                    self._was_attached.add(attempt.number)
                    if (code := self._attend(attempt.number, channel, signals, changes)) is not None:
                        return code
                    # forget an attempt that never started: the next one gets its number
                    if all(each.number != attempt.number for each in self._job().attempts):
                        self._was_attached.discard(attempt.number)
        except Leaving as leaving:
            return leaving.exit_code
        finally:
            self.status.clear()
            if self.awaited is not None:
                self.awaited.close()

    def _job(self) -> Job:
        return self._backend.job(self._id)

    # waiting

    def _wait_for_start(self, signals: Signals, changes: wait.Changes) -> Job:
        """Return the job when an attempt starts or the job has ended. Raises Leaving when the user leaves."""
        while True:
            job = self._job()
            attempt = job.attempt
            is_new = attempt is not None and not attempt.is_over and attempt.number not in self._was_attached
            # an attempt of a cluster is there only while the engine says that it runs
            if job.has_ended or (
                is_new and (job.state is JobState.RUNNING or (job.state.is_active and not job.attempts[-1].node))
            ):
                return job
            self._await_start()
            snapshot, now = self._backend.snapshots().read(), bootstrap.clock().now()
            start = snapshot.expected_starts.get(job.id)
            if job.state is JobState.PENDING and start is None and self._backend.about().caps.runs_jobs:
                from gputui.domain.policy.whatif import timeline

                start = timeline(snapshot, self._session.options.settings, now).starts.get(job.id)
            words = waiting_words(snapshot, job, start, now)
            is_passing = words in _PASSING
            if not (NO_SCHEDULER in words or self._backend.is_scheduled()):
                words, is_passing = f"{words}; {NO_SCHEDULER}", False
            self.status.show(f"job {job.shown_id} {words}", is_passing=is_passing)
            changes.wait(time.monotonic() + _SHOWN_EVERY, signals.fileno(), *self._news())
            self._obey(signals)
            self._begun()

    def _await_start(self) -> None:
        """Have the next start wait for this command, where one would; ask for that once a second at most."""
        now = time.monotonic()
        if self.awaited is None and now >= self._await_again_at:
            self._await_again_at = now + _AGAIN_EVERY
            self.awaited = self._backend.await_start(self._id, self._keys)
            self._begun()

    def _news(self) -> tuple[int, ...]:
        return () if self.awaited is None else (self.awaited.fileno(),)

    def _obey(self, signals: Signals) -> None:
        """Leave on a signal while the job waits, and cancel the job if this command submitted it. Raises Leaving."""
        number = next((number for number in signals.take() if number not in SHOWING), None)
        if number is None:
            return
        if self.is_owner:
            self._backend.act(Cancel((self._id,)))
            self.status.say(f"job {self._id} is cancelled")
        raise Leaving(number)

    # attaching

    def _attached(self, job: Job) -> Channel | None:
        if job.state is JobState.CONFIGURING:
            self._await_start()
            if not job.spec.is_host:
                self.status.show(f"job {job.shown_id} is starting", is_passing=True)
        if (begun := self._begun()) is not None:
            self.status.clear()
            self.awaited = None
            return begun
        if self.awaited is not None or (job.spec.is_host and job.state is JobState.CONFIGURING):
            return None
        try:
            channel = self._backend.enter(job.id, Attach(self._keys))
        except RuntimeFault as error:
            if job.state is JobState.CONFIGURING or self._job() != job:
                self._unreached_until = None
                return None
            # the engine may restart, and the end of an attempt reaches the queue later
            now = time.monotonic()
            if self._unreached_until is None:
                self._unreached_until = now + _SETTLED_WITHIN
            if not error.may_pass or now >= self._unreached_until:
                raise
            self.status.show(f"job {job.shown_id} cannot be reached: {error.what}; trying again", is_passing=True)
            return None
        except GputuiError:
            if self._job() != job:  # its state has changed meanwhile
                return None
            raise
        self.status.clear()
        self._unreached_until = None
        return channel

    def _begun(self) -> Channel | None:
        """Return the awaited streams once they have begun; forget them if there will be none."""
        try:
            return None if self.awaited is None else self.awaited.channel()
        except AccessError:
            raise
        except GputuiError:
            self.awaited = None
            return None

    def _attend(self, number: int, channel: Channel, signals: Signals, changes: wait.Changes) -> int | None:
        """Talk to one attempt until it is over; return this command's exit code if the user left or it was lost.

        Attaches again where only the connection ended, as by a restart of the engine or of the owner of the queue.
        """
        output, is_again = Output(), False
        while True:
            if (code := self._converse(channel, signals, output, is_again=is_again)) is not None:
                return code
            try:
                again = self._attached_again(number, channel, signals, changes)
            except Leaving as leaving:
                return self._left(leaving.exit_code)
            if again is None:
                if self._is_over(number):
                    return None
                if (lost := channel.exit_code()) is not None:
                    return lost
                words = f"the connection to job {self._id} was lost, and the job keeps running: {self._again()}"
                self.status.say(words)
                return 1
            channel, is_again = again, True
            if not channel.is_tty:  # earlier output is repeated
                output.repeat()

    def _attached_again(self, number: int, channel: Channel, signals: Signals, changes: wait.Changes) -> Channel | None:
        """Return new streams of an attempt whose streams ended while it runs; None once it is over, or for good.

        Raises Leaving if a signal asks for that.
        """
        now = time.monotonic()
        deadline, try_at = now + _SETTLED_WITHIN, now + _AGAIN_EVERY
        while not self._is_over(number) and now < deadline:
            changes.wait(min(deadline, try_at), signals.fileno())
            for signal_number in signals.take():
                if signal_number not in SHOWING:
                    self._interrupted(signal_number)
            now = time.monotonic()
            if now >= try_at and not self._is_over(number):
                try_at = now + _AGAIN_EVERY
                if channel.exit_code() is None:
                    with suppress(GputuiError):
                        found = self._backend.enter(self._id, Attach(self._keys))
                        self.status.clear()
                        return found
                    self.status.show(f"the connection to job {self._id} was lost; trying again", is_passing=True)
        self.status.clear()
        return None

    def _converse(self, channel: Channel, signals: Signals, output: Output, *, is_again: bool) -> int | None:
        """Talk to one attempt; return this command's exit code if the user left, None when the attempt has ended."""
        interactive = self._job().spec.interactive or Interactive()
        talk = Conversation(
            channel,
            signals,
            has_input=interactive.stdin,
            detach_keys=conversation.parse(self._keys),
            on_signal=self._interrupted,
            show=output.show,
        )
        try:
            outcome = talk.run(redraw=is_again or not self.is_owner or len(self._was_attached) > 1)
        except ClusterError as error:  # it was not reached, or has just ended
            self.status.show(f"job {self._id} cannot be reached: {error.what}", is_passing=True)
            return None
        except BrokenPipeError:
            discard_stdout()
            self.status.say(f"nothing reads the output any more; job {self._id} keeps running: {self._again()}")
            return 128 + signal.SIGPIPE
        finally:
            channel.close()
        if outcome is Ending.ENDED:
            return None
        if outcome is Ending.DETACHED:
            terminal.echo(err=True)  # the cursor is behind the job's prompt
            self.status.say(f"job {self._id} keeps running; `gputui attach {self._id}` attaches again")
            return 0
        return talk.exit_code if outcome is Ending.HUNG_UP else self._left(talk.exit_code)

    def _left(self, code: int) -> int:
        """Say that the job goes on without this terminal; return the exit code."""
        state = "is still stopping" if self._is_stopping else "keeps running"
        self.status.say(f"job {self._id} {state}: {self._again()}")
        return code

    def _again(self) -> str:
        return f"`gputui attach {self._id}` attaches again, `gputui cancel {self._id}` ends it"

    def _interrupted(self, number: int) -> None:
        """Ask the job to stop; the second time, or when the terminal is gone, leave."""
        if number == signal.SIGHUP or not self.is_owner or self._is_stopping:
            raise Leaving(number)
        self._is_stopping = True
        self._backend.act(Cancel((self._id,)))
        self.status.say(f"job {self._id} is stopping; Ctrl-C again leaves at once")

    # ends

    def _is_over(self, number: int) -> bool:
        job = self._job()
        return job.has_ended or all(each.is_over for each in job.attempts if each.number == number)

    def _ended(self, job: Job) -> int:
        """Show output that this terminal has not seen, and how the job ended; return its exit code."""
        self.status.clear()
        attempt = job.attempt
        if attempt is not None and attempt.number not in self._was_attached and attempt.started_at is not None:
            try:
                for is_error, piece in self._backend.output(job, attempt):
                    conversation.write_all(2 if is_error else 1, piece)
            except GputuiError as error:
                self.status.say(str(error))
        return _end(self.status, job)


def waiting_words(snapshot: Snapshot, job: Job, start: datetime | None, now: datetime) -> str:
    """Return `waits: needs 2 GPUs, ...; it should start at 14:05`."""
    if job.state is not JobState.PENDING:
        return f"is starting: {progress}" if (progress := snapshot.progress.get(job.id)) else "is starting"
    reason = snapshot.reasons.get(job.id)
    told = f"waits: {reason.local(now)}" if reason else "waits"
    if start is None or start <= now or (reason is not None and reason.mentions(start)):
        return told
    return f"{told}; it should start at {local_time(start, now)}"


def follow_output(backend: DirectBackend, job_id: JobId, status: Status) -> int:
    """Show why the job waits, then its output; return its exit code. Ctrl-C cancels the job, a second one leaves."""
    try:
        with closing(wait.Changes(backend)) as changes:
            while not was_started(job := backend.job(job_id)):
                snapshot = backend.snapshots().read()
                words = waiting_words(snapshot, job, snapshot.expected_starts.get(job_id), bootstrap.clock().now())
                status.show(f"job {job.shown_id} {words}", is_passing=job.state is not JobState.PENDING)
                changes.wait(time.monotonic() + _SHOWN_EVERY)
        status.clear()
        if job.attempt is not None:
            try:
                stream = backend.log(job_id, LogRequest(follow=True))
            except CapabilityError:  # the output is there at the end
                [_] = wait.wait_for(backend, (job_id,))
                stream = backend.log(job_id)
            print_log(stream)
        return _end(status, *wait.wait_for(backend, (job_id,)))
    except KeyboardInterrupt:
        name = backend.job(job_id).shown_id
        backend.act(Cancel((job_id,)))
        status.say(f"job {name} is stopping; Ctrl-C again leaves at once")
    try:
        _end(status, *wait.wait_for(backend, (job_id,)))
    except KeyboardInterrupt:
        status.say(f"job {name} is still stopping: `gputui show {name}`")
    return INTERRUPTED


def _end(status: Status, job: Job) -> int:
    if job.state is not JobState.COMPLETED and not status.is_quiet:
        status.say(wait.sentence(job))
    return wait.exit_code(job)


_detach_keys = click.option(
    "--detach-keys", "keys", metavar="KEYS", default=conversation.DEFAULT, help="Keys that leave the job running."
)


@click.command("attach", short_help="attach to a job again")
@_detach_keys
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def attach(session: Session, keys: str, ids: tuple[Named, ...]) -> int:
    """Attach to a job that `gputui run` started, and return its exit code.

    Ctrl-C leaves a job without a terminal; ctrl-p ctrl-q leaves one with a terminal. The job keeps running. The output
    of a job that `gputui submit` started is followed, as `gputui logs -f` does.
    """
    conversation.parse(keys)
    with session.backend() as backend:
        job = backend.job(resolve_one(backend.queue, ids[0]))
        interactive = job.spec.interactive
        if interactive is None:
            wait_until_started(backend, job.id)
            try:
                if backend.job(job.id).attempts:
                    print_log(backend.log(job.id, LogRequest(follow=True)))
                return max(map(wait.exit_code, wait.wait_for(backend, (job.id,))))
            except KeyboardInterrupt:
                terminal.tell(f"job {job.id} keeps running")
                return INTERRUPTED
        check_terminal(stdin=interactive.stdin, is_tty=interactive.tty)
        return Attendance(session, backend, job.id, keys, is_owner=False).run()


_EPILOG = """\b
While the job waits, one line on stderr says why and until when; Ctrl-C cancels it. Afterwards:
    without -t  Ctrl-C asks the job to stop, as `gputui cancel` does; a second one leaves at once.
    with -t     Ctrl-C goes to the job like every other key; ctrl-p ctrl-q leaves the job running.
If the terminal is lost, a waiting job is cancelled and a running one continues: `gputui attach ID` attaches again.
"""


@click.command("run", cls=SubmitCommand, epilog=_EPILOG, short_help="submit a job, wait for it, and attach to it")
@completing.with_options
@click.option("-i", "--interactive", "stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give the job a terminal.")
@_detach_keys
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about the wait and the end.")
@click.option("--host", is_flag=True, help="Run COMMAND as a process on the host, without a container.")
@click.option("--anyway", is_flag=True, help="Queue it even if this server does not have such GPUs.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="IMAGE [COMMAND...]")
@pass_session
@click.pass_context
def command(
    ctx: click.Context,
    session: Session,
    /,
    stdin: bool,
    is_tty: bool,
    keys: str,
    quiet: bool,
    host: bool,
    anyway: bool,
    arguments: tuple[str, ...],
    **given: Any,
) -> int:
    """Submit a job, wait until it starts, and attach to it; the exit code is the job's.

    Takes the options of `gputui submit`. Standard output and standard error stay apart, unless -t gives the job a
    terminal.
    """
    check_terminal(stdin=stdin, is_tty=is_tty)
    conversation.parse(keys)
    given = with_elements(session, given)
    found = submitter.tidied(ctx)
    if detached := next((name for name in found.taken if name in {"-d", "--detach"}), None):
        hint = "gputui submit, or leave it out"
        raise InputError("is what `gputui submit` does: run attaches", where=detached, hint=hint)
    asked = submitter.submission_of(given, arguments, host, session.submitter(), found)
    if asked.array:
        raise InputError("is for submit: run attaches to one job", where="--array")
    with session.backend() as backend:
        is_attached = backend.about().caps.runs_jobs or stdin or is_tty
        submission, status = asked, Status(is_quiet=quiet)
        if is_attached:
            spec = replace(asked.spec, interactive=Interactive(stdin, is_tty))
            term = terminal.environ().get("TERM")
            if is_tty and term and "TERM" not in dict(spec.options.env):
                spec = replace(spec, options=replace(spec.options, env=(*spec.options.env, ("TERM", term))))
            submission = replace(asked, spec=spec)
        if not quiet:
            tell(found, submission)
        check_runtime(submission, bootstrap.runtime_names(session.options))
        if not anyway:
            check_gpus((submission,), backend.known_gpus)
        if not is_attached:
            (job_id,) = backend.act(SubmitJobs((submission,))).ids
            confirm_times(f"job {job_id}", submission.spec, quiet=quiet)
            return follow_output(backend, job_id, status)
        job_id, awaited = backend.submit_attached(submission, keys)
        confirm_times(f"job {job_id}", submission.spec, quiet=quiet)
        return Attendance(session, backend, job_id, keys, is_owner=True, status=status, awaited=awaited).run()
