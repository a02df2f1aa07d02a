"""Consoles that serve several rows, as long as the effects of each can be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from tests.memory_store import MemoryJobStore
from tests.tui.every.hand import Hand, at_work
from tests.tui.every.row import Row, Step
from tests.tui.every.world import SIZE, Make, NotedPreferences


@dataclass(frozen=True)
class Stored:
    """The contents of a store."""

    jobs: dict[JobId, Job]
    controls: Controls
    recurring: dict[JobId, RecurringJob]

    @classmethod
    def read(cls, store: MemoryJobStore) -> Stored:
        """Return the present contents of the store."""
        return cls({job.id: job for job in store.jobs().values()}, store.controls(), dict(store.recurring()))

    def write(self, store: MemoryJobStore) -> None:
        """Undo the changes since, except added jobs and removed recurring jobs."""
        with store.transaction() as transaction:
            for job in self.jobs.values():
                transaction.put(job)
            transaction.set_controls(self.controls)
            for number in set(transaction.recurring()):
                if number in self.recurring:
                    transaction.put_recurring(self.recurring[number])
                else:
                    transaction.remove_recurring(number)


@dataclass(frozen=True)
class Sight:
    """State by which a console is compared with a fresh one."""

    text: str
    preferences: int
    stored: Stored

    @classmethod
    def of(cls, hand: Hand) -> Sight:
        """Return the present state of the console."""
        preferences = hand.console.preferences
        assert isinstance(preferences, NotedPreferences)
        return cls(hand.console.screen_text, preferences.changes, Stored.read(hand.console.store))


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[Hand]:
    """Yield the operator of a console whose queue is shown and focused."""
    async with at_work(make(), SIZE) as hand:
        await hand.read_log()
        yield hand


async def in_turn(make: Make, acts: Iterable[Step]) -> None:
    """Run each step on a console in its initial state: a new one if the last could not be restored."""
    waiting = list(acts)
    while waiting:
        async with opened(make) as hand:
            await tidy(hand, Stored.read(hand.console.store))
            first = Sight.of(hand)
            while waiting:
                await waiting.pop(0)(hand)
                if not waiting or hand.app.return_value is not None:
                    break
                await tidy(hand, first.stored)
                if Sight.of(hand) != first and not await _is_so_with_a_new_log(hand, first):
                    break


async def _is_so_with_a_new_log(hand: Hand, first: Sight) -> bool:
    """Open the log of the first job again; return whether that restores the initial state."""
    first_job = hand.queue.keys[0]
    assert isinstance(first_job, int)
    hand.main.logs.follow(first_job)
    await hand.read_log()
    return Sight.of(hand) == first


async def tidy(hand: Hand, stored: Stored) -> None:
    """Leave all screens, undo all actions, and go back to the first job of the queue."""
    while len(hand.app.screen_stack) > 1:
        await hand.app.pop_screen()
    await hand.console.settle(hand.pilot)
    if Stored.read(hand.console.store) != stored:
        stored.write(hand.console.store)
    hand.checked = len(hand.console.audited())
    hand.app.clear_notifications()
    hand.app.copy_to_clipboard("")
    hand.main.jobs.action_tab("queue")
    if hand.app.snapshot is not hand.console.snapshot:
        await hand.console.show(hand.pilot, hand.console.snapshot)
    hand.queue.move_to(0)
    await hand.breathe()


def scenarios(rows: Iterable[Row], most: int) -> list[Sequence[Row]]:
    """Return the rows grouped by kind of console, each group of at most `most` rows."""
    groups: dict[Make, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.make, []).append(row)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
