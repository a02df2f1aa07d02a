"""Options of `docker run` as fields of a pod and of its container."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputui.domain import docker_args
from gputui.domain.container_options import ContainerOptions
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import InputError
from gputui.domain.units import parse_size

_HERE = frozenset(
    {
        "add_host",
        "cap_add",
        "cap_drop",
        "cpus",
        "dns",
        "dns_search",
        "entrypoint",
        "env",
        "group_add",
        "hostname",
        "ipc",
        "log_driver",
        "log_opt",
        "memory",
        "memory_reservation",
        "mounts",
        "network",
        "no_init",
        "pid",
        "privileged",
        "pull",
        "read_only",
        "shm_size",
        "stop_timeout",
        "sysctl",
        "tmpfs",
        "user",
        "volumes",
        "workdir",
    }
)
"""Options with a counterpart, and those that mean nothing to a pod's user."""
_NAMES = {"volumes": "volume", "mounts": "mount", "labels": "label", "ulimits": "ulimit"}
_PULL = {"always": "Always", "missing": "IfNotPresent", "never": "Never"}


def expandable(text: str) -> str:
    """Return a text that Kubernetes expands to this one: it replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


class PodOptions:
    """The fields that a job's options set, and sentences about those without a counterpart."""

    def __init__(self, options: ContainerOptions) -> None:
        self._options = options
        self.left_out = [f"{name}: pods have no such option" for name in _unknown(options)]
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
        if context := self._pod_context():
            fields["securityContext"] = context
        return fields

    def _pod_context(self) -> dict[str, Any]:
        context: dict[str, Any] = {}
        groups = [int(group) for group in self._options.group_add if _is_id(group)]
        if len(groups) < len(self._options.group_add):
            self.left_out.append("--group-add: a pod knows groups by their number only")
        if groups:
            context["supplementalGroups"] = groups
        if self._options.sysctl:
            pairs = [text.partition("=")[::2] for text in self._options.sysctl]
            context["sysctls"] = [{"name": name, "value": value} for name, value in pairs]
        return context

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
            names = {key: [_capability(name) for name in names] for key, names in lists.items() if names}
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
            self._add_mount(text)

    def _add_mount(self, text: str) -> None:
        try:
            spec = docker_args.mount(text)
            source = _source(spec)
        except (ValueError, InputError) as error:
            raise InputError(str(error), where="--mount") from error
        if source is None:
            self.left_out.append(f"--mount={text}: pods have no such mount")
        else:
            self._mount(spec.target, source, is_fixed=spec.readonly)

    def _mount(self, target: str, source: dict[str, Any], *, is_fixed: bool = False) -> None:
        name = f"volume-{len(self.volumes)}"
        self.volumes.append({"name": name} | source)
        self._mounts.append({"name": name, "mountPath": target} | ({"readOnly": True} if is_fixed else {}))


_AS_IN_PODS = {
    "network": frozenset({"default", "bridge"}),
    "pid": frozenset[str](),
    "ipc": frozenset({"private", "shareable"}),
}
"""Values that ask for what every pod has."""


def _source(spec: MountSpec) -> dict[str, Any] | None:
    """Return the volume of a mount; None if there is no counterpart."""
    if spec.kind == "bind":
        return {"hostPath": {"path": spec.source}}
    if spec.kind == "tmpfs":
        size = spec.get("tmpfs-size")
        return {"emptyDir": {"medium": "Memory"} | ({"sizeLimit": str(parse_size(size))} if size else {})}
    return {"emptyDir": {}} if spec.kind == "volume" and not spec.source else None


def _unknown(options: ContainerOptions) -> Iterator[str]:
    for field in ContainerOptions.__struct_fields__:
        value = getattr(options, field)
        if field not in _HERE and value not in (None, ()) and value is not False:
            yield "--" + _NAMES.get(field, field).replace("_", "-")


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()
