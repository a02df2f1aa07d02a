"""Objects of Kubernetes, as far as they matter here. Each field may be missing: servers from 1.20 on answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from gputui.domain.decoding import json_decoder
from gputui.domain.job_spec import MAX_ELEMENTS
from gputui.domain.text import plain

Texts = Mapping[str, str]
_NVIDIA = "nvidia.com/"
RESOURCES = "resource.k8s.io"
"""Group of claims of devices."""
_NO_GPUS: Counter[str] = Counter()
_GPU_RESOURCE = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-[a-z0-9.+_-]+)", re.ASCII)
"""Resources of NVIDIA's device plugin: whole GPUs, shares of them, and instances of MIG."""
CONTAINER = "job"
"""Name of the container of a job that was submitted from here."""
ARRAY, INDEX = "gputui.array", "gputui.index"
"""Labels of an array and its pods: the key of the array; and the index, where each element is a Job."""
PLACE = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an array that is one Job, with the element's index."""
_MET = frozenset({"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"})
"""Conditions that a pod meets while all is well."""
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation by which programs that add containers to a pod tell which one people mean."""

_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)


def one_line(*texts: str | None, most: int = 300) -> str:
    """Return the first text that says something, on one line and not too long: other programs wrote it."""
    found = next((text for text in texts if text), "")
    return plain(" ".join(found.split()))[:most]


class KubeOwner(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class KubeMeta(Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """Time at which it is to be gone: its grace period after the request."""
    deletion_grace_period_seconds: int | None = None
    labels: Texts | None = None
    annotations: Texts | None = None
    owner_references: tuple[KubeOwner, ...] | None = None

    @property
    def deleted_at(self) -> datetime | None:
        """Time at which somebody deleted it; None if nobody did."""
        if self.deletion_timestamp is None:
            return None
        return self.deletion_timestamp - timedelta(seconds=self.deletion_grace_period_seconds or 0)

    def label(self, name: str) -> str:
        return (self.labels or {}).get(name, "")

    def annotation(self, name: str) -> str:
        return (self.annotations or {}).get(name, "")


class KubeCondition(Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class KubeObject(Struct, frozen=True):
    metadata: KubeMeta

    @property
    def job_uid(self) -> str:
        """Uid of the job that owns it; empty if none does."""
        return next((each.uid for each in self.metadata.owner_references or () if each.kind == "Job"), "")


Conditions = tuple[KubeCondition, ...] | None


def condition(conditions: Conditions, kind: str) -> KubeCondition | None:
    return next((each for each in conditions or () if each.type == kind), None)


def is_true(conditions: Conditions, kind: str) -> bool:
    found = condition(conditions, kind)
    return found is not None and found.status == "True"


class KubeResources(Struct, frozen=True):
    limits: Mapping[str, Any] | None = None
    requests: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Keep the GPUs alone: thousands of pods have other resources."""
        force_setattr(self, "limits", gpus_in(self.limits) or None)
        force_setattr(self, "requests", None if self.limits else gpus_in(self.requests) or None)

    @property
    def gpus(self) -> Counter[str]:
        """Number of GPUs by resource; both fields have it, where both do."""
        return gpus_in(self.limits) or gpus_in(self.requests)


def gpus_in(resources: Mapping[str, Any] | None) -> Counter[str]:
    found = [name for name in resources or () if name.startswith(_NVIDIA) and _GPU_RESOURCE.fullmatch(name)]
    if not found or not resources:
        return _NO_GPUS
    return _counted(*((name, number) for name in sorted(found) if (number := count(resources[name]))))


@lru_cache(maxsize=256)
def _counted(*numbers: tuple[str, int]) -> Counter[str]:
    """Return a counter, the same for all that ask for the same: nobody changes it."""
    return Counter(dict(numbers))


def count(value: object) -> int:
    """Return a whole number of a quantity; 0 for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class KubeContainer(Struct, frozen=True):
    name: str = ""
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    resources: KubeResources | None = None
    stdin: bool = False
    tty: bool = False
    restart_policy: str | None = field(name="restartPolicy", default=None)
    """`Always` for one of the init containers that runs beside those of the pod."""

    @property
    def gpus(self) -> Counter[str]:
        return self.resources.gpus if self.resources else _NO_GPUS


class KubePodSpec(Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    containers: tuple[KubeContainer, ...] | None = None
    init_containers: tuple[KubeContainer, ...] | None = None
    active_deadline_seconds: int | None = None
    priority: int | None = None
    priority_class_name: str | None = None

    @property
    def gpus(self) -> int:
        return self.gpus_by_resource.total()

    @property
    def gpus_by_resource(self) -> Counter[str]:
        """Number of GPUs that the node gives to it: init containers run before the others, one after the other."""
        beside = most = _NO_GPUS
        for each in self.init_containers or ():
            if not each.gpus:
                continue
            if each.restart_policy == "Always":
                beside = beside + each.gpus
            else:
                most = most | (beside + each.gpus)
        for each in self.containers or ():
            beside = beside + each.gpus if each.gpus else beside
        return most | beside if most else beside

    def main(self, meta: KubeMeta) -> KubeContainer:
        """Return the container that the pod is for: other programs may have put theirs before it."""
        containers = self.containers or ()
        for name in (meta.annotation(_DEFAULT_CONTAINER), CONTAINER):
            found = next((each for each in containers if each.name == name), None)
            if found is not None:
                return found
        return next(iter(containers), KubeContainer())


class KubeTemplate(Struct, frozen=True):
    metadata: KubeMeta = KubeMeta()
    spec: KubePodSpec = KubePodSpec()


class KubeJobSpec(Struct, frozen=True, rename="camel"):
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    active_deadline_seconds: int | None = None
    template: KubeTemplate = KubeTemplate()


class KubeJobStatus(Struct, frozen=True, rename="camel"):
    """State of a job. Later releases add `ready` and `uncountedTerminatedPods`, which nothing here needs."""

    conditions: Conditions = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    completed_indexes: str | None = None
    failed_indexes: str | None = None
    """Elements of an array that have ended, such as `0-3,7`."""


class KubeJob(KubeObject, frozen=True):
    spec: KubeJobSpec = KubeJobSpec()
    status: KubeJobStatus = KubeJobStatus()

    @property
    def is_array(self) -> bool:
        is_ours = bool(self.metadata.label(ARRAY)) and self.spec.completion_mode == "Indexed"
        return is_ours and 0 < (self.spec.completions or 0) <= MAX_ELEMENTS

    @property
    def has_ended(self) -> bool:
        return is_true(self.status.conditions, "Complete") or is_true(self.status.conditions, "Failed")


class KubeTerminated(Struct, frozen=True, rename="camel"):
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class KubeRunning(Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class KubeWaiting(Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class KubeContainerState(Struct, frozen=True):
    waiting: KubeWaiting | None = None
    running: KubeRunning | None = None
    terminated: KubeTerminated | None = None


class KubeContainerStatus(Struct, frozen=True):
    name: str = ""
    state: KubeContainerState = KubeContainerState()
    container_id: str = field(name="containerID", default="")
    """Runtime and id: `containerd://…`."""


class KubePodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: Conditions = None
    start_time: datetime | None = None
    nominated_node_name: str | None = None
    """Node on which other pods are being preempted for it."""
    container_statuses: tuple[KubeContainerStatus, ...] | None = None

    def __post_init__(self) -> None:
        """Keep the conditions that tell of something: thousands of pods have four that are met."""
        telling = (each for each in self.conditions or () if each.status != "True" or each.type not in _MET)
        force_setattr(self, "conditions", tuple(telling) or None)


class KubePod(KubeObject, frozen=True):
    spec: KubePodSpec = KubePodSpec()
    status: KubePodStatus = KubePodStatus()

    @property
    def owner(self) -> KubeOwner | None:
        """Object whose controller made it; None if none did."""
        return next((each for each in self.metadata.owner_references or () if each.controller), None)

    @property
    def part_uid(self) -> str:
        """Uid of the job that owns it, of an array that is one Job with the element's index: `UID/3`."""
        meta, uid = self.metadata, self.job_uid
        place = meta.annotation(PLACE) if uid and meta.label(ARRAY) and not meta.label(INDEX) else ""
        return f"{uid}/{place}" if place else uid

    @property
    def is_over(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def main(self) -> KubeContainer:
        return self.spec.main(self.metadata)

    @property
    def container(self) -> KubeContainerState:
        return self._main_status.state

    @property
    def container_id(self) -> str | None:
        """Id of that container, as the node's processes have it in their control groups; None: unknown."""
        found = self._main_status.container_id.rpartition("://")[2]
        return found if _CONTAINER.fullmatch(found) else None

    @property
    def _main_status(self) -> KubeContainerStatus:
        name = self.main.name
        found = (each for each in self.status.container_statuses or () if each.name == name)
        return next(found, KubeContainerStatus())


class KubeTaint(Struct, frozen=True, rename="camel"):
    key: str = ""
    time_added: datetime | None = None


class KubeNodeSpec(Struct, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[KubeTaint, ...] | None = None


class KubeNodeStatus(Struct, frozen=True):
    conditions: Conditions = None
    capacity: Mapping[str, Any] | None = None
    allocatable: Mapping[str, Any] | None = None


class KubeNode(KubeObject, frozen=True):
    spec: KubeNodeSpec = KubeNodeSpec()
    status: KubeNodeStatus = KubeNodeStatus()


class KubeReference(Struct, frozen=True):
    uid: str | None = None


class KubeEvent(KubeObject, frozen=True, rename="camel"):
    involved_object: KubeReference = KubeReference()
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


class KubeWorkloadSpec(Struct, frozen=True, rename="camel"):
    active: bool | None = None


class KubeAdmissionCheck(Struct, frozen=True):
    """State of a check that a workload has to pass: `Pending`, `Ready`, `Retry` or `Rejected`."""

    name: str = ""
    state: str | None = None
    message: str | None = None


class KubeRequeue(Struct, frozen=True, rename="camel"):
    requeue_at: datetime | None = None


class KubeWorkloadStatus(Struct, frozen=True, rename="camel"):
    conditions: Conditions = None
    admission_checks: tuple[KubeAdmissionCheck, ...] | None = None
    requeue_state: KubeRequeue | None = None


class KubeWorkload(KubeObject, frozen=True):
    spec: KubeWorkloadSpec = KubeWorkloadSpec()
    status: KubeWorkloadStatus = KubeWorkloadStatus()


class KubeListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class KubeList(Struct, frozen=True):
    """A list of objects, which are decoded one by one: one that cannot be read does not hide the others."""

    metadata: KubeListMeta = KubeListMeta()
    items: tuple[msgspec.Raw, ...] | None = None


class KubeChange(Struct, frozen=True):
    type: str
    object: msgspec.Raw


Item = TypeVar("Item", bound=KubeObject)


def read_object(data: bytes | msgspec.Raw, kind: type[Item]) -> Item | None:
    """Return the object; None if it cannot be read."""
    try:
        return json_decoder(kind).decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
