"""Names by which an engine gives GPUs to containers, and cases in which it cannot."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.domain.container import EngineGpus
from gputui.domain.gpu import Gpu
from gputui.domain.job_spec import GpuRequest
from gputui.domain.policy.availability import CDI_KIND, cdi_names, engine_support
from tests.cases import cases
from tests.factories import gpu, uuid

TWO = (gpu(0), gpu(1))
PARENT = replace(gpu(0), mig_enabled=True)
SLICES = tuple(replace(gpu(0), uuid=f"MIG-{number}", mig_parent=PARENT.uuid, mig_index=number) for number in range(2))
CUT = (PARENT, *SLICES)


def engine(*names: str) -> EngineGpus:
    return EngineGpus("cdi", cdi_devices=tuple(f"{CDI_KIND}={name}" for name in names), is_local=True)


@cases(
    ("names", "gpus", "given", "expected"),
    [
        ((uuid(0), uuid(1)), TWO, TWO, (uuid(0), uuid(1))),
        (("0", "1", uuid(0), uuid(1), "all"), TWO, TWO[1:], (uuid(1),)),
        (("0", "1", "all"), TWO, TWO[1:], ("1",)),
        (("all",), TWO, TWO, ("all",)),
        (("all",), TWO[:1], TWO[:1], ("all",)),
        (("MIG-0", "MIG-1"), CUT, SLICES[1:], ("MIG-1",)),
        (("0:0", "0:1", "all"), CUT, SLICES[1:], ("0:1",)),
        (("0", "0:0", "0:1", "all"), CUT, SLICES[:1], ("0:0",)),
    ],
)
def test_gpus_are_found_by_the_names_of_the_engine(
    names: tuple[str, ...], gpus: tuple[Gpu, ...], given: tuple[Gpu, ...], expected: object
) -> None:
    known = engine(*names)
    assert cdi_names(known, gpus, [each.uuid for each in given]) == expected
    assert engine_support(known, gpus).refusal is None


@cases(
    ("names", "gpus", "word"),
    [
        ((uuid(0),), TWO, f"GPU 1 ({uuid(1)}) has no CDI device that fits"),
        ((), TWO, "the engine lists none"),
        (("GPU-of-another", "GPU-of-yet-another"), TWO, "have no CDI device that fits"),
        (("0", "1", "2"), TWO, "nvidia.com/gpu=0, nvidia.com/gpu=1, nvidia.com/gpu=2"),
        (("0",), TWO, "GPUs 0, 1 have no CDI device"),
        (("0", "all"), CUT, "GPUs 0:0, 0:1 have"),
    ],
)
def test_unsuitable_names_are_refused(names: tuple[str, ...], gpus: tuple[Gpu, ...], word: str) -> None:
    """Numbers fit only where as many GPUs are numbered as there are: else they may mean others."""
    found = engine_support(engine(*names), gpus).refusal
    assert found is not None
    assert word in found.text
    assert "nvidia-ctk cdi generate --device-name-strategy=uuid" in found.hint
    assert found.hint in found.sentence


def test_gpus_under_one_name_are_given_together() -> None:
    gives = engine_support(engine("all"), TWO)
    assert not gives.is_full
    for request in (GpuRequest(), GpuRequest(2, 2), GpuRequest(everything=True), GpuRequest(devices=("0", "1"))):
        assert gives.refuses(request) is None
    refused = gives.refuses(GpuRequest(1, 1))
    assert refused is not None
    assert "only all 2 GPUs together" in refused.text


def test_an_engine_that_lists_no_names_is_asked_by_uuid() -> None:
    unknown = EngineGpus("cdi", is_local=True)
    assert engine_support(unknown, TWO).is_full
    assert cdi_names(unknown, TWO, [uuid(1)]) == (uuid(1),)


@cases(
    ("found", "word"),
    [
        (EngineGpus("nvidia", address="ssh://gpu1", owner="a service"), "ssh://gpu1 has a gputui queue of its own"),
        (EngineGpus("cdi", cdi_devices=(f"{CDI_KIND}=7",)), "no CDI device that fits"),
        (EngineGpus("none", is_podman=True, is_local=True), "Podman before 5.4 ignores"),
        (EngineGpus("none", is_local=True), "too old"),
    ],
)
def test_engines_without_these_gpus_are_reported(found: EngineGpus, word: str) -> None:
    refused = engine_support(found, TWO).refuses(GpuRequest(1, 1))
    assert refused is not None
    assert word in refused.text
    assert engine_support(found, TWO).refuses(GpuRequest()) is None


def test_an_engine_that_takes_device_requests_needs_no_names() -> None:
    plain = EngineGpus("nvidia", is_local=True)
    assert engine_support(plain, TWO).is_full
    assert cdi_names(plain, TWO, [uuid(0)]) == ()
    assert engine_support(None, TWO).is_full
