"""Sites with taints, claims and rules for pods: the template of the settings, and models of GPUs by nodes' labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import yaml as pyyaml  # type: ignore[import-untyped]
from msgspec.structs import replace

from gputui.cluster.kubernetes.manifest import KubeTarget, manifests
from gputui.config.settings_file import load_merged
from gputui.domain.errors import ClusterRefusedError, InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cluster import batch_v1
from tests.factories import load_settings, spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.fake.objects import Manifest
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
EXAMPLES = re.findall(r"```toml\n(\[cluster\.kubernetes.*?)```", DOCUMENT.read_text(), re.DOTALL)
"""Sites of the documentation: a cloud, an own cluster with NFS, and a namespace with PodSecurity."""


def settings_of(directory: Path, text: str) -> ClusterSettings:
    file = directory / "settings.toml"
    file.write_text(text)
    return load_settings(file, {}).cluster


def pod_of(harness: KubernetesHarness) -> Manifest:
    [job] = harness.fake.objects.all("jobs")
    found: Manifest = job["spec"]["template"]["spec"]
    return found


def state(harness: KubernetesHarness, asked: JobSpec) -> JobState:
    [job_id] = harness.kube.submit([Submission(asked)], uuid4().hex)
    return harness.kube.job(job_id).state


def why(harness: KubernetesHarness) -> str:
    [reason] = harness.kube.snapshot().reasons.values()
    return reason.text


@cases("example", EXAMPLES)
def test_the_sites_of_the_documentation_make_jobs_that_kubernetes_takes(tmp_path: Path, example: str) -> None:
    site = settings_of(tmp_path, example)
    made = load_settings(tmp_path / "settings.toml", {})
    assert site.kubernetes
    for tenant in ("", "vision"):
        asked = Submission(replace(spec(1), tenant=tenant))
        for document in manifests(asked, "k1", made, KubeTarget("lab")):
            jsonschema.validate(document, batch_v1.JOB)


def test_a_job_runs_on_tainted_nodes_of_a_cloud(make: MakeHarness, tmp_path: Path) -> None:
    text = EXAMPLES[0].replace("cloud.google.com/gke-accelerator", "nvidia.com/gpu.product")
    site = settings_of(tmp_path, re.sub(r"nodeSelector.*", "", text))
    plain, knowing = make(), make(settings=site)
    for harness in (plain, knowing):
        for node in harness.fake.objects.all("nodes"):
            harness.fake.objects.remove("nodes", node)
        harness.fake.add_node("a", taint="nvidia.com/gpu")
    assert state(plain, spec(1)) is JobState.PENDING
    assert "untolerated taint {nvidia.com/gpu: present}" in why(plain)
    assert state(knowing, spec(1)) is JobState.RUNNING
    assert pod_of(knowing)["serviceAccountName"] == "trainer"


def test_a_site_on_nfs_mounts_its_claims(make: MakeHarness, tmp_path: Path) -> None:
    harness = make(settings=settings_of(tmp_path, EXAMPLES[1]))
    harness.fake.controller.claims = {"nfs-datasets", "nfs-home", "scratch"}
    options = ContainerOptions(
        volumes=("home:/home", "scratch:/scratch:ro", "home:/also"),
        mounts=("type=volume,source=scratch,target=/mine,volume-subpath=ann",),
    )
    assert state(harness, spec(1, options=options)) is JobState.RUNNING
    pod = pod_of(harness)
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]}
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert sorted(claims.values()) == ["nfs-datasets", "nfs-home", "scratch"]
    assert {path: claims[each["name"]] for path, each in mounts.items()} == {
        "/home": "nfs-home",
        "/also": "nfs-home",
        "/scratch": "scratch",
        "/mine": "scratch",
        "/datasets": "nfs-datasets",
    }
    assert {path for path, each in mounts.items() if each.get("readOnly")} == {"/scratch", "/datasets"}
    assert mounts["/mine"]["subPath"] == "ann"
    assert (pod["runtimeClassName"], pod["imagePullSecrets"]) == ("nvidia", [{"name": "registry"}])


def test_a_job_with_a_claim_that_is_missing_says_so(harness: KubernetesHarness) -> None:
    assert state(harness, spec(options=ContainerOptions(volumes=("data:/data",)))) is JobState.PENDING
    assert 'persistentvolumeclaim "data" not found' in why(harness)


def test_a_restricted_namespace_takes_jobs_of_its_template(make: MakeHarness, tmp_path: Path) -> None:
    plain, knowing = make(), make(settings=settings_of(tmp_path, EXAMPLES[2]))
    for harness in (plain, knowing):
        harness.fake.controller.restricted = {"lab"}
    warning = '# would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false\n'
    assert plain.kube.draft(Submission(spec(1))).startswith(warning)
    assert not knowing.kube.draft(Submission(spec(1))).startswith("#")
    assert state(plain, spec(1)) is JobState.PENDING
    assert "allowPrivilegeEscalation != false" in why(plain)
    assert state(knowing, spec(1)) is JobState.RUNNING
    resources = pod_of(knowing)["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "1"}


def test_what_a_job_asks_for_goes_before_the_tenants_and_that_before_the_namespaces(
    make: MakeHarness, tmp_path: Path
) -> None:
    text = """
[cluster.kubernetes.pod]
runtimeClassName = "nvidia"
nodeSelector = { a = "1", b = "1" }
tolerations = [{ operator = "Exists" }]
annotations = { note = "all" }
labels = { team = "all" }
securityContext = { supplementalGroups = [1], runAsUser = 5 }
container = { env = { A = "site", B = "site" }, securityContext = { runAsUser = 7, capabilities = { drop = ["ALL"] } } }
[cluster.kubernetes.namespace.lab]
runtimeClassName = ""
nodeSelector = { b = "2", c = "2" }
[cluster.kubernetes.tenant.vision]
nodeSelector = { c = "3" }
tolerations = []
labels = { team = "vision" }
"""
    harness = make(settings=settings_of(tmp_path, text))
    options = ContainerOptions(env=(("B", "job"),), user="9", cap_add=("SYS_NICE",), group_add=("44",))
    harness.kube.submit([Submission(replace(spec(options=options), tenant="vision"))], "k1")
    [job] = harness.fake.objects.all("jobs")
    pod = pod_of(harness)
    container = pod["containers"][0]
    assert pod["nodeSelector"] == {"a": "1", "b": "2", "c": "3"}
    assert pod.keys().isdisjoint({"runtimeClassName", "tolerations", "labels", "container"})
    assert pod["securityContext"] == {"supplementalGroups": [44], "runAsUser": 5}
    assert container["securityContext"] == {"runAsUser": 9, "capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]}}
    assert {"A": "site", "B": "job"}.items() <= {each["name"]: each.get("value") for each in container["env"]}.items()
    for meta in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert (meta["labels"]["team"], meta["annotations"]["note"]) == ("vision", "all")


def test_a_model_of_gpus_is_a_label_of_nodes(make: MakeHarness, tmp_path: Path) -> None:
    affinity = """
[[cluster.kubernetes.pod.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms]]
matchExpressions = [{ key = "kind", operator = "In", values = ["a"] }]
[[cluster.kubernetes.pod.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms]]
matchExpressions = [{ key = "nvidia.com/gpu.memory", operator = "Gt", values = ["1"] }]
"""
    harness = make(settings=settings_of(tmp_path, affinity))
    harness.fake.add_node("old", model="Tesla-T4")
    asked = replace(spec(), gpus=GpuRequest(1, 1, model="tesla t4", memory=1024**3))
    [job_id] = harness.kube.submit([Submission(asked)], "k1")
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
    assert job.attempts[0].node == "old"
    rule = pod_of(harness)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    model = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["Tesla-T4"]}
    assert [model in term["matchExpressions"] for term in rule["nodeSelectorTerms"]] == [True, True]


def test_a_model_that_no_node_has_is_refused_unless_the_settings_know_it(make: MakeHarness) -> None:
    asked = Submission(replace(spec(), gpus=GpuRequest(1, 1, model="h100")))
    with pytest.raises(InputError, match="known are NVIDIA-H200") as refused:
        make().kube.submit([asked], "k1")
    assert refused.value.where == "--gpu-model"
    growing = make(settings=ClusterSettings(kubernetes={"gpu_models": ["NVIDIA-H100-80GB-HBM3"]}))
    growing.kube.submit([asked], "k2")
    until(lambda: why(growing), lambda words: "didn't match Pod's node affinity" in words, "no node has them yet")


def test_a_dry_run_prints_what_the_server_has_agreed_to(make: MakeHarness) -> None:
    harness = make(settings=ClusterSettings(kubernetes={"pod": {"runtimeClassName": "nvidia"}}))
    found = pyyaml.safe_load(harness.kube.draft(Submission(spec(1))))
    assert found["metadata"]["namespace"] == "lab"
    assert found["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert not harness.fake.objects.all("jobs")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        harness.open(harness.fake.access.add_user("eve"), "eve").draft(Submission(spec()))


@cases(
    ("table", "told"),
    [
        (
            "nodeselector = { a = 'b' }",
            r"cluster\.kubernetes\.pod: .*`nodeselector` \(known: labels, annotations, node",
        ),
        ("nodeSelector = { a = 1 }", r"cluster\.kubernetes\.pod\.nodeSelector\S*: expected `str`, got `int`"),
        ("tolerations = [{ effect = 'Never' }]", r"pod\.tolerations\[0\]\.effect: .*\(known: NoSchedule, Prefer"),
        ("securityContext = { runAsRoot = true }", r"pod\.securityContext: .*`runAsRoot` \(known: runAsUser"),
        ("volumes = { data = { mountPath = '/d' } }", r"pod\.volumes\.data: expected one source \(one of persistent"),
        ("volumes = { Data = { emptyDir = {} } }", r"pod\.volumes\.Data: 'Data' is no name"),
        ("volumes = { d = { emptyDir = {}, mountPath = 'd' } }", r"d\.mountPath: expected an absolute path"),
        ("labels = { 'gputui.key' = 'x' }", r"pod\.labels\.gputui\.key: gputui sets it itself"),
        ("container = { resources = { limits = { 'nvidia.com/gpu' = 1 } } }", r"jobs ask for their GPUs"),
        (
            "[cluster.kubernetes.tenant.a]\nruntime = 'x'",
            r"cluster\.kubernetes\.tenant\.a: .*`runtime` \(known: labels",
        ),
    ],
)
def test_a_mistake_in_a_template_is_named_with_what_is_expected(tmp_path: Path, table: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        settings_of(tmp_path, f"[cluster.kubernetes.pod]\n{table}\n")


def test_a_personal_file_changes_the_sites_template_key_by_key(tmp_path: Path) -> None:
    site, own = tmp_path / "site.toml", tmp_path / "own.toml"
    site.write_text("[cluster.kubernetes.pod]\nruntimeClassName = 'nvidia'\nnodeSelector = { a = '1' }\n")
    own.write_text("[cluster.kubernetes.pod]\nnodeSelector = { b = '2' }\n")
    pod: dict[str, Any] = load_merged(site, own, {}).settings.cluster.kubernetes["pod"]
    assert pod == {"runtimeClassName": "nvidia", "nodeSelector": {"a": "1", "b": "2"}}
