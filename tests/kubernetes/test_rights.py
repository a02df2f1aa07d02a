"""Rights: the manifest grants what the adapter calls and no more, and doctor names each one that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.cluster.kubernetes.api_server import connect
from gputui.cluster.kubernetes.site import CALLS, SUBMIT, RbacSubject, Sites, rbac
from gputui.domain.action import Cancel, DrainGpus, Release, ResumeGpus
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, ClusterRefusedError
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.fake.server import kubeconfig
from tests.kubernetes.harness import SETTINGS, KubernetesHarness
from tests.kubernetes.waiting import until


def test_the_rights_of_the_manifest_are_enough(harness: KubernetesHarness) -> None:
    ann = harness.as_user("ann", is_operator=True)
    assert ann.faults() == ()
    first, second = ann.submit([Submission(spec(1)), Submission(spec(), held=True)], "k1")
    assert ann.act(Release((second,))) == (second,)
    job = until(lambda: ann.job(first), lambda job: job.state is JobState.RUNNING, "it runs")
    assert [line.partition(b" ")[2] for line in ann.log(job, tail=None, follow=False)] == [b"ready"]
    ann.act(DrainGpus(("gpu1",), "x"))
    ann.act(ResumeGpus(("gpu1",)))
    assert set(ann.act(Cancel((first, second)))) == {first, second}


def test_a_user_is_no_operator(harness: KubernetesHarness) -> None:
    ann = harness.as_user("ann")
    assert not ann.faults()
    assert len(ann.snapshot().nodes) == 3
    with pytest.raises(CapabilityError, match="patch nodes"):
        ann.act(DrainGpus(("gpu1",), "x"))


@cases("call", [each for each in CALLS if not each.is_operators])
def test_doctor_names_each_right_that_is_missing(make: MakeHarness, call: object) -> None:
    assert call in CALLS
    [wanted] = [each for each in CALLS if each is call]
    claiming = replace(SETTINGS, kubernetes={"device_class": "gpu.nvidia.com"})
    harness = make(kueue=4, claims="v1", settings=claiming)
    ann = harness.as_user("ann")
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    harness.fake.access.revoke(wanted.group, resource, wanted.verbs[-1])
    found = ann.faults()
    assert {fault.name for fault in found} == {"rights"}
    own = [each for each in CALLS if not each.is_wide or wanted.is_wide]
    told = [each for each in own if (each.group, each.resource) == (wanted.group, wanted.resource)]
    assert {fault.why for fault in found} & {each.lost for each in told}
    assert any(fault.stops_jobs for fault in found) == any(
        each.is_needed for each in CALLS if each.lost in {fault.why for fault in found}
    )


def test_capabilities_follow_rights(harness: KubernetesHarness) -> None:
    ann = harness.as_user("ann", is_operator=True)
    harness.fake.access.revoke("", "pods/log", "get")
    harness.fake.access.revoke("batch", "jobs", "patch")
    ann.snapshot()
    lacking = {each for each in (Capability.HOLD, Capability.LIVE_LOG, Capability.DRAIN_NODE) if not ann.caps.has(each)}
    assert lacking == {Capability.HOLD, Capability.LIVE_LOG}


def test_whoever_may_see_one_namespace_sees_her_jobs_alone(harness: KubernetesHarness) -> None:
    harness.open(namespace="other", user="bob").submit([Submission(spec())], "k0")
    ann = harness.as_user("ann", is_wide=False)
    [job_id] = ann.submit([Submission(spec())], "k1")
    snapshot = ann.snapshot()
    assert ([job.id for job in snapshot.jobs], snapshot.nodes) == ([job_id], ())


def test_whoever_may_not_list_jobs_is_told_so(harness: KubernetesHarness) -> None:
    eve = harness.open(harness.fake.access.add_user("eve"), "eve")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        eve.snapshot()
    assert any(fault.stops_jobs for fault in eve.faults())


def test_a_token_that_is_not_known_is_told(harness: KubernetesHarness) -> None:
    with pytest.raises(ClusterRefusedError, match="does not know this user"):
        harness.open("stale").snapshot()


def test_a_service_account_is_bound_by_its_namespace() -> None:
    documents = list(rbac("lab", RbacSubject("ServiceAccount", "gputui", "tools"), is_wide=False))
    assert [document["kind"] for document in documents] == ["Role", "RoleBinding"]
    assert documents[1]["subjects"] == [{"kind": "ServiceAccount", "name": "gputui", "namespace": "tools"}]
    assert not any("*" in rule["verbs"] + rule["resources"] for rule in documents[0]["rules"])


def test_missing_rights_are_asked_for_again_soon(harness: KubernetesHarness, tmp_path: Path) -> None:
    access, now = harness.fake.access, [1000.0]
    sites = Sites(tmp_path, lambda: now[0])
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(harness.fake.address, access.add_user("ann")))
    server = connect(None, {"KUBECONFIG": str(file)}, 30.0)

    def may_submit() -> bool:
        found = sites.of(server, "lab")
        now[0] = found.asked_at + 20
        return found.may(SUBMIT)

    assert not may_submit()
    for document in rbac("lab", RbacSubject("User", "ann")):
        access.apply(document)
    assert may_submit()
    access.revoke("batch", "jobs", "create")
    assert may_submit()  # what she may do is not asked for again
    server.close()
