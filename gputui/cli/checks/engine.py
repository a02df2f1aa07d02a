"""Checks of the runtimes, and of whether containers get GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.cli.checks.check import DoctorCheck, fail, ok, warn
from gputui.domain.container import EngineGpus, RuntimeStatus
from gputui.domain.engine_service import SYSTEM, EngineService
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
        """Return the path of the hook."""
        return next((path for path in self.toolkit if Path(path).name == HOOK), None)

    @property
    def knows_hook(self) -> bool:
        """Return whether the engine found the hook when it started."""
        return self.hook is not None and not self.hook_is_new

    @property
    def restart(self) -> str:
        """Return the command that restarts the engine, with its effect."""
        return f"{self.service.restart}    # without live-restore this ends running containers"

    @property
    def apply(self) -> str:
        """Return the command after which the engine knows its settings and the hook, with its effect."""
        return f"{self.service.reload}    # ends no container" if self.knows_hook else self.restart

    @property
    def register(self) -> str:
        """Return the commands that register the runtime `nvidia`, and the lines they write."""
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
    if not status.up:
        yield _down(status, has_gpus)
        return
    yield ok(status.name, status.text)
    for warning in status.warnings:
        text, _, hint = warning.partition("; ")
        what, _, why = text.partition(": ")
        if "live-restore" in what:
            hint = f'in {service.place}: {{"live-restore": true}}\n{service.reload}    # ends no container'
        yield warn(status.name, what, f"{why[:1].upper()}{why[1:]}." if why else "", hint)


def _down(status: RuntimeStatus, has_gpus: bool) -> DoctorCheck:
    if status.name != "docker":
        return fail(status.name, status.text, "No host job can start.", "")
    hint = f"{status.hint}\ndocker info    # with the same DOCKER_HOST and docker context".lstrip()
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


def of_gpu_access(gpus: EngineGpus, host: EngineHost | None, service: EngineService = SYSTEM) -> DoctorCheck:
    """Check whether the engine can give GPUs to containers; `host` is None where its files cannot be read."""
    if gpus.mode == "cdi":
        return ok(_NAME, f"by CDI: {_devices(gpus)}")
    if host is None:
        return _of_unseen_engine(gpus, service)
    if gpus.nvidia_path is None:
        return _of_unregistered(host)
    return _of_registered(gpus, host)


def _devices(gpus: EngineGpus) -> str:
    return ", ".join(gpus.cdi_devices or ()) or "the engine does not list its devices"


def _of_unseen_engine(gpus: EngineGpus, service: EngineService) -> DoctorCheck:
    if gpus.nvidia_path is not None:
        return ok(_NAME, "runtime nvidia is registered; the engine's own files were not looked at")
    why = f"Jobs with GPUs start only if {HOOK} is on the engine's PATH, which cannot be seen from here."
    hint = "on the engine's machine: sudo nvidia-ctk runtime configure --runtime=docker"
    hint += f"    # --config={service.settings or 'its daemon.json'}\n{service.reload}    # ends no container"
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
        hint = f"{INSTALL}\nor correct the path in {host.settings_file}, then: {host.service.reload}"
        return fail(_NAME, text, _NO_GPUS, hint)
    if host.hook is None and not gpus.cdi_devices:
        text = f"runtime nvidia is registered ({path}), but {HOOK} is not on the engine's PATH"
        return fail(_NAME, text, "`--gpus` needs the hook: " + _NO_GPUS, f"{INSTALL}\n{host.restart}")
    if host.hook_is_new and not gpus.cdi_devices:
        text = f"{host.hook} was installed after the engine had started, which does not know it yet"
        return fail(_NAME, text, _NO_GPUS, host.restart)
    return ok(_NAME, f"runtime nvidia is registered ({path})")
