"""Manifests of Kubernetes, checked by the schema of batch/v1 and read back by another reader of YAML."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import jsonschema
import pytest
import yaml as pyyaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.cluster.kubernetes import manifest
from gputui.cluster.kubernetes.manifest import dns_label, expandable, label, left_out, manifests
from gputui.domain.errors import InputError
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, LimitWarning, Submission
from gputui.domain.settings import ClusterSettings, Settings
from tests.cases import cases
from tests.cluster import batch_v1
from tests.factories import GIB, NOW, spec
from tests.lane import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=12,
)


def made(a_spec: JobSpec, site: ClusterSettings | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Return the manifests of a job, each checked."""
    found = list(manifests(Submission(a_spec, **changes), "queue-7", Settings(cluster=site or ClusterSettings())))
    for each in found:
        jsonschema.validate(each, batch_v1.JOB)
        assert pyyaml.safe_load(manifest.as_yaml(each)) == each
    return found


def with_gpus(request: GpuRequest, **changes: Any) -> JobSpec:
    return replace(spec(**changes), gpus=request)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(TEXT, VALUES, min_size=1))
def test_yaml_is_read_as_it_was_meant(value: dict[str, Any]) -> None:
    assert pyyaml.safe_load(manifest.as_yaml(value)) == value


@cases("text", ["yes", "1", "1e3", "null", "~", "- a", "a: b", "a #b", "", "0x1", "12:30", "é", "=", "<<"])
def test_yaml_keeps_texts_texts(text: str) -> None:
    assert pyyaml.safe_load(manifest.as_yaml({text: [text, {"a": text}]})) == {text: [text, {"a": text}]}


def test_a_job_becomes_a_job() -> None:
    options = ContainerOptions(env=(("A", "b"), ("CUDA_VISIBLE_DEVICES", "3")), shm_size=GIB, volumes=("/data:/d:ro",))
    job = spec((2, 2), command=("python", "train.py"), name="Träin 1", time_limit=timedelta(hours=1), options=options)
    [found] = made(job)
    assert (
        manifest.as_yaml(found)
        == """\
apiVersion: batch/v1
kind: Job
metadata:
  name: tr-in-1-queue-7
  labels:
    app.kubernetes.io/managed-by: gputui
    gputui.key: queue-7
    gputui.tenant: alice
  annotations:
    gputui.name: "Träin 1"
spec:
  backoffLimit: 0
  template:
    metadata:
      labels:
        app.kubernetes.io/managed-by: gputui
        gputui.key: queue-7
        gputui.tenant: alice
    spec:
      restartPolicy: Never
      activeDeadlineSeconds: 3600
      terminationGracePeriodSeconds: 10
      containers:
        - name: job
          image: busybox
          args:
            - python
            - train.py
          env:
            - name: A
              value: b
            - name: GPUTUI_JOB_ID
              valueFrom:
                fieldRef:
                  fieldPath: "metadata.labels['gputui.key']"
            - name: GPUTUI_GPUS
              value: "2"
          resources:
            limits:
              nvidia.com/gpu: "2"
          imagePullPolicy: IfNotPresent
          volumeMounts:
            - name: volume-0
              mountPath: /dev/shm
            - name: volume-1
              mountPath: /d
              readOnly: true
      volumes:
        - name: volume-0
          emptyDir:
            medium: Memory
            sizeLimit: "1073741824"
        - name: volume-1
          hostPath:
            path: /data
"""
    )


def test_elements_sites_and_host_jobs() -> None:
    # each element is a job of its own
    found = made(spec(command=("run", "{lr}"), sweep=(("lr", "1e-3,1e-4"),)), array=(0, 1))
    assert [each["metadata"]["name"] for each in found] == ["train-queue-7-0", "train-queue-7-1"]
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in found]
    assert [each["args"] for each in containers] == [["run", "1e-3"], ["run", "1e-4"]]
    assert {"name": "GPUTUI_ARRAY_INDEX", "value": "1"} in containers[1]["env"]
    assert {"name": "GPUTUI_SWEEP_LR", "value": "1e-4"} in containers[1]["env"]
    # the site names namespace queue and priority classes
    site = ClusterSettings(namespace="lab", kueue="gpus", priority_classes=("low", "normal", "high"))
    for priority, name in ((10, "low"), (50, "normal"), (90, "high")):
        [one] = made(spec(priority=priority), site)
        assert one["metadata"]["namespace"] == "lab"
        assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        assert one["spec"]["template"]["spec"]["priorityClassName"] == name
    # a host job has no manifest
    with pytest.raises(InputError):
        made(spec(image=None))


@cases("changes", [{"begin_at": NOW}, {"after": (3,)}, {"after_any": (3,)}])
def test_a_job_that_must_wait_is_suspended(changes: dict[str, Any]) -> None:
    assert made(spec(**changes))[0]["spec"]["suspend"] is True
    assert len(list(left_out(Submission(spec(**changes)), Settings()))) == 1
    assert made(spec(), held=True)[0]["spec"]["suspend"] is True


def test_options_of_docker_are_fields_of_the_pod() -> None:
    options = ContainerOptions(
        cpus=1.5,
        memory=GIB,
        user="1000:100",
        group_add=("44",),
        entrypoint="/run",
        workdir="/w",
        network="host",
        ipc="host",
        add_host=("db:10.0.0.1",),
        dns=("1.1.1.1",),
        cap_add=("CAP_SYS_NICE",),
        sysctl=("net.core.somaxconn=1",),
        tmpfs=("/t:size=1m",),
        mounts=("type=tmpfs,target=/m,tmpfs-size=1m",),
        pull="always",
        stop_timeout=60,
        privileged=True,
        read_only=True,
        hostname="a",
    )
    a_spec = with_gpus(GpuRequest(1, 1, memory=40 * GIB), options=options)
    [found] = made(a_spec)
    pod = found["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert (pod["hostNetwork"], pod["hostIPC"], pod["dnsPolicy"]) == (True, True, "None")
    assert pod["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["db"]}]
    assert pod["terminationGracePeriodSeconds"] == 60
    assert container["resources"] == {"limits": {"cpu": "1500m", "memory": str(GIB), "nvidia.com/gpu": "1"}}
    assert container["command"] == ["/run"]
    assert container["securityContext"]["capabilities"] == {"add": ["SYS_NICE"]}
    assert (container["securityContext"]["runAsUser"], container["securityContext"]["runAsGroup"]) == (1000, 100)
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    expression = {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40959"]}
    assert terms == [{"matchExpressions": [expression]}]
    assert list(left_out(Submission(a_spec), Settings())) == []


@cases(
    ("a_spec", "word"),
    [
        (with_gpus(GpuRequest(1, 1, ("0",))), "--gpus"),
        (with_gpus(GpuRequest(2, 4)), "--gpus"),
        (with_gpus(GpuRequest(1, 1, model="H100")), "--gpu-model"),
        (with_gpus(GpuRequest(1, 1, share=True)), "--share"),
        (spec(retries=2), "--retries"),
        (spec(warning=LimitWarning(10, timedelta(minutes=1))), "--signal"),
        (spec(options=ContainerOptions(volumes=("My_Data:/v",))), "--volume=My_Data:/v"),
        (
            spec(options=ContainerOptions(mounts=("type=volume,source=a,target=/v,volume-driver=nfs",))),
            "--mount=type=volume,source=a,target=/v,volume-driver=nfs",
        ),
        (spec(options=ContainerOptions(user="alice")), "--user=alice"),
        (spec(options=ContainerOptions(publish=("80",))), "--publish"),
        (spec(options=ContainerOptions(network="lab")), "--network=lab"),
        (spec(options=ContainerOptions(ulimits=("nofile=1",))), "--ulimit"),
    ],
)
def test_what_has_no_counterpart_is_told(a_spec: JobSpec, word: str) -> None:
    made(a_spec)
    [sentence] = left_out(Submission(a_spec), Settings())
    assert sentence.startswith(f"{word}:")


@cases("text", ["$(HOME)", "echo $$", "$", "$HOME", "a$$(b)"])
def test_kubernetes_expands_a_text_to_itself(text: str) -> None:
    assert expanded(expandable(text)) == text


def expanded(text: str) -> str:
    """Return what Kubernetes makes of a text whose variables are all known to be empty."""
    found, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            found, at = found + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            at = text.index(")", at) + 1
        else:
            found, at = found + text[at], at + 1
    return found


@given(TEXT, st.from_regex(r"[a-z0-9]{1,12}-[0-9]{1,9}", fullmatch=True))
def test_names_are_names_of_kubernetes(name: str, suffix: str) -> None:
    jsonschema.validate(dns_label(name, suffix), {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})
    assert dns_label(name, suffix).endswith(suffix)
    jsonschema.validate(label(name), {"pattern": "^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$", "maxLength": 63})
