"""Result of a probe job on a node of a cluster."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """Outcome of the check of a node."""

    OK = "ok"
    FAULTY = "faulty"
    UNCHECKED = "not checked"


class NodeCheck(Struct, frozen=True):
    """Findings of a probe job on a node."""

    node: str
    gpus: int
    """Number of GPUs that the engine knows there."""
    job: int | None = None
    """Number of the probe job; None: there was none."""
    allocated: tuple[str, ...] = ()
    """GPUs that the engine gave the job, by its own numbers."""
    expected: tuple[str, ...] = ()
    """UUIDs of these GPUs; empty for one that the node does not know."""
    host: tuple[str, ...] = ()
    """UUIDs that nvidia-smi listed in the job, outside of a container."""
    seen: tuple[str, ...] | None = None
    """UUIDs that a container with all of these GPUs saw; None: none ran."""
    user: str = ""
    """User that the job ran as: `1000 alice`."""
    container_engine: str = ""
    """Version of the node's container engine; empty: it could not be reached, or the site uses none."""
    is_cleaned: bool | None = None
    """True if a container that the job had left was gone after it; None: that was not tried."""
    faults: tuple[str, ...] = ()
    """Sentences about what is wrong."""
    why_not: str = ""
    """Sentence that says why the node was not checked, or not wholly."""

    @property
    def verdict(self) -> Verdict:
        """Outcome."""
        if self.faults:
            return Verdict.FAULTY
        return Verdict.OK if self.seen is not None and not self.why_not else Verdict.UNCHECKED
