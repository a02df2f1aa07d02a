"""GPUs of another machine: by its python3, and over a real sshd."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.gpu import DiskUse, ProbeCode
from gputui.domain.settings import GpuSettings
from gputui.gpus import probe
from gputui.gpus import remote_probe as remote_probe_module
from gputui.gpus.readings import CallLine, Facts, Sweep
from gputui.gpus.remote_probe import Machine, remote_probe
from gputui.gpus.supervisor import first_reading
from gputui.gpus.untrusted import CheckedLines
from gputui.runtime.docker import endpoint
from tests.cases import cases
from tests.gpus.machines import ByShell, Elsewhere
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import FAST, Watcher, is_whole
from tests.runtime.sshd import Sshd
from tests.runtime.standin_engine import Handler, StandInEngine, frame
from tests.waiting import until

Start = Callable[..., Watcher]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Watcher] = []

    def start(machine: Machine, settings: GpuSettings = FAST) -> Watcher:
        made.append(Watcher(remote_probe(machine, settings, SystemClock())))
        made[-1].probe.start()
        return made[-1]

    yield start
    for each in made:
        each.probe.close()
    endpoint.close_tunnels()


def processes_of(standin: StandIn) -> list[str]:
    """Return the probes from source that read the GPUs of a stand-in."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_probe = (directory / "cmdline").read_bytes().startswith(b"python3\0-ISBc\0")
            if is_probe and str(standin.path).encode() in (directory / "environ").read_bytes():
                found.append(directory.name)
    return found


@pytest.mark.nvml
def test_gpus_of_another_machine_are_read_by_its_python(standin: StandIn, start: Start) -> None:
    standin.write("gpu 1 temperature 66", gpus=2)
    reading = start(ByShell()).until(is_whole)
    assert (reading.machine, reading.status.code) == ("gpu1", ProbeCode.OK)
    assert reading.samples[uuid(1)].temperature == 66
    assert reading.notes[0] == "the GPUs of gpu1 are read by its python3, over ssh"


@pytest.mark.nvml
def test_a_call_that_hangs_there_is_skipped_and_told(standin: StandIn, start: Start) -> None:
    standin.write("hang nvmlDeviceGetPowerUsage", gpus=1)
    watcher = start(ByShell(), replace(FAST, hang_after=timedelta(seconds=1)))
    wedged = watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED)
    assert wedged.status.text.startswith("gpu1: the NVIDIA driver has stopped answering")
    assert not [note for note in wedged.notes if note.startswith("the GPUs of gpu1 are read")]
    again = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    assert "the driver does not answer nvmlDeviceGetPowerUsage for GPU 0: what that reads is unknown" in again.notes


@pytest.mark.nvml
def test_a_driver_that_hangs_there_leaves_no_process_there(standin: StandIn, start: Start) -> None:
    watcher = start(ByShell(), replace(FAST, hang_after=timedelta(seconds=1)))
    first = watcher.until(is_whole)
    standin.change("hang *")
    wedged = watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED)
    assert set(wedged.samples) == set(first.samples)
    watcher.probe.close()
    until(lambda: not processes_of(standin), "none is left")


@cases(
    ("shell", "words"),
    [
        (("env", "PATH=/nowhere", "/bin/sh", "-c"), r"python3 is not installed there \(.*not found\)"),
        (("sh", "-c", 'echo "its python3 is older than 3.8" >&2; exit 1'), r"its python3 is older than 3\.8"),
        (("sh", "-c", "read length; exit 3"), r"its command ended with exit code 3"),
    ],
)
def test_without_a_python_there_both_ways_are_told(start: Start, shell: tuple[str, ...], words: str) -> None:
    reading = start(ByShell(*shell)).until(lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    assert re.fullmatch(f"gpu1: it has no engine; and over ssh: {words}", reading.status.text)


@cases(
    ("told", "shown"),
    [
        ("ssh: gpu1 refused the login", "ssh: gpu1 refused the login"),
        ("ssh: Could not resolve hostname gpu1: no", "ssh: Could not resolve hostname gpu1: no"),
        ("ssh: gpu12 refused the login", "gpu1: ssh: gpu12 refused the login"),
    ],
)
def test_a_fault_of_ssh_that_names_the_machine_is_told_as_it_is(
    start: Start, monkeypatch: pytest.MonkeyPatch, told: str, shown: str
) -> None:
    def fail(self: ByShell, command: str) -> NoReturn:
        raise RuntimeUnavailableError(told)

    monkeypatch.setattr(ByShell, "shell", fail)
    reading = start(ByShell()).until(lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    assert reading.status.text == shown


def test_the_source_is_python_3_8() -> None:
    for path in sorted(Path(probe.__path__[0]).glob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            is_union = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
            assert not is_union, f"{path}: dicts have | from 3.9 on"
            assert name not in {"removeprefix", "removesuffix"}, path


def test_what_the_machine_sends_is_bounded() -> None:
    host = {
        "cpu": 7.0,
        "cores": 4,
        "memory_total": -1,
        "disks": [{"mount": "/\x1b[31m", "roles": ["docker"], "total": -5, "free": 2**70}],
    }
    gpus = [{"index": 0, "uuid": uuid(0)}]
    sent = [
        {"kind": "calls", "done": -3, "call": "nvmlInit,$(reboot)"},
        {"kind": "facts", "gpus": gpus},
        {"kind": "sweep", "samples": [{"uuid": uuid(0), "temperature": 9999}], "host": host},
    ]
    told, facts, sweep = CheckedLines().take("".join(f"{json.dumps(each)}\n" for each in sent).encode(), 0.0)
    assert (told, isinstance(facts, Facts)) == (CallLine(0, ""), True)
    assert isinstance(sweep, Sweep)
    assert sweep.host is not None
    assert (sweep.host.cpu, sweep.host.cores, sweep.host.memory_total) == (None, 4, None)
    assert sweep.host.disks == (DiskUse("/", ("docker",), 0, 0),)


class Blind(StandInEngine):
    """Engine that lets a container see the host's processes as its users only, or never; these write `lines`."""

    lines: tuple[bytes, ...] = ()
    remaps_users = False

    def answer(self, handler: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        if path.endswith("/attach"):
            handler.send_response(101)
            handler.end_headers()
            for line in self.lines:
                handler.wfile.write(frame(line))
            self.stopped.wait()
        elif (host := body.get("HostConfig") or {}).get("PidMode") == "host" and not self.remaps_users:
            handler.reply({"message": "authorization denied by plugin: no processes of the host"}, 403)
        elif host.get("PidMode") == "host" and host.get("UsernsMode") != "host":
            handler.reply({"message": "cannot share the host's PID namespace when user namespaces are enabled"}, 400)
        else:
            super().answer(handler, path, query, body)


@pytest.fixture
def blind(tmp_path: Path) -> Iterator[Blind]:
    made = Blind(tmp_path / "d.sock", Name="gpu1")
    yield made
    made.close()


def lines_of(*sent: Mapping[str, object]) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() + b"\n" for each in sent)


@pytest.mark.parametrize(
    ("remaps_users", "lacks"),
    [(True, ()), (False, ("GPU processes of gpu1 cannot be told apart: its engine allows no --pid=host",))],
)
def test_an_engine_that_shares_no_pids_is_used_without_and_that_is_told(
    blind: Blind, start: Start, remaps_users: bool, lacks: tuple[str, ...]
) -> None:
    blind.remaps_users = remaps_users
    processes = [{"pid": 7, "visible": False}]
    sample = {"uuid": uuid(0), "processes": processes}
    blind.lines = lines_of(
        {"kind": "calls", "done": 1, "call": ""},
        {"kind": "facts", "gpus": [{"index": 0, "uuid": uuid(0)}]},
        {"kind": "sweep", "samples": [sample], "lists": True, "hosts_pids": False},
    )
    reading = start(Elsewhere(blind.url)).until(lambda reading: reading.status.code is ProbeCode.OK)
    assert reading.notes == ("the GPUs of gpu1 are read in a container of python:3-slim", *lacks)
    (body,) = blind.created.values()
    assert body["HostConfig"]["NetworkMode"] == "none"
    assert body["HostConfig"]["CapDrop"] == ["ALL"]
    assert body["HostConfig"]["DeviceRequests"] == [{"Count": -1, "Capabilities": [["gpu", "utility"]]}]


def test_a_probe_that_wants_to_start_anew_is_replaced_without_a_fault(blind: Blind, start: Start) -> None:
    blind.lines = lines_of({"kind": "calls"}, {"kind": "failed", "code": "Restart", "text": ""})
    begun, watcher = time.monotonic(), start(Elsewhere(blind.url))
    until(lambda: len(blind.created) > 2, "it was started again")
    assert time.monotonic() - begun > sum(remote_probe_module.PAUSES[:2]), "and each time later"
    assert {reading.status.code for reading in watcher.readings} <= {ProbeCode.STARTING}


def test_a_machine_that_invents_gpus_is_not_listened_to(blind: Blind, start: Start) -> None:
    listed = ([{"index": index, "uuid": uuid(100 * part + index)} for index in range(100)] for part in range(3))
    blind.lines = lines_of({"kind": "calls"}, *({"kind": "facts", "gpus": gpus} for gpus in listed))
    reading = start(Elsewhere(blind.url)).until(lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    assert reading.status.text == "gpu1: its GPUs change all the time"
    assert reading.gpus == ()


@pytest.fixture
def server(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    made = Sshd(standin.environment)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.3)
    yield made
    endpoint.close_tunnels()
    made.close()


@pytest.mark.nvml
@pytest.mark.ssh
def test_a_connection_that_is_cut_makes_them_unknown_until_it_is_back(
    standin: StandIn, server: Sshd, start: Start
) -> None:
    watcher = start(Elsewhere("ssh://lab/run/none.sock"))
    first = watcher.until(is_whole)
    server.cut()
    lost = watcher.until(lambda reading: reading.status.code is not ProbeCode.OK)
    assert lost.status.code is ProbeCode.UNREACHABLE
    assert lost.status.text.startswith(f"{first.machine}: ")
    assert lost.taken_at is not None
    assert set(lost.samples) == set(first.samples)
    back = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    assert back.taken_at is not None
    assert back.taken_at > lost.taken_at
    assert len(processes_of(standin)) == 1
    watcher.probe.close()
    endpoint.close_tunnels()
    until(lambda: not processes_of(standin), "none is left")


@pytest.mark.long
@pytest.mark.nvml
@pytest.mark.ssh
def test_a_connection_that_is_silent_makes_them_unknown(
    server: Sshd, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_probe_module, "SILENT_AFTER", 1.6)
    watcher = start(Elsewhere("ssh://lab/run/none.sock"))
    first = watcher.until(is_whole)
    frozen = server.freeze()
    silent = watcher.until(lambda reading: reading.status.code is not ProbeCode.OK)
    assert silent.status.text == f"{first.machine}: no answer within 2 s"
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    watcher.until(lambda reading: reading.status.code is ProbeCode.OK)


CONSOLE = """
import sys, time
from gputui.bootstrap import SystemClock
from gputui.domain.settings import GpuSettings
from gputui.gpus.remote_probe import remote_probe
from tests.gpus.machines import Elsewhere
probe = remote_probe(Elsewhere("ssh://lab/run/none.sock"), GpuSettings(), SystemClock())
probe.subscribe(lambda reading: print(len(reading.samples), flush=True))
probe.start()
time.sleep(1000)
"""


@pytest.mark.nvml
@pytest.mark.ssh
def test_a_killed_console_leaves_nothing_there(standin: StandIn, server: Sshd) -> None:
    with subprocess.Popen([sys.executable, "-c", CONSOLE], stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        assert next(line for line in console.stdout if line != "0\n") == "8\n"
        assert len(processes_of(standin)) == 1
        console.kill()
    until(lambda: not processes_of(standin), "the probe has ended")
    until(lambda: not server.sessions(), "the connection has ended")


@pytest.mark.nvml
def test_a_command_waits_for_its_first_reading(standin: StandIn) -> None:
    reading = first_reading(remote_probe(ByShell(), FAST, SystemClock()), 30)
    assert len(reading.samples) == 8
    assert reading.status.code is ProbeCode.OK
