"""Checks of the runtimes, and of whether containers get GPUs."""

from __future__ import annotations

import difflib
import json
import os
import pwd
import re
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from gputui.cli import terminal
from gputui.cli.checks import DoctorCheck, fail, ok, warn
from gputui.domain.container import SYSTEM, EngineGpus, EngineService, RuntimeStatus, by_hand, service_at, systemd
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import Gpu
from gputui.domain.job_spec import RUNTIMES, GpuRequest
from gputui.domain.policy.admission import limits_mounts
from gputui.domain.policy.availability import engine_support
from gputui.domain.settings import AllowSettings

HOOK = "nvidia-container-runtime-hook"
"""Program that a Docker engine must have on its PATH when it starts, or `--gpus` fails."""
TOOLKIT = (HOOK, "nvidia-container-runtime", "nvidia-ctk", "nvidia-container-cli")
INSTALL = (
    "sudo apt install nvidia-container-toolkit    # or dnf; the repository: "
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
)
_NO_CGROUPS = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place    # a rootless engine needs it"
_NO_GPUS = "No container gets a GPU, so no job with an image and GPUs can start."
_NAME = "GPU access"


class EngineHost(Struct, frozen=True):
    """Facts about the machine of a local engine, as far as this user may read them."""

    toolkit: tuple[str, ...] = ()
    """Paths of the parts of NVIDIA's Container Toolkit that were found on the engine's PATH."""
    path_exists: bool = True
    """True if the program registered as runtime `nvidia` exists."""
    hook_is_new: bool = False
    """True if the hook was installed after the engine's start, so that the engine does not know it."""
    settings_file: Path = Path(SYSTEM.settings)
    is_written: bool = False
    """True if that file registers the runtime `nvidia`, even if the engine has not read it yet."""
    service: EngineService = SYSTEM

    @property
    def hook(self) -> str | None:
        return next((path for path in self.toolkit if Path(path).name == HOOK), None)

    @property
    def knows_hook(self) -> bool:
        return self.hook is not None and not self.hook_is_new

    @property
    def restart(self) -> str:
        return f"{self.service.restart}    # without live-restore this ends running containers"

    @property
    def apply(self) -> str:
        """Return the command after which the engine knows its settings and the hook, with its effect."""
        return f"{self.service.reload}    # ends no container" if self.knows_hook else self.restart

    @property
    def register(self) -> str:
        if self.is_written:
            return f"{self.apply}\n{self.settings_file} registers it already; the engine has not read that yet"
        sudo = "" if self.service.uid else "sudo "
        by_hand = f"{sudo}nvidia-ctk runtime configure --runtime=docker --config={self.settings_file}"
        lines = (
            f"{sudo}gputui doctor --fix    # or: {by_hand}",
            f"which adds to {self.settings_file}:",
            '    "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}',
            self.apply,
            *((_NO_CGROUPS,) if self.service.uid else ()),
        )
        return "\n".join(lines)


def of_runtime(status: RuntimeStatus, has_gpus: bool = False, service: EngineService = SYSTEM) -> Iterator[DoctorCheck]:
    """Check whether a runtime answers, and report its warnings; `service` runs the engine."""
    if not status.up and RUNTIMES.get(status.name):
        yield fail(status.name, status.text, "No host job can start.", "")
        return
    if not status.up:
        hint = status.hint or "docker info    # with the same DOCKER_HOST and docker context"
        if has_gpus:
            hint += "\nwithout Docker, jobs run as host processes: gputui --runtime process serve\n"
            hint += "gputui --runtime process submit --host --gpus 1 -- COMMAND    # or: export GPUTUI_RUNTIME=process"
        why = "No job with an image can start, and GPUs that containers use are unknown."
        yield fail(status.name, status.text.removesuffix(f" ({status.hint})"), why, hint)
        return
    away = status.gpus.elsewhere if status.gpus else ""
    there = f", on {away}: jobs run there, with the paths of that machine" if away else ""
    yield ok(status.name, f"{status.text}{there}")
    for warning in status.warnings:
        text, _, hint = warning.partition("; ")
        what, _, why = text.partition(": ")
        if "live-restore" in what:
            hint = f'in {service.place}: {{"live-restore": true}}\n{service.reload}    # ends no container'
        yield warn(status.name, what, f"{why[:1].upper()}{why[1:]}." if why else "", hint)


def of_mounts(allow: AllowSettings, status: RuntimeStatus) -> DoctorCheck | None:
    """Tell what limits on mounts mean for an engine whose links cannot be followed from here; None if they can."""
    away = status.gpus.elsewhere if status.gpus else ""
    if not away or status.address.startswith("ssh://") or not limits_mounts(allow):
        return None
    what = f"jobs mount directories of {away} that policy.allow.mounts lists, and nothing below them"
    why = "Links there cannot be followed over TCP, and a job could have made one."
    return warn("mounts", what, why, f"reach the engine by ssh: DOCKER_HOST=ssh://{away}")


def of_gpus(engine: EngineGpus, gpus: Sequence[Gpu], machine: str = "") -> DoctorCheck | None:
    """Check whether the engine can give containers the GPUs that were read at all; None if nothing prevents it.

    `machine` is the name of their machine if it is another.
    """
    found = engine_support(engine, gpus, machine)
    if found.refusal:
        return fail(_NAME, found.refusal.text, _NO_GPUS, found.refusal.hint)
    if found.together and (refusal := found.refuses(GpuRequest(1, 1))):
        return warn(_NAME, refusal.text, "Jobs that ask for fewer cannot start.", refusal.hint)
    return None


def of_gpu_access(gpus: EngineGpus, host: EngineHost | None, service: EngineService = SYSTEM) -> DoctorCheck:
    """Check whether the engine can give GPUs to containers; `host` is None where its files cannot be read."""
    if gpus.mode == "cdi":
        devices = ", ".join(gpus.cdi_devices or ()) or "the engine does not list its devices"
        return ok(_NAME, f"by CDI: {devices}")
    if host is None:
        if gpus.nvidia_path is not None:
            return ok(_NAME, "runtime nvidia is registered; the engine's own files were not looked at")
        why = f"Jobs with GPUs start only if {HOOK} is on the engine's PATH, which cannot be seen from here."
        where = gpus.elsewhere or "the engine's machine"
        hint = f"on {where}: sudo nvidia-ctk runtime configure --runtime=docker"
        hint += f"    # --config={service.settings or 'its daemon.json'}\n{service.reload}    # ends no container"
        return warn(_NAME, "runtime nvidia is not registered with the engine", why, hint)
    if gpus.nvidia_path is None:
        return _of_unregistered(host)
    path = gpus.nvidia_path or "nvidia-container-runtime"
    if not host.path_exists:
        text = f"runtime nvidia is registered as {path}, which does not exist"
        hint = f"{INSTALL}\nor correct the path in {host.settings_file}, then: {host.service.reload}"
        return fail(_NAME, text, _NO_GPUS, hint)
    if host.hook is None and not gpus.cdi_devices:
        text = f"runtime nvidia is registered ({path}), but {HOOK} is not on the engine's PATH"
        return fail(_NAME, text, "`--gpus` needs the hook: " + _NO_GPUS, f"{INSTALL}\n{host.restart}")
    if host.hook_is_new and not gpus.cdi_devices:
        text = f"{host.hook} was installed after the engine had started, which does not know it yet"
        return fail(_NAME, text, _NO_GPUS, host.restart)
    return ok(_NAME, f"runtime nvidia is registered ({path})")


def _of_unregistered(host: EngineHost) -> DoctorCheck:
    if host.hook is None:
        text = f"only {', '.join(host.toolkit)} is installed, {HOOK} is missing, and runtime nvidia is not registered"
        if not host.toolkit:
            text = "NVIDIA's Container Toolkit is not installed: nothing of it is on the engine's PATH"
        return fail(_NAME, text, _NO_GPUS, f"{INSTALL}\n{host.register}")
    if host.hook_is_new:
        text = (
            f"runtime nvidia is not registered, and the toolkit ({host.hook}) was installed after the engine "
            "had started, which does not know it yet"
        )
        return fail(_NAME, text, _NO_GPUS, host.register)
    text = f"the toolkit is installed ({host.hook}), but runtime nvidia is not registered with the engine"
    why = "`--gpus` works by the hook alone; `--runtime nvidia`, Compose files and images that need it do not."
    return warn(_NAME, text, why, host.register)


RUNTIME = "nvidia-container-runtime"
_MAX_FILE = 1024**2
_BY_HAND = "correct it by hand; nothing was changed"


class ConfigChange(Struct, frozen=True):
    path: Path
    before: str
    after: str

    @property
    def diff(self) -> list[str]:
        name = str(self.path)
        sides = (self.before.splitlines(), self.after.splitlines())
        return list(difflib.unified_diff(*sides, name, f"{name} (new)", lineterm=""))


def registration(path: Path) -> ConfigChange | None:
    """Return the change that registers the runtime and keeps all other keys; None when it is already registered.

    Raises GputuiError for a file that cannot be read or that dockerd would not accept.
    """
    before = _read(path)
    try:
        settings = json.loads(before, object_pairs_hook=_without_twins) if before.strip() else {}
    except json.JSONDecodeError as error:
        what = f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        raise GputuiError(what, where=str(path), hint=_BY_HAND) from error
    except (ValueError, RecursionError) as error:
        raise GputuiError(f"is not JSON that can be changed: {error}", where=str(path), hint=_BY_HAND) from error
    if not isinstance(settings, dict):
        raise GputuiError("is not a JSON object", where=str(path), hint=_BY_HAND)
    runtimes = settings.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise GputuiError('"runtimes" is not an object', where=str(path), hint=_BY_HAND)
    known = runtimes.get("nvidia")
    if isinstance(known, dict) and known.get("path") == RUNTIME:
        return None
    kept = known if isinstance(known, dict) else {"args": []}
    runtimes["nvidia"] = {**kept, "path": RUNTIME}
    match = re.search(r"\n([ \t]+)\S", before)
    return ConfigChange(
        path, before, json.dumps(settings, indent=4 if match is None else match[1], ensure_ascii=False) + "\n"
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise GputuiError("is larger than 1 MiB", where=str(path), hint="nothing was changed")
        return content.decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise GputuiError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text at byte {error.start}"
        raise GputuiError(what, where=str(path), hint=_BY_HAND) from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object; refuse a duplicate key, since one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twin!r} occurs twice")
    return found


def write(change: ConfigChange, now: datetime) -> Path | None:
    """Write the change atomically; return the path of the backup, None where there was no file before."""
    target = change.path.resolve()
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        backup = target.with_name(f"{target.name}.{now:%Y%m%d-%H%M%S}.bak") if target.exists() else None
        if backup is not None:
            shutil.copy2(target, backup)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        fd, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(change.after)
                file.flush()
                os.fchmod(fd, mode)
                os.fsync(fd)
            Path(partial).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(partial).unlink()
            raise
    except OSError as error:
        hint = "run it as root: sudo gputui doctor --fix" if isinstance(error, PermissionError) else None
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(target), hint=hint) from error
    return backup


PROC = Path("/proc")
SYSTEM_SETTINGS = Path(SYSTEM.settings)
_PID_FILES = (Path("/run/docker.pid"), Path("/var/run/docker.pid"))
_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 2.0
_CHANGERS = {"sudo", "doas"}
_TCP, _PORTS = {"tcp", "http", "https"}, {2375, 2376}
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


class EngineProcess(Struct, frozen=True):
    """The engine's own process, as far as /proc shows it to this user."""

    pid: int | None = None
    arguments: tuple[str, ...] = ()
    path: str = ""
    """Value of its PATH variable; empty when this user may not read it."""
    uid: int = 0
    group: str = ""
    """Path of its control group, whose last part is the unit of systemd that started it; empty if unknown."""
    home: str = ""
    """Directory of its user's settings; empty when this user may not read it."""

    @property
    def root(self) -> Path:
        root = PROC / str(self.pid) / "root"
        return root if self.pid and os.access(root, os.X_OK) else Path("/")

    @property
    def settings_file(self) -> Path:
        for number, word in enumerate(self.arguments):
            if word.startswith("--config-file="):
                return Path(word.partition("=")[2])
            if word == "--config-file" and number + 1 < len(self.arguments):
                return Path(self.arguments[number + 1])
        return Path(self.home or _home(self.uid) / ".config") / "docker/daemon.json" if self.uid else SYSTEM_SETTINGS

    def service(self, address: str) -> EngineService:
        settings, own = str(self.settings_file), os.geteuid()
        if any("/snap/" in word for word in self.arguments[:1]):
            restart = "sudo snap restart docker"
            return replace(SYSTEM, start="sudo snap start docker", restart=restart, reload=restart, settings=settings)
        unit = self.group.rpartition("/")[2]
        if self.group and not unit.endswith(".service"):
            return by_hand(address, self.pid, settings, self.uid)
        manager = 0 if self.group.startswith("/system.slice/") else self.uid
        return replace(systemd(unit or "docker.service", manager, own, settings), uid=self.uid)


def look(gpus: EngineGpus) -> EngineHost | None:
    """Return the facts of the engine's machine; None for an engine on another one, or whose process is not seen."""
    if not gpus.is_local:
        return None
    process = process_behind(gpus.address)
    if process.pid is None and service_at(gpus.address, os.geteuid()) != SYSTEM:
        return None
    found, is_written = toolkit_of(process), False
    with suppress(GputuiError):
        is_written = registration(process.settings_file) is None
    hook = next((path for path in found if Path(path).name == HOOK), None)
    return EngineHost(
        toolkit=found,
        path_exists=any(_find(process, (gpus.nvidia_path or "nvidia-container-runtime",))),
        hook_is_new=hook is not None and hook_is_newer(process, hook),
        settings_file=process.settings_file,
        is_written=is_written,
        service=process.service(gpus.address),
    )


def toolkit_of(process: EngineProcess) -> tuple[str, ...]:
    return tuple(_find(process, TOOLKIT))


def process_behind(address: str) -> EngineProcess:
    url = address.removeprefix("http+")
    path = url.removeprefix("unix://")
    pid = _port_listener(url) if "://" in path else None
    if "://" not in path:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_SECONDS)
            probe.connect(path)
            peer, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            pid = peer or None  # 0: it is in another PID namespace
    if pid is None or pid == 1 or _text(pid, "comm").strip() == "systemd":  # systemd opened the socket for the engine
        # an engine at a standard address writes its pid into a file
        service, pid = service_at(url, os.geteuid()), None
        files = (Path(f"/run/user/{service.uid}/docker.pid"),) if service.uid else _PID_FILES
        for file in files if service.settings else ():
            with suppress(OSError, ValueError):
                if "dockerd" in _text(found := int(file.read_text()), "comm"):
                    pid = found
                    break
    if pid is None:
        return EngineProcess()
    arguments = tuple(_text(pid, "cmdline").rstrip("\0").split("\0"))
    variables = dict(pair.partition("=")[::2] for pair in _text(pid, "environ").split("\0"))
    uid = 0
    with suppress(OSError):
        uid = (PROC / str(pid)).stat().st_uid
    home = variables.get("XDG_CONFIG_HOME") or (f"{variables['HOME']}/.config" if variables.get("HOME") else "")
    group = next((line.split(":", 2)[2] for line in reversed(_text(pid, "cgroup").splitlines())), "")
    return EngineProcess(pid, arguments, variables.get("PATH", ""), uid, group, home)


def _port_listener(url: str) -> int | None:
    split = urlsplit(url)
    with suppress(ValueError):
        ports = {split.port} if split.port else _PORTS
        tables = ("tcp", "tcp6") if split.scheme in _TCP else ()
        lines = (line.split() for table in tables for line in _text(os.getpid(), f"net/{table}").splitlines()[1:])
        listening = (fields for fields in lines if fields[3] == _LISTENS)
        sockets = {f"socket:[{fields[9]}]" for fields in listening if int(fields[1].rpartition(":")[2], 16) in ports}
        for entry in PROC.glob("[0-9]*/fd/*") if sockets else ():
            with suppress(OSError):
                if str(entry.readlink()) in sockets:
                    return int(entry.parts[-3])
    return None


def _text(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _find(process: EngineProcess, names: tuple[str, ...]) -> Iterator[str]:
    directories = (process.path or f"{terminal.environ().get('PATH', '')}:{_STANDARD_PATH}").split(":")
    for name in names:
        places = [name] if name.startswith("/") else [f"{directory}/{name}" for directory in directories if directory]
        yield from [place for place in places if os.access(_on_host(process, place), os.X_OK)][:1]


def _on_host(process: EngineProcess, path: str) -> Path:
    return process.root / path.lstrip("/")


def hook_is_newer(process: EngineProcess, path: str) -> bool:
    if process.pid is None:
        return False
    try:
        return _on_host(process, path).stat().st_ctime > (PROC / str(process.pid)).stat().st_ctime + 1
    except OSError:
        return False


def _home(uid: int) -> Path:
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return Path.home()


def own_engine(uid: int) -> str:
    """Return the engine that a user who ran sudo has chosen instead of the machine's; empty: none is seen.

    sudo drops the variables that choose one, but its own process still has them.
    """
    pid = os.getppid()
    while pid > 1:  # the processes that led to this one, the nearest first
        if _text(pid, "comm").strip() in _CHANGERS:
            variables = dict(pair.partition("=")[::2] for pair in _text(pid, "environ").split("\0"))
            if found := variables.get("DOCKER_HOST") or variables.get("DOCKER_CONTEXT"):
                return found
        fields = _text(pid, "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    socket_file = Path(f"/run/user/{uid}/docker.sock")
    if socket_file.exists():
        return f"unix://{socket_file}"
    with suppress(GputuiError, ValueError, AttributeError):
        found = json.loads(_read(_home(uid) / ".docker/config.json") or "{}").get("currentContext")
        return f"of the context {found}" if found and found != "default" else ""
    return ""
