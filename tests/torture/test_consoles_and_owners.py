"""Consoles as owners change under them: they say when nobody answers, return, take over and hand over."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputui.engine.leadership import current_leader
from tests import leftovers
from tests.e2e.terminal import Terminal
from tests.torture.customers import Customer, check, customers, until_served
from tests.torture.owners import PATIENCE, Owners

pytestmark = [pytest.mark.torture, pytest.mark.tmux]

CONSOLE = [sys.executable, "-P", "-m", "gputui"]
SIZE = (120, 36)


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    found = Owners(tmp_path / "state")
    yield found
    found.close()
    leftovers.end(found.state)


@pytest.fixture
def terminals() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def console(owners: Owners, terminals: ExitStack, *words: str) -> Terminal:
    return terminals.enter_context(Terminal([*CONSOLE, *words], owners.environ, *SIZE))


@pytest.mark.long
def test_consoles_say_that_an_owner_hangs_and_return(owners: Owners, terminals: ExitStack) -> None:
    owners.begin()
    owners.until_it_answers()
    owners.told("submit", "--hold", "--host", "--name", "first-job", "--", "true")
    shown = [console(owners, terminals), console(owners, terminals, "--view-only")]
    for each in shown:
        each.until("first-job")
    owners.stop()
    for each in shown:
        each.until("not responding")
    owners.go_on()
    owners.told("submit", "--hold", "--host", "--name", "next-job", "--", "true")
    for each in shown:
        each.until("next-job")
        each.until_gone("not responding")
    owners.kill()
    shown[0].until("● scheduling")
    shown[1].until("◐ another console")


def test_owners_hand_over_under_load_both_ways(owners: Owners, terminals: ExitStack) -> None:
    """A console, the scheduler that stands in for it, a service, and a console again."""
    leading = console(owners, terminals)
    leading.until("● scheduling")
    owners.told("submit", "--host", "--", "sleep", "3600")  # or nothing is left to do when it ends
    leading.until("1 run")
    refused = []
    with customers(owners) as asking:
        first = owner_after(owners, None, asking)
        leave(leading)
        second = owner_after(owners, first, asking)
        refused.append(sum(customer.unowned for customer in asking))
        owners.begin()
        third = owner_after(owners, second, asking)
        assert third == owners.pid
        refused.append(sum(customer.unowned for customer in asking))
        following = console(owners, terminals)
        following.until("sleep")
        os.kill(third, signal.SIGTERM)
        following.until("● scheduling")
        owner_after(owners, third, asking)
        refused.append(sum(customer.unowned for customer in asking))
    leave(following)
    check(owners.state, asking, others=1)
    longest = max(customer.longest for customer in asking)
    print(f"\n{sum(len(each.ids) for each in asking)} keys, refused {refused}, longest answer {longest:.2f} s")
    assert refused[:2] == [0, 0]


def leave(console: Terminal) -> None:
    console.press("q")
    console.until("hand over to a background scheduler")
    console.press("Enter")
    console.until("EXIT 0")


def owner_after(owners: Owners, pid: int | None, asking: list[Customer]) -> int:
    """Return the pid of the next owner, once it has answered all."""
    deadline = time.monotonic() + PATIENCE
    while (found := current_leader(owners.state)) is None or found.pid == pid:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    until_served(asking)
    return found.pid
