"""Start of a console before it is imported: checks its terminal, reads preferences, tunes Python, starts the probe."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.config import Options, user_directory
from gputui.domain.errors import GputuiError
from gputui.tui.preferences import Preferences

if TYPE_CHECKING:
    from gputui.ports import GpuProbe

_HINT = "gputui top prints one picture, gputui serve schedules without a screen"
_TERMINAL = "/dev/tty"


@contextmanager
def terminal(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Connect file descriptor 2, on which the console draws, to the terminal; raise GputuiError without one.

    Where stderr was redirected, errors still go there: `gputui 2>errors` draws on the terminal.
    """
    check_terminal(environ)
    if environ.get("TEXTUAL_DRIVER") or os.isatty(2):
        yield
        return
    sys.stderr.flush()
    before, stream = os.dup(2), sys.stderr
    fd = _open_terminal()
    os.dup2(fd, 2)
    os.close(fd)
    with os.fdopen(before, "w", buffering=1, errors="replace", closefd=False) as errors:
        sys.stderr = errors
        try:
            yield
        finally:
            sys.stderr = stream
            os.dup2(before, 2)
            os.close(before)


def check_terminal(environ: Mapping[str, str] = os.environ) -> None:
    """Raise GputuiError without a terminal to draw on or to read keys from (file descriptor 0)."""
    if environ.get("TEXTUAL_DRIVER"):
        return  # driven by the server for browsers
    has_terminal = os.isatty(2)
    if not has_terminal:
        with suppress(OSError):
            os.close(_open_terminal())
            has_terminal = True
    if not os.isatty(0) or not has_terminal:
        raise GputuiError("the console needs a terminal (over ssh: ssh -t)", hint=_HINT)
    if environ.get("TERM", "") == "dumb":
        raise GputuiError("this terminal cannot move its cursor (TERM=dumb)", hint=_HINT)


def _open_terminal() -> int:
    """Open the terminal of stdout, else the controlling terminal of this process."""
    return os.dup(1) if os.isatty(1) else os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)


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
            from gputui.engine.leadership import current_leader

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
    return Preferences(directory() / "console.json")


def read_only(options: Options) -> Options:
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

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        os._exit(0)

    threading.Thread(target=watch, name="gputui-orphan", daemon=True).start()
