"""Choice of GPUs: well connected ones, breaking up as little as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.gpu import Gpu, Link
from gputui.domain.policy.placement import Ask, NodeLayout, choose, lowest, node_layout, pick
from tests.factories import gpu, uuid


def linked(count: int, groups: list[set[int]], kind: str = "NVLINK", numa: int = 8) -> list[Gpu]:
    def links(index: int) -> tuple[Link, ...]:
        peers = next((group for group in groups if index in group), set())
        return tuple(Link(uuid(peer), kind) for peer in sorted(peers - {index}))

    return [gpu(index, links=links(index), numa_node=index // numa) for index in range(count)]


PAIRS = node_layout(linked(8, [{0, 1}, {2, 3}, {4, 5}, {6, 7}], numa=4))


def test_groups_of_gpus() -> None:
    # only groups that distinguish GPUs are found
    assert PAIRS.levels == (
        (0b11, 0b1100, 0b110000, 0b11000000),
        (0b1111, 0b11110000),
        (0b11, 0b1100, 0b110000, 0b11000000),
    )
    full_mesh = node_layout(linked(8, [set(range(8))], numa=4))
    assert full_mesh.levels == ((0b1111, 0b11110000),)
    assert node_layout(linked(4, [], numa=8)).levels == ()
    # a chain is not a clique
    gpus = [
        gpu(0, links=(Link(uuid(1), "NVLINK"),), numa_node=0),
        gpu(1, links=(Link(uuid(0), "NVLINK"), Link(uuid(2), "NVLINK")), numa_node=0),
        gpu(2, links=(Link(uuid(1), "NVLINK"),), numa_node=0),
    ]
    assert node_layout(gpus).levels[0] == (0b011, 0b100)


def test_gpus_are_placed_by_their_links() -> None:
    # two GPUs come from one pair although lower ones are free
    assert pick(0b00110101, 2, PAIRS.levels) == 0b00110000
    # one GPU comes from a broken pair
    assert pick(0b10000011, 1, PAIRS.levels) == 0b10000000
    # four GPUs are whole pairs of one NUMA node if possible
    numa = node_layout(linked(8, [], numa=4))
    assert pick(0b11111110, 4, numa.levels) == 0b11110000
    assert pick(0b00111100, 4, PAIRS.levels) == 0b00111100
    # six GPUs leave a pair whole
    assert pick(0b11111111, 6, PAIRS.levels) == 0b00111111


def test_gpus_are_placed_on_nodes() -> None:
    # a wide job takes the best fitting node and leaves free nodes whole
    node = NodeLayout(0xFF)
    assert choose([0xFF, 0b0111, 0b11], Ask(2, 2, (0xFF,) * 3), 2, 2, [node] * 3) == ((2, 0b11),)
    assert choose([0xFF, 0b0111, 0b11], Ask(4, 4, (0xFF,) * 3), 4, 4, [node] * 3) == ((0, 0b1111),)
    # a range takes the node with the most free GPUs
    assert choose([0b11, 0b0111], Ask(2, 4, (0xF, 0xF)), 2, 4, [NodeLayout(0xF)] * 2) == ((1, 0b0111),)
    # a job wider than a node takes whole nodes
    wide = Ask(16, 16, (0xFF,) * 3, whole_nodes=2)
    assert choose([0xFF, 0xFE, 0xFF], wide, 16, 16, [NodeLayout(0xFF)] * 3) == ((0, 0xFF), (2, 0xFF))
    assert choose([0xFF, 0xFE, 0xFE], wide, 16, 16, [NodeLayout(0xFF)] * 3) is None


@given(st.integers(0, 255), st.integers(1, 8))
def test_a_placement_has_the_requested_number_of_free_gpus(free: int, width: int) -> None:
    if free.bit_count() < width:
        return
    for levels in (PAIRS.levels, ()):
        taken = pick(free, width, levels)
        assert taken & ~free == 0
        assert taken.bit_count() == width
    assert lowest(free, width) == pick(free, width, ())
