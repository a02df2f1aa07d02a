"""Row of the test table of commands: where a command works, and what is observed before and afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gputui.tui.commands import COMMANDS, Command
from tests.tui.console import Console
from tests.tui.every.hand import Hand
from tests.tui.every.world import world

Step = Callable[[Hand], Awaitable[None]]
BY_NAME = {command.name: command for command in COMMANDS}


@dataclass(frozen=True)
class Row:
    """Test of one command in one place."""

    name: str
    stage: Step
    """Brings the console where the command works."""
    sees: Callable[[Hand], object]
    """Observation that the command changes, as an operator could make it."""
    then: object
    """Expected observation afterwards; a function gets the one from before."""
    further: tuple[str, ...] = ()
    """Keys for the dialog that it opens."""
    mouse: Step | None = None
    """Way to the command by mouse other than its words in the key bar."""
    make: Callable[[], Console] = world
    has_key: bool = True
    """True if its keys are not those of another command here."""
    footer: bool = True
    """True if the key bar offers it here."""

    @property
    def command(self) -> Command:
        """Command under test."""
        return BY_NAME[self.name]

    @property
    def id(self) -> str:
        """Name of the command and its place."""
        place = getattr(self.stage, "__name__", "")
        return f"{self.name}-{place}"
