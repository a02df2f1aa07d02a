"""Requested actions of an operator, written by a thread and undone: the disk may block, the screen may not."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct, field
from textual.message import Message

from gputui.domain.action import Action, AddRecurring, EditJobs, PlaceJobs, ReserveGpus, SetPriority, Unreserve
from gputui.domain.conditions import keyed
from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.submit_action import Done, Ids, SubmitJobs
from gputui.domain.text import plain
from gputui.domain.verbs import verb_of
from gputui.ports.backend import ActionChange, Performer, Progress
from gputui.threads import Watcher
from gputui.tui.progress import LongTask


@dataclass(eq=False)
class ActionRequested(Message):
    """Message that an operator requests an action.

    `subject` names what it is about if that is not a job. `server` is that of a new job, a reservation or a pause in a
    console over several. `answer` is called with None once the action is written, or with the error, in the thread that
    carries it out.
    """

    action: Action
    subject: str = ""
    server: str = ""
    answer: Callable[[Exception | None], object] = lambda error: None


@dataclass(eq=False)
class ActionDone(Message, bubble=False):
    text: str


@dataclass(eq=False)
class StoreWaits(Message, bubble=False):
    """Message that a write waits for another process that keeps the queue locked."""

    sentence: str


@dataclass(eq=False)
class ActionFailed(Message, bubble=False):
    error: GputuiError


class ExitChoice(Enum):
    """Answer with which the console was closed."""

    HAND_OVER = "hand over"
    """The console scheduled: a background scheduler takes over."""
    STOP = "stop"
    """The console scheduled: no further job starts; running jobs continue."""
    PLAIN = "plain"
    """The console did not schedule."""


KEPT = 20
"""Maximum number of actions that can be undone; older ones are better reversed by hand."""
MOST = 20_000
"""Maximum number of jobs that these may have changed together; each is kept in its previous state."""
_TOLD = 4


class _Words(dict[str, object]):
    """Values of a message; every other name in braces is replaced by the key of that verb."""

    def __missing__(self, name: str) -> str:
        return keyed(name)


def told(action: Action, done: Done, subject: str = "") -> str:
    match action:
        case SubmitJobs():
            first, last = shown_id(done.ids[0]), shown_id(done.ids[-1])
            return f"jobs {first} to {last} are submitted" if len(done.ids) > 1 else f"job {first} is submitted"
        case AddRecurring():
            like = f"submits one like {subject}"
            return f"recurring job {shown_id(done.ids[0])} {like}: {keyed('tab_recurring')} shows it"
        case ReserveGpus():
            name = (done.window or action.window).name
            return f"reservation {name} is made: {keyed('tab_reservations')} shows it"
        case Unreserve():
            return f"reservation {action.name} is released"
        case EditJobs():
            return f"{subject} is edited" if done.ids else f"{subject}: nothing to change"
    asked: Ids = getattr(action, "ids", ())
    if asked and not done.ids:
        return f"{_jobs(asked)}: nothing to change"
    verb = verb_of(action)
    words = _Words(subject=subject or _jobs(done.ids))
    if isinstance(action, SetPriority):
        words["delta"] = abs(action.value)
    if isinstance(action, PlaceJobs):
        words["neighbour"] = shown_id(action.places[0].placed.past)
    is_one = bool(subject) or len(done.ids) == 1
    return (verb.done if is_one else verb.done_many).format_map(words)


def _jobs(ids: Sequence[JobId]) -> str:
    if not ids:
        return ""
    return f"job {shown_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} jobs"


class Undo(Struct, eq=False):
    """Carries out actions, and undoes the last ones. Not thread-safe."""

    actions: Performer
    indices: Callable[[], Mapping[str, str]]
    """Returns the index that the screen shows for each GPU, by UUID."""
    _past: deque[Sequence[ActionChange]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def carry_out(self, action: Action, server: str = "", on_progress: Progress | None = None) -> Done:
        """Carry out an action. A failed one changes nothing and cannot be undone."""
        done = self.actions.act(action, server=server, on_progress=on_progress)
        if done.changes:
            self._past.append(done.changes)
            while len(self._past) > 1 and sum(map(len, self._past)) > MOST:
                self._past.popleft()
        return done

    def last(self, on_progress: Progress | None = None) -> str:
        """Undo the last action that is not undone yet; return the message."""
        if not self._past:
            raise GputuiError("Nothing to undo", where="undo")
        answers = self.actions.undo(self._past[-1], on_progress)  # if it is cancelled, it can be requested again
        self._past.pop()
        indices = self.indices()
        named = [(change.subject(indices), change, refusal) for change, refusal in answers]
        undone = [f"{name} {change.done}" for name, change, refusal in named if not refusal]
        refused = [f"{name} {refusal}" for name, _, refusal in named if refusal]
        if not undone:
            raise GputuiError(f"{_listed(refused)}: not undone", where="undo")
        return f"undone: {_listed(undone)}" + (f"; not undone: {_listed(refused)}" if refused else "")


def _listed(words: list[str]) -> str:
    more = len(words) - _TOLD
    return plain(", ".join(words[:_TOLD]) + (f" and {more} more" if more > 0 else ""), 300)


class ActionThread:
    """Thread that carries out actions in the order of their requests. Never blocks its caller."""

    def __init__(
        self, actions: Performer, tell: Callable[[Message], object], indices: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._undo = Undo(actions, indices)
        self._tell = tell
        self._requested: queue.SimpleQueue[tuple[LongTask, ActionRequested | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, asked: ActionRequested | None) -> LongTask:
        """Carry out an action, or for None undo the last one, once those before it are carried out; return its task."""
        work = LongTask("Saving:", "jobs")
        if self._thread is None:
            self._thread = Watcher("gputui-actions", self._run)
            self._thread.start()
        self._requested.put((work, asked))
        return work

    def finish(self, timeout: float) -> bool:
        """Carry out all actions, and end the thread; return whether that was done within `timeout` seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._requested.put(None)
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while (requested := self._requested.get()) is not None:
            work, asked = requested
            work.begin()
            answer = self._carry_out(asked, work.step)
            work.end()
            self._tell(answer)
            del requested, asked, answer  # or its jobs would be kept until the next action

    def _carry_out(self, asked: ActionRequested | None, on_progress: Progress) -> Message:
        try:
            if asked is None:
                return ActionDone(self._undo.last(on_progress))
            try:
                done = self._undo.carry_out(asked.action, asked.server, on_progress)
                words = told(asked.action, done, asked.subject)
            except Exception as error:
                asked.answer(error)
                raise
            asked.answer(None)
            return ActionDone(words)
        except GputuiError as error:
            return ActionFailed(error)
        except Exception as error:  # noqa: BLE001 - a border: whatever went wrong is told, and the next action is carried out
            return ActionFailed(GputuiError(f"{type(error).__name__}: {error}", where="gputui"))
