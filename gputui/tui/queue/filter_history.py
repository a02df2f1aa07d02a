"""Filters that were typed before, the latest last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST = 50


@dataclass(frozen=True)
class FilterHistory:
    """Each once."""

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, object]) -> FilterHistory:
        """As they were remembered."""
        found = values.get("texts")
        texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
        return cls(tuple(texts[-MOST:]))

    def values(self) -> dict[str, object]:
        """What is remembered."""
        return {"texts": list(self.texts)}

    def with_one(self, text: str) -> FilterHistory:
        """With that one as the latest."""
        if not text.strip():
            return self
        return FilterHistory((*(kept for kept in self.texts if kept != text), text)[-MOST:])
