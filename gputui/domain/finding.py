"""Findings of a check of a state directory or of a backup."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """Something that is not as gputui wrote it."""

    where: str
    """File, with a line or byte where that is known."""
    text: str
    is_harmless: bool = False
    """True if no data is affected."""

    @property
    def sentence(self) -> str:
        """Return it as a line."""
        return f"{self.where}: {self.text}" + (" (harmless)" if self.is_harmless else "")
