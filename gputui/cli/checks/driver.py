"""Checks of NVIDIA's driver and of each GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gputui.cli.checks.check import CheckLevel, DoctorCheck, fail, ok, warn
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
    ProbeCode.UNKNOWN_ERROR: f"nvidia-smi    # on the host, not in a container\n{_KERNEL_LOG}\n"
    "sudo reboot    # when nvidia-smi fails on the host too; else restart the container: its devices were revoked",
    ProbeCode.BLOCKED: "systemctl show -p DevicePolicy -p DeviceAllow gputui    # must allow /dev/nvidia*\n"
    "docker restart CONTAINER    # where gputui runs in one",
    ProbeCode.RESET_REQUIRED: "sudo nvidia-smi --gpu-reset    # with nothing running on the GPUs\nsudo reboot",
    ProbeCode.GPU_LOST: f"{_KERNEL_LOG}\nsudo reboot",
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

_NOTES = (
    (
        "persistence mode is off",
        "The driver initialises the GPUs again for every reading and job, which takes seconds.",
        "sudo nvidia-smi -pm 1\nor for good: sudo systemctl enable --now nvidia-persistenced",
    ),
    (
        "GPU processes live in another PID namespace",
        "Processes of other people cannot be told from those of jobs.",
        "run gputui on the host, or its container with --pid=host",
    ),
)
"""Beginning of a probe's note, why it matters, and what to do."""


def of_probe(reading: ProbeReading) -> Iterator[DoctorCheck]:
    """Judge the driver and each GPU."""
    status = reading.status
    if status.code is not ProbeCode.OK:
        yield fail("driver", status.text, _NO_READING, _ADVICE.get(status.code, _KERNEL_LOG))
        return
    if not reading.gpus:
        yield fail("driver", f"no GPUs, {versions(reading)}", _NO_READING, _ADVICE[ProbeCode.NO_GPUS])
        return
    yield ok("driver", f"{plural(len(reading.gpus), 'GPU')}, {versions(reading)}")
    yield from _of_notes(reading)
    for gpu in reading.gpus:
        if sample := reading.samples.get(gpu.uuid):
            yield from _of_gpu(gpu, sample)
    yield from _of_lists(reading)


def _of_notes(reading: ProbeReading) -> Iterator[DoctorCheck]:
    """Report the probe's notes; GPUs that cannot be identified are checked one by one instead."""
    for note in reading.notes:
        text, _, rest = note.partition(": ")
        for start, why, hint in _NOTES:
            if note.startswith(start):
                yield warn("driver", text, why, hint)
                break
        else:
            if "never identified" not in note:
                yield warn("driver", text, rest, _KERNEL_LOG)


def versions(reading: ProbeReading) -> str:
    """Return the versions of the driver and of CUDA that the driver reports."""
    driver = f"driver {reading.driver_version}" if reading.driver_version else "driver version unknown"
    return f"{driver}, CUDA {reading.cuda_version}" if reading.cuda_version else driver


def _of_gpu(gpu: Gpu, sample: GpuSample) -> Iterator[DoctorCheck]:
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


def _of_lists(reading: ProbeReading) -> Iterator[DoctorCheck]:
    """Judge the process lists: a GPU whose processes are unknown is never given to a job."""
    samples = [(gpu, reading.samples.get(gpu.uuid)) for gpu in reading.gpus if not gpu.mig_enabled]
    usable = [(gpu, sample) for gpu, sample in samples if sample and sample.health.is_schedulable]
    unread = [(gpu, sample) for gpu, sample in usable if sample.processes is None]
    if not unread:
        return
    named = "GPU " + ", ".join(str(gpu.index) for gpu, _ in unread)
    if all(sample.processes_at is None for _, sample in unread):
        text, hint = f"the driver has not listed the processes on {named} in time", _KERNEL_LOG
    else:
        text = f"the driver refuses to list the processes on {named}"
        hint = "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv    # shows the driver's own error\n"
        hint += "sudo gputui doctor    # when it works for root alone: run the scheduler as root\n"
        hint += "In a container: docker run --pid=host --gpus all …; under WSL 2 the driver lists no processes"
    why = "A GPU whose processes are unknown never counts as free, so no job starts on it."
    yield DoctorCheck("processes", CheckLevel.FAIL if len(unread) == len(usable) else CheckLevel.WARN, text, hint, why)
