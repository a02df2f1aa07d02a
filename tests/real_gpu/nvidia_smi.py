"""A stand-in for the program nvidia-smi, over the NVML that is found: the queries that run.py makes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pynvml

from gputui.gpus.probe.nvml import memory_of

MIB = 1024**2
FIELDS: dict[str, Callable[..., object]] = {
    "index": pynvml.nvmlDeviceGetIndex,
    "uuid": pynvml.nvmlDeviceGetUUID,
    "name": pynvml.nvmlDeviceGetName,
    "driver_version": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    "pci.bus_id": lambda gpu: pynvml.nvmlDeviceGetPciInfo(gpu).busId,
    "memory.total": lambda gpu: memory_of(gpu).total // MIB,
    "memory.used": lambda gpu: memory_of(gpu).used // MIB,
    "utilization.gpu": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "utilization.memory": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "temperature.gpu": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "power.draw": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "enforced.power.limit": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "clocks.sm": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "clocks.mem": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    "clocks_event_reasons.active": lambda gpu: f"{pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu):#018x}",
    "persistence_mode": lambda gpu: ("Disabled", "Enabled")[pynvml.nvmlDeviceGetPersistenceMode(gpu)],
    "mig.mode.current": lambda gpu: ("Disabled", "Enabled")[pynvml.nvmlDeviceGetMigMode(gpu)[0]],
    "fan.speed": pynvml.nvmlDeviceGetFanSpeed,
}


def cell(field: str, gpu: object) -> str:
    try:
        return str(FIELDS[field](gpu))
    except pynvml.NVMLError:
        return "[N/A]"


def main() -> int:
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    if "--query-compute-apps" in options:
        for gpu in gpus:
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                print(f"{pynvml.nvmlDeviceGetUUID(gpu)}, {process.pid}")
        return 0
    fields = options.get("--query-gpu", "").split(",")
    if not set(fields) <= set(FIELDS):
        return 2
    while True:
        for gpu in gpus:
            print(", ".join(cell(field, gpu) for field in fields), flush=True)
        if "-lms" not in sys.argv:
            return 0
        time.sleep(int(sys.argv[-1]) / 1000)


if __name__ == "__main__":
    sys.exit(main())
