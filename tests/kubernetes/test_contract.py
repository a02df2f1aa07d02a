"""The adapter for Kubernetes keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.state import PendingReason
from tests.cluster.contract import ClusterContract
from tests.kubernetes.fake.server import FakeKubernetes
from tests.kubernetes.harness import KubernetesHarness


class TestKubernetes(ClusterContract):
    """The contract over a fake API server."""

    waiting_codes = frozenset({PendingReason.RESOURCES})
    attach_tells_exit_code = False
    input_needs_terminal = True
    refuses_impossible = False

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[KubernetesHarness]:
        fake = FakeKubernetes()
        harness = KubernetesHarness(fake, tmp_path)
        yield harness
        harness.close()
        fake.close()
