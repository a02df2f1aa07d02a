"""The probe process: `python -m gputui.gpus.probe [SAMPLE PROCESSES SLOW [DIRECTORY [PATIENCE [FD SKIPPED]]]]`.

The first three and PATIENCE are seconds.
It keeps NVML open and writes one JSON line a sweep to stdout: `facts` (what does not change), `sweep` (readings) or
`failed` (why it ends); `gputui.gpus.wire` reads them. Commands on stdin: `refresh`, `pcie UUID|-` (the GPU shown in
detail), `shares UUID...` (GPUs whose processes are told apart), and `disks {ROLE: PATH}` (paths whose file systems are
read, as JSON). Others, such as `alive`, do nothing. It ends when stdin does, or after PATIENCE without a command: the
end of a connection that was cut may not be told. It is a process of its own because a call stuck in the driver can be
neither cancelled nor waited for, and it imports as little as possible because every start of a console waits for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

import pynvml

from gputui.gpus.probe.calls import CALLS
from gputui.gpus.probe.group_use import GroupUse
from gputui.gpus.probe.nvml import LostError, call, error_text, read
from gputui.gpus.probe.sweeps import Probe, ProbeFailedError, RestartRequired, emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputui.gpus.probe.group_use import ReadGroup

_PR_SET_PDEATHSIG = 1
_DRIVERS_LIST = "/proc/driver/nvidia/gpus"
"""Directory in which the kernel module has a directory per GPU."""
_FAILURES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NoLibrary",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "DriverMismatch",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "DriverNotLoaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "DriverNotLoaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "NoPermission",
    pynvml.NVML_ERROR_UNKNOWN: "UnknownError",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "Blocked",
    pynvml.NVML_ERROR_RESET_REQUIRED: "ResetRequired",
}


class Commands:
    """Commands of the supervisor, read from stdin."""

    def __init__(self, patience: int = 0) -> None:
        self._patience = patience
        signal.alarm(patience)  # it ends the process, also while that waits for a reader of its output
        self.refresh = False
        self.pcie: str | None = None
        self.disks: dict[str, str] | None = None
        """Paths by role that arrived since the last sweep."""
        self.shared: frozenset[str] = frozenset()
        """UUIDs of the GPUs for which shares of processes are wanted."""
        self._buffer = b""

    def wait(self, seconds: float) -> bool:
        """Wait for commands, up to `seconds`; return False when stdin has ended."""
        if not select.select([0], [], [], max(0.0, seconds))[0]:
            return True
        data = os.read(0, 4096)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if lines:
            signal.alarm(self._patience)
        for line in lines:
            self._apply(line.decode(errors="replace"))
        return bool(data)

    def _apply(self, line: str) -> None:
        words = line.split()
        if words[:1] == ["disks"]:
            self.disks = json.loads(line.removeprefix("disks"))
        elif words[:1] == ["shares"]:
            self.shared = frozenset(words[1:])
        elif words == ["refresh"]:
            self.refresh = True
        elif len(words) == 2 and words[0] == "pcie":
            self.pcie = None if words[1] == "-" else words[1]


def run(
    sample: str = "1",
    process: str = "2",
    seldom: str = "15",
    directory: str = "",
    patience: str = "0",
    memory: str = "",
    skipped: str = "",
    *,
    read_group: ReadGroup | None = None,
) -> None:
    """Sweep until stdin ends; raises ProbeFailedError or NVMLError when the driver fails.

    `patience` ends the process after so many seconds without a command; 0: never. `memory` is the file descriptor in
    which the supervisor reads which call is made, and `skipped` lists the calls not to make. `read_group` adds to
    processes what their control groups have used.
    """
    if memory:
        CALLS.share(int(memory), skipped)
    call("nvmlInit")
    groups = GroupUse(read_group) if read_group is not None else None
    probe = Probe(float(sample), float(process), float(seldom), directory or _DRIVERS_LIST, groups)
    commands = Commands(int(patience))
    probe.begin()
    while commands.wait(probe.sample.at - time.monotonic()):
        refresh, commands.refresh = commands.refresh, False
        probe.shared = commands.shared
        if commands.disks is not None:
            probe.watch_disks(commands.disks)
            commands.disks = None
        probe.step(time.monotonic(), refresh=refresh, pcie_of=commands.pcie)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its supervisor dies, even while a driver call hangs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str], read_group: ReadGroup | None = None) -> int:
    """Run the probe; return 1 after a failure, which was written as a line. For `read_group` see `run`."""
    die_with_parent()
    try:
        run(*arguments, read_group=read_group)
    except BrokenPipeError:
        return 0
    except RestartRequired:
        read("nvmlShutdown")
        os.execv(sys.executable, sys.orig_argv)  # the same process and pipes with a fresh NVML
    except ProbeFailedError as error:
        emit({"kind": "failed", "code": error.code, "text": error.text})
        return 1
    except LostError:
        emit({"kind": "failed", "code": "GpuLost", "text": "nvmlInit"})
        return 1
    except pynvml.NVMLError as error:
        emit({"kind": "failed", "code": _FAILURES.get(error.value, "Failed"), "text": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
