"""Checks of NVIDIA's driver and of each GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gputui.cli.checks.check import Check, fail, ok, warn
from gputui.domain.gpu import Gpu, GpuSample, Health, HealthCode, ProbeCode, ProbeReading
from gputui.domain.units import plural

_NO_READING = "Without readings no GPU counts as free, so no job with GPUs starts."
_KERNEL_LOG = "sudo dmesg | grep -iE 'NVRM|Xid|nvidia' | tail -20"
_ADVICE = {
    ProbeCode.NO_LIBRARY: "Debian: sudo apt install nvidia-driver    Ubuntu: sudo ubuntu-drivers install\n"
    "To try gputui without a GPU: gputui demo",
    ProbeCode.DRIVER_MISMATCH: "sudo reboot\n"
    "or, with nothing on the GPUs: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
    ProbeCode.DRIVER_NOT_LOADED: "sudo modprobe nvidia && nvidia-smi\n"
    "After a kernel update the module may need to be built again: sudo dkms autoinstall",
    ProbeCode.NO_PERMISSION: "ls -l /dev/nvidia*    # must be readable and writable for this user\n"
    'sudo usermod -aG video "$USER"    # if they belong to the group video; then log in again',
    ProbeCode.COUNT_FAILED: f"nvidia-smi\n{_KERNEL_LOG}\nsudo reboot",
    ProbeCode.NO_GPUS: f"lspci | grep -i nvidia\n{_KERNEL_LOG}",
    ProbeCode.STARTING: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.WEDGED_AT_START: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.WEDGED: f"{_KERNEL_LOG}\nsudo reboot    # a driver that hangs cannot be restarted",
    ProbeCode.DIED: f"nvidia-smi\n{_KERNEL_LOG}",
    ProbeCode.FAILED: f"nvidia-smi\n{_KERNEL_LOG}\nsudo reboot",
}
_REPAIRS = {
    HealthCode.LOST: "sudo reboot    # a lost GPU comes back with the host, or not at all",
    HealthCode.NEEDS_RESET: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it",
    HealthCode.XID: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it; else sudo reboot",
    HealthCode.ECC: "sudo nvidia-smi --gpu-reset -i {index}    # with nothing running on it",
    HealthCode.REMAP_FAILED: "nvidia-smi -q -d ROW_REMAPPER -i {index}    # the board must be replaced",
    HealthCode.REMAP_PENDING: "sudo nvidia-smi --gpu-reset -i {index}    # when nothing runs on it; no hurry",
    HealthCode.UNKNOWN: "nvidia-smi -q -i {index}\n" + _KERNEL_LOG,
}


def of_probe(reading: ProbeReading) -> Iterator[Check]:
    """Judge the driver and each GPU."""
    status = reading.status
    if status.code is not ProbeCode.OK:
        yield fail("driver", status.text, _NO_READING, _ADVICE.get(status.code, _KERNEL_LOG))
        return
    if not reading.gpus:
        yield fail("driver", f"no GPUs, {versions(reading)}", _NO_READING, _ADVICE[ProbeCode.NO_GPUS])
        return
    yield ok("driver", f"{plural(len(reading.gpus), 'GPU')}, {versions(reading)}")
    for note in reading.notes:
        text, _, hint = note.partition(": ")
        yield warn("driver", text, "", hint)
    for gpu in reading.gpus:
        if sample := reading.samples.get(gpu.uuid):
            yield from _of_gpu(gpu, sample)


def versions(reading: ProbeReading) -> str:
    """Return the versions of the driver and of CUDA, as far as the driver tells them."""
    return f"driver {reading.driver_version}" if reading.driver_version else "no driver version"


def _of_gpu(gpu: Gpu, sample: GpuSample) -> Iterator[Check]:
    health = sample.health
    if health.code is HealthCode.OK:
        return
    name, text = f"GPU {gpu.index}", f"{health.code}: {health.text}"
    repair = _REPAIRS[health.code].format(index=gpu.index)
    if health.is_schedulable:
        yield warn(name, text, "Jobs still start on it.", repair)
    else:
        yield fail(name, text, "No job starts on it.", f"{_drain(gpu, health)}\n{repair}")


def _drain(gpu: Gpu, health: Health) -> str:
    """Return the command that keeps jobs off this GPU until it is repaired."""
    return f"gputui drain {gpu.index} --reason {shlex.quote(health.text[:60])}    # until it is repaired"
