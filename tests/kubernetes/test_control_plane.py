"""The adapter over a real control plane of Kubernetes 1.20, or of a later release, with stand-ins for its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.error import HTTPError

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, Query, connect
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.cluster.kubernetes.mirror import PAGE, Reflector
from gputui.cluster.kubernetes.objects import KubeEvent
from gputui.cluster.kubernetes.site import CALLS
from gputui.domain.action import Cancel, DrainGpus, Hold, Release, ResumeGpus
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, CauseCode, ClusterError, ClusterRefusedError
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState, PendingReason
from tests.factories import spec
from tests.kubernetes.bed import Bed
from tests.kubernetes.control_plane import ControlPlane, binaries, is_of_1_20
from tests.kubernetes.kubelet import Kubelets
from tests.kubernetes.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(binaries() is None, reason="no control plane: tests/kubernetes/build_control_plane.sh DIR"),
]


only_of_1_20 = pytest.mark.skipif(not is_of_1_20(), reason="a later release")
only_of_later = pytest.mark.skipif(is_of_1_20(), reason="1.20")
T = TypeVar("T")


class StandInBed(Bed):
    """A control plane with stand-ins for nodes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.kubelets = Kubelets(self.plane)
        self.kubelets.start()

    def pod(self, job: Job) -> dict[str, Any]:
        """Return the pod of a job."""
        found = self.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
        return next(pod for pod in found if job.name in pod["metadata"]["name"])

    def close(self) -> None:
        self.kubelets.close()
        super().close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInBed]:
    made = StandInBed(tmp_path_factory.mktemp("kubernetes"))
    made.grant("ann", is_operator=True)
    yield made
    made.close()


@pytest.fixture
def cluster(bed: Bed) -> Iterator[KubernetesCluster]:
    """Yield the view of a user with the rights of the manifest; its jobs are gone afterwards."""
    made = bed.open("ann-token", "ann")
    yield made
    made.act(Cancel(tuple(job_id for job in made.snapshot().jobs for job_id in job.ids)))
    until(made.snapshot, lambda snapshot: not any(job.state.is_active for job in snapshot.jobs), "no job runs")


def until_state(cluster: KubernetesCluster, job_id: int, state: JobState) -> Job:
    return until(lambda: cluster.job(job_id), lambda job: job.state is state, f"the job is {state}")


def named(name: str, gpus: int = 0) -> Submission:
    return Submission(replace(spec(gpus), name=name))


def test_jobs_run_and_end(bed: StandInBed, cluster: KubernetesCluster) -> None:
    first, second = cluster.submit([named("good", 2), named("bad", 1)], "ends")
    assert cluster.submit([named("good", 2), named("bad", 1)], "ends") == (first, second)
    for job_id, code in ((first, 0), (second, 3)):
        job = until_state(cluster, job_id, JobState.RUNNING)
        bed.kubelets.finish(bed.pod(job), code)
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


def test_a_cancelled_job_is_gone_with_its_pod(bed: StandInBed, cluster: KubernetesCluster) -> None:
    [job_id] = cluster.submit([named("gone", 1)], "cancelled")
    until_state(cluster, job_id, JobState.RUNNING)
    assert cluster.act(Cancel((job_id,))) == (job_id,)
    assert until_state(cluster, job_id, JobState.CANCELLED).cancelled_by == "ann"
    pods = bed.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    assert not any("gone" in pod["metadata"]["name"] for pod in pods)


def test_an_array_is_a_job_for_each_element(cluster: KubernetesCluster) -> None:
    ids = cluster.submit([Submission(replace(spec(1), name="sweep"), array=(0, 1, 2))], "array")
    for job_id in ids:
        until_state(cluster, job_id, JobState.RUNNING)
    assert cluster.act(Cancel(ids[1:2])) == ids[1:2]
    until_state(cluster, ids[1], JobState.CANCELLED)
    assert cluster.job(ids[0]).state is JobState.RUNNING


def test_the_server_takes_a_sites_template(bed: StandInBed, cluster: KubernetesCluster) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    pod = {
        "labels": {"team": "vision"},
        "annotations": {"example.com/note": "all"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"kubernetes.io/hostname": "gpu2"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "imagePullSecrets": [{"name": "registry"}],
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": {"scratch": {"emptyDir": {}, "mountPath": "/scratch"}},
        "container": {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
    }
    site = bed.open("ann-token", "ann", ClusterSettings(kubernetes={"pod": pod}))
    model = GpuRequest(1, 1, model="h200")
    assert "nodeSelector" in site.draft(Submission(replace(spec(), gpus=model)))
    asked = replace(spec(), gpus=model, name="placed")
    wants = replace(spec(options=ContainerOptions(volumes=("data:/data",))), name="wants")
    placed, waits = site.submit([Submission(asked), Submission(wants)], "site")
    job = until_state(cluster, placed, JobState.RUNNING)
    assert job.attempt is not None
    assert job.attempt.node == "gpu2"

    def is_told(found: dict[int, Any]) -> bool:
        return waits in found and 'persistentvolumeclaim "data" not found' in found[waits].text

    until(lambda: dict(cluster.snapshot().reasons), is_told, "the claim is missing")


def test_a_drained_node_takes_no_jobs(cluster: KubernetesCluster) -> None:
    cluster.act(DrainGpus(("gpu1", "gpu2"), "fan noise"))
    try:
        states = [view.state for view in cluster.snapshot().gpus]
        assert states.count(GpuState.DRAINED) == 4
        [job_id] = cluster.submit([named("moved", 1)], "drained")
        job = until_state(cluster, job_id, JobState.RUNNING)
        assert job.attempt is not None
        assert job.attempt.node == "gpu3"
    finally:
        cluster.act(ResumeGpus(("gpu1", "gpu2")))
    assert not any(view.drain for view in cluster.snapshot().gpus)
    with pytest.raises(ClusterRefusedError, match="invalid node name"):
        cluster.act(DrainGpus(("gpu99",), "x"))


@only_of_1_20
def test_1_20_cannot_hold(cluster: KubernetesCluster) -> None:
    with pytest.raises(CapabilityError, match="suspends jobs from release"):
        cluster.submit([Submission(spec(), held=True)], "held")
    assert not cluster.caps.has(Capability.HOLD)
    assert [fault.name for fault in cluster.faults()] == ["version"]


@only_of_later
def test_jobs_are_held_and_released(cluster: KubernetesCluster) -> None:
    assert cluster.faults() == ()
    [job_id] = cluster.submit([Submission(replace(spec(1), name="held"), held=True)], "held")
    assert until(lambda: cluster.job(job_id), lambda job: job.held, "it is held").state is JobState.PENDING
    assert cluster.act(Release((job_id,))) == (job_id,)
    until_state(cluster, job_id, JobState.RUNNING)
    [wide] = cluster.submit([named("kept", 9)], "kept")
    waits = partial(reason_of, cluster, wide)
    until(waits, lambda words: "Insufficient" in words, "it waits")
    assert cluster.act(Hold((wide,))) == (wide,)
    assert until(lambda: cluster.job(wide), lambda job: job.held, "it is held").state is JobState.PENDING
    assert cluster.act(Release((wide,))) == (wide,)
    until(waits, lambda words: "Insufficient" in words, "it waits again")


def reason_of(cluster: KubernetesCluster, job_id: int) -> str:
    """Return why a job waits; empty if it does not."""
    found = cluster.snapshot().reasons.get(job_id)
    return found.text if found is not None else ""


@only_of_later
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("delete", "its pod on node {} was deleted in Kubernetes"),
        ("evict", "removed from node {}: Eviction API: evicting (EvictionByEvictionAPI)"),
    ],
)
def test_a_job_fails_with_its_pod_and_says_why(
    bed: StandInBed, cluster: KubernetesCluster, how: str, words: str
) -> None:
    [job_id] = cluster.submit([named(how, 1)], how)
    job = until_state(cluster, job_id, JobState.RUNNING)
    path = f"/api/v1/namespaces/default/pods/{bed.pod(job)['metadata']['name']}"
    if how == "delete":
        bed.plane.ask("DELETE", path)
    else:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": path.rpartition("/")[2]}}
        bed.plane.ask("POST", f"{path}/eviction", eviction)
    job = until_state(cluster, job_id, JobState.FAILED)
    assert job.attempt is not None
    assert (job.cause and job.cause.text, job.exit_code) == (words.format(job.attempt.node), 143)
    assert [line.partition(b" ")[2] for line in cluster.log(job, tail=None, follow=False)] == [b"ready"]
    words = "its pod was preempted, evicted or removed with its node: " if how == "evict" else "; its pod is gone"
    told = bed.open("ann-token", "ann").job(job_id).cause  # of whoever did not watch
    assert told is not None
    assert words in told.text


def test_whoever_has_no_rights_is_told(bed: Bed) -> None:
    eve = bed.open("eve-token", "eve")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        eve.snapshot()
    assert any(fault.stops_jobs for fault in eve.faults())
    bed.grant("eve", is_operator=False)
    again = bed.open("eve-token", "eve")
    until(again.faults, lambda found: "rights" not in {fault.name for fault in found}, "the server knows her rights")
    with pytest.raises(CapabilityError, match="patch nodes"):
        again.act(DrainGpus(("gpu1",), "x"))


def test_an_ended_job_is_known_after_its_time_to_live(bed: StandInBed) -> None:
    ann = bed.open("ann-token", "ann", ClusterSettings(keep_ended=timedelta(seconds=3)))
    [job_id] = ann.submit([named("brief")], "brief")
    job = until_state(ann, job_id, JobState.RUNNING)
    bed.kubelets.finish(bed.pod(job), 0)
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


def rules(bed: Bed, name: str, namespace: str) -> set[tuple[str, str, str]]:
    """Return what the server says a user may do there, as verb, group and resource."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    told = bed.plane.ask("POST", path, review | {"spec": {"namespace": namespace}}, token=f"{name}-token")
    assert not told["status"]["incomplete"]
    return {
        (verb, group, resource)
        for rule in told["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def granted(*, is_operator: bool, is_wide: bool, is_own: bool) -> set[tuple[str, str, str]]:
    """Return the rights that the calls of gputui need in the user's namespace, or in another one."""
    found = (call for call in CALLS if (is_wide if call.is_wide else is_own) and (is_operator or not call.is_operators))
    names = ((call, call.resource) for call in found)
    return {(verb, call.group, name) for call, name in names for verb in call.verbs}


@pytest.mark.parametrize(
    ("name", "is_operator", "is_wide"), [("una", False, False), ("bob", False, True), ("opa", True, True)]
)
def test_the_server_grants_what_the_manifest_says_and_no_more(
    bed: Bed, name: str, is_operator: bool, is_wide: bool
) -> None:
    basic = rules(bed, name, "default")  # what everybody may do
    bed.grant(name, is_operator=is_operator, is_wide=is_wide)
    wanted = granted(is_operator=is_operator, is_wide=is_wide, is_own=True)
    until(lambda: rules(bed, name, "default") - basic, lambda found: found == wanted, "the server knows the roles")
    elsewhere = granted(is_operator=is_operator, is_wide=is_wide, is_own=False)
    assert rules(bed, name, "kube-system") - basic == elsewhere
    found = {fault.name for fault in bed.open(f"{name}-token", name).faults()}
    assert ("rights" in found) is not is_wide


def test_requests_beyond_the_rights_are_refused(bed: Bed) -> None:
    bed.grant("bob", is_operator=False)
    bob = bed.open("bob-token", "bob")
    until(bob.faults, lambda found: "rights" not in {fault.name for fault in found}, "the server knows his rights")
    own, jobs = "/api/v1/namespaces/default", "/apis/batch/v1/namespaces"
    for method, path in (
        ("GET", f"{own}/secrets"),
        ("GET", f"{own}/configmaps"),
        ("POST", f"{own}/pods"),
        ("DELETE", f"{own}/pods"),
        ("DELETE", "/api/v1/namespaces/kube-system/pods/x"),
        ("POST", f"{own}/pods/x/eviction"),
        ("GET", f"{own}/pods/x/portforward"),
        ("DELETE", f"{jobs}/default/jobs"),
        ("POST", f"{jobs}/kube-system/jobs"),
        ("DELETE", f"{jobs}/kube-system/jobs/x"),
        ("GET", "/api/v1/namespaces/kube-system/pods/x/log"),
        ("GET", "/api/v1/namespaces/kube-system/pods/x/exec"),
        ("PATCH", "/api/v1/nodes/gpu1"),
        ("GET", "/api/v1/nodes/gpu1/proxy/pods"),
    ):
        with pytest.raises(HTTPError) as refused:
            bed.plane.ask(method, path, {} if method in {"POST", "PATCH"} else None, token="bob-token")
        assert refused.value.code == 403, (method, path)
        refused.value.close()


def test_jobs_are_watched_on_after_the_server_has_forgotten_its_changes(bed: Bed, cluster: KubernetesCluster) -> None:
    cluster.snapshot()
    time.sleep(1)  # past the first list, so that the next look watches
    cluster.snapshot()
    [job_id] = bed.open("ann-token", "ann").submit([named("before", 1)], "before")
    until_state(cluster, job_id, JobState.RUNNING)
    bed.plane.compact()
    bed.plane.restart_server()
    [later] = bed.open("ann-token", "ann").submit([named("after", 1)], "after")
    until(lambda: seen(cluster), lambda ids: {job_id, later} <= ids, "it is listed again")
    until_state(cluster, later, JobState.RUNNING)


def seen(cluster: KubernetesCluster) -> set[int]:
    """Return the jobs that are shown; none while the server does not answer, or knows no rights yet."""
    try:
        return {job.id for job in cluster.snapshot().jobs}
    except ClusterError:
        return set()


class Compacting:
    """Server whose etcd forgets all earlier states after each page of a list."""

    def __init__(self, plane: ControlPlane, server: ApiServer) -> None:
        self._plane = plane
        self._server = server
        self.refused = 0

    def read(self, path: str, kind: type[T], query: Query | None = None) -> T:
        try:
            answer = self._server.read(path, kind, query)
        except ApiRefusedError as error:
            self.refused += error.status == 410
            raise
        note = {"metadata": {"generateName": "note-"}, "apiVersion": "v1", "kind": "ConfigMap"}
        self._plane.ask("POST", "/api/v1/namespaces/default/configmaps", note)
        self._plane.compact()
        return answer


def test_a_list_whose_next_page_etcd_has_forgotten_is_read_at_once(bed: Bed) -> None:
    about = {"kind": "Job", "namespace": "default", "name": "x", "uid": "x"}
    event = {"involvedObject": about, "type": "Warning", "reason": "Test", "message": "words"}
    wanted = int(PAGE) + 1
    for number in range(wanted):
        meta = {"name": f"event-{number}", "namespace": "default"}
        bed.plane.ask("POST", "/api/v1/namespaces/default/events", event | {"metadata": meta})
    file = bed.directory / "kubeconfig-pages"
    file.write_text(bed.plane.kubeconfig("admin-token"))
    server = Compacting(bed.plane, connect(None, {"KUBECONFIG": str(file)}, 30.0))
    events = Reflector(cast("ApiServer", server), "/api/v1/namespaces/default/events", KubeEvent)
    events.list()
    assert (len(events.items()) >= wanted, server.refused) == (True, 1)
