"""Listings of a runtime: after each event, and once more a moment later."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, RuntimeStatus
from gputui.engine.tick.workers import Observation, Observer, Sequence
from tests.engine.fakes import FakeRuntime
from tests.factories import NOW, FakeClock
from tests.waiting import until


class Counting(FakeRuntime):
    def __init__(self) -> None:
        super().__init__("docker", FakeClock())
        self.listed = 0
        self.again = threading.Condition()

    def containers(self) -> tuple[ContainerRecord, ...]:
        with self.again:
            self.listed += 1
            self.again.notify_all()
        return super().containers()

    def wait_for(self, times: int) -> bool:
        with self.again:
            return self.again.wait_for(lambda: self.listed >= times, 60)


def test_a_poke_lists_containers_immediately_and_once_more() -> None:
    runtime = Counting()
    observer = Observer(runtime, Sequence(), lambda: None, timedelta(hours=1))
    observer.start()
    assert runtime.wait_for(1)
    observer.poke()
    assert runtime.wait_for(3)
    observer.stop()


def test_an_observation_has_its_begin_and_its_gaps() -> None:
    runtime = Counting()
    sequence = Sequence()
    changes: list[int] = []
    observer = Observer(runtime, sequence, lambda: changes.append(1), timedelta(hours=1))
    assert observer.latest == Observation(runtime.status())
    observer.observe()
    assert observer.latest.begun == 1
    assert observer.latest.records == ()
    observer.observe()
    runtime.up = False
    observer.observe()
    assert observer.latest == Observation(runtime.status(), begun=3)
    assert len(changes) == 2


class Hanging(Counting):
    """Runtime that answers no question while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def status(self) -> RuntimeStatus:
        return replace(super().status(), since=NOW)

    def inspect(self, container_id: str) -> ContainerRecord | None:
        assert self.goes_on.wait(60)
        return super().inspect(container_id)

    def containers(self) -> tuple[ContainerRecord, ...]:
        assert self.goes_on.wait(60)
        return super().containers()


def test_while_a_runtime_hangs_its_containers_are_unknown() -> None:
    runtime = Hanging()
    observer = Observer(runtime, Sequence(), lambda: None, timedelta(hours=1), silent_after=0.2)
    runtime.goes_on.clear()
    observer.start()
    until(lambda: not observer.latest.status.up, "it hangs from the beginning")
    assert observer.latest.begun, "it was asked"
    runtime.goes_on.set()
    until(lambda: observer.latest.records is not None, "it answers")
    runtime.goes_on.clear()
    until(lambda: observer.latest.records is None, "it hangs, which nobody but the observer asks")
    assert observer.latest.foreign is None
    assert observer.latest.status.since is None, "it was up since then"
    assert observer.latest.status.text == "up has not answered for 0.2 s: it hangs, or is very slow"
    runtime.goes_on.set()
    until(lambda: observer.latest.status.up, "it goes on")
    runtime.up = False
    observer.poke()
    until(lambda: observer.latest.records is None, "it is gone")
    runtime.up = True
    until(lambda: observer.latest.records is not None, "it is back, long before the next listing is due")
    observer.stop()


def test_each_reason_for_a_silent_runtime_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gputui")
    runtime = Counting()
    observer = Observer(runtime, Sequence(), lambda: None, timedelta(hours=1))
    for up in (True, False, False, False, True, True, False):
        runtime.up = up
        observer.observe()
    silent = "docker: docker does not answer"
    assert caplog.messages == [silent, "docker answers again", silent]
