"""The table `[cluster.kubernetes]`: what pods have besides what their jobs ask for, in Kubernetes' own names.

A template of a namespace changes the one for all pods, and a tenant's changes that. Tables are merged key by key, a
volume and a list are replaced as a whole, and an empty value takes away what was there before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import convert
from gputui.domain.errors import InputError
from gputui.domain.text import shown

Texts = Mapping[str, str]
Tables = Mapping[str, Any]
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
"""Names of volumes and of claims for them."""
MOUNTED = frozenset({"mountPath", "subPath", "readOnly"})
"""Fields of a volume that tell where it is mounted; each other one tells what it is."""
GPU = "nvidia.com/gpu"
_OURS = re.compile(r"gputui\..*|app\.kubernetes\.io/managed-by|kueue\.x-k8s\.io/queue-name", re.ASCII)
_STEP = re.compile(r"\.(\w+)|\[(?:\d+|\.\.\.)\]", re.ASCII)


class _Fields(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A table in which each key is a field of Kubernetes."""


class Toleration(_Fields, frozen=True):
    """A taint of nodes on which pods may run."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int = 0


class PullSecret(_Fields, frozen=True):
    """A secret for a registry of images."""

    name: str


class PodSecurity(_Fields, frozen=True):
    """Security of all containers of a pod."""

    run_as_user: int = 0
    run_as_group: int = 0
    run_as_non_root: bool = False
    fs_group: int = 0
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] = "Always"
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: Literal["Merge", "Strict"] = "Merge"
    seccomp_profile: Texts = {}
    app_armor_profile: Texts = {}
    se_linux_options: Texts = {}
    sysctls: tuple[Texts, ...] = ()


class Capabilities(_Fields, frozen=True):
    """Capabilities of Linux."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class ContainerSecurity(_Fields, frozen=True):
    """Security of the job's container."""

    run_as_user: int = 0
    run_as_group: int = 0
    run_as_non_root: bool = False
    allow_privilege_escalation: bool = True
    privileged: bool = False
    read_only_root_filesystem: bool = False
    capabilities: Capabilities = Capabilities()
    seccomp_profile: Texts = {}
    app_armor_profile: Texts = {}
    se_linux_options: Texts = {}


class Resources(_Fields, frozen=True):
    """Amounts of memory, processors and others."""

    limits: Mapping[str, str | int] = {}
    requests: Mapping[str, str | int] = {}


class ContainerTemplate(_Fields, frozen=True):
    """Template of the job's container."""

    env: Texts = {}
    """Variables by name, unlike the list of Kubernetes; those of the job go first."""
    resources: Resources = Resources()
    security_context: ContainerSecurity = ContainerSecurity()


class Claim(_Fields, frozen=True):
    """A claim for a persistent volume."""

    claim_name: str
    read_only: bool = False


class PodVolume(_Fields, frozen=True):
    """A volume: one of the sources that Kubernetes knows, and where it is mounted."""

    persistent_volume_claim: Claim = Claim("")
    host_path: Texts = {}
    nfs: Tables = {}
    empty_dir: Tables = {}
    config_map: Tables = {}
    secret: Tables = {}
    csi: Tables = {}
    ephemeral: Tables = {}
    projected: Tables = {}
    image: Texts = {}
    downward_api: Tables = field(name="downwardAPI", default_factory=dict)
    mount_path: str = ""
    """Directory at which every job has it; empty: jobs ask for it, by `-v NAME:/path`."""
    sub_path: str = ""
    read_only: bool = False


class Affinity(_Fields, frozen=True):
    """Nodes, and pods on them, which pods seek or avoid."""

    node_affinity: Tables = {}
    pod_affinity: Tables = {}
    pod_anti_affinity: Tables = {}


class PodTemplate(_Fields, frozen=True):
    """Template of pods; what a job asks for goes first."""

    labels: Texts = {}
    annotations: Texts = {}
    """Annotations of both job and pod, as are the labels."""
    node_selector: Texts = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: Affinity = Affinity()
    topology_spread_constraints: tuple[Tables, ...] = ()
    image_pull_secrets: tuple[PullSecret, ...] = ()
    service_account_name: str = ""
    automount_service_account_token: bool = True
    enable_service_links: bool = True
    runtime_class_name: str = ""
    scheduler_name: str = ""
    priority_class_name: str = ""
    """PriorityClass of all jobs; `cluster.priority_classes` go first."""
    security_context: PodSecurity = PodSecurity()
    volumes: Mapping[str, PodVolume] = {}
    """Volumes by name; in Kubernetes they are a list."""
    container: ContainerTemplate = ContainerTemplate()


class KubernetesSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Pods in Kubernetes, and the GPUs of its nodes."""

    gpu_model_label: str = "nvidia.com/gpu.product"
    """Label of nodes with the model of their GPUs, at which `--gpu-model` looks."""
    gpu_models: tuple[str, ...] = ()
    """Further values of that label, of nodes that are made when a job needs them."""
    device_class: str = ""
    """DeviceClass of the GPUs that jobs get by resource claims; empty: they ask for `nvidia.com/gpu`."""
    pod: PodTemplate = PodTemplate()
    namespace: Mapping[str, PodTemplate] = {}
    tenant: Mapping[str, PodTemplate] = {}
    """Templates for the jobs of a tenant, by name; `namespace` has those of a namespace."""


def settings_of(table: Tables) -> KubernetesSettings:
    """Return the settings of the table, which has been checked; templates stay tables."""
    return KubernetesSettings(**table)


def checked(table: object, where: str) -> dict[str, Any]:
    """Return the table; raises InputError that names the key, and what is expected there."""
    if not isinstance(table, dict):
        raise InputError("expected a table", where=where, hint="write [cluster.kubernetes.pod]")
    for layer in ("namespace", "tenant"):
        below = table.get(layer, {})
        for name, pod in below.items() if isinstance(below, dict) else ():
            _check(pod, PodTemplate, f"{where}.{layer}.{name}")
            _check_pod(pod, f"{where}.{layer}.{name}")
    _check(table, KubernetesSettings, where)
    _check_pod(table.get("pod", {}), f"{where}.pod")
    return table


def _check(value: object, kind: type[Struct], where: str) -> None:
    try:
        convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`")
        hint = _expected(kind, what, path)
        raise InputError(what[:1].lower() + what[1:], where=f"{where}{path}", hint=hint) from error


def _expected(kind: Any, what: str, path: str) -> str | None:
    for step in _STEP.finditer(path):
        if step[1]:
            names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
            kind = get_type_hints(kind)[names[step[1]]]
        else:
            kind = get_args(kind)[0 if get_origin(kind) is tuple else -1]
    if what.startswith("Object contains unknown field"):
        return f"known: {', '.join(kind.__struct_encode_fields__)}"
    return f"known: {', '.join(filter(None, get_args(kind)))}" if get_origin(kind) is Literal else None


def _check_pod(pod: Tables, where: str) -> None:
    for key in ("labels", "annotations"):
        for name in pod.get(key, {}):
            if _OURS.fullmatch(name):
                raise InputError("gputui sets it itself", where=f"{where}.{key}.{name}")
    for key, amounts in pod.get("container", {}).get("resources", {}).items():
        if GPU in amounts:
            place = f"{where}.container.resources.{key}.{GPU}"
            raise InputError("jobs ask for their GPUs", where=place, hint="gputui submit --gpus N")
    for name, volume in pod.get("volumes", {}).items():
        place = f"{where}.volumes.{name}"
        if not CLAIM.fullmatch(name):
            raise InputError(f"{shown(name)} is no name", where=place, hint="lower-case letters, digits, - and .")
        if volume and len(volume.keys() - MOUNTED) != 1:
            known = [each for each in PodVolume.__struct_encode_fields__ if each not in MOUNTED]
            raise InputError("expected one source", where=place, hint=f"one of {', '.join(known)}")
        if not volume.get("mountPath", "/").startswith("/"):
            raise InputError("expected an absolute path", where=f"{place}.mountPath")


def template(table: Tables, namespace: str, tenant: str) -> dict[str, Any]:
    """Return the template for the pods of a namespace and a tenant, without what is empty.

    Volumes stay in whose kind needs no more words.
    """
    found = merged(table.get("pod", {}), table.get("namespace", {}).get(namespace, {}))
    pod = merged(found, table.get("tenant", {}).get(tenant, {}))
    kept = {key: value for key, value in pod.items() if value not in ("", {}, [], ())}
    if volumes := {name: volume for name, volume in kept.pop("volumes", {}).items() if volume}:
        kept["volumes"] = volumes
    return kept


def merged(below: Tables, above: Tables) -> dict[str, Any]:
    """Return the tables merged key by key; of the two values of a key that are no tables the one `above` stays."""
    found = dict(below)
    for key, value in above.items():
        if key == "volumes" and isinstance(value, dict):
            found[key] = {**found.get(key, {}), **value}
        else:
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if both else value
    return found
