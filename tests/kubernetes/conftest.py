"""Fixtures of the tests of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.settings import ClusterSettings
from tests.kubernetes.fake.server import FakeKubernetes
from tests.kubernetes.harness import SETTINGS, KubernetesHarness
from tests.kubernetes.scripted import Answer, ScriptedServer, Serve

MakeHarness = Callable[..., KubernetesHarness]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeHarness]:
    """Start API servers, with what they are given, and the adapter over each."""
    made: list[KubernetesHarness] = []

    def make(release: str = "v1.31.2", settings: ClusterSettings = SETTINGS, **more: Any) -> KubernetesHarness:
        directory = tmp_path / f"cluster-{len(made)}"
        directory.mkdir()
        harness = KubernetesHarness(FakeKubernetes(release, **more), directory, settings)
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()
        harness.fake.close()


@pytest.fixture
def harness(make: MakeHarness) -> KubernetesHarness:
    """Return the adapter over an API server of a current release."""
    return make()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start API servers that give these answers."""
    made: list[ScriptedServer] = []

    def serve(*answers: Answer, goes_on: bool = False) -> ScriptedServer:
        made.append(ScriptedServer(*answers, goes_on=goes_on))
        return made[-1]

    yield serve
    for server in made:
        server.close()
