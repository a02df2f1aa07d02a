"""Commands that read nodes of a cluster, and ids of its arrays' elements."""

from __future__ import annotations

import pytest

from gputui.domain.cluster import array_of, element_runs, index_of, probe_words
from gputui.domain.errors import InputError
from tests.cases import cases


def test_a_probe_command_names_the_node() -> None:
    words = probe_words("ssh -l 'probe user' {node} gputui --node={node} probe", "gpu-1.lab")
    assert words == ["ssh", "-l", "probe user", "gpu-1.lab", "gputui", "--node=gpu-1.lab", "probe"]


@cases(
    ("template", "node", "sentence"),
    [
        ("ssh gpu1 gputui probe", "n1", "does not name the node as {node}"),
        ("ssh '{node}", "n1", "cannot be parsed: No closing quotation"),
        ("ssh {node} gputui probe", "-oProxyCommand=x", "'-oProxyCommand=x' is no name of a node"),
        ("ssh {node} gputui probe", "a b", "'a b' is no name of a node"),
    ],
)
def test_other_commands_and_names_are_refused(template: str, node: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        probe_words(template, node)
    assert sentence in refused.value.what


@cases(
    ("indices", "runs"), [([], []), ([5], [(5, 1)]), ([0, 1, 2], [(0, 3)]), ([0, 2, 3, 7], [(0, 1), (2, 2), (7, 1)])]
)
def test_neighbouring_elements_are_one_run(indices: list[int], runs: list[tuple[int, int]]) -> None:
    found = list(element_runs(12, indices))
    assert [(run.index, run.count) for run in found] == runs
    assert all((array_of(run.id), index_of(run.id)) == (12, run.index) for run in found)
