"""Diagnoses of GPUs and of the driver, as sentences with advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from types import MappingProxyType

from msgspec.structs import replace

from gputui.domain.gpu import CAP, Health, HealthCode, ProbeCode, ProbeReading
from gputui.domain.steady import Steady
from gputui.domain.units import plural
from gputui.gpus.wire import SlowReadings

LOST = Health(HealthCode.LOST, "lost: the driver cannot reach it; reset it or reboot the host")
VANISHED = Health(HealthCode.LOST, "lost: the driver no longer lists it")
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
"""Recovery actions by nvmlDeviceGpuRecoveryAction_t."""
_SW_POWER_CAP = 0x04
_THROTTLE = {
    _SW_POWER_CAP: CAP,
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "too hot",
    0x40: "too hot (hardware)",
    0x80: "power brake",
    0x100: "display clock",
}
"""Bits of nvmlClocksEventReasons for throttling, without idle clocks and clocks set by hand."""
_WORDS = {
    ProbeCode.OK: "",
    ProbeCode.NO_LIBRARY: "no NVIDIA driver here: libnvidia-ml.so.1 was not found; "
    "install the driver, or try --probe sim:8",
    ProbeCode.DRIVER_MISMATCH: "the NVIDIA driver's library and kernel module differ, as after an upgrade; "
    "reboot, or reload the module",
    ProbeCode.DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded; try modprobe nvidia, then nvidia-smi",
    ProbeCode.NO_PERMISSION: "no permission to talk to the NVIDIA driver; look at /dev/nvidia* and the user's groups",
    ProbeCode.COUNT_FAILED: "the NVIDIA driver cannot count its GPUs ({detail}); look at dmesg, a reboot may be needed",
    ProbeCode.NO_GPUS: "the NVIDIA driver is loaded, but lists no GPU; look at lspci and dmesg",
    ProbeCode.WEDGED_AT_START: "the NVIDIA driver did not answer within {detail}; "
    "look at dmesg, a reboot may be needed",
    ProbeCode.WEDGED: "the NVIDIA driver has stopped answering, for {detail} at least; look at dmesg, "
    "a reboot may be needed",
    ProbeCode.SLOW: "the NVIDIA driver answers slowly: no complete reading within {detail}; look at dmesg, and at "
    "persistence mode (nvidia-smi -pm 1)",
    ProbeCode.DIED: "the GPU probe died ({detail}); it is being restarted",
    ProbeCode.UNKNOWN_ERROR: "the NVIDIA driver reports: {detail}; in a container its access to the GPUs was revoked, "
    "else look at dmesg, a reboot may be needed",
    ProbeCode.BLOCKED: "the operating system blocks access to the GPUs: {detail}; look at the device rules of the "
    "cgroup or container that gputui runs in",
    ProbeCode.RESET_REQUIRED: "the NVIDIA driver wants a GPU reset: {detail}; try nvidia-smi --gpu-reset, or reboot",
    ProbeCode.GPU_LOST: "the NVIDIA driver has lost a GPU and answers no call ({detail}); reboot the host",
    ProbeCode.FAILED: "the NVIDIA driver reports: {detail}",
}


def health_of(slow: SlowReadings, fatal_xid: int | None) -> Health:
    """Return the worst known condition of a GPU that answers."""
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


def was_reset(before: SlowReadings | None, now: SlowReadings) -> bool:
    """Return whether the GPU was reset between two readings.

    A reset clears the driver's request for recovery and the volatile count of uncorrected memory errors.
    """
    if before is None:
        return False
    asked_before = bool(before.recovery) and now.recovery == 0
    return asked_before or (bool(before.ecc_uncorrected) and now.ecc_uncorrected == 0)


def unreadable_health(error: str) -> Health:
    """Return the health of a GPU whose reading failed with `error`."""
    return LOST if error == "lost" else Health(HealthCode.UNKNOWN, f"cannot be identified: {error}")


def throttle_reasons(bits: int | None, limit: float | None, default: float | None) -> tuple[str, ...]:
    """Return the reasons for throttled clocks; the power limit only if it is below the board's default, both in watts.

    The driver holds every board that is well used at its limit, and says so by the same bit.
    """
    is_lowered = limit is not None and default is not None and limit < default
    kept = (bits or 0) & (-1 if is_lowered else ~_SW_POWER_CAP)
    return tuple(word for bit, word in _THROTTLE.items() if kept & bit)


class SteadyReasons:
    """Reasons for throttling that hold, so that no screen, list or metric flaps."""

    def __init__(self) -> None:
        self._of_gpus: defaultdict[str, Steady[str]] = defaultdict(Steady)

    def update(self, uuid: str, reasons: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Take the present reasons of a GPU; return those that hold."""
        told = self._of_gpus[uuid].update(reasons, now)
        return tuple(word for word in _THROTTLE.values() if word in told)

    def in_reading(self, reading: ProbeReading) -> ProbeReading:
        """Take the reasons of a reading; return it with those that hold."""
        samples = {
            uuid: replace(sample, throttle=self.update(uuid, sample.throttle, sample.sampled_at))
            for uuid, sample in reading.samples.items()
        }
        return replace(reading, samples=MappingProxyType(samples))


def describe_failure(code: ProbeCode, detail: str = "") -> str:
    """Return the sentence for a failure of the probe or the driver, with advice."""
    return _WORDS[code].format(detail=detail or "no details given")
