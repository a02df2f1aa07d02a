"""Threads that watch: an error is told, and the watch goes on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from gputui import threads
from gputui.threads import Watcher, fault_words
from tests.cases import cases

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def tries_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "AGAIN_AFTER", 0.0)


def watched(*errors: Exception, failed: Callable[[Exception], object] = lambda error: None) -> Watcher:
    """Return a thread that has met these errors, one after the other, and ended as it was asked to."""
    left = list(errors)

    def watch() -> None:
        if left:
            raise left.pop(0)

    watcher = Watcher("test-watch", watch, failed)
    watcher.start()
    watcher.join(PATIENCE)
    assert not watcher.is_alive()
    assert not left
    return watcher


def test_an_error_is_told_and_the_watch_goes_on() -> None:
    told: list[Exception] = []
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    watcher = watched(full, ValueError("odd"), failed=told.append)
    assert list(map(fault_words, told)) == ["No space left on device", "ValueError: odd"]
    assert watcher.daemon

    def refuse(error: Exception) -> None:
        raise RuntimeError from error

    watched(KeyError("x"), KeyError("x"), failed=refuse)


def test_an_error_that_comes_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watched(*(ValueError("odd") for _ in range(3)), ValueError("other"), ValueError("odd"))
    assert [record.getMessage() for record in caplog.records] == [
        f"test-watch failed, and goes on: ValueError: {word}" for word in ("odd", "other", "odd")
    ]


def test_a_watch_that_returns_ends_its_thread() -> None:
    ended = threading.Event()
    watcher = Watcher("test-watch", ended.set)
    watcher.start()
    assert ended.wait(PATIENCE)
    watcher.join(PATIENCE)
    assert not watcher.is_alive()


@cases(
    ("fault", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/state/x"), "/state/x: No space left on device"),
        (OSError("odd"), "OSError: odd"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_fault_is_described_by_its_message(fault: Exception, words: str) -> None:
    assert fault_words(fault) == words
