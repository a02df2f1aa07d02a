"""What the console begins with, before it is imported: what this person left behind in it, and its first picture."""

from __future__ import annotations

import socket
from pathlib import Path

from gputui.config import Options
from gputui.tui.opening import Opening
from gputui.tui.remembered import Remembered


def directory() -> Path:
    """Where this person's console keeps things: its own, since the state directory may be shared."""
    import platformdirs

    return Path(platformdirs.user_state_dir("gputui-console"))


def remembered() -> Remembered:
    """What this person's console remembers."""
    return Remembered(directory() / "console.json")


def opening(options: Options, remembered: Remembered, *, read_only: bool) -> Opening:
    """The first picture, as the settings and this person would have it."""
    chosen = [remembered.get(section) for section in ("layout", "look", "queue")]
    return Opening(directory() / "opening", options.settings.console, read_only, chosen, socket.gethostname())
