"""Prepares a console before it is imported: reads the user's preferences, and tunes Python. And the probe before it."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import Options
from gputui.config.options import user_directory
from gputui.tui.preferences import Preferences

if TYPE_CHECKING:
    from gputui.ports import GpuProbe


class EarlyProbe:
    """Reads the GPUs while the scheduler that takes it over is imported.

    Only for real GPUs, which are read by a process of their own, and only if no other process schedules and reads them.
    """

    def __init__(self, options: Options, *, may_lead: bool = True) -> None:
        self._lock = threading.Lock()
        self._options = options
        self._is_wanted = (
            may_lead and options.probe.simulated is None and bootstrap.may_schedule(options, is_console=True)
        )
        self._probe: GpuProbe | None = None

    def start(self) -> None:
        """Start to read, unless it was closed before."""
        with self._lock:
            if not self._is_wanted:
                return
            from gputui.bootstrap import adapters
            from gputui.engine.files.leadership import current_leader

            if current_leader(self._options.state) is None:
                adapters.silence_probe_log()
                self._probe = adapters.make_probe(self._options)
                self._probe.start()

    def take(self) -> GpuProbe | None:
        """Return the probe to the first caller; None to later ones."""
        with self._lock:
            probe, self._probe = self._probe, None
            return probe

    def close(self) -> None:
        """Close the probe if it was not taken. Blocks briefly."""
        with self._lock:
            self._is_wanted = False
        if (probe := self.take()) is not None:
            probe.close()


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection while the console is imported; the console enables it after its first frame."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def directory() -> Path:
    """Return the directory of this user's console; the state directory may be shared."""
    return user_directory("XDG_STATE_HOME", "~/.local/state") / "gputui-console"


def preferences() -> Preferences:
    """Return this user's preferences of the console."""
    return Preferences(directory() / "console.json")


def read_only(options: Options) -> Options:
    """Return the options of a read-only console."""
    settings = options.settings
    return replace(options, settings=replace(settings, console=replace(settings.console, read_only=True)))


FRAMES = 5
"""Maximum frames per second: a key still shows within 0.2 s."""


def limit_frame_rate(options: Options) -> None:
    """Limit frames and animations if the settings say so; the user's environment variables take precedence."""
    if options.settings.console.slow:
        os.environ.setdefault("TEXTUAL_FPS", str(FRAMES))
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
        os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")


_LOOK_EVERY = 1.0


def end_with_parent() -> None:
    """End this process within two seconds of its parent's end, however busy or stuck it is."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="gputui-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os._exit(0)
