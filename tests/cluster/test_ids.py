"""Ids of Slurm's jobs and of the elements of its arrays."""

from __future__ import annotations

from gputui.cluster.slurm import commands
from gputui.domain.cluster import array_of, element_id, index_of, is_element
from tests.cases import cases

LAST = 0x03FF0000
"""Slurm's greatest id of a job, unless MaxJobId says otherwise."""


@cases("number", [1, 1 << 24, LAST])
@cases("index", [0, 7, 4_000_000])
def test_elements_are_told_from_jobs(number: int, index: int) -> None:
    element = element_id(number, index)
    assert (is_element(number), is_element(element)) == (False, True)
    assert (array_of(element), index_of(element)) == (number, index)
    assert (commands.words(number), commands.words(element)) == (f"{number}", f"{number}_{index}")
    assert (commands.of_words(commands.words(number)), commands.of_words(commands.words(element))) == (number, element)
    assert element < 1 << 53, "programs that read JSON numbers as floating point lose digits"
