"""Checks of NVIDIA's driver and of each GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from datetime import timedelta
from textwrap import shorten

from gputui.cli.checks import CheckLevel, DoctorCheck, fail, ok, warn
from gputui.domain.gpu import Gpu, GpuSample, HealthCode, ProbeCode, ProbeReading
from gputui.domain.settings import SchedulerSettings
from gputui.domain.text import format_duration, format_size, plural

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
    ProbeCode.SLOW: f"sudo nvidia-smi -pm 1    # persistence mode\n{_KERNEL_LOG}",
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


_USUAL = SchedulerSettings()
PATIENCE = 8.0
"""Seconds that the driver may take to answer, and a reading of all GPUs."""


def of_probe(reading: ProbeReading, settings: SchedulerSettings = _USUAL) -> Iterator[DoctorCheck]:
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
        text, _, rest = note.partition(": ")
        for start, why, hint in _NOTES:
            if note.startswith(start):
                yield warn("driver", text, why, hint)
                break
        else:
            if "never identified" not in note:
                yield warn("driver", text, rest, _KERNEL_LOG)
    for gpu in reading.gpus:
        if sample := reading.samples.get(gpu.uuid):
            yield from _of_gpu(gpu, sample)
    # report GPUs in MIG mode without instances: jobs can be given neither them nor parts of them
    parents = {gpu.mig_parent for gpu in reading.gpus}
    empty = [gpu for gpu in reading.gpus if gpu.mig_enabled and gpu.uuid not in parents]
    if empty:
        hint = "".join(
            f"sudo nvidia-smi mig -i {gpu.index} -cgi PROFILE -C    # makes one; -lgip lists the profiles\n"
            f"sudo nvidia-smi -i {gpu.index} -mig 0    # or uses the GPU as a whole\n"
            for gpu in empty
        )
        text = f"MIG mode is on without any instance on {_named(empty)}"
        level = CheckLevel.FAIL if len(empty) == len(reading.gpus) else CheckLevel.WARN
        yield DoctorCheck("MIG", level, text, hint.rstrip(), "No job starts on such a GPU.")
    yield from _of_lists(reading, settings)
    yield from _of_memory(reading)


def of_pace(reading: ProbeReading, seconds: float, stale_after: timedelta) -> Iterator[DoctorCheck]:
    """Report a driver that answers, but slowly; `seconds` is how long the first reading took."""
    if reading.status.code is ProbeCode.OK and not reading.notes and seconds > PATIENCE:
        why = f"A GPU whose last reading is older than {format_duration(stale_after)} takes no job."
        yield warn("driver", f"it took {seconds:.0f} s to read the GPUs", why, _ADVICE[ProbeCode.SLOW])


def versions(reading: ProbeReading) -> str:
    driver = f"driver {reading.driver_version}" if reading.driver_version else "driver version unknown"
    return f"{driver}, CUDA {reading.cuda_version}" if reading.cuda_version else driver


def _of_gpu(gpu: Gpu, sample: GpuSample) -> Iterator[DoctorCheck]:
    health = sample.health
    if health.code is HealthCode.OK:
        return
    name, text = f"GPU {gpu.index}", f"{health.code}: {health.reason}"
    repair = _REPAIRS[health.code].format(index=gpu.index)
    if health.is_schedulable:
        yield warn(name, text, "Jobs still start on it.", repair)
    else:
        reason = shlex.quote(shorten(health.text, 60, placeholder=" …"))
        drain = f"gputui drain {gpu.index} --reason {reason}    # until it is repaired"
        yield fail(name, text, "No job starts on it.", f"{drain}\n{repair}")


def _usable(reading: ProbeReading) -> list[tuple[Gpu, GpuSample]]:
    """Return the GPUs that could be given to jobs, with their samples."""
    found = [(gpu, reading.samples.get(gpu.uuid)) for gpu in reading.gpus if not gpu.mig_enabled]
    return [(gpu, sample) for gpu, sample in found if sample and sample.health.is_schedulable]


def _named(gpus: Iterable[Gpu]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def _of_lists(reading: ProbeReading, settings: SchedulerSettings) -> Iterator[DoctorCheck]:
    """Judge the process lists: a GPU whose processes are unknown is given to a job only if the site accepts that."""
    usable = _usable(reading)
    without = [gpu for gpu, sample in usable if sample.processes is None and not sample.lists_processes]
    if without:
        yield _without_lists(without, settings, is_all=len(without) == len(usable))
    unread = [(gpu, sample) for gpu, sample in usable if sample.processes is None and sample.lists_processes]
    if not unread:
        return
    named = _named(gpu for gpu, _ in unread)
    if all(sample.processes_at is None for _, sample in unread):
        text, hint = f"the driver has not listed the processes on {named} in time", _KERNEL_LOG
    else:
        text = f"the driver refuses to list the processes on {named}"
        hint = "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv    # shows the driver's own error\n"
        hint += "sudo gputui doctor    # when it works for root alone: run the scheduler as root\n"
        hint += "In a container: docker run --pid=host --gpus all …"
    yield _unjudged("processes", text, hint, "processes are", is_all=len(unread) == len(usable))


def _without_lists(gpus: list[Gpu], settings: SchedulerSettings, *, is_all: bool) -> DoctorCheck:
    text = f"the driver has no list of processes on {_named(gpus)}, as under WSL 2"
    if settings.need_process_lists:
        hint = "need_process_lists = false    # under [scheduler]: judge by memory and containers alone"
        return _unjudged("processes", text, hint, "processes are", is_all=is_all)
    why = "They are judged by memory and containers alone: a process that uses little memory is not seen."
    return warn(
        "processes",
        f"{text}; accepted by scheduler.need_process_lists",
        why,
        "gputui drain N    # for work of your own",
    )


def _of_memory(reading: ProbeReading) -> Iterator[DoctorCheck]:
    """Judge the memory: of a GPU without any of its own it is the machine's, else an unknown figure frees no GPU."""
    usable = _usable(reading)
    if unified := [gpu for gpu, _ in usable if gpu.unified]:
        total = format_size(unified[0].memory_total)
        text = f"{_named(unified)} uses the machine's memory ({total}), which --gpu-memory compares with"
        yield ok("memory", f"{text}; processes and containers show whether it is free")
    unread = [gpu for gpu, sample in usable if sample.memory_used is None and not gpu.unified]
    if unread:
        text = f"the memory of {_named(unread)} cannot be read"
        hint = "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv    # shows the driver's own error"
        yield _unjudged("memory", text, f"{hint}\n{_KERNEL_LOG}", "memory is", is_all=len(unread) == len(usable))


def _unjudged(name: str, text: str, hint: str, what: str, *, is_all: bool) -> DoctorCheck:
    """Return the check of GPUs that never count as free because something about them is unknown."""
    why = f"A GPU whose {what} unknown never counts as free, so no job starts on it."
    return DoctorCheck(name, CheckLevel.FAIL if is_all else CheckLevel.WARN, text, hint, why)
