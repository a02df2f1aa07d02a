"""Writes screenshots/*.svg and *.png from the simulator; with --check, says which are not up to date.

An SVG is compared to the letter. A PNG depends on the fonts of the machine that draws it, so it carries the hash of
the SVG it was made from, and that is compared. Needs rsvg-convert (Debian's librsvg2-bin) to write, not to check.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

sys.path.insert(0, str(Path(__file__).parent.parent))

from gputui.domain.access import Actor
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.engine.actions.actions import Actions
from gputui.engine.feed import Feed
from gputui.ports import LogStream
from gputui.ports.backend import LogRequest
from gputui.tui import input_queue
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES, Gputui
from gputui.tui.screens import logs
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.services import Services
from scripts import _scene
from scripts._braille import with_dots
from tests.cluster.console import ClusterConsole
from tests.cluster.scenes import many_nodes, with_troubles
from tests.fake_backend import FakeBackend
from tests.memory_store import MemoryJobStore
from tests.tui.idle import use_exact_waits

HERE = Path(__file__).parent.parent / "screenshots"
WIDE, SMALL = (200, 50), (80, 24)
LINE = (
    "docker run --rm --gpus 2 -e WANDB_PROJECT=sdxl -v /data:/data:ro --shm-size 16g --name sdxl-refiner "
    "registry.lab/sdxl:1.4 torchrun --nproc-per-node 2 train.py --config refiner.yaml"
)
_HASH = b"gputui-svg-sha256"


class Stream:
    """The selected job's output."""

    def __init__(self, lines: tuple[bytes, ...]) -> None:
        self._lines = lines
        self._closed = threading.Event()
        self.all_read = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        self.all_read.set()
        self._closed.wait()  # it runs on, and is silent for now

    def close(self) -> None:
        """End the iteration."""
        self._closed.set()


class Logs:
    """Logs that give every job the same output, except the failed one."""

    def __init__(self) -> None:
        self.streams: dict[JobId, Stream] = {}

    def log(self, job_id: JobId, request: LogRequest) -> LogStream:
        """Return the output of a job."""
        self.streams[job_id] = Stream(_scene.failed_lines() if job_id == _scene.FAILED else _scene.log_lines())
        return self.streams[job_id]

    def is_read(self, pane: LogPane) -> bool:
        """Return whether all of its log is in the pane, and looked through."""
        follower = pane.follower
        stream = self.streams.get(follower.job_id) if follower else None
        if follower is None or stream is None or not stream.all_read.is_set():
            return follower is None
        pane.tick()
        is_still = not (pane.is_arriving or pane.paints_soon or pane.is_loading)
        return is_still and pane.reading.search.is_done


@dataclass(frozen=True)
class Shot:
    """One picture."""

    name: str
    size: tuple[int, int]
    scene: Callable[[], _scene.Scene] = _scene.Scene
    keys: tuple[str, ...] = ()
    with_history: bool = False
    line: str = ""
    """Text pasted after the keys."""
    lost: int | None = None
    """GPU that falls off the bus at the end."""
    is_cluster: bool = False
    """True for a console over a cluster of 64 nodes, in place of the scene."""


SHOTS = (
    Shot("console", WIDE, with_history=True),
    Shot("console-80x24", SMALL, with_history=True),
    Shot("gpu", (160, 48), keys=("shift+tab", "i"), with_history=True),
    Shot("job", (120, 24), keys=(*"jjjj", "enter")),
    Shot("submit", (120, 36), keys=("s",), line=LINE),
    Shot("what-if", (120, 36), keys=("j", "j", "j", "j", "j", "plus", "plus", "plus")),
    Shot("timeline", (120, 24), keys=("T",)),
    Shot("log", (120, 36), keys=("tab", "z", "slash", *"eval", "enter")),
    Shot("error", (120, 24), keys=("2", "e", "z")),
    Shot("queue", (120, 36), keys=("space", "j", "space", "S"), with_history=True),
    Shot("lost-gpu", (120, 36), with_history=True, lost=4),
    Shot("first-day", WIDE, _scene.Scene.first_day, with_history=True),
    Shot("cluster", (160, 40), is_cluster=True),
)


async def take_cluster(shot: Shot) -> str:
    """Return the screenshot of a console over a cluster as SVG."""
    cluster = many_nodes()
    console = ClusterConsole(cluster)
    console.clock.advance(4000)
    async with console.app.run_test(size=shot.size) as pilot:
        await console.show(pilot, with_troubles(cluster.snapshot()))
        await pilot.press(*shot.keys)
        while "epoch 39" not in console.screen_text:
            await pilot.pause(0.01)
        svg = console.app.export_screenshot(title="gputui", simplify=True)
        cluster.end(1)
        console.app.exit(ExitChoice.PLAIN)
    return svg


async def take(shot: Shot) -> str:
    """Return the screenshot as SVG."""
    if shot.is_cluster:
        return await take_cluster(shot)
    feed, logs, scene = Feed(), Logs(), shot.scene()
    backend = FakeBackend(Actions(MemoryJobStore(), scene.clock, Actor(1000, "alice")), logs, "atlas")
    app = Gputui(feed, Services(backend, Settings(), scene.clock, PAGES))
    app.animation_level = "none"
    async with app.run_test(size=shot.size) as pilot:
        if shot.with_history:
            await _live(pilot, feed, scene)
        scene.clock.time = _scene.NOW
        if shot.lost is not None:
            scene.probe.lose(shot.lost)
        feed.publish(scene.at(_scene.NOW))
        await pilot.pause()
        await _read_log(pilot, logs)
        await pilot.press(*shot.keys)
        if shot.line and app.focused:
            app.focused.post_message(events.Paste(shot.line))
        await _read_log(pilot, logs)
        await _foresee(pilot)
        await _read_log(pilot, logs)  # of the job that the keys went to
        svg = app.export_screenshot(title="gputui", simplify=True)
        app.exit(ExitChoice.PLAIN)
    return svg


async def _live(pilot: Pilot[ExitChoice], feed: Feed, scene: _scene.Scene) -> None:
    with pilot.app.batch_update():  # nothing is drawn that nobody looks at
        for snapshot in scene.minutes_before(12, timedelta(seconds=6)):
            feed.publish(snapshot)
            await pilot.pause()
    await pilot.pause()


async def _read_log(pilot: Pilot[ExitChoice], logs: Logs) -> None:
    async with asyncio.timeout(10):
        while not all(logs.is_read(pane) for pane in pilot.app.screen.query(LogPane)):
            await pilot.pause(0.005)
    await pilot.pause()


async def _foresee(pilot: Pilot[ExitChoice]) -> None:
    """Wait for the forecast if one is shown."""
    await pilot.pause()
    screen = pilot.app.screen
    async with asyncio.timeout(10):
        while _is_awaited(screen):
            await pilot.pause()
    await pilot.pause()


def _is_awaited(screen: Screen[object]) -> bool:
    if isinstance(screen, Submit):
        return screen._forecast.asked is not None and screen._forecast.found is None
    return (isinstance(screen, WhatIf) and screen.comparison is None) or (
        isinstance(screen, TimelineScreen) and screen.timeline is None
    )


def png_of(svg: str) -> bytes:
    """Return the PNG of an SVG, drawn with a font of Debian; it carries the hash of the SVG."""
    drawable = with_dots(svg).replace("Fira Code", "DejaVu Sans Mono").replace("<svg ", '<svg xml:space="preserve" ', 1)
    drawable = drawable.replace("font-size: 20px", "font-size: 20.26px")  # as wide as Fira Code is at 20
    done = subprocess.run(["rsvg-convert", "--zoom", "1"], input=drawable.encode(), capture_output=True, check=True)
    data = _HASH + b"\0" + _digest(svg)
    chunk = struct.pack(">I", len(data)) + b"tEXt" + data + struct.pack(">I", zlib.crc32(b"tEXt" + data))
    head = 8 + 25  # the signature and IHDR, which comes first
    return done.stdout[:head] + chunk + done.stdout[head:]


def _digest(svg: str) -> bytes:
    return hashlib.sha256(svg.encode()).hexdigest().encode()


def is_of(png: Path, svg: str) -> bool:
    """Return whether the PNG was drawn from this SVG."""
    return png.exists() and _HASH + b"\0" + _digest(svg) in png.read_bytes()[:4096]


async def main(check: bool) -> int:
    """Write all screenshots; with `--check`, name those that would change."""
    Input.cursor_blink = False  # type: ignore[assignment]  # a picture may fall into either half of a blink
    input_queue.LONGEST = 20.0  # on a loaded machine keys would overtake one another
    logs.REST = 0.001  # or whether the log has followed the cursor depends on the time taken
    use_exact_waits(setattr)
    os.environ["TZ"] = "UTC"  # the console shows the time of the place where it runs
    time.tzset()
    HERE.mkdir(exist_ok=True)
    outdated = []
    for shot in SHOTS:
        svg = await take(shot)
        path, png = HERE / f"{shot.name}.svg", HERE / f"{shot.name}.png"
        if path.exists() and path.read_text() == svg and is_of(png, svg):
            continue
        outdated.append(shot.name)
        if not check:
            path.write_text(svg)
            png.write_bytes(png_of(svg))
    print(
        (f"not up to date: {', '.join(outdated)}" if outdated else "up to date")
        if check
        else f"written: {', '.join(outdated) or 'none'}"
    )
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--check" in sys.argv[1:])))
