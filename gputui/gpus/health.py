"""What is wrong with a GPU, from what the driver counts and reports."""

from __future__ import annotations

from gputui.domain.gpu import Health, HealthCode
from gputui.domain.units import plural
from gputui.gpus.wire import Slow

LOST = Health(HealthCode.LOST, "lost: the driver cannot reach it; reset it or reboot the host")
VANISHED = Health(HealthCode.LOST, "lost: the driver does not list it any more")

FATAL_XIDS = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error",
    62: "the internal micro-controller halted",
    64: "a faulty memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    136: "NVLink training failed",
    140: "unrecovered memory error",
    143: "GPU initialisation failed",
    155: "NVLink was shut down",
    156: "resource retirement event",
    158: "GPU fatal timeout",
}
"""Xids after which NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) wants the GPU reset, the host restarted or the
board looked at. Those it leaves to the application (13, 31, 43, 45, 68, 94, ...) say nothing about the GPU."""

_RECOVERY = {
    1: "the driver asks for a GPU reset",
    2: "the driver asks for a reboot of the host",
    3: "the driver asks to drain the GPU's peers",
    4: "the driver asks to drain the GPU and reset it",
    5: "the driver asks to recover the IMEX domain",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the whole system",
}
"""nvmlDeviceGpuRecoveryAction_t."""

_THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "too hot",
    0x40: "too hot (hardware)",
    0x80: "power brake",
    0x100: "display clock",
}
"""nvmlClocksEventReasons: those that hold clocks down unasked. Idle, and clocks set by hand, are left out."""


def health_of(slow: Slow, fatal_xid: int | None) -> Health:
    """The worst thing known of a GPU that answers."""
    if slow.recovery:
        asked = _RECOVERY.get(slow.recovery, f"the driver asks for recovery action {slow.recovery}")
        return Health(HealthCode.NEEDS_RESET, asked)
    if fatal_xid is not None:
        return Health(HealthCode.XID, f"Xid {fatal_xid}: {FATAL_XIDS.get(fatal_xid, 'fatal error')}")
    if slow.ecc_uncorrected:
        errors = plural(slow.ecc_uncorrected, "uncorrected memory error")
        return Health(HealthCode.ECC, f"{errors} since the driver was loaded; reset the GPU")
    if slow.remap_failed:
        return Health(HealthCode.REMAP_FAILED, "a faulty memory row could not be remapped; the board must be replaced")
    if slow.remap_pending:
        return Health(
            HealthCode.REMAP_PENDING, "a memory row waits to be remapped at the next reset; usable until then"
        )
    return Health()


def was_reset(before: Slow | None, now: Slow) -> bool:
    """Whether the GPU was reset between two readings that listed it both times.

    A reset clears the driver's request for recovery and the volatile count of uncorrected memory errors.
    """
    if before is None:
        return False
    asked_before = bool(before.recovery) and now.recovery == 0
    return asked_before or (bool(before.ecc_uncorrected) and now.ecc_uncorrected == 0)


def unreadable(error: str) -> Health:
    """The health of a GPU that a reading fails for with `error`."""
    return LOST if error == "lost" else Health(HealthCode.UNKNOWN, f"cannot be identified: {error}")


def throttle_words(bits: int | None) -> tuple[str, ...]:
    """Why clocks are held down."""
    return tuple(word for bit, word in _THROTTLE.items() if bits and bits & bit)
