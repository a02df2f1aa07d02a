"""What the submit form is offered by its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def _none() -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class FormSources:
    """Names of images, and where templates are."""

    images: Callable[[], Sequence[str]] = _none
    """The images that the engine has; none where it does not answer. Blocks, so it is called on a thread."""
    templates: Path | None = None
    """None: there are none, and none can be saved."""
