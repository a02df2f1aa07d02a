"""Newest requests are computed; older ones are aborted."""

from __future__ import annotations

import queue
import threading
import weakref

from textual.message import Message

from gputui.domain.action import Pause
from gputui.engine.actions.actions import Actions
from gputui.tui.actions import ActionDone, ActionRequested, ActionThread
from gputui.tui.progress import IsWanted, LatestWorker
from tests.factories import ACTOR, FakeClock
from tests.memory_store import MemoryJobStore
from tests.waiting import until

PATIENCE = 60.0


class Answer(Message):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def newest(told: queue.SimpleQueue[str]) -> LatestWorker:
    def tell(message: Message) -> None:
        assert isinstance(message, Answer)
        told.put(message.text)

    return LatestWorker(tell, lambda error: Answer(f"failed: {error}"))


def test_an_older_request_is_aborted_and_not_answered() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    begun, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    def first(is_wanted: IsWanted) -> Message:
        seen.append(is_wanted())
        begun.set()
        go_on.wait(PATIENCE)
        seen.append(is_wanted())
        return Answer("first")

    worker = newest(told)
    worker.ask(first)
    assert begun.wait(PATIENCE)
    worker.ask(lambda _: Answer("never begun"))
    worker.ask(lambda _: Answer("last"))
    go_on.set()
    assert told.get(timeout=PATIENCE) == "last"
    assert seen == [True, False]
    assert told.empty()
    worker.close()


def test_a_failure_is_an_answer_and_the_next_request_works() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def broken(_: IsWanted) -> Message:
        raise ZeroDivisionError("oops")

    worker = newest(told)
    worker.ask(broken)
    assert told.get(timeout=PATIENCE) == "failed: oops"
    worker.ask(lambda _: Answer("heard"))
    assert told.get(timeout=PATIENCE) == "heard"
    worker.close()


def test_nothing_is_reported_after_the_end() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def slow(_: IsWanted) -> Message:
        begun.set()
        go_on.wait(PATIENCE)
        over.set()
        return Answer("too late")

    before = set(threading.enumerate())
    worker = newest(told)
    worker.ask(slow)
    assert begun.wait(PATIENCE)
    [thread] = set(threading.enumerate()) - before
    assert thread.daemon
    worker.close()
    go_on.set()
    assert over.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told.empty()


class Queue:
    """Subject of the requests."""


def test_the_subject_of_a_request_is_freed_when_it_is_answered() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    asked, about = newest(told), Queue()
    kept = weakref.ref(about)
    asked.ask(lambda is_wanted, about=about: Answer(type(about).__name__))  # type: ignore[misc]
    assert told.get(timeout=PATIENCE) == "Queue"
    del about
    gone(kept)
    asked.close()


def test_the_subject_of_an_action_is_freed_when_it_is_done() -> None:
    told: queue.SimpleQueue[Message] = queue.SimpleQueue()
    thread, about = ActionThread(Actions(MemoryJobStore(), FakeClock(), ACTOR), told.put), Queue()
    kept = weakref.ref(about)
    thread.add(ActionRequested(Pause(), answer=lambda error, about=about: None))  # type: ignore[misc]
    assert isinstance(told.get(timeout=PATIENCE), ActionDone)
    del about
    gone(kept)
    assert thread.finish(PATIENCE)


def gone(kept: weakref.ref[Queue]) -> None:
    """The thread lets go just after it has told."""
    until(lambda: kept() is None, "it is kept")
