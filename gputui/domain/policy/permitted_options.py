"""Options of `docker run` that a site forbids, and options that only operators may use in a shared queue."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from gputui.domain import docker_args
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.settings import AllowSettings

_NAMES: Mapping[str, str] = MappingProxyType(
    {"volumes": "volume", "mounts": "mount", "ulimits": "ulimit", "labels": "label"}
)
DOCKER_SOCKET = "docker_socket"
"""Key for mounts of an engine's socket, which amount to root access."""
ALLOWABLE = (
    *(_NAMES.get(name, name) for name in ContainerOptions.__struct_fields__),
    DOCKER_SOCKET,
)
"""Names of options that the site may forbid, or allow to all users."""
SOCKETS = (
    *("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"),
    "/run/gputui/api.sock",  # whoever is root in a container would be root to the queue
)
_FOR_OPERATORS = frozenset(
    {"privileged", "device", "device_cgroup_rule", "cap_add", "volumes_from", "userns", "cgroup_parent"}
)
_SCHEDULING = frozenset({"rtprio", "nice"})
"""Limits that only root may raise, and with which a job could take the processors from all others."""
_NAMESPACES = frozenset({"pid", "ipc", "uts", "network", "cgroupns"})


class OptionRules(Struct, frozen=True):
    """Rules for one submitter."""

    allow: AllowSettings
    is_restricted: bool = False
    """True if the queue is shared and the submitter is not an operator."""

    @property
    def limit_mounts(self) -> bool:
        """True if any directory of the host may not be mounted."""
        return self.is_restricted or self.allow.mounts is not None or self.allow.options.get(DOCKER_SOCKET) is False


class OptionRefusal(Struct, frozen=True):
    """Refusal of an option."""

    option: str
    what: str
    hint: str

    @property
    def sentence(self) -> str:
        """Return the refusal as one sentence."""
        return f"{self.option}: {self.what} ({self.hint})"


class MountSource(Struct, frozen=True):
    """Directory or file of the host that a job wants mounted."""

    option: str
    path: str


def option_refusals(options: ContainerOptions, rules: OptionRules) -> Iterator[OptionRefusal]:
    """Yield why each refused option, and each named volume, is refused: jobs and containers share volumes by name.

    Mounts of host paths are checked separately, since their paths must be resolved.
    """
    for field in options.__struct_fields__:
        value = getattr(options, field)
        name = _NAMES.get(field, field)
        if value in (None, ()) or value is False:
            continue
        allowed = rules.allow.options.get(name)
        if allowed is False:
            yield OptionRefusal(_option(name), "is forbidden here", f"the setting policy.allow.{name}")
        elif allowed is None and rules.is_restricted and _is_for_operators(name, value):
            yield _for_operators(_option(name), "", name)
    if rules.is_restricted:
        for text in options.mounts:
            if rules.allow.options.get("mount") is None and _binds_by_driver(text):
                yield _for_operators("--mount", "a volume with a driver or device of its own ", "mount")
    if rules.allow.named_volumes is None and not rules.is_restricted:
        return
    named = [("--volume", docker_args.volume_source(text)) for text in options.volumes]
    mounts = map(docker_args.mount, options.mounts)
    named += [("--mount", spec.source) for spec in mounts if spec.kind == "volume"]
    listed = rules.allow.named_volumes or ()
    for option, volume in named:
        if volume and not volume.startswith("/") and volume not in listed:
            what = f"the volume {volume!a} is not one that jobs may mount"
            known = ", ".join(listed) or "none yet"
            yield OptionRefusal(option, what, f"policy.allow.named_volumes lists {known}; -v /PATH makes a new one")


def mount_sources(options: ContainerOptions) -> Iterator[MountSource]:
    """Yield the host paths that a job wants mounted, as written."""
    for text in options.volumes:
        if (path := docker_args.volume_source(text)).startswith("/"):
            yield MountSource("--volume", path)
    for text in options.mounts:
        spec = docker_args.mount(text)
        if spec.kind == "bind":
            yield MountSource("--mount", spec.source)


def mount_refusal(
    source: MountSource, resolved: str, rules: OptionRules, guarded: Iterable[str], own: str
) -> OptionRefusal | None:
    """Return why a mount is refused; `resolved`: its path without links, `guarded`: sockets, `own`: our directory."""
    shown = source.path if source.path == resolved else f"{source.path}, which is {resolved},"
    socket = rules.allow.options.get(DOCKER_SOCKET)
    if socket is not True and any(_holds(resolved, each) for each in guarded):
        if socket is False:
            return OptionRefusal(
                source.option, f"{shown} holds an engine's socket", f"policy.allow.{DOCKER_SOCKET} is false"
            )
        if rules.is_restricted:
            return _for_operators(source.option, f"{shown} holds an engine's socket, which ", DOCKER_SOCKET)
    if rules.is_restricted and (_holds(resolved, own) or _holds(own, resolved)):
        return OptionRefusal(source.option, f"{shown} would show the queue's own files", "mount another directory")
    roots = rules.allow.mounts
    if roots is None and not rules.is_restricted:
        return None
    if any(_holds(os.path.realpath(root), resolved) for root in roots or ()):
        return None
    listed = ", ".join(roots or ()) or "no directory yet"
    return OptionRefusal(
        source.option, f"{shown} is outside the directories that may be mounted", f"policy.allow.mounts lists {listed}"
    )


def _holds(directory: str, path: str) -> bool:
    """Return whether the path is that directory, or is in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _is_for_operators(name: str, value: object) -> bool:
    if name == "security_opt" and isinstance(value, tuple):
        return any(not str(text).startswith("no-new-privileges") for text in value)
    if name == "ulimit" and isinstance(value, tuple):
        return any(str(text).partition("=")[0].strip().lower() in _SCHEDULING for text in value)
    if name in _NAMESPACES:
        mode = str(value)
        if name == "network":
            mode = docker_args.network(mode).name
        return mode == "host" or mode.startswith("container:")
    return name in _FOR_OPERATORS or (name == "volume_driver" and value != "local")


def _binds_by_driver(text: str) -> bool:
    """Return whether a volume is a directory of the host under another name."""
    spec = docker_args.mount(text)
    driver = spec.get("volume-driver")
    is_foreign = driver not in {"", "local"}  # a plugin may mount any path
    return is_foreign or any(option.partition("=")[0] == "device" for option in spec.every("volume-opt"))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _for_operators(option: str, what: str, name: str) -> OptionRefusal:
    hint = f"an operator may submit it, or set policy.allow.{name} = true"
    return OptionRefusal(option, f"{what}is only for operators of this shared queue", hint)
