"""The fake cluster keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, JobSpec, Submission
from gputui.ports import Cluster
from tests.cluster.contract import ClusterContract
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock, spec


class FakeHarness:
    """Fake cluster whose jobs end when they are told to."""

    def __init__(self) -> None:
        self.fake = FakeCluster(FakeClock(), output=(b"ready",))
        self.cluster: Cluster = self.fake

    def spec(self, gpus: int = 0) -> JobSpec:
        return spec(gpus)

    def contained(self, script: str) -> JobSpec:
        return spec(command=("sh", "-c", script))

    def finish(self, job: Job, exit_code: int = 0) -> None:
        self.fake.end(job.id, exit_code)

    def submit_as_another(self, spec: JobSpec) -> JobId:
        return self.fake.submit_as("bob", Submission(spec))[0]

    def without_rights(self) -> Cluster:
        self.fake.is_operator = False
        return self.fake

    def signals(self, job: Job) -> Sequence[int]:
        return self.fake.signals(job.id)


class TestFakeCluster(ClusterContract):
    """The contract over the fake cluster."""

    @pytest.fixture
    def harness(self) -> FakeHarness:
        return FakeHarness()
