"""Jobs in real containers: a kubelet of Kubernetes 1.20 over a private Docker engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.domain.action import Cancel
from gputui.domain.container import ExecRequest
from gputui.domain.errors import CauseCode, ClusterError, NotFoundError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, Interactive, JobSpec, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState, PendingReason
from gputui.ports.backend import Attach
from tests.cluster.talk import Talk
from tests.kubernetes.bed import Bed
from tests.kubernetes.node import NAME, Node, has_kubelet
from tests.kubernetes.waiting import until
from tests.runtime.dockerd import IMAGE

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_kubelet(), reason="no kubelet: tests/kubernetes/build_control_plane.sh DIR"),
]
CLASSES = ClusterSettings(priority_classes=("batch-low", "batch-normal", "batch-high"))
STAYS = "trap 'exit 7' TERM; echo begun; while :; do sleep 1; done"


class NodeBed(Bed):
    """A control plane with one real node."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, has_nodes=True)
        self.node = Node(self.plane, directory).start()
        for name, value in (("batch-low", -100), ("batch-normal", 0), ("batch-high", 100)):
            item = {"metadata": {"name": name}, "value": value}
            self.plane.create("/apis/scheduling.k8s.io/v1/priorityclasses", item)

    def pods(self, job: Job) -> list[dict[str, Any]]:
        """Return the pods of a job."""
        found = self.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
        return [pod for pod in found if pod["metadata"]["name"].startswith(f"{job.name}-")]

    def forget_pods(self) -> None:
        """Remove pods that are being deleted and have no containers: a kubelet may take a minute for that."""
        for pod in self.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
                with suppress(HTTPError):  # it is gone
                    self.plane.ask("DELETE", path, {"gracePeriodSeconds": 0})

    def close(self) -> None:
        self.node.close()
        super().close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBed]:
    made = NodeBed(tmp_path_factory.mktemp("kubernetes"))
    made.grant("ann", is_operator=True)
    yield made
    made.close()


@pytest.fixture
def cluster(bed: NodeBed) -> Iterator[KubernetesCluster]:
    """Yield the view of a user with the rights of the manifest; no container of hers is left afterwards."""
    made = bed.open("ann-token", "ann", CLASSES)
    yield made
    made.act(Cancel(tuple(job_id for job in made.snapshot().jobs for job_id in job.ids)))
    until(bed.node.containers, lambda names: not names, "no container is left")
    bed.forget_pods()
    until(made.snapshot, lambda snapshot: not any(job.state.is_active for job in snapshot.jobs), "no job runs")


def job_of(name: str, script: str, gpus: int = 0, **fields: Any) -> JobSpec:
    return JobSpec(image=IMAGE, command=("sh", "-c", script), name=name, gpus=GpuRequest(gpus, gpus), **fields)


def submitted(cluster: KubernetesCluster, spec: JobSpec) -> int:
    [job_id] = cluster.submit([Submission(spec)], spec.name)
    return job_id


def running(cluster: KubernetesCluster, spec: JobSpec) -> Job:
    job_id = submitted(cluster, spec)
    return until(lambda: cluster.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")


def ended(cluster: KubernetesCluster, job_id: int) -> Job:
    return until(lambda: cluster.job(job_id), lambda job: job.state.is_terminal, "it has ended")


def texts(cluster: KubernetesCluster, job: Job) -> list[bytes]:
    return [line.partition(b" ")[2] for line in cluster.log(job, tail=None, follow=False)]


def test_a_job_has_its_gpus_its_output_and_its_exit_code(cluster: KubernetesCluster) -> None:
    job = running(cluster, job_of("plain", "echo one; echo two >&2; sleep 3; exit 3", 2))
    assert [view.state for view in cluster.snapshot().gpus] == [GpuState.ALLOCATED] * 2
    follows = cluster.log(job, tail=None, follow=True)
    assert {line.partition(b" ")[2] for line in follows} == {b"one", b"two"}
    job = ended(cluster, job.id)
    assert (job.state, job.exit_code, job.attempt and job.attempt.node) == (JobState.FAILED, 3, NAME)
    assert set(texts(cluster, job)) == {b"one", b"two"}


@pytest.mark.parametrize(
    ("spec", "state", "cause"),
    [
        (job_of("limited", "exec sleep 60", time_limit=timedelta(seconds=3)), JobState.TIMEOUT, CauseCode.TIME_LIMIT),
        (
            job_of(
                "hungry", "x=$(head -c 200000000 /dev/zero | tr '\\0' x)", options=ContainerOptions(memory=32 * 1024**2)
            ),
            JobState.OUT_OF_MEMORY,
            CauseCode.OUT_OF_MEMORY,
        ),
        (
            JobSpec(image=IMAGE, command=("nosuch",), name="missing"),
            JobState.FAILED,
            CauseCode.COMMAND_NOT_FOUND,
        ),
        (job_of("killed", "sh -c 'kill -9 $$'; exit $?"), JobState.FAILED, CauseCode.SIGNALLED),
    ],
    ids=lambda value: value.name if isinstance(value, JobSpec) else "",
)
def test_an_end_has_its_cause(cluster: KubernetesCluster, spec: JobSpec, state: JobState, cause: CauseCode) -> None:
    job = ended(cluster, submitted(cluster, spec))
    assert (job.state, job.cause and job.cause.code) == (state, cause)


def test_commands_run_inside(cluster: KubernetesCluster) -> None:
    job = running(cluster, job_of("entered", STAYS))
    talk = Talk(cluster.enter(job, ExecRequest(("sh", "-c", "echo out; echo err >&2; exit 5"))))
    assert (talk.end(), talk.out, talk.err) == (5, b"out\n", b"err\n")
    talk = Talk(cluster.enter(job, ExecRequest(("sh", "-c", "read word; echo got $word"), stdin=True)))
    talk.channel.send(b"it\n")
    assert (talk.end(), talk.out) == (0, b"got it\n")
    script = "until busybox stty size 2>&1 | grep '33 101'; do sleep 0.1; echo not yet; done; exit 4"
    talk = Talk(cluster.enter(job, ExecRequest(("sh", "-c", script), stdin=True, tty=True)))
    talk.channel.resize(33, 101)
    assert talk.end() == 4
    talk = Talk(cluster.enter(job, ExecRequest(("nosuch",))))
    assert talk.end() == 126
    assert b"executable file not found" in talk.out + talk.err


def contains(words: bytes, out: bytes) -> bool:
    return words in out


def answer(talk: Talk) -> bytes:
    """Type a word and return what the job says to it: input and sizes reach it in no order."""
    talk.out = b""
    talk.channel.send(b"word\n")
    talk.until(b"got word")
    return talk.out


def test_a_terminal_is_attached_to_and_left(cluster: KubernetesCluster) -> None:
    script = "while read w; do [ $w = end ] && exit 6; busybox stty size; echo got $w; done"
    job = running(cluster, replace(job_of("typed", script), interactive=Interactive(stdin=True, tty=True)))
    for number in (1, 2):
        talk = Talk(cluster.enter(job, Attach()))
        talk.channel.resize(30 + number, 90)
        until(partial(answer, talk), partial(contains, b"%d 90" % (30 + number)), "it has the size")
        talk.channel.close()
    talk = Talk(cluster.enter(job, Attach()))
    talk.channel.send(b"end\n")
    talk.end()
    assert ended(cluster, job.id).exit_code == 6


def test_a_cancelled_job_gets_its_time_to_end(bed: NodeBed, cluster: KubernetesCluster) -> None:
    job = running(cluster, job_of("stopped", "trap 'echo saved; exit 9' TERM; echo begun; while :; do sleep 1; done"))
    until(lambda: texts(cluster, job), lambda lines: lines == [b"begun"], "it has begun")
    assert cluster.act(Cancel((job.id,))) == (job.id,)
    job = ended(cluster, job.id)
    assert (job.state, job.cancelled_by) == (JobState.CANCELLED, "ann")
    assert texts(cluster, job)[0] == b"begun"
    assert not bed.pods(job)


def test_a_job_that_does_not_end_is_killed_after_its_time(bed: NodeBed, cluster: KubernetesCluster) -> None:
    job = running(
        cluster,
        job_of("deaf", "trap '' TERM; echo begun; while :; do sleep 1; done", options=ContainerOptions(stop_timeout=2)),
    )
    cluster.act(Cancel((job.id,)))
    assert ended(cluster, job.id).state is JobState.CANCELLED
    until(bed.node.containers, lambda names: not names, "its container is gone")


def test_an_image_that_cannot_be_pulled(cluster: KubernetesCluster) -> None:
    job_id = submitted(cluster, JobSpec(image="127.0.0.1:1/nosuch:1", name="imageless"))

    def said() -> str:
        return cluster.snapshot().progress.get(job_id, "")

    words = until(said, lambda words: "cannot be pulled" in words, "it says so")
    assert words.endswith(("(ErrImagePull)", "(ImagePullBackOff)"))
    with pytest.raises(NotFoundError, match="it has no output"):
        texts(cluster, cluster.job(job_id))


def test_a_pod_that_somebody_deletes_is_made_again_by_this_release(bed: NodeBed, cluster: KubernetesCluster) -> None:
    job = running(cluster, job_of("twice", STAYS))
    [pod] = bed.pods(job)
    bed.plane.ask("DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")

    def is_another() -> bool:
        names = [each["metadata"]["name"] for each in bed.pods(job)]
        return names != [] and pod["metadata"]["name"] not in names

    until(is_another, bool, "there is another pod in its place")
    until(lambda: cluster.job(job.id), lambda job: job.state is JobState.RUNNING, "it runs again")


def test_a_preempted_job_waits_again(cluster: KubernetesCluster) -> None:
    low = running(cluster, job_of("low", STAYS, 2, priority=10))
    high = running(cluster, job_of("high", STAYS, 1, priority=90))
    reasons = until(lambda: cluster.snapshot().reasons, lambda found: low.id in found, "the other one waits")
    assert reasons[low.id].code is PendingReason.RESOURCES
    cluster.act(Cancel((high.id,)))
    until(lambda: cluster.job(low.id), lambda job: job.state is JobState.RUNNING, "it runs again")


def test_a_node_that_is_lost_and_comes_back(bed: NodeBed, cluster: KubernetesCluster) -> None:
    job = running(cluster, job_of("kept", STAYS, 1))
    bed.node.kill()
    words = until(lambda: cluster.snapshot().progress.get(job.id, ""), bool, "its node is away")
    assert words.startswith(f"node {NAME} is not ready: ")
    assert [view.state for view in cluster.snapshot().gpus] == [GpuState.UNKNOWN] * 2
    bed.node.launch()
    until(lambda: cluster.snapshot().progress, lambda said: job.id not in said, "its node is there again")
    assert cluster.job(job.id).state is JobState.RUNNING

    def output() -> list[bytes]:
        try:
            return texts(cluster, job)
        except (ClusterError, NotFoundError):  # the kubelet does not know its pods yet
            return []

    assert until(output, bool, "its output is there again") == [b"begun"]
