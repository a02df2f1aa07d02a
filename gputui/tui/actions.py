"""Writes an operator's actions on its own thread, and undoes them: the disk may block, the screen may not."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from textual.message import Message

from gputui.domain.action import Action, PlaceJobs, SetPriority
from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import JobId
from gputui.domain.keyed import keyed
from gputui.domain.server_ids import shown_id
from gputui.domain.submit_action import Done, Ids
from gputui.domain.text import plain
from gputui.domain.verb import Verb
from gputui.ports.actions import Act, ActionChange, Performer
from gputui.tui.messages import ActionDone, ActionFailed
from gputui.tui.progress import LongTask

Call: TypeAlias = Callable[[Act], str]
"""Has an action carried out and returns the message to show; blocks on the disk."""
KEPT = 20
"""Maximum number of actions that can be undone; older ones are better reversed by hand."""
MOST = 20_000
"""Maximum number of jobs that these may have changed together; each is kept in its previous state."""
_TOLD = 4


def at_server(call: Call, server: str) -> Call:
    """Return the call on a server of a console over several; `server` is empty where there is one queue."""
    return (lambda act: call(partial(act, server=server))) if server else call


class _Words(dict[str, object]):
    """Values of a message; every other name in braces is replaced by the key of that verb."""

    def __missing__(self, name: str) -> str:
        return keyed(name)


def call_of(verb: Verb[Any], action: Action, subject: str = "") -> Call:
    """Return the call that carries out a verb's action; `subject` names its subject if that is not a job."""
    return lambda act: describe_result(verb, action, act(action), subject)


def describe_result(verb: Verb[Any], action: Action, done: Done, subject: str = "") -> str:
    """Return the message about the changed jobs, or about another subject."""
    asked: Ids = getattr(action, "ids", ())
    if asked and not done.ids:
        return f"{_jobs(asked)}: nothing to change"
    is_one = bool(subject) or len(done.ids) == 1 or not verb.done_many
    words = _Words(subject=subject or _jobs(done.ids))
    if isinstance(action, SetPriority):
        words["delta"] = abs(action.value)
    if isinstance(action, PlaceJobs):
        words["neighbour"] = shown_id(action.places[0].placed.past)
    return (verb.done if is_one else verb.done_many).format_map(words)


def _jobs(ids: Sequence[JobId]) -> str:
    if not ids:
        return ""
    return f"job {shown_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} jobs"


class Undo:
    """Carries out actions, and undoes the last ones. Not thread-safe."""

    def __init__(self, actions: Performer, indices: Callable[[], Mapping[str, str]]) -> None:
        self._actions = actions
        self._indices = indices
        """Returns the index that the screen shows for each GPU, by UUID."""
        self._past: deque[list[ActionChange]] = deque(maxlen=KEPT)

    def carry_out(self, call: Call, on_progress: Callable[[int, int], None] | None = None) -> str:
        """Carry out an action and return its message. A failed action changes nothing and cannot be undone."""
        noted: list[ActionChange] = []

        def act(action: Action, *, server: str = "") -> Done:
            done = self._actions.act(action, server=server, on_progress=on_progress)
            noted.extend(done.changes)
            return done

        told = call(act)
        if noted:
            self._past.append(noted)
            while len(self._past) > 1 and sum(map(len, self._past)) > MOST:
                self._past.popleft()
        return told

    def last(self, on_progress: Callable[[int, int], None] | None = None) -> str:
        """Undo the last action that is not undone yet; return the message."""
        if not self._past:
            raise GputuiError("Nothing to undo", where="undo")
        answers = self._actions.undo(self._past[-1], on_progress)  # if it is cancelled, it can be requested again
        self._past.pop()
        indices = self._indices()
        told = [(change.subject(indices), change, refusal) for change, refusal in answers]
        undone = [f"{name} {change.done}" for name, change, refusal in told if not refusal]
        refused = [f"{name} {refusal}" for name, _, refusal in told if refusal]
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
        self._requested: queue.SimpleQueue[tuple[LongTask, Call | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, call: Call) -> LongTask:
        """Carry out an action as soon as possible; return its task."""
        return self._request(call)

    def undo(self) -> LongTask:
        """Undo the last action, once those before it are carried out."""
        return self._request(None)

    def _request(self, call: Call | None) -> LongTask:
        work = LongTask("Saving:", "jobs")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gputui-actions", daemon=True)
            self._thread.start()
        self._requested.put((work, call))
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
        while (asked := self._requested.get()) is not None:
            work, call = asked
            work.begin()
            told = self._carry_out(call, work.step)
            work.end()
            self._tell(told)
            del asked, call, told  # or its jobs would be kept until the next action

    def _carry_out(self, call: Call | None, on_progress: Callable[[int, int], None]) -> Message:
        try:
            undo = self._undo
            return ActionDone(undo.last(on_progress) if call is None else undo.carry_out(call, on_progress))
        except GputuiError as error:
            return ActionFailed(error)
        except Exception as error:  # noqa: BLE001 - a border: whatever went wrong is told, and the next action is carried out
            return ActionFailed(GputuiError(f"{type(error).__name__}: {error}", where="gputui"))
