"""Consoles that serve one row after the other, as long as what a row did can be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gputui.domain.job import Job, JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.store.memory import MemoryJobStore
from tests.tui.every.hand import Hand
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
        """Return what the store has now."""
        return cls({job.id: job for job in store.jobs().values()}, store.controls(), dict(store.recurring()))

    def write(self, store: MemoryJobStore) -> None:
        """Undo what was written since, but for jobs that were added and recurring jobs that were removed."""
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
        """Return what the console is like now."""
        preferences = hand.console.preferences
        assert isinstance(preferences, NotedPreferences)
        return cls(hand.console.screen_text, preferences.changes, Stored.read(hand.console.store))


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[Hand]:
    """Yield the hand on a console whose queue is shown and has the focus."""
    console = make()
    async with console.app.run_test(size=SIZE) as pilot:
        hand = Hand(console, pilot)
        console.feed.publish(console.snapshot)
        await hand.until(lambda: len(hand.main.queue.keys) > 0, "the picture is shown")
        await hand.until(lambda: hand.app.focused is hand.queue, "the queue has the focus")
        yield hand


async def in_turn(make: Make, acts: Iterable[Step]) -> None:
    """Do each of them on a console that is as it was at first: a new one where the last could not be tidied."""
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
                if Sight.of(hand) != first:
                    break


async def tidy(hand: Hand, stored: Stored) -> None:
    """Leave all screens, undo all actions, and go back to the first job of the queue."""
    while len(hand.app.screen_stack) > 1:
        await hand.app.pop_screen()
    await hand.console.settle(hand.pilot)
    stored.write(hand.console.store)
    hand.checked = len(hand.console.audited())
    hand.app.clear_notifications()
    hand.app.copy_to_clipboard("")
    hand.main.action_tab("queue")
    await hand.console.show(hand.pilot, hand.console.snapshot)
    hand.queue.move_to(0)
    await hand.breathe()


def scenarios(rows: Iterable[Row], most: int) -> list[Sequence[Row]]:
    """Return the rows in groups of one kind of console, each of so many rows at most."""
    groups: dict[Make, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.make, []).append(row)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
