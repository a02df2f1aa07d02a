"""One thing a job may be asked for: its name, its reader, and the way back to text."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gputui.request import texts

YES = "yes"
"""The text of a flag that is set."""


class Kind(Enum):
    """How often a thing can be given, and of what kind."""

    ONE = "one"
    MANY = "many"
    FLAG = "flag"
    PAIRS = "pairs"


@dataclass(frozen=True)
class Key:
    """Property that a job may be asked for."""

    name: str
    """The key in a job file; the option is the same with hyphens."""
    help: str
    read: Callable[[str, str], object] = texts.any_text
    metavar: str = "TEXT"
    kind: Kind = Kind.ONE
    short: tuple[str, ...] = ()
    """Other ways to write the option."""
    container: bool = False
    """Makes sense for containers alone."""
    field: str = ""
    """The field of ContainerOptions that takes its value as it is."""
    write: Callable[[Any], str] = str
    """The text that is read as this value."""

    @property
    def option(self) -> str:
        """The long option."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_several(self) -> bool:
        """Whether it may be given more than once."""
        return self.kind in {Kind.MANY, Kind.PAIRS}

    def written(self, value: Any) -> str:
        """Return the text of a value in a draft; empty for nothing."""
        if self.kind is Kind.FLAG:
            return YES if value else ""
        if isinstance(value, tuple):
            return shlex.join(value)
        return "" if value is None else self.write(value)
