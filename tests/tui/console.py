"""A console over fakes, for tests: its feed, its store and its logs within reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from textual.pilot import Pilot

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_history import TakenStep
from gputui.domain.job import Job, JobId
from gputui.domain.settings import ConsoleSettings, PolicySettings, SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.engine.actions import Actions
from gputui.engine.feed import Feed
from gputui.ports import LogStream
from gputui.store import MemoryJobStore
from gputui.tui.app import Gputui
from gputui.tui.interiors import Interiors
from gputui.tui.leave import Leave
from gputui.tui.remembered import Remembered
from gputui.tui.submission.sources import FormSources
from gputui.tui.theme import AS_DESIGNED, Wish
from gputui.tui.widgets.log_pane import LogPane
from tests.factories import ACTOR, FakeClock, job
from tests.tui.sample import rich_snapshot


class FakeStream:
    """Lines that are there, then silence until it is closed."""

    def __init__(self, lines: Iterable[bytes], *, ends: bool) -> None:
        self._lines = lines
        self._ends = ends
        self.is_stamped = False
        self.closed = threading.Event()
        self.all_read = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        self.all_read.set()
        if not self._ends:
            self.closed.wait()

    def close(self) -> None:
        self.closed.set()


class FakeLogs:
    """Logs by job id."""

    def __init__(self) -> None:
        self.lines: dict[JobId, Iterable[bytes]] = {}
        self.opened: list[tuple[JobId, int | None, int | None, bool]] = []
        self.streams: dict[JobId, FakeStream] = {}
        self.error: GputuiError | None = None
        self.ends = False
        self.cuts_tails = False
        """What is followed begins with the lines asked for, as it does in life."""
        self.is_stamped = False
        """Lines begin with the time they were written."""
        self.attempts: dict[tuple[JobId, int], Iterable[bytes]] = {}
        """Of attempts asked for by number, where they differ."""
        self.opened_event = threading.Event()

    def open(
        self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool, stamped: bool = False
    ) -> LogStream:
        self.opened.append((job_id, attempt, tail, follow))
        if self.error is not None:
            raise self.error
        lines = self.lines.get(job_id, ())
        if attempt is not None:
            lines = self.attempts.get((job_id, attempt), lines)
        if tail is not None and isinstance(lines, list) and (self.cuts_tails or not follow):
            lines = lines[-tail:]
        stream = FakeStream(lines, ends=self.ends or not follow)
        stream.is_stamped = stamped and self.is_stamped
        if not follow:
            return stream
        self.streams[job_id] = stream
        self.opened_event.set()
        return stream


class Console:
    """An app and everything it was given."""

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        *,
        hand_over: str = "auto",
        what_if: str = "off",
        policy: PolicySettings | None = None,
        remembered: Remembered | None = None,
        want_pcie: Callable[[str | None], None] = lambda uuid: None,
        look: Wish = AS_DESIGNED,
        console: ConsoleSettings | None = None,
        past: Callable[[datetime | None], Iterable[Job]] = lambda since: (),
        gpu_past: Callable[[], Iterable[TakenStep]] = lambda: (),
        forms: FormSources | None = None,
        inside: Interiors | None = None,
    ) -> None:
        self.feed = Feed()
        self.clock = FakeClock()
        self.store = MemoryJobStore()
        self.logs = FakeLogs()
        self.snapshot = rich_snapshot() if snapshot is None else snapshot
        self.keep(self.snapshot.jobs)
        self.actions = Actions(self.store, self.clock, ACTOR)
        settings = replace(Settings(), scheduler=SchedulerSettings(hand_over=hand_over))
        settings = replace(settings, console=console or ConsoleSettings(what_if), policy=policy or PolicySettings())
        self.app = Gputui(
            self.feed,
            self.actions,
            self.logs,
            settings,
            clock=self.clock,
            host="node1",
            user="alice",
            remembered=remembered,
            want_pcie=want_pcie,
            look=look,
            past=past,
            gpu_past=gpu_past,
            forms=forms,
            inside=inside,
        )
        self.app.animation_level = "none"

    def keep(self, jobs: Iterable[Job]) -> None:
        """Have these jobs in the store under their own ids, with others between them; not so a long queue."""
        known = {job.id: job for job in jobs}
        if not known or max(known) > 1000:
            return
        self.store.submit([job() for _ in range(max(known))], actor=ACTOR)
        with self.store.transaction() as transaction:
            for kept in known.values():
                transaction.put(kept)

    def audited(self) -> list[tuple[str, str]]:
        """What was wished, of what."""
        return [(entry.verb, entry.target) for entry in self.store.audit_log() if entry.verb != "submit"]

    async def begin(self, pilot: Pilot[Leave]) -> None:
        """Show the picture."""
        await self.show(pilot, self.snapshot)

    async def settle(self, pilot: Pilot[Leave]) -> None:
        """Wait until every wish is in the store and has been answered."""
        await pilot.pause()
        assert await asyncio.to_thread(self.app.wishes.finish, 10)
        await pilot.pause()

    async def press(self, pilot: Pilot[Leave], *keys: str) -> None:
        """Press keys, and wait for what they do."""
        await pilot.press(*keys)
        await self.settle(pilot)

    async def read_log(self, pilot: Pilot[Leave], job_id: JobId) -> None:
        """Wait until all that job's lines are on the screen."""
        await pilot.pause()
        await asyncio.to_thread(self.logs.opened_event.wait, 10)
        await asyncio.to_thread(self.logs.streams[job_id].all_read.wait, 10)
        self.app.screen.query_one(LogPane).tick()
        await pilot.pause()

    @property
    def told(self) -> list[str]:
        """The notifications shown."""
        return [notification.message for notification in self.app._notifications]

    @property
    def screen_text(self) -> str:
        """What the screen shows, without colours."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def show(self, pilot: Pilot[Leave], snapshot: Snapshot) -> None:
        """Publish a picture and wait until it is on the screen."""
        self.feed.publish(snapshot)
        await pilot.pause()
