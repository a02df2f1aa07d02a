"""Manifests of Kubernetes: a job as batch/v1 Jobs, one for each element of an array; and YAML for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from gputui.cluster.kubernetes.objects import CONTAINER
from gputui.domain import docker_args
from gputui.domain.cluster import asks_for
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import InputError
from gputui.domain.job import spec_at
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, Submission, whole_class
from gputui.domain.settings import Settings
from gputui.domain.units import parse_size

_HERE = frozenset(
    {
        *("add_host", "cap_add", "cap_drop", "cpus", "dns", "dns_search", "entrypoint", "env", "group_add"),
        *("hostname", "ipc", "log_driver", "log_opt", "memory", "memory_reservation", "mounts", "network"),
        *("no_init", "pid", "privileged", "pull", "read_only", "shm_size", "stop_timeout", "sysctl", "tmpfs"),
        *("user", "volumes", "workdir"),
    }
)
"""Options with a counterpart, and those that mean nothing to a pod's user."""
_NAMES = {"volumes": "volume", "mounts": "mount", "labels": "label", "ulimits": "ulimit"}
LACKING = {
    "host": "Kubernetes runs containers: name an image",
    "gpu_model": "needs a node selector with the exact label nvidia.com/gpu.product",
    "gpu_free_memory": "a pod gets whole GPUs",
    "share": "a pod gets whole GPUs",
    "retries": "the job runs once",
    "begin": "Kubernetes starts a job as soon as it can: hold it, and release it at its time",
    "nice": "only the class of the priority counts",
    "signal": "no signal comes before the time limit",
    "idle_timeout": "idle jobs are not ended",
    "preemptible": "its priority class decides",
    **{
        _NAMES.get(field, field): "pods have no such option"
        for field in ContainerOptions.__struct_fields__
        if field not in _HERE
    },
}
"""Options of jobs that have no counterpart, by their names in job files."""
_PULL = {"always": "Always", "missing": "IfNotPresent", "never": "Never"}
_AS_IN_PODS = {
    "network": frozenset({"default", "bridge"}),
    "pid": frozenset[str](),
    "ipc": frozenset({"private", "shareable"}),
}
"""Values that ask for what every pod has."""
KEY = "gputui.key"
"""Label with the key of the submission."""
ARRAY, INDEX = "gputui.array", "gputui.index"
"""Labels of an array's element: the key of the array, and the element's index."""
NAME, COMMENT, SUBMITTER = "gputui.name", "gputui.comment", "gputui.user"
"""Annotations for people. Whoever submits a job writes what she likes into them."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""Kueue's label for the queue of a job."""
GPU = "nvidia.com/gpu"
_MEMORY = "nvidia.com/gpu.memory"
"""Node label with the MiB of each GPU, set by NVIDIA's feature discovery."""
_MIB = 1024**2
_GPU_CHOICE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)
_LONGEST_LABEL = 63
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "~"})
"""Words that a reader may take for something else than a text."""
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]")


def expandable(text: str) -> str:
    """Return a text that Kubernetes expands to this one: it replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


class PodOptions:
    """The fields that a job's options set, and sentences about those without a counterpart."""

    def __init__(self, options: ContainerOptions) -> None:
        self._options = options
        self.left_out: list[str] = []
        self.volumes: list[dict[str, Any]] = []
        self._mounts: list[dict[str, Any]] = []
        self._add_mounts()
        self.pod = self._pod()
        self.container = self._container()

    def _pod(self) -> dict[str, Any]:
        options = self._options
        fields: dict[str, Any] = {"hostname": options.hostname} if options.hostname else {}
        for name, field in (("network", "hostNetwork"), ("pid", "hostPID"), ("ipc", "hostIPC")):
            value = getattr(options, name)
            if value == "host":
                fields[field] = True
            elif value is not None and value not in _AS_IN_PODS[name]:
                self.left_out.append(f"--{name}={value}: pods have no such option")
        if options.add_host:
            pairs = [text.partition("=" if "=" in text else ":")[::2] for text in options.add_host]
            fields["hostAliases"] = [{"ip": address.strip("[]"), "hostnames": [name]} for name, address in pairs]
        if options.dns or options.dns_search:
            fields |= {"dnsPolicy": "None"} if options.dns else {}
            lists = {"nameservers": list(options.dns), "searches": list(options.dns_search)}
            fields["dnsConfig"] = {name: found for name, found in lists.items() if found}
        groups = [int(group) for group in options.group_add if _is_id(group)]
        if len(groups) < len(options.group_add):
            self.left_out.append("--group-add: a pod knows groups by their number only")
        pairs = [text.partition("=")[::2] for text in options.sysctl]
        context = {"supplementalGroups": groups, "sysctls": [{"name": name, "value": value} for name, value in pairs]}
        if any(context.values()):
            fields["securityContext"] = {name: found for name, found in context.items() if found}
        return fields

    def _container(self) -> dict[str, Any]:
        options = self._options
        fields: dict[str, Any] = {"workingDir": options.workdir} if options.workdir else {}
        fields["imagePullPolicy"] = _PULL[options.pull or "missing"]
        if context := self._context():
            fields["securityContext"] = context
        if self._mounts:
            fields["volumeMounts"] = self._mounts
        return fields

    def _context(self) -> dict[str, Any]:
        options = self._options
        context: dict[str, Any] = {"privileged": True} if options.privileged else {}
        context |= {"readOnlyRootFilesystem": True} if options.read_only else {}
        lists = {"add": options.cap_add, "drop": options.cap_drop}
        if any(lists.values()):
            names = {
                key: [name.upper().removeprefix("CAP_") for name in names] for key, names in lists.items() if names
            }
            context["capabilities"] = names
        for field, number in zip(("runAsUser", "runAsGroup"), (options.user or "").split(":"), strict=False):
            if _is_id(number):
                context[field] = int(number)
            elif number:
                self.left_out.append(f"--user={options.user}: a pod knows users and groups by their number only")
        return context

    def _add_mounts(self) -> None:
        options = self._options
        if options.shm_size is not None:
            self._mount("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": str(options.shm_size)}})
        for text in options.volumes:
            source, colon, rest = text.partition(":")
            target, _, mode = rest.partition(":")
            if not colon:
                self._mount(source, {"emptyDir": {}})
            elif source.startswith("/"):
                self._mount(target, {"hostPath": {"path": source}}, is_fixed="ro" in mode.split(","))
            else:
                self.left_out.append(f"--volume={text}: a pod does not know Docker's volumes")
        for text in options.tmpfs:
            self._mount(text.partition(":")[0], {"emptyDir": {"medium": "Memory"}})
        for text in options.mounts:
            try:
                spec = docker_args.mount(text)
                volume = _source(spec)
            except (ValueError, InputError) as error:
                raise InputError(str(error), where="--mount") from error
            if volume is None:
                self.left_out.append(f"--mount={text}: pods have no such mount")
            else:
                self._mount(spec.target, volume, is_fixed=spec.readonly)

    def _mount(self, target: str, source: dict[str, Any], *, is_fixed: bool = False) -> None:
        name = f"volume-{len(self.volumes)}"
        self.volumes.append({"name": name} | source)
        self._mounts.append({"name": name, "mountPath": target} | ({"readOnly": True} if is_fixed else {}))


def _source(spec: MountSpec) -> dict[str, Any] | None:
    """Return the volume of a mount; None if there is no counterpart."""
    if spec.kind == "bind":
        return {"hostPath": {"path": spec.source}}
    if spec.kind == "tmpfs":
        size = spec.get("tmpfs-size")
        return {"emptyDir": {"medium": "Memory"} | ({"sizeLimit": str(parse_size(size))} if size else {})}
    return {"emptyDir": {}} if spec.kind == "volume" and not spec.source else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()


def manifests(submission: Submission, key: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a job, or of each element of an array; raises InputError for what no pod can run."""
    if submission.spec.is_host:
        raise InputError("Kubernetes runs containers, and this is a host job", where="--image")
    for index in submission.array or (None,):
        yield _manifest(submission, index, key, settings)


_TOLD = frozenset({"host", "begin"})
"""Options without which a manifest is not made, or which it suspends for."""


def left_out(submission: Submission) -> Iterator[str]:
    """Yield a sentence for each request that a manifest cannot express."""
    spec = submission.spec
    gpus = spec.gpus
    asked = {
        "--gpus: Kubernetes chooses the GPUs": bool(gpus.devices),
        f"--gpus: a pod has a fixed number of GPUs, here {_count(gpus)}": gpus.minimum != gpus.maximum,
        "--gpus: a manifest cannot ask for all GPUs of a node": gpus.everything,
        "--gpus: driver capabilities are the image's": bool(gpus.capabilities or gpus.driver or gpus.driver_options),
        "--begin: the job is suspended; resume it when it may start": spec.begin_at is not None,
        "--after: the job is suspended; resume it when it may start": bool(spec.after or spec.after_any),
        "--array: the limit of elements at a time": submission.array_limit is not None,
        "--interactive: input without a terminal ends with the first client: give it both, by -it": (
            spec.interactive is not None and spec.interactive.stdin and not spec.interactive.tty
        ),
    }
    yield from (sentence for sentence, is_asked in asked.items() if is_asked)
    for name, why in LACKING.items():
        if name not in _TOLD and asks_for(submission, name):
            yield f"--{name.replace('_', '-')}: {why}"
    yield from PodOptions(spec.options).left_out


def _manifest(submission: Submission, index: int | None, key: str, settings: Settings) -> dict[str, Any]:
    whole = submission.spec
    spec = whole if index is None else spec_at(whole, index)
    suffix = key if index is None else f"{key}-{index}"
    labels = {"app.kubernetes.io/managed-by": "gputui", KEY: label(suffix)}
    if whole.tenant:
        labels["gputui.tenant"] = label(whole.tenant)
    queue = {QUEUE: settings.cluster.kueue} if settings.cluster.kueue else {}
    if index is not None:
        labels |= {ARRAY: label(key), INDEX: str(index)}
    annotations = {name: text for name, text in ((NAME, spec.name), (COMMENT, spec.comment)) if text}
    metadata: dict[str, Any] = {"name": dns_label(whole.name, suffix), "labels": labels | queue}
    if settings.cluster.namespace:
        metadata["namespace"] = settings.cluster.namespace
    if annotations:
        metadata["annotations"] = annotations
    job: dict[str, Any] = {"backoffLimit": 0}
    if submission.held or spec.begin_at is not None or spec.after or spec.after_any:
        job["suspend"] = True
    job["template"] = {"metadata": {"labels": labels}, "spec": _pod(spec, index, settings)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def _pod(spec: JobSpec, index: int | None, settings: Settings) -> dict[str, Any]:
    options = PodOptions(spec.options)
    pod: dict[str, Any] = {"restartPolicy": "Never"}
    if classes := settings.cluster.priority_classes:
        pod["priorityClassName"] = classes[whole_class(spec.priority)]
    if spec.time_limit is not None:
        # the pod's, not the job's: that one counts the time for which the job waits for its GPUs
        pod["activeDeadlineSeconds"] = max(1, -(-spec.time_limit // timedelta(seconds=1)))
    grace = spec.options.stop_timeout
    pod["terminationGracePeriodSeconds"] = (
        -(-settings.scheduler.stop_grace // timedelta(seconds=1)) if grace is None else grace
    )
    pod |= options.pod
    if spec.gpus.memory is not None and not spec.gpus.share:
        # nodes whose GPUs have at least these bytes of memory
        term = {"key": _MEMORY, "operator": "Gt", "values": [str(-(-spec.gpus.memory // _MIB) - 1)]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    container: dict[str, Any] = {"name": CONTAINER, "image": spec.image}
    words = [expandable(word) for word in spec.command]
    if spec.options.entrypoint:
        container["command"] = [expandable(spec.options.entrypoint)]
    # an empty entrypoint stands for none: the words are the program and its arguments
    field = "command" if spec.options.entrypoint == "" else "args"
    container |= {field: words} if words else {}
    if spec.interactive is not None:
        streams = {"stdin": spec.interactive.stdin, "tty": spec.interactive.tty}
        container |= {name: True for name, is_on in streams.items() if is_on}
    container["env"] = list(_variables(spec, index))
    container |= {"resources": _resources(spec)} | options.container
    pod["containers"] = [container]
    if options.volumes:
        pod["volumes"] = options.volumes
    return pod


def _resources(spec: JobSpec) -> dict[str, Any]:
    options = spec.options
    limits: dict[str, str] = {}
    if options.cpus is not None:
        limits["cpu"] = f"{max(1, round(options.cpus * 1000))}m"
    if options.memory is not None:
        limits["memory"] = str(options.memory)
    if count := _count(spec.gpus):
        limits[GPU] = str(count)
    requests = {"requests": {"memory": str(options.memory_reservation)}} if options.memory_reservation else {}
    return {"limits": limits} | requests if limits or requests else {}


def _count(gpus: GpuRequest) -> int:
    return max(1, gpus.maximum) if gpus.everything else gpus.maximum


def _variables(spec: JobSpec, index: int | None) -> Iterator[Mapping[str, Any]]:
    given = {name: value for name, value in spec.options.env if name not in _GPU_CHOICE}
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!a} cannot be the name of a variable in a pod", where="--env")
        yield {"name": name, "value": expandable(value)}
    yield {"name": "GPUTUI_JOB_ID", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{KEY}']"}}}
    yield {"name": "GPUTUI_GPUS", "value": str(_count(spec.gpus))}
    if index is not None:
        yield {"name": "GPUTUI_ARRAY_INDEX", "value": str(index)}
    if not _count(spec.gpus):
        # images of NVIDIA ask for all GPUs, which a node with NVIDIA's runtime as default would give
        yield {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def dns_label(name: str, suffix: str) -> str:
    """Return a name for Kubernetes: lower-case letters, digits and -, at most 63, that ends in the suffix."""
    end = _slug(suffix)
    begin = _slug(name)[: _LONGEST_LABEL - len(end) - 1].strip("-")
    return f"{begin or 'gputui'}-{end}"[:_LONGEST_LABEL]


def label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LONGEST_LABEL].strip("-_.")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def as_yaml(value: Mapping[str, Any]) -> str:
    """Return a document with these values: texts, numbers, booleans, lists and mappings."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _field(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _field(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
