"""Stored entries that this version cannot read: written by a newer one, or by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unreadable:
    """A stored entry that is left out, and kept as it is."""

    kind: str
    """`job` or `recurring job`."""
    key: str
    """Its id, as stored."""
    why: str
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it may hold."""

    @property
    def sentence(self) -> str:
        """Say that it is left out, and why."""
        held = f"; GPUs that it may hold count as taken: {', '.join(self.gpus)}" if self.gpus else ""
        return f"{self.kind} {self.key} cannot be read and is left out: {self.why}{held}"
