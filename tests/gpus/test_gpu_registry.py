"""Identity of GPUs across changes of the driver's list."""

from __future__ import annotations

from gputui.gpus.readings import GpuFacts, GpuRegistry
from tests.cases import cases


def listing(*uuids: str) -> tuple[GpuFacts, ...]:
    """Return GPUs in the driver's order; one that begins with `?` cannot be reached."""
    return tuple(
        GpuFacts(f"GPU-unknown-{index}", index, error="lost") if uuid == "?" else GpuFacts(uuid, index)
        for index, uuid in enumerate(uuids)
    )


@cases(
    ("before", "after", "expected"),
    [
        ("abc", "abc", "a0 b1 c2"),
        ("abc", "abcd", "a0 b1 c2 d3"),
        ("abc", "a?c", "a0 b1 c2"),
        ("abc", "ac", "a0 b1 c2"),
        ("abc", "acd", "a0 b1 c2 d3"),
        ("abc", "a?", "a0 b1 c2"),
        ("abc", "cab", "a0 b1 c2"),
        ("a?c", "abc", "a0 b1 c2"),
        ("a?c", "a?c", "a0 GPU-unknown-11 c2"),
        ("abc", "xyz", "a0 b1 c2 x3 y4 z5"),
    ],
)
def test_indices_of_gpus_stay(before: str, after: str, expected: str) -> None:
    roll = GpuRegistry()
    roll.update(listing(*before))
    roll.update(listing(*after))
    assert " ".join(f"{gpu.uuid}{gpu.index}" for gpu in roll.gpus) == expected


def test_gpus_that_come_and_go() -> None:
    # returned and vanished GPUs are reported
    roll = GpuRegistry()
    assert roll.update(listing("a", "b", "c")) == frozenset()
    assert roll.update(listing("a", "?")) == frozenset()
    assert roll.vanished == {"c"}
    assert roll.known_uuid("GPU-unknown-1") == "b"
    assert roll.update(listing("a", "b", "c")) == {"b", "c"}
    assert roll.vanished == frozenset()
    # instances go with a new partition and stay while their parent is lost
    roll = GpuRegistry()
    whole = GpuFacts("a", 0, mig_enabled=True)
    roll.update((whole, GpuFacts("MIG-1", 0, mig_parent="a"), GpuFacts("b", 1)))
    assert [gpu.uuid for gpu in roll.gpus] == ["a", "MIG-1", "b"]
    roll.update(listing("?", "b"))
    assert [gpu.uuid for gpu in roll.gpus] == ["a", "MIG-1", "b"]
    assert roll.vanished == {"MIG-1"}
    roll.update((whole, GpuFacts("MIG-2", 0, mig_parent="a"), GpuFacts("b", 1)))
    assert [gpu.uuid for gpu in roll.gpus] == ["a", "MIG-2", "b"]
