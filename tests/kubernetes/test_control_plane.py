"""The adapter over a real control plane of Kubernetes 1.20, with stand-ins for its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes.calls import RbacSubject, rbac
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.cluster.kubernetes.kubeconfig import connect
from gputui.domain.cause import CauseCode
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, ClusterRefusedError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.domain.state import JobState, PendingReason
from tests.factories import spec
from tests.kubernetes.control_plane import ControlPlane, binaries
from tests.kubernetes.kubelet import Kubelets
from tests.kubernetes.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(binaries() is None, reason="no control plane: tests/kubernetes/build_control_plane.sh DIR"),
]


class Bed:
    """A control plane with nodes, and views of it."""

    def __init__(self, directory: Path) -> None:
        programs = binaries()
        assert programs is not None
        self.directory = directory
        self.plane = ControlPlane(programs, directory)
        self.plane.start(("ann", "eve"))
        self.kubelets = Kubelets(self.plane)
        self.kubelets.start()
        self.opened: list[KubernetesCluster] = []

    def open(self, token: str, user: str, settings: ClusterSettings | None = None) -> KubernetesCluster:
        number = len(self.opened)
        file = self.directory / f"kubeconfig-{number}"
        file.write_text(self.plane.kubeconfig(token))
        made = KubernetesCluster(
            lambda: connect(None, {"KUBECONFIG": str(file)}, 30.0),
            replace(Settings(), cluster=settings or ClusterSettings()),
            self.directory / f"state-{number}",
            user=user,
        )
        self.opened.append(made)
        return made

    def grant(self, name: str, *, is_operator: bool) -> None:
        """Apply the manifest of `gputui cluster rbac`."""
        for document in rbac("default", RbacSubject("User", name), is_operator=is_operator):
            kind, place = document["kind"].lower() + "s", document["metadata"].get("namespace")
            where = f"/namespaces/{place}" if place else ""
            with suppress(FileExistsError):  # the same role, for another user
                self.plane.create(f"/apis/rbac.authorization.k8s.io/v1{where}/{kind}", document)

    def pod(self, cluster: KubernetesCluster, job: Job) -> dict[str, Any]:
        assert job.attempt is not None
        found = self.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
        return next(pod for pod in found if job.name in pod["metadata"]["name"])

    def close(self) -> None:
        for cluster in self.opened:
            cluster.close()
        self.kubelets.close()
        self.plane.close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("kubernetes"))
    made.grant("ann", is_operator=True)
    yield made
    made.close()


@pytest.fixture
def cluster(bed: Bed) -> Iterator[KubernetesCluster]:
    """Yield the view of a user with the rights of the manifest; its jobs are gone afterwards."""
    made = bed.open("ann-token", "ann")
    yield made
    made.cancel([job_id for job in made.snapshot().jobs for job_id in job.ids])
    until(made.snapshot, lambda snapshot: not any(job.state.is_active for job in snapshot.jobs), "no job runs")


def until_state(cluster: KubernetesCluster, job_id: int, state: JobState) -> Job:
    return until(lambda: cluster.job(job_id), lambda job: job.state is state, f"the job is {state}")


def named(name: str, gpus: int = 0) -> Submission:
    return Submission(replace(spec(gpus), name=name))


def test_jobs_run_and_end(bed: Bed, cluster: KubernetesCluster) -> None:
    first, second = cluster.submit([named("good", 2), named("bad", 1)], "ends")
    assert cluster.submit([named("good", 2), named("bad", 1)], "ends") == (first, second)
    for job_id, code in ((first, 0), (second, 3)):
        job = until_state(cluster, job_id, JobState.RUNNING)
        bed.kubelets.finish(bed.pod(cluster, job), code)
    assert until_state(cluster, first, JobState.COMPLETED).exit_code == 0
    failed = until_state(cluster, second, JobState.FAILED)
    assert (failed.exit_code, failed.cause and failed.cause.code) == (3, CauseCode.NON_ZERO_EXIT)
    assert [line.partition(b" ")[2] for line in cluster.log(failed, tail=None, follow=False)] == [b"ready"]


def test_jobs_wait_with_the_words_of_the_scheduler(cluster: KubernetesCluster) -> None:
    [job_id] = cluster.submit([named("wide", 9)], "waits")

    def is_told(found: dict[int, Any]) -> bool:
        return job_id in found and found[job_id].code is PendingReason.RESOURCES

    reasons = until(lambda: dict(cluster.snapshot().reasons), is_told, "the scheduler has looked at it")
    assert "3 Insufficient nvidia.com/gpu" in reasons[job_id].text


def test_a_cancelled_job_is_gone_with_its_pod(bed: Bed, cluster: KubernetesCluster) -> None:
    [job_id] = cluster.submit([named("gone", 1)], "cancelled")
    until_state(cluster, job_id, JobState.RUNNING)
    assert cluster.cancel([job_id]) == (job_id,)
    assert until_state(cluster, job_id, JobState.CANCELLED).cancelled_by == "ann"
    pods = bed.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    assert not any("gone" in pod["metadata"]["name"] for pod in pods)


def test_an_array_is_a_job_for_each_element(cluster: KubernetesCluster) -> None:
    ids = cluster.submit([Submission(replace(spec(1), name="sweep"), array=(0, 1, 2))], "array")
    for job_id in ids:
        until_state(cluster, job_id, JobState.RUNNING)
    assert cluster.cancel(ids[1:2]) == ids[1:2]
    until_state(cluster, ids[1], JobState.CANCELLED)
    assert cluster.job(ids[0]).state is JobState.RUNNING


def test_a_drained_node_takes_no_jobs(cluster: KubernetesCluster) -> None:
    cluster.drain(["gpu1", "gpu2"], "fan noise")
    try:
        states = [view.state for view in cluster.snapshot().gpus]
        assert states.count(GpuState.DRAINED) == 4
        [job_id] = cluster.submit([named("moved", 1)], "drained")
        job = until_state(cluster, job_id, JobState.RUNNING)
        assert job.attempt is not None
        assert job.attempt.node == "gpu3"
    finally:
        cluster.resume(["gpu1", "gpu2"])
    assert not cluster.snapshot().controls.drains
    with pytest.raises(ClusterRefusedError, match="invalid node name"):
        cluster.drain(["gpu99"], "x")


def test_1_20_cannot_hold(cluster: KubernetesCluster) -> None:
    with pytest.raises(CapabilityError, match="suspends jobs from release"):
        cluster.submit([Submission(spec(), held=True)], "held")
    assert not cluster.caps.has(Capability.HOLD)
    assert [fault.name for fault in cluster.faults()] == ["version"]


def test_whoever_has_no_rights_is_told(bed: Bed) -> None:
    eve = bed.open("eve-token", "eve")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        eve.snapshot()
    assert any(fault.stops_jobs for fault in eve.faults())
    bed.grant("eve", is_operator=False)
    again = bed.open("eve-token", "eve")
    until(again.faults, lambda found: {fault.name for fault in found} == {"version"}, "the server knows her rights")
    with pytest.raises(CapabilityError, match="patch nodes"):
        again.drain(["gpu1"], "x")


def test_an_ended_job_is_known_after_its_time_to_live(bed: Bed) -> None:
    ann = bed.open("ann-token", "ann", ClusterSettings(keep_ended=timedelta(seconds=3)))
    [job_id] = ann.submit([named("brief")], "brief")
    job = until_state(ann, job_id, JobState.RUNNING)
    bed.kubelets.finish(bed.pod(ann, job), 0)
    until_state(ann, job_id, JobState.COMPLETED)
    until(ann.snapshot, lambda snapshot: snapshot.job(job_id) is None, "Kubernetes has removed it")
    known = ann.job(job_id)
    assert known.state is JobState.COMPLETED
    assert [line.partition(b" ")[2] for line in ann.log(known, tail=None, follow=False)] == [b"ready"]


def test_a_console_sees_changes_by_its_watch(bed: Bed, cluster: KubernetesCluster) -> None:
    cluster.snapshot()
    time.sleep(1)  # past the first list, so that the next look watches
    cluster.snapshot()
    [job_id] = bed.open("ann-token", "ann").submit([named("watched", 1)], "watched")
    until(cluster.snapshot, lambda snapshot: snapshot.job(job_id) is not None, "the watch tells")
    until_state(cluster, job_id, JobState.RUNNING)
