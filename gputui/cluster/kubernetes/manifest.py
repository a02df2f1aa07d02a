"""Manifests of Kubernetes: a job or an array as batch/v1 Jobs, with claims for their GPUs; and YAML for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from msgspec import Struct

from gputui.cluster.kubernetes.objects import ARRAY, CONTAINER, INDEX, PLACE, RESOURCES
from gputui.domain import docker_args
from gputui.domain.cluster import asks_for
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import InputError
from gputui.domain.job import spec_at
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec, Submission, whole_class
from gputui.domain.pod_template import CLAIM, GPU, MOUNTED, merged, settings_of, template
from gputui.domain.settings import Settings
from gputui.domain.text import parse_size

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
NAME, COMMENT, SUBMITTER = "gputui.name", "gputui.comment", "gputui.user"
"""Annotations for people. Whoever submits a job writes what she likes into them."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""Kueue's label for the queue of a job."""
_CLAIM = "gpus"
"""Name of the claim of a pod for its GPUs, and of the request in it."""
_MEMORY = "nvidia.com/gpu.memory"
"""Node label with the MiB of each GPU, set by NVIDIA's feature discovery."""
_MIB = 1024**2
_GPU_CHOICE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)
_LONGEST_LABEL = 63
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "~"})
"""Words that a reader may take for something else than a text."""
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]")


def expandable(text: str) -> str:
    """Return a text that Kubernetes expands to this one: it replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


class KubeTarget(Struct, frozen=True):
    """Target of manifests: a namespace, and what its cluster has, which is unknown by default."""

    namespace: str = ""
    models: tuple[str, ...] = ()
    """Models of the GPUs of its nodes, as the label has them."""
    claims: str = ""
    """Version of its API for claims of devices, such as `v1`; empty: it has none."""
    counts_failures_by_index: bool = False
    """Whether an element of an array that is one Job may fail without the others."""


class PodOptions:
    """The fields that a job's options set, and sentences about those without a counterpart."""

    def __init__(self, options: ContainerOptions, volumes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`volumes` are those of the site's template by name."""
        self._options = options
        self._named = volumes or {}
        self.left_out: list[str] = []
        self.volumes: list[dict[str, Any]] = []
        self._mounts: list[dict[str, Any]] = []
        self._add_mounts()
        taken = {each["mountPath"] for each in self._mounts}
        for name, volume in self._named.items():  # those that the template mounts into every job
            if (target := volume.get("mountPath")) and target not in taken:
                self._mount_named(name, target)
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
        if context:
            fields["securityContext"] = context
        if self._mounts:
            fields["volumeMounts"] = self._mounts
        return fields

    def _add_mounts(self) -> None:
        options = self._options
        if options.shm_size is not None:
            self._mount("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": str(options.shm_size)}})  # noqa: S108 - the container's
        for text in options.volumes:
            source, colon, rest = text.partition(":")
            target, _, mode = rest.partition(":")
            is_fixed = "ro" in mode.split(",")
            if not colon:
                self._mount(source, {"emptyDir": {}})
            elif source.startswith("/"):
                self._mount(target, {"hostPath": {"path": source}}, is_fixed=is_fixed)
            elif CLAIM.fullmatch(source):
                self._mount_named(source, target, is_fixed=is_fixed)
            else:
                self.left_out.append(f"--volume={text}: no claim for a volume can have this name")
        for text in options.tmpfs:
            self._mount(text.partition(":")[0], {"emptyDir": {"medium": "Memory"}})
        for text in options.mounts:
            try:
                spec = docker_args.mount(text)
                volume = _source(spec)
                is_plain = spec.kind == "volume" and not (spec.get("volume-driver") or spec.every("volume-opt"))
            except (ValueError, InputError) as error:
                raise InputError(str(error), where="--mount") from error
            if volume is not None:
                self._mount(spec.target, volume, is_fixed=spec.readonly)
            elif is_plain and CLAIM.fullmatch(spec.source):
                self._mount_named(spec.source, spec.target, spec.get("volume-subpath"), is_fixed=spec.readonly)
            else:
                self.left_out.append(f"--mount={text}: pods have no such mount")

    def _mount_named(self, name: str, target: str, inner: str = "", *, is_fixed: bool = False) -> None:
        """Mount the volume that the template has under this name, else the claim of this name."""
        volume = dict(self._named.get(name, {"persistentVolumeClaim": {"claimName": name}}))
        source = {key: value for key, value in volume.items() if key not in MOUNTED}
        path = "/".join(filter(None, (str(volume.get("subPath", "")), inner)))
        self._mount(target, source, path, is_fixed=is_fixed or bool(volume.get("readOnly")))

    def _mount(self, target: str, source: dict[str, Any], inner: str = "", *, is_fixed: bool = False) -> None:
        known = (each["name"] for each in self.volumes if each == {"name": each["name"]} | source)
        named: str | None = next(known, None) if "emptyDir" not in source else None  # two of these are two
        if named is None:
            named = f"volume-{len(self.volumes)}"
            self.volumes.append({"name": named} | source)
        more = ({"readOnly": True} if is_fixed else {}) | ({"subPath": inner} if inner else {})
        self._mounts.append({"name": named, "mountPath": target} | more)


def _source(spec: MountSpec) -> dict[str, Any] | None:
    if spec.kind == "bind":
        return {"hostPath": {"path": spec.source}}
    if spec.kind == "tmpfs":
        size = spec.get("tmpfs-size")
        return {"emptyDir": {"medium": "Memory"} | ({"sizeLimit": str(parse_size(size))} if size else {})}
    return {"emptyDir": {}} if spec.kind == "volume" and not spec.source else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()


def manifests(
    submission: Submission, key: str, settings: Settings, target: KubeTarget | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the Jobs of a job or an array: one for all elements, or one for each, each with its claim for GPUs behind.

    Raises InputError for what no pod can run.
    """
    if (classes := settings.cluster.priority_classes) and len(classes) != 3:
        hint = "name three PriorityClasses: for low, normal and high"
        raise InputError("has not three entries", where="cluster.priority_classes", hint=hint)
    if submission.spec.is_host:
        raise InputError("Kubernetes runs containers, and this is a host job", where="--image")
    target = target or KubeTarget(settings.cluster.namespace or "")
    is_one = is_one_job(submission, settings, target)
    for index in (None,) if is_one else submission.array or (None,):
        yield from _documents(submission, index, key, settings, target)


def _documents(
    submission: Submission, index: int | None, key: str, settings: Settings, target: KubeTarget
) -> Iterator[dict[str, Any]]:
    whole = submission.spec
    spec = whole if index is None else spec_at(whole, index)
    suffix = key if index is None else f"{key}-{index}"
    base = template(settings.cluster.kubernetes, target.namespace, whole.tenant)
    labels = base.get("labels", {}) | {"app.kubernetes.io/managed-by": "gputui", KEY: label(suffix)}
    if whole.tenant:
        labels["gputui.tenant"] = label(whole.tenant)
    queue = {QUEUE: settings.cluster.kueue} if settings.cluster.kueue else {}
    if submission.array:
        labels |= {ARRAY: label(key)} | ({INDEX: str(index)} if index is not None else {})
    annotations = base.get("annotations", {})
    ours = {name: text for name, text in ((NAME, spec.name), (COMMENT, spec.comment)) if text}
    is_many = bool(submission.array) and index is None
    number = len(submission.array)
    room = len(f"-{number}") if is_many else 0
    metadata: dict[str, Any] = {"name": dns_label(whole.name, suffix, room), "labels": labels | queue}
    if settings.cluster.namespace:
        metadata["namespace"] = settings.cluster.namespace
    if annotations | ours:
        metadata["annotations"] = annotations | ours
    job: dict[str, Any] = {"backoffLimit": 0}
    if is_many:
        most = min(number, submission.array_limit or number)
        job = {"completionMode": "Indexed", "completions": number, "parallelism": most, "backoffLimitPerIndex": 0}
    if submission.held or spec.begin_at is not None or spec.after or spec.after_any:
        job["suspend"] = True
    place = str(index) if index is not None else None if is_many else ""
    about = {"labels": labels} | ({"annotations": annotations} if annotations else {})
    pod = _Pod(spec, settings, target, base)
    job["template"] = {"metadata": about, "spec": pod.made(key, place, metadata["name"])}
    yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}
    if pod.claim is not None:
        yield pod.claim | {"metadata": {key: metadata[key] for key in metadata.keys() - {"annotations"}}}


_TOLD = frozenset({"host", "begin"})
"""Options without which a manifest is not made, or which it suspends for."""


def is_one_job(submission: Submission, settings: Settings, target: KubeTarget) -> bool:
    """Return whether all elements of an array become one Job of Kubernetes.

    They are alike, and Kubernetes counts them from 0 on and names their hosts. Such elements are held and released
    together, and Kueue admits them together: so only a limit makes one Job of an array that is held or queued there.
    """
    array, limit, spec = submission.array, submission.array_limit, submission.spec
    if not array or spec.sweep or spec.options.hostname or not target.counts_failures_by_index:
        return False
    is_free = not submission.held and not settings.cluster.kueue
    return array == tuple(range(len(array))) and (limit is not None or is_free)


_LIMIT = "is for indices from 0 on, without a sweep or a hostname, on releases from 1.29 on"


def left_out(submission: Submission, settings: Settings, target: KubeTarget | None = None) -> Iterator[str]:
    """Yield a sentence for each request that a manifest cannot express."""
    spec, target = submission.spec, target or KubeTarget()
    gpus, site = spec.gpus, settings_of(settings.cluster.kubernetes)
    models = {*target.models, *site.gpu_models}
    told = ", ".join(sorted(models)) or f"none by the label {site.gpu_model_label}"
    is_unknown = gpus.model is not None and not site.device_class and not _models(gpus.model, models)
    is_limited = submission.array_limit is not None and not is_one_job(submission, settings, target)
    asked = {
        "--gpus: Kubernetes chooses the GPUs": bool(gpus.devices),
        f"--gpus: a pod has a fixed number of GPUs, here {_count(gpus)}": gpus.minimum != gpus.maximum,
        "--gpus: a manifest cannot ask for all GPUs of a node": gpus.everything,
        "--gpus: driver capabilities are the image's": bool(gpus.capabilities or gpus.driver or gpus.driver_options),
        f"--gpu-model: no GPU of that model: known are {told}; cluster.kubernetes.gpu_models adds others": is_unknown,
        "--begin: the job is suspended; resume it when it may start": spec.begin_at is not None,
        "--after: the job is suspended; resume it when it may start": bool(spec.after or spec.after_any),
        f"--array: a limit of elements at a time {_LIMIT}": is_limited,
        "--interactive: input without a terminal ends with the first client: give it both, by -it": (
            spec.interactive is not None and spec.interactive.stdin and not spec.interactive.tty
        ),
    }
    yield from (sentence for sentence, is_asked in asked.items() if is_asked)
    for name, why in LACKING.items():
        if name not in _TOLD and asks_for(submission, name):
            yield f"--{name.replace('_', '-')}: {why}"
    yield from PodOptions(spec.options).left_out


def _models(asked: str, known: Iterable[str]) -> list[str]:
    return sorted({model for model in known if _spaced(asked) in _spaced(model)})


def _spaced(model: str) -> str:
    """Return a model in small letters with blanks as the driver writes it: labels have dashes there."""
    return model.lower().replace("-", " ")


class _Pod:
    """The pod of a job, in a site with this template."""

    def __init__(self, spec: JobSpec, settings: Settings, target: KubeTarget, base: Mapping[str, Any]) -> None:
        self._spec = spec
        self._settings = settings
        self._target = target
        self._site = settings_of(settings.cluster.kubernetes)
        self._base = base
        self.claim = self._claim() if self._site.device_class and _count(spec.gpus) else None
        """Template of the claim for its GPUs; None if it asks for them otherwise."""

    def made(self, key: str, place: str | None, name: str) -> dict[str, Any]:
        """Return the pod. `place` is the index of an element, None if Kubernetes gives it, empty for a single job."""
        spec, settings, base = self._spec, self._settings, self._base
        options = PodOptions(spec.options, base.get("volumes"))
        ours: dict[str, Any] = {"restartPolicy": "Never"}
        if classes := settings.cluster.priority_classes:
            ours["priorityClassName"] = classes[whole_class(spec.priority)]
        if spec.time_limit is not None:
            # the pod's, not the job's: that one counts the time for which the job waits for its GPUs
            ours["activeDeadlineSeconds"] = max(1, -(-spec.time_limit // timedelta(seconds=1)))
        grace = spec.options.stop_timeout
        ours["terminationGracePeriodSeconds"] = (
            -(-settings.scheduler.stop_grace // timedelta(seconds=1)) if grace is None else grace
        )
        given = {field: value for field, value in base.items() if field not in _NOT_OF_PODS}
        pod = merged(given, ours | options.pod)
        if expressions := self._expressions():
            affinity = pod.get("affinity", {})  # of a site's terms one has to hold: all are narrowed
            nodes = affinity.get("nodeAffinity", {})
            terms = nodes.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
            narrowed = [
                term | {"matchExpressions": [*term.get("matchExpressions", []), *expressions]} for term in terms
            ]
            pod["affinity"] = {**affinity, "nodeAffinity": {**nodes, _REQUIRED: {"nodeSelectorTerms": narrowed}}}
        if self.claim is not None:
            pod["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": name}]
        frame = dict(base.get("container", {}))
        env = frame.pop("env", {})
        pod["containers"] = [merged(frame, self._container(key, place, options, env))]
        if options.volumes:
            pod["volumes"] = options.volumes
        return pod

    def _container(self, key: str, place: str | None, options: PodOptions, env: Mapping[str, str]) -> dict[str, Any]:
        spec = self._spec
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
        container["env"] = list(_variables(spec, key, place, env))
        limits: dict[str, str] = {}
        if spec.options.cpus is not None:
            limits["cpu"] = f"{max(1, round(spec.options.cpus * 1000))}m"
        if spec.options.memory is not None:
            limits["memory"] = str(spec.options.memory)
        if (count := _count(spec.gpus)) and self.claim is None:
            limits[GPU] = str(count)
        reserved = spec.options.memory_reservation
        resources: dict[str, Any] = {"limits": limits} if limits or reserved else {}
        if reserved:
            resources["requests"] = {"memory": str(reserved)}
        if self.claim is not None:
            resources["claims"] = [{"name": _CLAIM}]
        return container | {"resources": resources} | options.container

    def _expressions(self) -> list[dict[str, Any]]:
        gpus, found = self._spec.gpus, list[dict[str, Any]]()
        if self.claim is not None:
            return found
        if gpus.memory is not None and not gpus.share:
            # nodes whose GPUs have at least these bytes of memory
            found.append({"key": _MEMORY, "operator": "Gt", "values": [str(-(-gpus.memory // _MIB) - 1)]})
        known = (*self._target.models, *self._site.gpu_models)
        if gpus.model is not None and (models := _models(gpus.model, known)):
            found.append({"key": self._site.gpu_model_label, "operator": "In", "values": models})
        return found

    def _claim(self) -> dict[str, Any]:
        """Return a template of claims for the GPUs of one pod, by API `v1` or an earlier one."""
        gpus, selectors = self._spec.gpus, list[str]()
        if gpus.model is not None:
            name = 'device.attributes[device.driver].productName.lowerAscii().replace("-", " ")'
            selectors.append(f"{name}.contains({json.dumps(_spaced(gpus.model))})")
        if gpus.memory is not None and not gpus.share:
            selectors.append(f'device.capacity[device.driver].memory.compareTo(quantity("{gpus.memory}")) >= 0')
        request: dict[str, Any] = {"deviceClassName": self._site.device_class}
        request |= {"allocationMode": "ExactCount", "count": _count(gpus)}
        if selectors:
            request["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        version = self._target.claims or "v1"
        named: dict[str, Any] = {"name": _CLAIM}
        named |= request if version == "v1beta1" else {"exactly": request}
        return {
            "apiVersion": f"{RESOURCES}/{version}",
            "kind": "ResourceClaimTemplate",
            "metadata": {},
            "spec": {"spec": {"devices": {"requests": [named]}}},
        }


_NOT_OF_PODS = frozenset({"labels", "annotations", "volumes", "container"})
"""Keys of a template that are no fields of a pod as they are."""


def _count(gpus: GpuRequest) -> int:
    return max(1, gpus.maximum) if gpus.everything else gpus.maximum


def _variables(spec: JobSpec, key: str, place: str | None, base: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    given = {name: value for name, value in ({**base, **dict(spec.options.env)}).items() if name not in _GPU_CHOICE}
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!a} cannot be the name of a variable in a pod", where="--env")
        yield {"name": name, "value": expandable(value)}
    if place is None:
        yield _of_field("GPUTUI_ARRAY_INDEX", f"metadata.annotations['{PLACE}']")
        yield {"name": "GPUTUI_JOB_ID", "value": f"{label(key)}-$(GPUTUI_ARRAY_INDEX)"}
    else:
        yield _of_field("GPUTUI_JOB_ID", f"metadata.labels['{KEY}']")
    yield {"name": "GPUTUI_GPUS", "value": str(_count(spec.gpus))}
    if place:
        yield {"name": "GPUTUI_ARRAY_INDEX", "value": place}
    if not _count(spec.gpus):
        # images of NVIDIA ask for all GPUs, which a node with NVIDIA's runtime as default would give
        yield {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def _of_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def dns_label(name: str, suffix: str, room: int = 0) -> str:
    """Return a name for Kubernetes: lower-case letters, digits and -, at most 63, that ends in the suffix.

    `room` is left behind it, for what Kubernetes adds to the names of pods.
    """
    end, longest = _slug(suffix), _LONGEST_LABEL - room
    begin = _slug(name)[: longest - len(end) - 1].strip("-")
    return f"{begin or 'gputui'}-{end}"[:longest]


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
            if isinstance(inner, Mapping | list) and inner:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _lines(inner))
            else:
                yield f"{_scalar(key)}: {_scalar(inner)}"
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
