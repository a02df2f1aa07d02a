"""The probe process: `python -m gputui.gpus.probe [SAMPLE PROCESSES SLOW [DIRECTORY]]`, the intervals in seconds.

It keeps NVML open and writes one JSON line a sweep on stdout: `facts` (what does not change), `sweep` (readings) or
`failed` (why it ends). On stdin it takes `refresh` and `pcie UUID|-` (the GPU looked at); it ends when stdin does. A
process of its own, because a call stuck in the driver can be neither cancelled nor waited for; it imports as little as
possible.
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

from gputui.gpus.focus import Focus
from gputui.gpus.lists import other_processes, processes
from gputui.gpus.nvml import LostError, call, light, pcie, read, slow, words_of
from gputui.gpus.procfs import Processes
from gputui.gpus.roster import Card, facts, list_cards
from gputui.gpus.topology import links_of
from gputui.gpus.xids import Xids

_PR_SET_PDEATHSIG = 1
_DRIVERS_LIST = "/proc/driver/nvidia/gpus"
"""Where the kernel module has a directory for each GPU it drives."""
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


class CannotGoOnError(Exception):
    """Why the probe ends: a code of domain.gpu.ProbeCode and the driver's own words."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StartAnew(Exception):  # noqa: N818 - nothing went wrong
    """The kernel module drives other GPUs than when NVML was opened, which counts them but once."""


class Commands:
    """What the supervisor asks for on stdin."""

    def __init__(self) -> None:
        self.refresh = False
        self.pcie: str | None = None
        self._buffer = b""

    def wait(self, seconds: float) -> bool:
        """Wait for a command or until the time is over; False when nobody is there any more."""
        if not select.select([0], [], [], max(0.0, seconds))[0]:
            return True
        data = os.read(0, 4096)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").split())
        return bool(data)

    def _take(self, words: list[str]) -> None:
        if words == ["refresh"]:
            self.refresh = True
        elif len(words) == 2 and words[0] == "pcie":
            self.pcie = None if words[1] == "-" else words[1]


class Due:
    """Something done every so often, without drift; up to `slack` early rather than a whole sweep late."""

    def __init__(self, interval: float, slack: float = 0.0) -> None:
        self.interval = interval
        self.slack = min(slack, interval / 2)
        self.at = 0.0

    def take(self, now: float) -> bool:
        """Whether it is to be done now; then it is not due again before its interval is over."""
        if now < self.at - self.slack:
            return False
        on_time = self.at + self.interval
        self.at = on_time if now < on_time else now + self.interval
        return True


class Probe:
    """The sweeps over all GPUs."""

    def __init__(self, sample: float, process: float, seldom: float, directory: str) -> None:
        self._directory = directory
        self._driven = driven(directory)
        self.sample = Due(sample)
        self.process = Due(process, slack=sample / 2)
        self.slow = Due(seldom, slack=sample / 2)
        self._cards: list[Card] = []
        self._processes = Processes()
        self._others: dict[str, dict[int, tuple[int | None, bool]]] = {}
        self._links: dict[str, list[dict[str, object]]] = {}
        self._xids = Xids([])
        self._focus = Focus()

    def begin(self) -> None:
        """Say first what is quick to say: the GPUs and their light readings; then the rest."""
        self._relist(_list_cards())
        emit(self._sweep(lists=False, seldom=False))
        emit(self._sweep(lists=True, seldom=True))
        self._tell_links()
        now = time.monotonic()
        for due in (self.sample, self.process, self.slow):
            due.take(now)

    def step(self, now: float, *, refresh: bool, pcie_of: str | None) -> None:
        """The sweep asked for, with process lists but without what changes seldom; then the one it is time for."""
        if pcie_of != self._focus.uuid:
            self._focus = Focus(pcie_of)
        if refresh:
            emit(self._sweep(lists=True, seldom=False))
        if not self.sample.take(now):
            return
        seldom = self.slow.take(now)
        if seldom:
            self._look_again()
        emit(self._sweep(lists=self.process.take(now), seldom=seldom, pcie_of=pcie_of))

    def _look_again(self) -> None:
        """Tell anew which GPUs there are when that changed: plugged in, lost, found again, cut into instances."""
        if driven(self._directory) != self._driven:
            raise StartAnew
        cards = _list_cards()
        if [card.identity for card in cards] != [card.identity for card in self._cards]:
            self._relist(cards)
            self._tell_links()

    def _relist(self, cards: list[Card]) -> None:
        pending = self._xids.take()
        self._xids.close()
        self._cards = cards
        self._xids = Xids(cards)
        self._links = {}
        self._others = {}
        self._tell_facts()
        if pending:
            emit({"kind": "sweep", "xids": pending})

    def _tell_links(self) -> None:
        self._links = links_of(self._cards)
        if any(self._links.values()):
            self._tell_facts()

    def _tell_facts(self) -> None:
        told = [facts(card, self._links.get(card.uuid, [])) for card in self._cards]
        versions = {"driver": read("nvmlSystemGetDriverVersion"), "cuda": read("nvmlSystemGetCudaDriverVersion_v2")}
        emit({"kind": "facts", **versions, "gpus": told})

    def _sweep(self, *, lists: bool, seldom: bool, pcie_of: str | None = None) -> dict[str, object]:
        told: dict[str, object] = {
            "kind": "sweep",
            "samples": [self._reading(card, lists=lists, seldom=seldom, pcie_of=pcie_of) for card in self._cards],
            "xids": self._xids.take(),
        }
        if lists:
            told["lists"] = True
            told["hosts_pids"] = self._processes.is_hosts_namespace()
            self._processes.forget_unseen()
        return told

    def _reading(self, card: Card, *, lists: bool, seldom: bool, pcie_of: str | None) -> dict[str, object]:
        told: dict[str, object] = {"uuid": card.uuid}
        if card.handle is None:
            return told | {"error": card.error}
        try:
            told.update(light(card.handle))
            if card.uuid == pcie_of:
                told.update(pcie(card.handle))
            if card.uuid == self._focus.uuid:
                told.update(self._focus.nvlink(card.handle))
            if seldom:
                told["slow"] = slow(card.handle)
                self._others[card.uuid] = other_processes(card.handle)
            if lists:
                told["processes"] = self._list(card)
        except LostError:
            return {"uuid": card.uuid, "error": "lost"}
        return told

    def _list(self, card: Card) -> list[dict[str, object]] | None:
        found = processes(card.handle, self._others.get(card.uuid, {}))
        if found is None:
            return None
        shares = self._focus.shares(card.handle) if card.uuid == self._focus.uuid else {}
        return [
            {"pid": pid, "memory": memory, "compute": compute}
            | ({"sm": shares[pid]} if pid in shares else {})
            | self._processes.facts(pid)
            for pid, memory, compute in found
        ]


def driven(directory: str) -> frozenset[str] | None:
    """The GPUs the kernel module drives; None when it does not tell."""
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return None


def _list_cards() -> list[Card]:
    try:
        cards = list_cards()
    except (pynvml.NVMLError, LostError) as error:
        raise CannotGoOnError("CountFailed", words_of(error)) from None
    if not cards:
        raise CannotGoOnError("NoGpus", "")
    return cards


def emit(line: dict[str, object]) -> None:
    """Write one line, whole."""
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def run(sample: str = "1", process: str = "2", seldom: str = "15", directory: str = _DRIVERS_LIST) -> None:
    """Sweep until stdin ends; raises CannotGoOnError or NVMLError when the driver does not play along."""
    call("nvmlInit")
    probe = Probe(float(sample), float(process), float(seldom), directory)
    commands = Commands()
    probe.begin()
    while commands.wait(probe.sample.at - time.monotonic()):
        refresh, commands.refresh = commands.refresh, False
        probe.step(time.monotonic(), refresh=refresh, pcie_of=commands.pcie)


def die_with_parent() -> None:
    """Have the kernel kill this process when its supervisor dies, even while it hangs in the driver."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run as a process; 1 when it had to give up, after saying why."""
    die_with_parent()
    try:
        run(*arguments)
    except BrokenPipeError:
        return 0
    except StartAnew:
        read("nvmlShutdown")
        os.execv(sys.executable, sys.orig_argv)  # the same process and pipes, but a library that knows nothing yet
    except CannotGoOnError as error:
        emit({"kind": "failed", "code": error.code, "text": error.text})
        return 1
    except LostError:
        emit({"kind": "failed", "code": "GpuLost", "text": "nvmlInit"})
        return 1
    except pynvml.NVMLError as error:
        emit({"kind": "failed", "code": _FAILURES.get(error.value, "Failed"), "text": words_of(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
