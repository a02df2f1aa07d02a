"""The contract of backends, run against the queue of this machine, of a cluster, and of another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from gputui.domain.job_spec import GpuRequest, Submission
from tests.backend.contract import HOUR, BackendContract, ClosingContract, DirectContract, Harness
from tests.backend.harnesses import (
    ALL_BUT,
    NOTHING,
    ClusterHarness,
    KubernetesHarness,
    LocalHarness,
    OwnerHarness,
    RemoteHarness,
)


def closed(make: Callable[..., Harness], factory: pytest.TempPathFactory, *more: object) -> Iterator[Harness]:
    harness = make(factory.mktemp("backend"), *more)
    yield harness
    harness.close()


class TestLocal(BackendContract, ClosingContract, DirectContract):
    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(LocalHarness, tmp_path_factory)

    @pytest.fixture
    def closing_harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(LocalHarness, tmp_path_factory)


class TestOwner(BackendContract, ClosingContract, DirectContract):
    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(OwnerHarness, tmp_path_factory)

    @pytest.fixture
    def closing_harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(OwnerHarness, tmp_path_factory)


class TestCluster(BackendContract, ClosingContract, DirectContract):
    differences: ClassVar = {
        "test_a_change_is_undone_once[top]": "a job at the head of a cluster's queue cannot be put back",
        "test_what_was_changed_since_is_not_undone": "jobs that were alike are one change: none of them is undone",
    }

    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(ClusterHarness, tmp_path_factory, ALL_BUT)

    @pytest.fixture
    def closing_harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(ClusterHarness, tmp_path_factory, ALL_BUT)


class TestClusterThatLacksAll(BackendContract, DirectContract):
    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(ClusterHarness, tmp_path_factory, NOTHING)


class TestKubernetes(BackendContract, DirectContract):
    @staticmethod
    def waiting(harness: Harness, **changes: Any) -> Submission:
        spec = replace(harness.spec(), time_limit=2 * HOUR, gpus=GpuRequest(9, 9), **changes)
        return Submission(spec)  # no node has nine GPUs, and no begin time can be given

    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(KubernetesHarness, tmp_path_factory)


class TestRemote(BackendContract, ClosingContract):
    @pytest.fixture(scope="class")
    def harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(RemoteHarness, tmp_path_factory)

    @pytest.fixture
    def closing_harness(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        yield from closed(RemoteHarness, tmp_path_factory)
