"""A machine with a booted systemd, of which nothing remains: this one's files below an overlay, in namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e.members import BECOME, COMMAND, ROOT

SECONDS = 60.0
STATE = "/var/lib/gputui"
UNITS = "etc/systemd/system"
_BOOT = """
set -e
for group in $2; do echo $$ > "$group/cgroup.procs"; done
mount -t tmpfs -o mode=755 machine "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" machine "$1/root"
cd "$1/root"
shift 2
exec systemd-nspawn --register=no --keep-unit --quiet --directory=. --private-network --link-journal=no \
    --console=pipe "$@"
"""
_OPTIONS = (
    "--tmpfs=/var/lib:mode=755",  # a queue does not lie on an overlay
    "--tmpfs=/srv:mode=755",
    "--tmpfs=/home:mode=755",
    f"--bind-ro={ROOT}",
    "--boot",
    "systemd.unit=gputui-tests.target",
    "systemd.mask=docker.service",
)
_TARGET = "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\n"


class Machine:
    """A booted machine, in which commands run as root, and gputui as any user."""

    def __init__(self, init: int) -> None:
        self.root = Path(f"/proc/{init}/root")
        self._enter = ["nsenter", f"--target={init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of root."""
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
        pipe = subprocess.PIPE
        return subprocess.Popen([*self._enter, *words], stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environ)

    def run(self, *words: str, code: int | None = 0) -> str:
        """Return what a command of root prints, which ends with that exit code; None: with any."""
        with self.start(*words) as process:
            printed = process.communicate(timeout=SECONDS)[0]
        if code is not None and process.returncode != code:
            log = self.run("journalctl", "--no-pager", "--lines=40", code=None)
            raise AssertionError(f"{words}: {process.returncode}\n{printed}\n{log}")
        return printed

    def gputui(self, user: str, *words: str, code: int | None = 0) -> str:
        """Return what gputui prints when that user runs it on the shared state directory."""
        return self.python(user, COMMAND, "--state", STATE, *words, code=code)

    def python(self, user: str, program: str, *words: str, code: int | None = 0) -> str:
        """Return what a Python program prints that the user runs."""
        uid, gid, groups = (self.run("id", flag, user).split() for flag in ("-u", "-g", "-G"))
        become = ("-c", BECOME, uid[0], gid[0], json.dumps([int(each) for each in groups]), program)
        return self.run(sys.executable, *become, *words, code=code)

    def owners(self, *paths: str) -> list[str]:
        """Return owner, group and mode of each path."""
        return self.run("stat", "--format=%U:%G %a", *paths).splitlines()

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > deadline:
                log = self.run("journalctl", "--no-pager", "--lines=40", code=None)
                raise AssertionError(f"gave up waiting until {what}\n{log}")
            time.sleep(0.05)

    def install(self, config: str, state: str = STATE, *options: str) -> str:
        """Write the settings, and the units for them, with further options; return what `gputui install` prints."""
        (self.root / "etc/gputui").mkdir(exist_ok=True)
        (self.root / "etc/gputui/config.toml").write_text(config)
        words = ("--state", state, "install", "--yes", "--backups", "/var/backups/gputui")
        printed = self.run(sys.executable, "-m", "gputui", *words, *options)
        self.simulate_gpus()
        self.run("systemctl", "daemon-reload")
        return printed

    def simulate_gpus(self) -> None:
        """Give the service two simulated GPUs."""
        probe = self.root / UNITS / "gputui.service.d"
        probe.mkdir(exist_ok=True)
        (probe / "probe.conf").write_text("[Service]\nEnvironment=GPUTUI_PROBE=sim:2\n")

    @contextmanager
    def serving(self, state: str = STATE, within: str = "") -> Iterator[None]:
        """Run the service; `within` is a shell command that runs in its sandbox."""
        own = self.root / UNITS / "gputui.service.d/within.conf"
        own.write_text(f"[Service]\nExecStartPost=/bin/sh -c '{within}'\n" if within else "")
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "restart", "gputui.service")
        pid = self.main_pid()
        lock = self.root / state.lstrip("/") / "scheduler.lock"
        self.until(lambda: lock.exists() and f'"pid":{pid},' in lock.read_text(), "the service schedules")
        try:
            yield
        finally:
            self.run("systemctl", "stop", "gputui.service")

    def main_pid(self) -> str:
        """Return the pid of the service's process; 0: there is none."""
        return self.run("systemctl", "show", "--value", "--property=MainPID", "gputui.service").strip()

    def forget(self, *paths: str) -> None:
        """Remove what is in these directories."""
        self.run("find", *paths, "-mindepth", "1", "-delete", code=None)


@contextmanager
def booted() -> Iterator[Machine]:
    """Boot a machine, and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="gputui-machine-") as place:
        target = Path(place) / "gputui-tests.target"
        target.write_text(_TARGET)
        overlay = Path(place) / "machine"
        overlay.mkdir()
        bind = f"--bind-ro={target}:/{UNITS}/{target.name}"
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BOOT, "sh", str(overlay)]
        with _control_groups(Path(place).name) as groups, (Path(place) / "console").open("w") as console:
            words += [" ".join(map(str, groups)), bind, *_OPTIONS]
            spawned = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
            init: list[int] = []
            try:
                yield _up(spawned, init, Path(place) / "console")
            finally:
                for pid in (*init, spawned.pid):  # the end of the first process ends all in its namespace
                    os.kill(pid, signal.SIGKILL)
                spawned.wait(SECONDS)


@contextmanager
def _control_groups(name: str) -> Iterator[list[Path]]:
    """Make a control group in each hierarchy that systemd manages, and remove them with those that it made in them."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines if " - cgroup2 " in line or ",name=systemd" in line]
    groups = [Path(point) / name for point in points]
    for group in groups:
        group.mkdir()
    try:
        yield groups
    finally:
        deadline = time.monotonic() + SECONDS
        while left := [each for group in groups for each in _below(group)]:
            for each in left:
                with suppress(OSError):  # its last process has just been killed
                    each.rmdir()
            if time.monotonic() > deadline:
                raise AssertionError(f"control groups remain: {left}")
            time.sleep(0.01)


def _below(group: Path) -> list[Path]:
    """Return a group and those in it, the innermost first."""
    return [Path(place) for place, _, _ in os.walk(group, topdown=False)]


def _up(spawned: subprocess.Popen[bytes], found: list[int], console: Path) -> Machine:
    """Return the machine once it is up; put the pid of its first process into the list before."""
    children = Path(f"/proc/{spawned.pid}/task/{spawned.pid}/children")
    deadline = time.monotonic() + SECONDS
    while spawned.poll() is None and time.monotonic() < deadline:
        found[:] = map(int, children.read_text().split())
        for machine in map(Machine, found):
            if machine.run("systemctl", "is-active", "gputui-tests.target", code=None) == "active\n":
                return machine
        time.sleep(0.1)
    raise AssertionError(f"the machine did not boot:\n{console.read_text()}")
