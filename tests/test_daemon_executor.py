"""Worker pools: daemon threads that run all tasks, keep no results, and begin nothing after shutdown."""

from __future__ import annotations

import threading
import weakref

from gputui.threads import DaemonExecutor
from tests.waiting import until

PATIENCE = 60.0


class Payload:
    """Object whose references can be observed."""


def test_there_are_no_more_threads_than_asked_for_and_all_are_daemons() -> None:
    workers, go_on = DaemonExecutor(2, "test-daemons"), threading.Event()
    asked = [workers.submit(go_on.wait, PATIENCE) for _ in range(5)]
    threads = [thread for thread in threading.enumerate() if thread.name == "test-daemons"]
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    go_on.set()
    assert [future.result(PATIENCE) for future in asked] == [True] * 5
    workers.shutdown()


def test_finished_work_is_not_kept() -> None:
    workers, payload = DaemonExecutor(1, "test-daemons"), Payload()
    kept = weakref.ref(payload)
    workers.submit(lambda what: None, payload).result(PATIENCE)
    del payload
    until(lambda: kept() is None, "it is kept")
    workers.shutdown()


def test_after_its_shutdown_nothing_is_begun() -> None:
    workers, begun, go_on = DaemonExecutor(1, "test-daemons"), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> bool:
        begun.set()
        return go_on.wait(PATIENCE)

    going = workers.submit(first)
    assert begun.wait(PATIENCE)
    workers.submit(done.append, "waited")
    workers.shutdown()
    workers.submit(done.append, "late")
    go_on.set()
    assert going.result(PATIENCE)
    assert done == []


def test_no_work_waits_while_fewer_threads_than_allowed_are_busy() -> None:
    for _ in range(50):
        workers, all_there = DaemonExecutor(8, "test-daemons"), threading.Barrier(8)
        waits = [workers.submit(all_there.wait, PATIENCE) for _ in range(8)]
        assert sorted(future.result(PATIENCE) for future in waits) == list(range(8))
        workers.shutdown()


def test_failed_work_raises_in_its_caller_and_ends_no_thread() -> None:
    workers = DaemonExecutor(1, "test-daemons")
    failing, next_one = workers.submit(lambda: 1 // 0), workers.submit(lambda: "done")
    assert isinstance(failing.exception(PATIENCE), ZeroDivisionError)
    assert next_one.result(PATIENCE) == "done"
    workers.shutdown()


def test_draining_waits_only_for_current_work_and_not_for_ever() -> None:
    name = "test-draining"
    workers, begun, go_on = DaemonExecutor(1, name), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    workers.submit(work)
    waiting = workers.submit(lambda: None)
    assert begun.wait(PATIENCE)
    workers.shutdown()
    assert not workers.drain(0.05)
    go_on.set()
    assert workers.drain(PATIENCE)
    assert not waiting.done()
    assert workers.submit(lambda: None).cancelled()
    until(lambda: not any(thread.name == name for thread in threading.enumerate()), "its threads stay")
