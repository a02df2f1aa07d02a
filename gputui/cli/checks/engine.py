"""Checks of the runtimes, and of whether containers get GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.cli.checks.check import DoctorCheck, fail, ok, warn
from gputui.domain.container import EngineGpus, RuntimeStatus
from gputui.domain.gpu import Gpu
from gputui.domain.job_spec import GpuRequest
from gputui.domain.policy.gpus.engine import engine_support

HOOK = "nvidia-container-runtime-hook"
"""Program that a Docker engine must have on its PATH when it starts, or `--gpus` fails."""
TOOLKIT = (HOOK, "nvidia-container-runtime", "nvidia-ctk", "nvidia-container-cli")
INSTALL = (
    "sudo apt install nvidia-container-toolkit    # or dnf; the repository: "
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
)
LIVE_RESTORE = 'in /etc/docker/daemon.json: {"live-restore": true}\nsudo systemctl reload docker    # ends no container'
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
    settings_file: Path = Path("/etc/docker/daemon.json")
    is_written: bool = False
    """True if that file registers the runtime `nvidia`, even if the engine has not read it yet."""
    restart: str = "sudo systemctl restart docker"

    @property
    def hook(self) -> str | None:
        """Return the path of the hook."""
        return next((path for path in self.toolkit if Path(path).name == HOOK), None)

    @property
    def register(self) -> str:
        """Return the commands that register the runtime `nvidia`, and the lines they write."""
        restart = f"{self.restart}    # without live-restore this ends running containers"
        if self.is_written:
            return f"{restart}\n{self.settings_file} registers it already; the engine has not read that yet"
        return (
            "sudo gputui doctor --fix    # or: sudo nvidia-ctk runtime configure --runtime=docker\n"
            f"which adds to {self.settings_file}:\n"
            '    "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}\n'
            f"{restart}"
        )


def of_runtime(status: RuntimeStatus, has_gpus: bool = False) -> Iterator[DoctorCheck]:
    """Check whether a runtime answers, and report its warnings."""
    if not status.up:
        yield _down(status, has_gpus)
        return
    yield ok(status.name, status.text)
    for warning in status.warnings:
        text, _, hint = warning.partition("; ")
        what, _, why = text.partition(": ")
        hint = LIVE_RESTORE if "live-restore" in what else hint
        yield warn(status.name, what, f"{why[:1].upper()}{why[1:]}." if why else "", hint)


def _down(status: RuntimeStatus, has_gpus: bool) -> DoctorCheck:
    if status.name != "docker":
        return fail(status.name, status.text, "No host job can start.", "")
    is_special = status.hint and "systemctl" not in status.hint
    hint = status.hint if is_special else "sudo systemctl enable --now docker"
    hint += "\ndocker info    # with the same DOCKER_HOST and docker context"
    if has_gpus:
        hint += "\nwithout Docker, jobs run as host processes: gputui --runtime process serve\n"
        hint += "gputui --runtime process submit --host --gpus 1 -- COMMAND    # or: export GPUTUI_RUNTIME=process"
    why = "No job with an image can start, and GPUs that containers use are unknown."
    return fail("docker", status.text.removesuffix(f" ({status.hint})"), why, hint)


def of_gpus(engine: EngineGpus, gpus: Sequence[Gpu]) -> DoctorCheck | None:
    """Check whether the engine can give this machine's GPUs to containers at all; None if nothing prevents it."""
    found = engine_support(engine, gpus)
    if found.refusal:
        return fail(_NAME, found.refusal.text, _NO_GPUS, found.refusal.hint)
    if found.together and (refusal := found.refuses(GpuRequest(1, 1))):
        return warn(_NAME, refusal.text, "Jobs that ask for fewer cannot start.", refusal.hint)
    return None


def of_gpu_access(gpus: EngineGpus, host: EngineHost | None) -> DoctorCheck:
    """Check whether the engine can give GPUs to containers; `host` is None where its files cannot be read."""
    if gpus.mode == "cdi":
        return ok(_NAME, f"by CDI: {_devices(gpus)}")
    if host is None:
        return _of_far_engine(gpus)
    if gpus.nvidia_path is None:
        return _of_unregistered(host)
    return _of_registered(gpus, host)


def _devices(gpus: EngineGpus) -> str:
    return ", ".join(gpus.cdi_devices or ()) or "the engine does not list its devices"


def _of_far_engine(gpus: EngineGpus) -> DoctorCheck:
    if gpus.nvidia_path is not None:
        return ok(_NAME, "runtime nvidia is registered; its files on the engine's machine were not looked at")
    why = f"Jobs with GPUs start only if {HOOK} is on the engine's PATH, which cannot be seen from here."
    hint = f"on the engine's machine:\n{EngineHost().register}"
    return warn(_NAME, "runtime nvidia is not registered with the engine", why, hint)


def _of_unregistered(host: EngineHost) -> DoctorCheck:
    if not host.toolkit:
        text = "NVIDIA's Container Toolkit is not installed: nothing of it is on the engine's PATH"
        return fail(_NAME, text, _NO_GPUS, f"{INSTALL}\n{host.register}")
    if host.hook is None:
        text = f"only {', '.join(host.toolkit)} is installed, {HOOK} is missing, and runtime nvidia is not registered"
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


def _of_registered(gpus: EngineGpus, host: EngineHost) -> DoctorCheck:
    path = gpus.nvidia_path or "nvidia-container-runtime"
    if not host.path_exists:
        text = f"runtime nvidia is registered as {path}, which does not exist"
        hint = f"{INSTALL}\nor correct the path in {host.settings_file}, then: {host.restart}"
        return fail(_NAME, text, _NO_GPUS, hint)
    if host.hook is None and not gpus.cdi_devices:
        text = f"runtime nvidia is registered ({path}), but {HOOK} is not on the engine's PATH"
        return fail(_NAME, text, "`--gpus` needs the hook: " + _NO_GPUS, f"{INSTALL}\n{host.restart}")
    if host.hook_is_new and not gpus.cdi_devices:
        text = f"{host.hook} was installed after the engine had started, which does not know it yet"
        return fail(_NAME, text, _NO_GPUS, host.restart)
    return ok(_NAME, f"runtime nvidia is registered ({path})")
