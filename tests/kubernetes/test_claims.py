"""GPUs by claims of devices: a template of claims beside each Job, which goes with it."""

from __future__ import annotations

import pytest
import yaml as pyyaml  # type: ignore[import-untyped]
from msgspec.structs import replace

from gputui.domain.action import Cancel
from gputui.domain.errors import InputError
from gputui.domain.job_spec import GpuRequest, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState
from tests.factories import GIB, spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until

CLAIMING = ClusterSettings(kubernetes={"device_class": "gpu.nvidia.com"})
ASKED = replace(spec(), gpus=GpuRequest(2, 2, model="H200-SXM", memory=40 * GIB))


@pytest.fixture
def claiming(make: MakeHarness) -> KubernetesHarness:
    """Return the adapter over a server that has claims, with settings that want them."""
    return make("v1.34.1", claims="v1", settings=CLAIMING)


def test_a_job_claims_its_gpus(claiming: KubernetesHarness) -> None:
    [job_id] = claiming.kube.submit([Submission(ASKED)], "k1")
    until(lambda: claiming.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it has its devices")
    [job], [template] = (claiming.fake.objects.all(kind) for kind in ("jobs", "resourceclaimtemplates"))
    pod = job["spec"]["template"]["spec"]
    name = template["metadata"]["name"]
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": name}]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpus"}]}
    assert "affinity" not in pod
    [owner] = template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
    [request] = template["spec"]["spec"]["devices"]["requests"]
    exactly = request["exactly"]
    assert (exactly["deviceClassName"], exactly["allocationMode"], exactly["count"]) == (
        *("gpu.nvidia.com", "ExactCount"),
        2,
    )
    assert [each["cel"]["expression"] for each in exactly["selectors"]] == [
        'device.attributes[device.driver].productName.lowerAscii().replace("-", " ").contains("h200 sxm")',
        f'device.capacity[device.driver].memory.compareTo(quantity("{40 * GIB}")) >= 0',
    ]


def test_an_earlier_api_has_the_fields_of_a_request_elsewhere(make: MakeHarness) -> None:
    harness = make("v1.32.0", claims="v1beta1", settings=CLAIMING)
    harness.kube.submit([Submission(spec(1))], "k1")
    [template] = harness.fake.objects.all("resourceclaimtemplates")
    [request] = template["spec"]["spec"]["devices"]["requests"]
    assert (request["deviceClassName"], request["count"]) == ("gpu.nvidia.com", 1)


def test_a_job_that_was_killed_between_job_and_claim_gets_its_claim(claiming: KubernetesHarness) -> None:
    first = claiming.open(state="mine")
    ids = first.submit([Submission(spec(1))], "k1")
    [template] = claiming.fake.objects.all("resourceclaimtemplates")
    claiming.fake.objects.remove("resourceclaimtemplates", template)
    assert claiming.open(state="mine").submit([Submission(spec(1))], "k1") == ids
    assert len(claiming.fake.objects.all("resourceclaimtemplates")) == 1


def test_an_array_has_one_template_whose_claims_are_each_elements_own(claiming: KubernetesHarness) -> None:
    ids = claiming.kube.submit([Submission(spec(1), array=(0, 1, 2), array_limit=2)], "k1")
    assert len(claiming.fake.objects.all("resourceclaimtemplates")) == 1
    claiming.kube.act(Cancel(ids))
    until(lambda: claiming.fake.objects.all("jobs"), lambda jobs: not jobs, "it is gone")
    claiming.fake.controller.run()
    assert not claiming.fake.objects.all("resourceclaimtemplates")


def test_a_job_without_gpus_claims_nothing(claiming: KubernetesHarness) -> None:
    claiming.kube.submit([Submission(spec())], "k1")
    assert not claiming.fake.objects.all("resourceclaimtemplates")


def test_a_dry_run_shows_job_and_claim(claiming: KubernetesHarness) -> None:
    job, template = pyyaml.safe_load_all(claiming.kube.draft(Submission(spec(1))))
    assert (job["kind"], template["kind"]) == ("Job", "ResourceClaimTemplate")
    assert (
        template["metadata"]["name"]
        == job["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    )


def test_a_server_without_claims_is_told_before_anything_is_submitted(make: MakeHarness) -> None:
    harness = make(settings=CLAIMING)
    with pytest.raises(InputError, match="no claims of devices") as refused:
        harness.kube.submit([Submission(spec(1))], "k1")
    assert refused.value.where == "cluster.kubernetes.device_class"
    assert [fault.name for fault in harness.kube.faults()] == ["claims"]


def test_the_rights_of_the_manifest_are_enough_to_claim(claiming: KubernetesHarness) -> None:
    ann = claiming.as_user("ann")
    assert ann.faults() == ()
    ann.submit([Submission(spec(1))], "k1")
    assert claiming.fake.objects.all("resourceclaimtemplates")
