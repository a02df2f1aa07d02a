"""Looks at the machine of a local container engine: its process, its PATH and its settings file."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gputui.cli.checks.engine import HOOK, TOOLKIT, EngineHost
from gputui.domain.container import EngineGpus
from gputui.domain.errors import GputuiError

PROC = Path("/proc")
SYSTEM_SETTINGS = Path("/etc/docker/daemon.json")
_PID_FILES = (Path("/run/docker.pid"), Path("/var/run/docker.pid"))
_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 2.0


@dataclass(frozen=True)
class EngineProcess:
    """The engine's own process, as far as /proc shows it to this user."""

    pid: int | None = None
    arguments: tuple[str, ...] = ()
    path: str = ""
    """Its PATH; empty: it may not be read."""
    uid: int = 0

    @property
    def root(self) -> Path:
        """Root directory of its mount namespace, as seen from here."""
        root = PROC / str(self.pid) / "root"
        return root if self.pid and os.access(root, os.X_OK) else Path("/")

    @property
    def settings_file(self) -> Path:
        """The file that it reads its settings from."""
        for number, word in enumerate(self.arguments):
            if word.startswith("--config-file="):
                return Path(word.partition("=")[2])
            if word == "--config-file" and number + 1 < len(self.arguments):
                return Path(self.arguments[number + 1])
        return _home(self.uid) / ".config/docker/daemon.json" if self.uid else SYSTEM_SETTINGS

    @property
    def restart(self) -> str:
        """Command that restarts it."""
        if any("/snap/" in word for word in self.arguments[:1]):
            return "sudo snap restart docker"
        return "systemctl --user restart docker" if self.uid else "sudo systemctl restart docker"


def look(gpus: EngineGpus) -> EngineHost | None:
    """Return the facts of the engine's machine; None for an engine on another one."""
    if not gpus.is_local:
        return None
    process = process_behind(gpus.address)
    found = toolkit_of(process)
    hook = next((path for path in found if Path(path).name == HOOK), None)
    return EngineHost(
        toolkit=found,
        path_exists=any(_find(process, (gpus.nvidia_path or "nvidia-container-runtime",))),
        hook_is_new=hook is not None and _is_newer(process, hook),
        settings_file=process.settings_file,
        is_written=_is_written(process.settings_file),
        restart=process.restart,
    )


def toolkit_of(process: EngineProcess) -> tuple[str, ...]:
    """Return the paths of those parts of NVIDIA's Container Toolkit that the engine would find."""
    return tuple(_find(process, TOOLKIT))


def process_behind(address: str) -> EngineProcess:
    """Return the process that listens on a local engine's socket; an empty one where it cannot be told."""
    pid = _listener(address.removeprefix("http+").removeprefix("unix://"))
    if pid is None or pid == 1 or _text(pid, "comm").strip() == "systemd":  # systemd opened the socket for the engine
        pid = next((found for file in _PID_FILES if (found := _pid_in(file))), None)
    if pid is None:
        return EngineProcess()
    arguments = tuple(_text(pid, "cmdline").rstrip("\0").split("\0"))
    variables = dict(pair.partition("=")[::2] for pair in _text(pid, "environ").split("\0"))
    uid = 0
    with suppress(OSError):
        uid = (PROC / str(pid)).stat().st_uid
    return EngineProcess(pid, arguments, variables.get("PATH", ""), uid)


def _listener(path: str) -> int | None:
    """Return the pid of the process that listens on a Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_SECONDS)
            probe.connect(path)
            pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return None
    return pid or None  # 0: it is in another PID namespace


def _pid_in(file: Path) -> int | None:
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return None
    return pid if "dockerd" in _text(pid, "comm") else None


def _text(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _find(process: EngineProcess, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the path of each program that the engine would find."""
    directories = (process.path or f"{os.environ.get('PATH', '')}:{_STANDARD_PATH}").split(":")
    for name in names:
        places = [name] if name.startswith("/") else [f"{directory}/{name}" for directory in directories if directory]
        yield from [place for place in places if os.access(_seen(process, place), os.X_OK)][:1]


def _seen(process: EngineProcess, path: str) -> Path:
    return process.root / path.lstrip("/")


def _is_newer(process: EngineProcess, path: str) -> bool:
    """Return whether the program was installed after the engine had started."""
    if process.pid is None:
        return False
    try:
        return _seen(process, path).stat().st_ctime > (PROC / str(process.pid)).stat().st_ctime + 1
    except OSError:
        return False


def _is_written(path: Path) -> bool:
    from gputui.cli.engine_settings import registration

    try:
        return registration(path) is None
    except GputuiError:
        return False


def _home(uid: int) -> Path:
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return Path.home()
