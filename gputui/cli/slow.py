"""Thin lines: what Textual must know before it is imported."""

from __future__ import annotations

import os

from gputui.config import Options

FRAMES = 5
"""A second, at most: a key still shows within a fifth of one."""


def prepare(options: Options) -> None:
    """Have frames few and nothing animated, where the settings say so; what the user set already stays."""
    if options.settings.console.slow:
        os.environ.setdefault("TEXTUAL_FPS", str(FRAMES))
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
        os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
