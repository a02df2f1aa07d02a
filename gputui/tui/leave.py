"""What is to become of the scheduler when the console is left."""

from __future__ import annotations

from enum import Enum


class Leave(Enum):
    """How the console was left."""

    HAND_OVER = "hand over"
    """It scheduled: a background scheduler is to take over."""
    STOP = "stop"
    """It scheduled: dispatch is to stop; running jobs go on."""
    PLAIN = "plain"
    """It did not schedule."""
