"""Options of `docker run` that a site forbids to all."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from gputui.domain import docker_args
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.settings import AllowSettings

NAMES: Mapping[str, str] = MappingProxyType(
    {"volumes": "volume", "mounts": "mount", "ulimits": "ulimit", "labels": "label"}
)
DOCKER_SOCKET = "docker_socket"
"""Key for mounts of an engine's socket, which amount to root access."""
ALLOWABLE = (
    *(NAMES.get(name, name) for name in ContainerOptions.__struct_fields__),
    DOCKER_SOCKET,
)
"""Names of options that the site may forbid, or allow to all users."""
SOCKETS = (
    *("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"),
    "/run/gputui/api.sock",  # whoever is root in a container would be root to the queue
)


class OptionRefusal(Struct, frozen=True):
    option: str
    what: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.option}: {self.what} ({self.hint})"


class MountSource(Struct, frozen=True):
    """Directory or file of the host that a job wants mounted."""

    option: str
    path: str

    def shown(self, resolved: str) -> str:
        """Return the path as written, and without links if that is another."""
        return self.path if self.path == resolved else f"{self.path}, which is {resolved},"


def limits_mounts(allow: AllowSettings) -> bool:
    """Return whether any directory of the host may not be mounted."""
    return allow.mounts is not None or allow.options.get(DOCKER_SOCKET) is False


def given_options(options: ContainerOptions) -> Iterator[tuple[str, str, Any]]:
    for field in options.__struct_fields__:
        value = getattr(options, field)
        if value not in (None, ()) and value is not False:
            yield field, NAMES.get(field, field), value


def forbidden(name: str, allow: AllowSettings) -> OptionRefusal | None:
    """Return the refusal of an option that a site forbids to all."""
    if allow.options.get(name) is not False:
        return None
    return OptionRefusal(option_of(name), "is forbidden here", f"the setting policy.allow.{name}")


def option_refusals(options: ContainerOptions, allow: AllowSettings) -> Iterator[OptionRefusal]:
    """Yield why each refused option, and each named volume, is refused: jobs and containers share volumes by name.

    Mounts of host paths are checked separately, since their paths must be resolved.
    """
    for _, name, _ in given_options(options):
        if refused := forbidden(name, allow):
            yield refused
    if allow.named_volumes is None:
        return
    named = [("--volume", docker_args.volume_source(text)) for text in options.volumes]
    mounts = map(docker_args.mount, options.mounts)
    named += [("--mount", spec.source) for spec in mounts if spec.kind == "volume"]
    for option, volume in named:
        if volume and not volume.startswith("/") and volume not in allow.named_volumes:
            what = f"the volume {volume!a} is not one that jobs may mount"
            known = ", ".join(allow.named_volumes) or "none yet"
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
    source: MountSource, resolved: str, allow: AllowSettings, guarded: Iterable[str]
) -> OptionRefusal | None:
    """Return why a mount is refused; `resolved`: its path without links, `guarded`: sockets of engines."""
    shown = source.shown(resolved)
    if allow.options.get(DOCKER_SOCKET) is False and any(holds(resolved, each) for each in guarded):
        why = f"policy.allow.{DOCKER_SOCKET} is false"
        return OptionRefusal(source.option, f"{shown} holds an engine's socket", why)
    roots = allow.mounts
    if roots is None or any(holds(os.path.realpath(root), resolved) for root in roots):
        return None
    listed = ", ".join(roots) or "no directory yet"
    return OptionRefusal(
        source.option, f"{shown} is outside the directories that may be mounted", f"policy.allow.mounts lists {listed}"
    )


def holds(directory: str, path: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def option_of(name: str) -> str:
    """Return the option of a name, as `docker run` has it."""
    return "--" + name.replace("_", "-")
