"""Console over fakes, for tests: its feed, its store and its logs are accessible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_history import TakenStep
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings, PolicySettings, SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.telemetry_series import Measured
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.engine.feed import Feed
from gputui.ports import LogStream
from gputui.ports.backend import About, LogRequest
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES, Gputui
from gputui.tui.preferences import Preferences
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services
from gputui.tui.themes import AS_DESIGNED, Appearance
from gputui.tui.widgets.job_table import JobTable
from tests.factories import ACTOR, FakeClock, job
from tests.fake_backend import FakeBackend, Inside
from tests.foreign import FakeContainers, FakeHost
from tests.memory_store import MemoryJobStore
from tests.tui.sample import rich_snapshot
from tests.waiting import PATIENCE


class FakeStream:
    """Stream of given lines, then silence until it is closed."""

    def __init__(self, lines: Iterable[bytes], *, ends: bool, of: tuple[JobId, int | None] = (0, None)) -> None:
        self.of = of
        """Requested job and attempt."""
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
        """The last stream that follows each job."""
        self.followed: list[FakeStream] = []
        """Streams that follow or followed a job."""
        self.error: GputuiError | None = None
        self.ends = False
        self.cuts_tails = False
        """True if a followed stream begins with the requested lines, as a real one does."""
        self.is_stamped = False
        """Lines begin with the time they were written."""
        self.attempts: dict[tuple[JobId, int], Iterable[bytes]] = {}
        """Lines of attempts requested by number, if they differ."""
        self.opened_event = threading.Event()

    def log(self, job_id: JobId, request: LogRequest) -> LogStream:
        attempt, tail, follow = request.attempt, request.tail, request.follow
        self.opened.append((job_id, attempt, tail, follow))
        if self.error is not None:
            raise self.error
        lines = self.lines.get(job_id, ())
        if attempt is not None:
            lines = self.attempts.get((job_id, attempt), lines)
        if tail is not None and isinstance(lines, list) and (self.cuts_tails or not follow):
            lines = lines[-tail:]
        stream = FakeStream(lines, ends=self.ends or not follow, of=(job_id, attempt))
        stream.is_stamped = request.stamped and self.is_stamped
        if not follow:
            return stream
        self.streams[job_id] = stream
        self.followed.append(stream)
        self.opened_event.set()
        return stream

    def is_read(self, job_id: JobId, attempt: int | None) -> bool:
        """Return whether that log is followed, and all its lines have been read."""
        streams = [each for each in self.followed if each.of == (job_id, attempt) and not each.closed.is_set()]
        return bool(streams) and all(each.all_read.is_set() for each in streams)

    @property
    def are_read(self) -> bool:
        """Return whether all lines of all followed logs have been read."""
        return all(each.all_read.is_set() for each in self.followed if not each.closed.is_set())


def text_of(app: App[Any]) -> str:
    """Return the text on the screen, without colours."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())  # noqa: SLF001 - nothing public


async def steady(pilot: Pilot[Any], looks: int = 3) -> None:
    """Wait until the screen has stopped changing: equal at `looks` checks."""
    seen = [text_of(pilot.app)]
    while len(seen) < looks or len(set(seen[-looks:])) > 1:
        await pilot.pause(0.01)
        seen.append(text_of(pilot.app))


class Console:
    """App with everything that it was given."""

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        *,
        hand_over: str = "auto",
        what_if: str = "off",
        policy: PolicySettings | None = None,
        preferences: Preferences | None = None,
        want_pcie: Callable[[str | None], None] = lambda uuid: None,
        look: Appearance = AS_DESIGNED,
        console: ConsoleSettings | None = None,
        past: Callable[[datetime | None], Iterable[Job]] = lambda since: (),
        gpu_past: Callable[[], Iterable[TakenStep]] = lambda: (),
        measured: Callable[[JobId], Mapping[int, Measured]] = lambda job_id: {},
        images: Callable[[], Iterable[str]] = tuple,
        templates: Path | None = None,
        inside: Inside | None = None,
        host: FakeHost | None = None,
        containers: FakeContainers | None = None,
        about: About | None = None,
    ) -> None:
        self.feed = Feed()
        self.clock = FakeClock()
        self.store = MemoryJobStore()
        self.logs = FakeLogs()
        self.snapshot = rich_snapshot() if snapshot is None else snapshot
        self.keep(self.snapshot.jobs)
        self.actions = Actions(self.store, self.clock, ACTOR)
        self.preferences = preferences or Preferences()
        self.inside = inside
        self.host, self.containers = host, containers
        read_only = console is not None and console.read_only
        reach = partial(ForeignUse, lambda: self.store, self.clock, ACTOR, is_read_only=read_only)
        foreign = reach(lambda: host, lambda: containers) if host is not None else None
        settings = replace(Settings(), scheduler=SchedulerSettings(hand_over=hand_over))
        settings = replace(settings, console=console or ConsoleSettings(what_if), policy=policy or PolicySettings())
        self.backend = FakeBackend(
            self.actions, self.logs, inside=inside, past=past, measured=measured, images=images, about=about
        )
        services = Services(
            self.backend,
            settings,
            self.clock,
            PAGES,
            templates=templates,
            preferences=self.preferences,
            want_pcie=want_pcie,
            gpu_past=gpu_past,
            foreign=foreign,
        )
        self.app = Gputui(self.feed, services, look)
        self.app.animation_level = "none"
        self.app.input_queue.delay = 0  # a pilot does not wait until the queue is free

    def keep(self, jobs: Iterable[Job]) -> None:
        """Store these jobs under their own ids, with others between them; a long queue is not stored."""
        known = {each.id: each for each in jobs}  # not `job`: Python 3.12.1 mixes it up with the function below
        if not known or max(known) > 1000:
            return
        self.store.submit([job() for _ in range(max(known))], actor=ACTOR)
        with self.store.transaction() as transaction:
            for kept in known.values():
                transaction.put(kept)

    def audited(self) -> list[tuple[str, str]]:
        """Return verb and target of the actions in the audit log."""
        return [(entry.verb, entry.target) for entry in self.store.audit_log() if entry.verb != "submit"]

    async def begin(self, pilot: Pilot[ExitChoice]) -> None:
        """Show the first snapshot."""
        await self.show(pilot, self.snapshot)

    async def settle(self, pilot: Pilot[ExitChoice]) -> None:
        """Wait until every key was handled, and every action is stored and answered."""
        await pilot.pause()
        while self.app.input_queue.is_busy and self.app.screen_stack:
            await pilot.pause(0.001)
        assert await asyncio.to_thread(self.app.actions.finish, 60)
        await pilot.pause()

    async def resize(self, pilot: Pilot[ExitChoice], width: int, height: int) -> None:
        """Resize the terminal, and wait until the layout settles: widgets change it when they learn their sizes."""
        await pilot.resize_terminal(width, height)
        while self.app.screen.size != (width, height):
            await pilot.pause()
        await steady(pilot)

    async def press(self, pilot: Pilot[ExitChoice], *keys: str) -> None:
        """Press keys, and wait for their effects."""
        await pilot.press(*keys)
        await self.settle(pilot)

    async def read_log(self, pilot: Pilot[ExitChoice], job_id: JobId) -> None:
        """Wait until all that job's lines are on the screen."""
        await pilot.pause()
        await asyncio.to_thread(self.logs.opened_event.wait, 60)
        await asyncio.to_thread(self.logs.streams[job_id].all_read.wait, 60)
        self.app.screen.query_one(LogPane).tick()
        await pilot.pause()

    def select(self, job_id: JobId) -> None:
        """Put the queue's cursor on that job."""
        queue = self.app.screen.query_one(JobTable)
        queue.move_to(list(queue.keys).index(job_id))

    @property
    def told(self) -> list[str]:
        """The message that is shown, if there is one."""
        newest = self.app.messages.newest
        return [] if newest is None else [newest.text]

    @property
    def screen_text(self) -> str:
        """Text of the screen, without colours."""
        return text_of(self.app)

    @property
    def strips(self) -> list[Strip]:
        """The lines of the screen."""
        return self.app.screen._compositor.render_strips()  # noqa: SLF001 - Textual has no public text of a screen

    async def show(self, pilot: Pilot[ExitChoice], snapshot: Snapshot) -> None:
        """Publish a snapshot and wait until it is on the screen."""
        self.feed.publish(snapshot)
        await pilot.pause()


async def until(pilot: Pilot[ExitChoice], condition: Callable[[], object]) -> None:
    """Wait until the condition holds: threads report by messages."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await pilot.pause(0.005)


@asynccontextmanager
async def on_screen(
    console: Console | None = None, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[Console, Pilot[ExitChoice]]]:
    """Yield a console that shows its first snapshot on a terminal of this size, and its pilot."""
    console = console or Console()
    async with console.app.run_test(size=size) as pilot:
        await console.begin(pilot)
        yield console, pilot
