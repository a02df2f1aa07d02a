"""How the probe stands, in sentences that say what to do."""

from __future__ import annotations

from gputui.domain.gpu import ProbeCode

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
    ProbeCode.DIED: "the GPU probe died ({detail}); it is being restarted",
    ProbeCode.UNKNOWN_ERROR: "the NVIDIA driver reports: {detail}; in a container its access to the GPUs was revoked, "
    "else look at dmesg, a reboot may be needed",
    ProbeCode.BLOCKED: "the operating system blocks access to the GPUs: {detail}; look at the device rules of the "
    "cgroup or container that gputui runs in",
    ProbeCode.RESET_REQUIRED: "the NVIDIA driver wants a GPU reset: {detail}; try nvidia-smi --gpu-reset, or reboot",
    ProbeCode.GPU_LOST: "the NVIDIA driver has lost a GPU and answers no call ({detail}); reboot the host",
    ProbeCode.FAILED: "the NVIDIA driver reports: {detail}",
}


def sentence(code: ProbeCode, detail: str = "") -> str:
    """What is wrong and what to do about it."""
    return _WORDS[code].format(detail=detail or "no details given")
