"""What the console begins with, before it is imported: what this person left behind in it, and its first picture."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.tui.opening import Opening
from gputui.tui.remembered import Remembered

if TYPE_CHECKING:
    from gputui.ports import GpuProbe


class EarlyProbe:
    """Reads the GPUs while the console is imported, for the scheduler that is to begin behind it.

    Real ones alone, which a process of its own reads; and not where another process schedules, and reads them.
    """

    def __init__(self, options: Options, *, may_lead: bool) -> None:
        self._lock = threading.Lock()
        self._probe: GpuProbe | None = None
        if not may_lead or options.settings.console.read_only or options.probe.simulated is not None:
            return
        from gputui import bootstrap
        from gputui.cli.readings import say_nothing_twice
        from gputui.engine.leader import current_leader

        if current_leader(options.state) is None:
            say_nothing_twice()
            self._probe = bootstrap.make_probe(options)
            self._probe.start()

    def take(self) -> GpuProbe | None:
        """It, for whoever asks first."""
        with self._lock:
            probe, self._probe = self._probe, None
            return probe

    def close(self) -> None:
        """End it, if nobody took it. Blocks for a moment."""
        if (probe := self.take()) is not None:
            probe.close()


@contextmanager
def no_collections() -> Iterator[None]:
    """What is imported stays: nothing is collected until the console is painted, and sees to it itself."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def directory() -> Path:
    """Where this person's console keeps things: its own, since the state directory may be shared."""
    import platformdirs

    return Path(platformdirs.user_state_dir("gputui-console"))


def remembered() -> Remembered:
    """What this person's console remembers."""
    return Remembered(directory() / "console.json")


def read_only(options: Options) -> Options:
    """The options of a console that only looks on."""
    settings = options.settings
    return replace(options, settings=replace(settings, console=replace(settings.console, read_only=True)))


def opening(options: Options, remembered: Remembered) -> Opening:
    """The first picture, as the settings and this person would have it."""
    chosen = [remembered.get(section) for section in ("layout", "look", "queue")]
    return Opening(directory() / "opening", options.settings.console, chosen, socket.gethostname())
