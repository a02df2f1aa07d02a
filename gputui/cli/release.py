"""`gputui release`: let held jobs start."""

from __future__ import annotations

from gputui.cli.wishes import wish_command
from gputui.engine.actions import Actions

command = wish_command("release", "Let held jobs start again.", Actions.release)
