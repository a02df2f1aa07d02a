"""Capabilities of a cluster: which of gputui's functions its engine has, and why it lacks the others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class Capability(StrEnum):
    """Functions that a cluster may have or lack."""

    HOLD = "hold"
    REQUEUE = "requeue"
    RAISE_PRIORITY = "raise_priority"
    LOWER_PRIORITY = "lower_priority"
    TOP = "top"
    MOVE = "move"
    """Put a job directly before or behind another."""
    EDIT = "edit"
    """Change a waiting job."""
    EXTEND = "extend"
    """Change the time limit of a running job."""
    SIGNAL = "signal"
    SUSPEND = "suspend"
    PAUSE = "pause"
    """Start no job anywhere until further notice."""
    DRAIN_NODE = "drain_node"
    DRAIN_GPU = "drain_gpu"
    RESERVE = "reserve"
    RECURRING = "recurring"
    ARRAYS = "arrays"
    DEPENDENCIES = "dependencies"
    TEST_ONLY = "test_only"
    """Forecast of a job's start before it is submitted."""
    WHAT_IF = "what_if"
    """Forecast of all starts after a change."""
    GPU_IDS = "gpu_ids"
    """Tells which GPUs a job has."""
    LIVE_LOG = "live_log"
    """Output of running jobs."""
    INSIDE = "inside"
    """Shells in running jobs, and their processes."""
    USERS = "users"
    """Tells apart the users of jobs, and limits each to her own."""
    HISTORY = "history"
    """Jobs that ended long ago."""


class Caps(Struct, frozen=True):
    """Capabilities of an engine."""

    engine: str
    """Name of the engine as people write it: `Slurm`."""
    lacking: Mapping[Capability, str] = field(default_factory=dict)
    """Sentence for each missing capability, such as `Slurm drains nodes, not single GPUs`."""

    def has(self, capability: Capability) -> bool:
        """Return whether the cluster has it."""
        return capability not in self.lacking

    def why_not(self, capability: Capability) -> str:
        """Return why the cluster lacks it; empty if it has it."""
        return self.lacking.get(capability, "")
