"""Releases: 1.20 answers without fields that later ones have, and cannot suspend jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gputui.cluster.kubernetes.jobs import cause_of, end_of, state_of
from gputui.cluster.kubernetes.objects import KubeJob, KubePod, read_object
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.waiting import until


@cases("release", ["v1.20.2", "v1.21.14", "v1.24.17", "v1.31.2", "v1.37.0+k3s1"])
def test_a_job_runs_and_ends_on_every_release(make: MakeHarness, release: str) -> None:
    harness = make(release)
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
    harness.finish(job, 3)
    until(lambda: harness.kube.job(job_id), lambda job: job.exit_code == 3, "it has failed")


@cases("release", ["v1.20.2", "v1.21.14"])
def test_an_old_release_cannot_hold_jobs(make: MakeHarness, release: str) -> None:
    harness = make(release)
    harness.kube.snapshot()
    assert "from release 1.22 on" in harness.kube.caps.why_not(Capability.HOLD)
    with pytest.raises(CapabilityError, match="suspends jobs from release"):
        harness.kube.submit([Submission(spec(), held=True)], "k1")
    assert not harness.fake.objects.all("jobs")
    assert [fault.name for fault in harness.kube.faults()] == ["version"]


OF_1_20 = {
    "metadata": {
        "name": "train-k1",
        "namespace": "default",
        "selfLink": "/apis/batch/v1/namespaces/default/jobs/train-k1",
        "uid": "0d5b5a6e-5d5c-4f0a-9d5e-0a6a3c0d2f11",
        "resourceVersion": "512",
        "creationTimestamp": "2026-09-11T08:15:30Z",
        "labels": {"controller-uid": "0d5b5a6e", "job-name": "train-k1"},
        "managedFields": [{"manager": "OpenAPI-Generator", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "selector": {"matchLabels": {"controller-uid": "0d5b5a6e"}},
        "template": {"spec": {"containers": [{"name": "job", "image": "busybox", "resources": {}}]}},
    },
    "status": {
        "conditions": [
            {
                "type": "Failed",
                "status": "True",
                "lastProbeTime": "2026-09-11T08:16:02Z",
                "lastTransitionTime": "2026-09-11T08:16:02Z",
                "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit",
            }
        ],
        "startTime": "2026-09-11T08:15:30Z",
        "failed": 1,
    },
}
OF_1_37 = {
    "metadata": {
        "name": "train-k1",
        "namespace": "default",
        "uid": "77b5a6e0-5d5c-4f0a-9d5e-0a6a3c0d2f11",
        "resourceVersion": "90221",
        "generation": 2,
        "creationTimestamp": "2026-09-11T08:15:30Z",
        "labels": {"batch.kubernetes.io/job-name": "train-k1", "job-name": "train-k1"},
        "annotations": {"batch.kubernetes.io/job-tracking": ""},
    },
    "spec": {
        "parallelism": 1,
        "completions": 1,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
        "template": {"spec": {"containers": [{"name": "job", "image": "busybox", "resources": {}}]}},
    },
    "status": {
        "conditions": [
            {"type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached"},
            {"type": "Complete", "status": "True", "reason": "CompletionsReached"},
        ],
        "startTime": "2026-09-11T08:15:31Z",
        "completionTime": "2026-09-11T08:15:40Z",
        "succeeded": 1,
        "ready": 0,
        "terminating": 0,
        "uncountedTerminatedPods": {},
    },
}
POD_OF_1_20 = {
    "metadata": {"name": "train-k1-x7bzq", "namespace": "default", "uid": "p1", "ownerReferences": [{"kind": "Job"}]},
    "spec": {"nodeName": "gpu1", "containers": [{"name": "job", "image": "busybox", "args": None}]},
    "status": {
        "phase": "Failed",
        "startTime": "2026-09-11T08:15:30Z",
        "containerStatuses": [
            {
                "name": "job",
                "state": {"terminated": {"exitCode": 3, "reason": "Error", "containerID": "docker://51d0"}},
                "lastState": {},
                "started": False,
            }
        ],
    },
}


def test_recorded_answers_are_read() -> None:
    old, new = (read_object(json.dumps(answer).encode(), KubeJob) for answer in (OF_1_20, OF_1_37))
    pod = read_object(json.dumps(POD_OF_1_20).encode(), KubePod)
    assert old is not None
    assert new is not None
    assert pod is not None
    assert (state_of(old, [pod]), state_of(new, [])) == (JobState.FAILED, JobState.COMPLETED)
    cause = cause_of(old, pod)
    assert cause is not None
    assert cause.text == "exit code 3"
    assert end_of(old) == datetime(2026, 9, 11, 8, 16, 2, tzinfo=UTC)
    assert end_of(new) == datetime(2026, 9, 11, 8, 15, 40, tzinfo=UTC)


def test_a_job_whose_pod_is_gone_has_the_words_of_its_condition() -> None:
    old = read_object(json.dumps(OF_1_20).encode(), KubeJob)
    assert old is not None
    cause = cause_of(old, None)
    assert cause is not None
    assert cause.text == "Job has reached the specified backoff limit (BackoffLimitExceeded); its pod is gone"


def test_a_job_whose_pod_still_seems_to_run_has_not_ended_yet() -> None:
    """Jobs and pods are watched separately: the end of a job may be seen before its pod's."""
    job = read_object(json.dumps(OF_1_20).encode(), KubeJob)
    running = {**POD_OF_1_20, "status": {"phase": "Running", "containerStatuses": [{"name": "job", "state": {}}]}}
    pod = read_object(json.dumps(running).encode(), KubePod)
    assert job is not None
    assert pod is not None
    assert state_of(job, [pod]) is JobState.COMPLETING
