"""What was asked for last is worked out; what was asked for before is given up."""

from __future__ import annotations

import queue
import threading

from textual.message import Message

from gputui.tui.newest import IsWanted, Newest

PATIENCE = 10


class Answer(Message):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def newest(told: queue.SimpleQueue[str]) -> Newest:
    def tell(message: Message) -> None:
        assert isinstance(message, Answer)
        told.put(message.text)

    return Newest(tell, lambda error: Answer(f"failed: {error}"))


def test_an_older_request_is_told_that_it_is_wanted_no_more_and_not_answered() -> None:
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


def test_a_failure_is_an_answer_and_the_next_request_is_heard() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def broken(_: IsWanted) -> Message:
        raise ZeroDivisionError("oops")

    worker = newest(told)
    worker.ask(broken)
    assert told.get(timeout=PATIENCE) == "failed: oops"
    worker.ask(lambda _: Answer("heard"))
    assert told.get(timeout=PATIENCE) == "heard"
    worker.close()


def test_nothing_is_told_after_the_end() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def slow(_: IsWanted) -> Message:
        begun.set()
        go_on.wait(PATIENCE)
        over.set()
        return Answer("too late")

    worker = newest(told)
    worker.ask(slow)
    assert begun.wait(PATIENCE)
    thread = worker._thread
    assert thread is not None
    assert thread.daemon
    worker.close()
    go_on.set()
    assert over.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told.empty()
