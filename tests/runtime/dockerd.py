"""Private Docker engine of the tests, in its own network and mount namespaces, removed afterwards.

`python -m tests.runtime.dockerd` starts one, prints its DOCKER_HOST and stops it on Ctrl-C.

`--gpus` works without any GPU: the engine offers device requests as soon as `nvidia-container-runtime-hook` is on its
PATH, and the hook that lies there does nothing. So the engine sets NVIDIA_VISIBLE_DEVICES and starts the container.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from tests.runtime.rootfs import import_images

IMAGE = "gputui-test:latest"
"""Image of busybox without entrypoint and default command."""
IMAGE_OF_NVIDIA = "gputui-test:nvidia"
"""Image like NVIDIA's: NVIDIA_VISIBLE_DEVICES=all in its environment, and an entrypoint."""

NETWORK = "host"
"""Network of containers for which it does not matter: the engine's own, which is none of the host's.

A network namespace for each container takes almost half of the processor time of its start.
"""

FEW_COLLECTIONS = {"GOGC": "400"}
"""Environment of an engine that collects garbage less often, which took a seventh of its processor time."""
_PREFIX = "gputui-dockerd-"
_MARK = "GPUTUI_TEST_DOCKERD"
"""Variable in the environment of all processes of an engine on the host, by which they are found and ended."""
_HOOK = """#!/bin/sh
if [ -e {flag} ]; then
  echo "nvidia-container-cli: initialization error: nvml error: driver not loaded" >&2
  exit 1
fi
exit 0
"""

_DEADLY_RUNC = """#!/bin/sh
for word; do case $word in create|start) step=$word; break;; esac; done
[ "$step" = {step} ] || exec {runc} "$@"
rm {here}/bin/runc
[ {when} = after ] && {runc} "$@"
kill -9 $(cat {here}/docker.pid)
[ {when} = after ] || kill -9 $PPID
"""
"""runc that kills the engine once, before or after a step; before it also the shim, whose parent it is."""


class Dockerd:
    """Private engine that can be started, killed and restarted."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        self.host = f"unix://{self.directory}/docker.sock"
        self.log_path = self.directory / "dockerd.log"
        self.holder: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        (self.directory / "owner").write_text(identity(os.getpid()))
        _write_hook(self.directory)

    @property
    def pid(self) -> int | None:
        """Process id of dockerd while it runs."""
        return self._daemon.pid if self._daemon and self._daemon.poll() is None else None

    @property
    def environ(self) -> dict[str, str]:
        """Environment for clients of this engine."""
        drop = {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"}
        kept = {key: value for key, value in os.environ.items() if key not in drop}
        return {**kept, "DOCKER_HOST": self.host}

    def start(self, *, live_restore: bool = False) -> Dockerd:
        """Start the engine, wait until it answers, and import the test images."""
        sweep(_PREFIX, _destroy)
        if self.holder is None:
            atexit.register(self.destroy)
            self.holder = _hold_namespaces(self._tagged())
        self.launch(live_restore=live_restore)
        import_images(self.host, IMAGE, IMAGE_OF_NVIDIA)
        return self

    def launch(self, *, live_restore: bool = False) -> None:
        """Start dockerd alone and wait until it answers."""
        for stale in ("docker.pid", "docker.sock"):
            (self.directory / stale).unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._daemon = subprocess.Popen(
                self._arguments(live_restore), env=self._tagged(), stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_up()

    def send(self, number: signal.Signals) -> None:
        """Send dockerd the signal, without waiting."""
        if self._daemon and self._daemon.poll() is None:
            self._daemon.send_signal(number)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Send dockerd the signal and wait until it has ended."""
        self.send(with_signal)
        if self._daemon:
            self._daemon.wait(60)
        self._forget_containerd()

    def kill(self) -> None:
        """Kill dockerd with SIGKILL; containers keep running."""
        self.stop(signal.SIGKILL)

    def restart(self, *, live_restore: bool = False) -> None:
        """Stop dockerd with SIGTERM and start it again."""
        self.stop()
        self.launch(live_restore=live_restore)

    def fail_hook(self, fails: bool = True) -> None:
        """Make NVIDIA's hook fail, as it does without a driver; or let it succeed again."""
        flag = self.directory / "hook-fails"
        flag.touch() if fails else flag.unlink(missing_ok=True)

    def kill_at(self, when: str, step: str) -> None:
        """Kill dockerd with SIGKILL `before` or `after` the next `create` or `start` of runc."""
        path = self.directory / "bin" / "runc"
        path.write_text(_DEADLY_RUNC.format(step=step, when=when, runc=shutil.which("runc"), here=self.directory))
        path.chmod(0o755)

    def destroy(self) -> None:
        """End every process of this engine and remove its directory."""
        atexit.unregister(self.destroy)
        _destroy(self.directory)
        for child in (self._daemon, self.holder):
            if child:
                child.wait(60)
        self._daemon = self.holder = None

    def docker(self, *words: str, check: bool = True) -> str:
        """Return the output of the `docker` command on this engine; for machines that have the command."""
        done = subprocess.run(["docker", *words], env=self.environ, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def _tagged(self) -> dict[str, str]:
        path = f"{self.directory}/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**self.environ, "PATH": path, **FEW_COLLECTIONS, _MARK: str(self.directory)}

    def _arguments(self, live_restore: bool) -> list[str]:
        if self.holder is None:
            raise AssertionError("start() comes first")
        into = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", "--"]
        here = self.directory
        paths = [f"--data-root={here}/data", f"--exec-root={here}/exec", f"--pidfile={here}/docker.pid"]
        rest = [f"--host={self.host}", "--group=root", f"--cgroup-parent={_cgroup(here)}", "--log-level=warn"]
        nvidia = ["--add-runtime=nvidia=runc", "--iptables=false", "--ip6tables=false"]
        return [*into, "dockerd", *paths, *rest, *nvidia, *(["--live-restore"] if live_restore else [])]

    def _forget_containerd(self) -> None:
        """Wait for the end of dockerd's containerd, and remove its pid file.

        An unreaped zombie would pass for a living containerd, and the next dockerd would wait for it in vain.
        """
        pid_file = self.directory / "exec/containerd/containerd.pid"
        with contextlib.suppress(OSError, ValueError):
            entry = Path("/proc") / str(int(pid_file.read_text()))
            deadline = time.monotonic() + 60
            while is_alive(entry) and time.monotonic() < deadline:
                time.sleep(0.01)
        pid_file.unlink(missing_ok=True)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while not _answers(self.directory / "docker.sock"):
            if self.pid is None or time.monotonic() > deadline:
                raise AssertionError(f"dockerd did not start:\n{self.log_path.read_text()[-3000:]}")
            time.sleep(0.02)


def _write_hook(directory: Path) -> None:
    hook = directory / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text(_HOOK.format(flag=directory / "hook-fails"))
    hook.chmod(0o755)


def _hold_namespaces(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that only keeps the namespaces, with a loopback, across restarts of dockerd.

    The network namespace is the engine's own, so its bridge and its iptables rules never meet the host's.
    """
    # shims put their sockets below /run/containerd, whatever --exec-root says
    script = (
        "busybox ip link set lo up && mkdir -p /run/containerd && mount -t tmpfs shims /run/containerd "
        "&& echo ready && exec sleep infinity"
    )
    words = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script]
    holder = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        raise AssertionError("the namespaces of the test engine could not be made: is this root?")
    holder.stdout.close()
    return holder


def _answers(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return client.recv(64).split()[1:2] == [b"200"]
    return False


def _cgroup(directory: Path) -> str:
    return f"/{directory.name}"


def identity(pid: int) -> str:
    """Return pid and start time of a process, since pids are reused."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return ""


def sweep(prefix: str, remove: Callable[[Path], object]) -> None:
    """Remove the directories in /tmp whose owner died before it could."""
    for directory in Path("/tmp").glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            owner = (directory / "owner").read_text()
            if owner and identity(int(owner.split()[0])) != owner:
                remove(directory)


def _destroy(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while (pids := set(processes_of(directory))) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    remove_cgroups(directory.name)
    # the data lies on mounts of the dead namespace only, so nothing is left to be unmounted
    shutil.rmtree(directory, ignore_errors=True)


def processes_of(directory: Path) -> Iterable[int]:
    """Return all live processes of an engine: marked in the environment, or below its cgroup."""
    mark = f"{_MARK}={directory}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                entry.name != str(os.getpid())
                and is_alive(entry)
                and mark in (entry / "environ").read_bytes().split(b"\0")
            ):
                yield int(entry.name)
    for tasks in _cgroups(directory.name, "cgroup.procs"):
        with contextlib.suppress(OSError):
            yield from map(int, tasks.read_text().split())


def is_alive(entry: Path) -> bool:
    """Return whether the process of that directory below /proc runs: a zombie has ended."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _cgroups(name: str, leaf: str) -> list[Path]:
    """Return these files of a cgroup and of those below it; a cgroup that is removed meanwhile is left out."""
    root = Path("/sys/fs/cgroup")
    tops = [root / name, *(child / name for child in root.iterdir() if child.is_dir())]
    return [Path(place, leaf) for top in tops for place, _, names in os.walk(top) if leaf in names]


def has_cgroups(name: str) -> bool:
    """Return whether an engine has a cgroup."""
    return bool(_cgroups(name, "cgroup.procs"))


def remove_cgroups(name: str) -> bool:
    """Remove the cgroups of an engine that has ended; return whether none is left."""
    for tasks in sorted(_cgroups(name, "cgroup.procs"), key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):
            tasks.parent.rmdir()
    return not has_cgroups(name)


def main() -> None:
    """Run an engine until told to stop."""
    engine = Dockerd()
    with until_stopped(engine.destroy):
        engine.start(live_restore="--live-restore" in sys.argv[1:])
        print(f"DOCKER_HOST={engine.host}", flush=True)


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def until_stopped(destroy: Callable[[], object]) -> Iterator[None]:
    """Wait for a signal after the body; then, or if the body fails, destroy what it started, undisturbed by more."""
    for number in _STOPS:
        signal.signal(number, _stop)
    try:
        yield
        # no handler: Python would run it after a wait that the signal came just before
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        signal.sigwait(_STOPS)
    finally:
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
        destroy()


def _stop(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
