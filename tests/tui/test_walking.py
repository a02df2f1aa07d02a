"""Walking through the queue while jobs start and end: every row is reached, and the cursor's row stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import TypeAlias

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.actions import ExitChoice
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_folding import FOLD
from tests.factories import NOW, job
from tests.lane import examples
from tests.tui.console import Console

SECOND = timedelta(seconds=1)
ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT)
Change: TypeAlias = tuple[str, int, JobState]
"""What happens, to which of the jobs it can happen to, and how that one ends."""
KINDS = ("start", "end", "cancel", "submit", "requeue", "nothing")
changes = st.tuples(st.sampled_from(KINDS), st.integers(0, 50), st.sampled_from(ENDS))


class Stream:
    """A queue in which something happens every second."""

    def __init__(self, active: int, waiting: int, ended: int) -> None:
        self.now = NOW
        self.jobs: dict[JobId, Job] = {}
        self.changed: set[JobId] = set()
        """Jobs that have started, ended or come since the last `begin`."""
        for job_id in range(1, active + waiting + ended + 1):
            self.jobs[job_id] = job(job_id)
            if job_id > waiting:
                self.happen(("start", len(self.of(JobState.PENDING)) - 1, JobState.FAILED))
            if job_id > waiting + active:
                self.happen(("end", -1, JobState.COMPLETED))

    def begin(self) -> None:
        self.changed = set()

    def of(self, state: JobState | None) -> list[JobId]:
        """Return the jobs in that state; None: those that have ended."""
        return [
            one.id for one in self.jobs.values() if (one.state.is_terminal if state is None else one.state is state)
        ]

    def happen(self, change: Change, here: object = None) -> None:
        """Let one thing happen, if there is a job to which it can. The job under the cursor only ends.

        With a start or a requeue it goes to another section, and the cursor with it.
        """
        kind, number, how = change
        self.now += SECOND
        if kind == "submit":
            self.jobs[len(self.jobs) + 1] = job(len(self.jobs) + 1)
            self.changed.add(len(self.jobs))
        states = {"start": JobState.PENDING, "cancel": JobState.PENDING, "end": JobState.RUNNING, "requeue": None}
        able = self.of(states[kind]) if kind in states else []
        if kind in ("start", "requeue") and here in able:
            able.remove(here)
        if not able:
            return
        job_id = able[number % len(able)]
        before = self.jobs[job_id]
        after = {
            "start": before.evolve(state=JobState.RUNNING, started_at=self.now),
            "end": before.evolve(state=how, ended_at=self.now),
            "cancel": before.evolve(state=JobState.CANCELLED, ended_at=self.now),
            "requeue": before.evolve(state=JobState.PENDING, started_at=None, ended_at=None),
        }
        self.jobs[job_id] = after[kind]
        self.changed.add(job_id)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, jobs=tuple(self.jobs.values()), order=tuple(self.of(JobState.PENDING)))


class Walk:
    """A console's queue, the stream that it shows, and a person who walks through it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.console = Console(stream.snapshot)
        self.visited: list[object] = []

    @property
    def table(self) -> JobTable:
        return self.console.app.screen_stack[0].query_one(JobTable)

    async def step(self, pilot: Pilot[ExitChoice], key: str, happens: Iterable[Change] = ()) -> None:
        """Press a key, then show what has happened."""
        await pilot.press(key)
        self.visited.append(self.table.cursor)
        self.stream.now += SECOND
        for change in happens:
            self.stream.happen(change, self.table.cursor)
        stood = self.table.cursor
        await self.console.show(pilot, self.stream.snapshot)
        assert self.table.cursor == stood or stood is None, "the row under the cursor has left"

    async def through(self, pilot: Pilot[ExitChoice], start: str, key: str, happens: Iterable[list[Change]]) -> None:
        """Walk from one end to the other while things happen; check that nothing was left out."""
        self.stream.begin()
        await self.step(pilot, start)
        seen_before = set(self.table.keys)
        self.visited = self.visited[-1:]
        end = -1 if key == "j" else 0
        for now in happens:
            await self.step(pilot, key, now)
        for _ in self.table.keys:
            await self.step(pilot, key)
        if self.table.keys:
            assert self.table.cursor == self.table.keys[end]
        steady = seen_before & set(self.table.keys) - self.stream.changed - {FOLD}
        assert steady <= set(self.visited)


@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 8)),
    st.lists(st.lists(changes, max_size=2), max_size=8),
    st.booleans(),
    st.sampled_from([(80, 24), (120, 50)]),
)
def test_keys_reach_every_row_while_jobs_start_and_end(
    counts: tuple[int, int, int], happens: list[list[Change]], is_open: bool, size: tuple[int, int]
) -> None:
    async def walk() -> None:
        person = Walk(Stream(*counts))
        async with person.console.app.run_test(size=size) as pilot:
            await person.console.begin(pilot)
            if is_open:
                await pilot.press("o")
            await person.through(pilot, "g", "j", happens)
            await person.through(pilot, "G", "k", happens)

    asyncio.run(walk())


def test_one_long_job_and_five_short_ones() -> None:
    async def walk() -> None:
        person = Walk(Stream(6, 0, 0))
        for _ in range(5):
            person.stream.happen(("end", 1, JobState.COMPLETED))
        async with person.console.app.run_test(size=(80, 24)) as pilot:
            await person.console.begin(pilot)
            await person.step(pilot, "g")
            for key in "jjjjjj":
                await person.step(pilot, key)
            assert person.visited == [1, 2, 3, 4, 5, 6, FOLD]
            for key in "kkkkkk":
                await person.step(pilot, key)
            assert person.visited[7:10] == [6, 5, 4]
            assert list(person.table.keys) == [1, FOLD], "lines of ended jobs go after a while"
            await person.step(pilot, "G")
            assert person.table.cursor == person.table.keys[-1]

    asyncio.run(walk())
