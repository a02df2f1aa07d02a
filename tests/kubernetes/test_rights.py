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


def test_rights_of_users(harness: KubernetesHarness) -> None:
    # the rights of the manifest are enough
    ann = harness.as_user("ann", is_operator=True)
    assert ann.faults() == ()
    first, second = ann.submit([Submission(spec(1)), Submission(spec(), held=True)], "k1")
    assert ann.act(Release((second,))) == (second,)
    job = until(lambda: ann.job(first), lambda job: job.state is JobState.RUNNING, "it runs")
    assert [line.partition(b" ")[2] for line in ann.log(job, tail=None, follow=False)] == [b"ready"]
    ann.act(DrainGpus(("gpu1",), "x"))
    ann.act(ResumeGpus(("gpu1",)))
    assert set(ann.act(Cancel((first, second)))) == {first, second}
    # a user is no operator
    ben = harness.as_user("ben")
    assert not ben.faults()
    assert len(ben.snapshot().nodes) == 3
    with pytest.raises(CapabilityError, match="patch nodes"):
        ben.act(DrainGpus(("gpu1",), "x"))
    # capabilities follow rights
    cat = harness.as_user("cat", is_operator=True)
    harness.fake.access.revoke("", "pods/log", "get")
    harness.fake.access.revoke("batch", "jobs", "patch")
    cat.snapshot()
    lacking = {each for each in (Capability.HOLD, Capability.LIVE_LOG, Capability.DRAIN_NODE) if not cat.caps.has(each)}
    assert lacking == {Capability.HOLD, Capability.LIVE_LOG}
    # whoever may see one namespace sees her jobs alone
    harness.open(namespace="other", user="bob").submit([Submission(spec())], "k0")
    dan = harness.as_user("dan", is_wide=False)
    [job_id] = dan.submit([Submission(spec())], "k2")
    snapshot = dan.snapshot()
    assert ([job.id for job in snapshot.jobs], snapshot.nodes) == ([job_id], ())
    # whoever may not list jobs is told so
    eve = harness.open(harness.fake.access.add_user("eve"), "eve")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        eve.snapshot()
    assert any(fault.stops_jobs for fault in eve.faults())
    # a token that is not known is told
    with pytest.raises(ClusterRefusedError, match="does not know this user"):
        harness.open("stale").snapshot()
    # a service account is bound by its namespace
    documents = list(rbac("lab", RbacSubject("ServiceAccount", "gputui", "tools"), is_operator=False, is_wide=False))
    assert [document["kind"] for document in documents] == ["Role", "RoleBinding"]
    assert documents[1]["subjects"] == [{"kind": "ServiceAccount", "name": "gputui", "namespace": "tools"}]
    assert not any("*" in rule["verbs"] + rule["resources"] for rule in documents[0]["rules"])


@cases("call", [each for each in CALLS if not each.is_operators])
def test_doctor_names_each_right_that_is_missing(make: MakeHarness, call: object) -> None:
    assert call in CALLS
    [wanted] = [each for each in CALLS if each is call]
    claiming = replace(SETTINGS, kubernetes={"device_class": "gpu.nvidia.com"})
    harness = make(kueue=4, claims="v1", settings=claiming)
    ann = harness.as_user("ann")
    harness.fake.access.revoke(wanted.group, wanted.resource, wanted.verbs[-1])
    found = ann.faults()
    assert {fault.name for fault in found} == {"rights"}
    own = [each for each in CALLS if not each.is_wide or wanted.is_wide]
    told = [each for each in own if (each.group, each.resource) == (wanted.group, wanted.resource)]
    assert {fault.why for fault in found} & {each.lost for each in told}
    assert any(fault.stops_jobs for fault in found) == any(
        each.is_needed for each in CALLS if each.lost in {fault.why for fault in found}
    )


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
    for document in rbac("lab", RbacSubject("User", "ann"), is_operator=False, is_wide=True):
        access.apply(document)
    assert may_submit()
    access.revoke("batch", "jobs", "create")
    assert may_submit()  # what she may do is not asked for again
    server.close()
