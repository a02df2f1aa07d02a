"""Ways of a container engine to give this machine's GPUs to jobs, and their names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from gputui.domain.container import EngineGpus
from gputui.domain.gpu import Gpu, HealthCode, ProbeReading
from gputui.domain.job_spec import GpuRequest

CDI_KIND = "nvidia.com/gpu"
_EVERYTHING = "all"
_GENERATE = "sudo nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"


class EngineRefusal(Struct, frozen=True):
    """Obstacle that keeps jobs with GPUs from starting in containers, and its remedy."""

    text: str
    hint: str
    """Commands or steps, a line each."""

    @property
    def sentence(self) -> str:
        return f"{self.text}; {self.hint.splitlines()[0]}"


def present_gpus(reading: ProbeReading) -> tuple[Gpu, ...]:
    """Return the GPUs of a reading except lost ones, which the engine does not know either."""
    lost = {uuid for uuid, sample in reading.samples.items() if sample.health.code is HealthCode.LOST}
    return tuple(gpu for gpu in reading.gpus if gpu.uuid not in lost)


def engine_refusal(engine: EngineGpus, gpus: Sequence[Gpu]) -> EngineRefusal | None:
    """Return why no container can be given any of these GPUs; None when they can."""
    if engine.mode == "none":
        if engine.is_podman:
            return EngineRefusal(
                "Podman before 5.4 ignores requests for GPUs", "install Podman 5.4 or newer, or Docker"
            )
        return EngineRefusal("the engine is too old to give GPUs to containers", "install Docker 19.03 or newer")
    if not engine.is_local:
        text = f"the engine at {engine.address or 'its address'} runs on another machine, whose GPUs are not known here"
        return EngineRefusal(text, "run gputui on that machine: GPUs are read where it runs")
    if engine.mode == "cdi" and engine.cdi_devices is not None and gpus:
        known = _known(engine)
        missing = [gpu for gpu in _usable(gpus) if _name(gpu, known, gpus) is None]
        if not missing or _knows_only_all(engine, gpus):
            return None
        listed = ", ".join(f"{CDI_KIND}={name}" for name in sorted(known)) or "none"
        if len(missing) == 1:
            words = f"GPU {_number(missing[0])} ({missing[0].uuid}) has"
        else:
            words = f"GPUs {', '.join(map(_number, missing))} have"
        return EngineRefusal(f"{words} no CDI device that fits: the engine lists {listed}", _GENERATE)
    return None


class EngineSupport(Struct, frozen=True):
    """Ability of an engine to give GPUs to containers."""

    refusal: EngineRefusal | None = None
    """Obstacle for every job; None: there is none."""
    together: int = 0
    """Number of GPUs that the engine can only give all together; 0: it can give each one separately."""

    @property
    def is_full(self) -> bool:
        """Return whether no request is refused."""
        return self.refusal is None and not self.together

    def refuses(self, request: GpuRequest) -> EngineRefusal | None:
        """Return why a container cannot be given the GPUs of this request; None when it can."""
        asked = max(request.minimum, len(request.devices))
        if not asked and not request.everything:
            return None
        if self.refusal or not self.together or request.everything or asked == self.together:
            return self.refusal
        return EngineRefusal(f"the engine's CDI devices name only all {self.together} GPUs together", _GENERATE)


def engine_support(engine: EngineGpus | None, gpus: Sequence[Gpu]) -> EngineSupport:
    """Return the engine's ability to give these GPUs to containers; None: nothing is known about the engine."""
    if engine is None:
        return EngineSupport()
    found = engine_refusal(engine, gpus)
    return EngineSupport(found, len(_whole(gpus)) if found is None and _knows_only_all(engine, gpus) else 0)


def cdi_names(engine: EngineGpus, gpus: Sequence[Gpu], given: Sequence[str]) -> tuple[str, ...]:
    """Return the CDI names of the GPUs with these UUIDs; empty if the engine does not use CDI.

    For missing names the UUIDs are returned, which the engine then refuses.
    """
    if engine.mode != "cdi" or not given:
        return ()
    if engine.cdi_devices is None:
        return tuple(given)
    known = _known(engine)
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = tuple(_name(by_uuid[uuid], known, gpus) if uuid in by_uuid else None for uuid in given)
    if None not in found:
        return tuple(name for name in found if name is not None)
    if _EVERYTHING in known and {gpu.uuid for gpu in _whole(gpus)} == set(given):
        return (_EVERYTHING,)
    return tuple(given)


def _knows_only_all(engine: EngineGpus, gpus: Sequence[Gpu]) -> bool:
    """Return whether the engine can only give all GPUs together."""
    known = _known(engine)
    if engine.mode != "cdi" or engine.cdi_devices is None or _EVERYTHING not in known:
        return False
    whole = _usable(gpus) == _whole(gpus)
    return whole and any(_name(gpu, known, gpus) is None for gpu in _usable(gpus))


def _known(engine: EngineGpus) -> frozenset[str]:
    """Return the names of NVIDIA's CDI devices, without their kind."""
    prefix = f"{CDI_KIND}="
    return frozenset(name.removeprefix(prefix) for name in engine.cdi_devices or () if name.startswith(prefix))


def _name(gpu: Gpu, known: Collection[str], gpus: Sequence[Gpu]) -> str | None:
    """Return its CDI name: its UUID, else its number, else `all` if it is the only GPU; None if it has none."""
    if gpu.uuid in known:
        return gpu.uuid
    number = _number(gpu)
    if number in known and _numbers_agree(known, gpus):
        return number
    return _EVERYTHING if _EVERYTHING in known and [gpu.uuid] == [one.uuid for one in _usable(gpus)] else None


def _numbers_agree(known: Collection[str], gpus: Sequence[Gpu]) -> bool:
    """Return whether CDI numbers as many GPUs as there are: after a loss the driver renumbers, CDI does not."""
    here = [_number(gpu) for gpu in _usable(gpus)]
    numbered = {name for name in known if name.replace(":", "").isdigit()}
    cut = {str(gpu.index) for gpu in gpus if gpu.mig_enabled}
    return len(set(here)) == len(here) and numbered - cut == set(here) - cut


def _number(gpu: Gpu) -> str:
    return str(gpu.index) if gpu.mig_parent is None else f"{gpu.index}:{gpu.mig_index}"


def _usable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that jobs can get: whole GPUs, and instances of divided ones."""
    return [gpu for gpu in gpus if not gpu.mig_enabled]


def _whole(gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.mig_parent is None]
