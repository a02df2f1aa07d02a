"""Admission: what jobs of plain users may ask for, who are neither operators nor owners of the queue.

Options that a site forbids to all are refused here too.

A plain user's container is that user's account in a box: its uid, gid and groups, no capabilities, no new privileges,
limits, and mounts that the account could open itself. So what is not known to be harmless is refused: an option that is
in no table of this file, such as one that is added later, is refused too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct

from gputui.domain import docker_args
from gputui.domain.container import Box
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import AdmissionSettings, AllowSettings
from gputui.domain.text import format_size

NAMES: Mapping[str, str] = MappingProxyType(
    {"volumes": "volume", "mounts": "mount", "ulimits": "ulimit", "labels": "label"}
)
DOCKER_SOCKET = "docker_socket"
"""Key for mounts of an engine's socket, which amount to root access."""
ALLOWABLE = (*(NAMES.get(name, name) for name in ContainerOptions.__struct_fields__), DOCKER_SOCKET)
"""Names of options that the site may forbid, or allow to all users."""
_IN_RUN = (
    *("docker.sock", "docker/containerd/containerd.sock", "containerd/containerd.sock", "buildkit/buildkitd.sock"),
    *("podman/podman.sock", "crio/crio.sock", "cri-dockerd.sock", "user/*/docker.sock", "user/*/podman/podman.sock"),
    "gputui/api.sock",  # whoever is root in a container would be root to the queue
)
SOCKETS = tuple(f"{run}/{name}" for run in ("/run", "/var/run") for name in _IN_RUN)
"""Usual sockets of engines and of ours; a `*` is any one name."""


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


def forbidden_mount(
    source: MountSource, resolved: str, allow: AllowSettings, roots: Iterable[str], guarded: Iterable[str]
) -> OptionRefusal | None:
    """Return why a mount is refused; `resolved`: its path without links, `guarded`: sockets of engines.

    `roots` are the directories of `allow.mounts`, as written and without links.
    """
    shown = source.shown(resolved)
    if allow.options.get(DOCKER_SOCKET) is False and any(holds_socket(resolved, each) for each in guarded):
        why = f"policy.allow.{DOCKER_SOCKET} is false"
        return OptionRefusal(source.option, f"{shown} holds an engine's socket", why)
    if allow.mounts is None or any(holds(root, resolved) for root in roots):
        return None
    listed = ", ".join(allow.mounts) or "no directory yet"
    return OptionRefusal(
        source.option, f"{shown} is outside the directories that may be mounted", f"policy.allow.mounts lists {listed}"
    )


def holds(directory: str, path: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def holds_socket(directory: str, socket: str) -> bool:
    """Return whether a socket is at or below that path; a `*` in the socket's is any one name."""
    above, below = directory.rstrip("/").split("/"), socket.split("/")
    return len(above) <= len(below) and all(map(fnmatchcase, above, below))


def option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


FREE = frozenset(
    {"workdir", "entrypoint", "hostname", "domainname", "add_host", "dns", "dns_option", "dns_search", "expose"}
    | {"publish_all", "read_only", "cap_drop", "cpuset_cpus", "cpuset_mems", "memory_reservation"}
    | {"memory_swappiness", "stop_signal", "no_init", "pull", "platform", "labels", "no_healthcheck", "health_cmd"}
    | {"health_timeout", "health_start_period", "health_retries"}
    | {"user", "group_add"}
)
"""Options without a rule; for `user` and `group_add` the account database has the last word, when the job starts."""
OPENED = frozenset(
    {"network", "network_alias", "ip", "ip6", "link_local_ip", "mac_address", "ipc", "runtime", "sysctl", "ulimit"}
    | {"storage_opt", "memory_swap", "cpu_period", "cpu_quota", "cgroupns"}
    | {"device_read_bps", "device_read_iops", "device_write_bps", "device_write_iops", "blkio_weight_device"}
)
"""Options whose rule a site may lift with `policy.allow.NAME = true`; all others stay closed."""
_LOG_DRIVERS = ("json-file", "local")
_GPU_CAPABILITIES = frozenset({"compute", "utility", "video", "graphics", "display", "compat32", "ngx", "gpu", "all"})
_USUAL_SHARES = 1024
_USUAL_WEIGHT = 500
_LONGEST_STOP = 600
_LEAST_INTERVAL = 5
_LEAST_PORT = 1024
_MODES = frozenset({"", "ro", "rw", "private", "rprivate", "nocopy", "cached", "delegated", "consistent"})
_ULIMITS = frozenset(
    {"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nofile", "nproc", "rss", "rttime", "sigpending"}
    | {"stack", "as"}
)
"""Limits that users may set: not rtprio and nice, with which a job could take the processors from all others."""
_RESERVED = ("/proc", "/sys", "/dev/pts", "/run/gputui", "/var/run/gputui")
_GPUS_BY_MOUNT = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
"""NVIDIA's runtime gives a container the GPUs that are named by mounts there."""
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_LOOKS_LIKE_AN_ID = re.compile(r"(?:sha256:)?[0-9a-f]+", re.ASCII)
"""The engine takes such a name for an image's id too, whatever image that is."""


class AdmissionRules(Struct, frozen=True):
    uid: int
    user: str
    settings: AdmissionSettings
    allow: AllowSettings

    def is_root_image(self, image: str | None) -> bool:
        return image is not None and _matches(image, self.settings.root_images)


def box(spec: JobSpec, rules: AdmissionRules) -> Box:
    of = rules.settings
    return Box(of.pids, of.memory, of.cpus, of.shm_size, rules.is_root_image(spec.image))


def refusals(spec: JobSpec, rules: AdmissionRules) -> Iterator[OptionRefusal]:
    """Yield why the job is refused; its mounts of host paths are checked by `mount_refusal`, once they are resolved."""
    if spec.is_host and not rules.settings.host_jobs:
        yield OptionRefusal("--host", "host jobs are for operators here", "run it in a container")
    if spec.image is not None:
        yield from _image(spec.image, rules)
    if spec.gpus.driver not in {None, "", "nvidia"} or spec.gpus.driver_options:
        yield OptionRefusal("--gpus", "its driver and options are only for operators", "leave them out")
    if unknown := [each for each in spec.gpus.capabilities if each not in _GPU_CAPABILITIES]:
        known = ", ".join(sorted(_GPU_CAPABILITIES))
        yield OptionRefusal("--gpus", f"{unknown[0]!a} is not a capability of a driver", f"known: {known}")
    for field, name, value in given_options(spec.options):
        if refused := forbidden(name, rules.allow):
            yield refused
            continue
        # a namespace of another container is opened by no setting
        joins_another = isinstance(value, str) and "container:" in value
        if joins_another or name not in OPENED or rules.allow.options.get(name) is not True:
            try:
                rule = (_OF_HOST_JOBS if spec.is_host else _RULES).get(field) or _RULES.get(field)
                why = "" if field in FREE else "is only for operators" if rule is None else rule(value, rules)
                if why:
                    opened = f", or an operator sets policy.allow.{name} = true" if name in OPENED else ""
                    yield OptionRefusal(option_of(name), why, f"leave it out{opened}")
            except ValueError as error:
                yield OptionRefusal(option_of(name), f"cannot be read: {error}", "see docker run --help")


# images and GPUs


def may_run(image: str, rules: AdmissionRules) -> bool:
    return not any(_image(image, rules))


def _image(image: str, rules: AdmissionRules) -> Iterator[OptionRefusal]:
    patterns = rules.settings.images
    if not _IMAGE.fullmatch(image) or ".." in image:
        yield OptionRefusal(
            "image", f"{image[:60]!a} is not the name of an image", "write NAME, NAME:TAG or NAME@DIGEST"
        )
    elif patterns and not _matches(image, (*patterns, *rules.settings.root_images)):
        why = f"the image {image!a} is not one that users may run"
        hint = f"admission.images lists {', '.join(patterns)}"
        if _LOOKS_LIKE_AN_ID.fullmatch(image):
            why, hint = f"{image!a} may be the id of any image", "write the image's name with its tag or digest"
        yield OptionRefusal("image", why, hint)


def full_image(image: str) -> str:
    """Return the image with its registry and its tag or digest: `docker.io/library/debian:latest` for `debian`."""
    name, at, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "docker.io", name
    first = "docker.io" if first == "index.docker.io" else first
    if first == "docker.io" and "/" not in rest:
        rest = f"library/{rest}"
    if not at and ":" not in rest.rpartition("/")[2]:
        rest += ":latest"
    return f"{first}/{rest}{at}{digest}"


def _matches(image: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern names this image; never one that the engine could take for another image's id."""
    if _LOOKS_LIKE_AN_ID.fullmatch(image) or not image.isprintable():
        return False
    whole = full_image(image)
    for pattern in patterns:
        full = pattern if pattern == "*" else full_image(pattern)
        if pattern != "*" and "@" not in pattern and ":" not in pattern.rpartition("/")[2]:
            # one without a tag is for all tags and digests
            full = full.removesuffix(":latest") + ("" if pattern.endswith("*") else "[:@]*")
        if fnmatchcase(whole, full):
            return True
    return False


# rules of options: each returns why the value is refused, or an empty text

Rule: TypeAlias = Callable[[object, AdmissionRules], str]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def _env(value: object, rules: AdmissionRules) -> str:
    for name, _ in value if isinstance(value, tuple) else ():
        if not name or "=" in name or "\0" in name:
            return f"{name!a} is not the name of a variable"
        if name.startswith(("LD_", "NVIDIA_")):
            return f"{name!a} also acts on programs of root that prepare the container; set it in the command"
    return ""


def _env_of_host(value: object, rules: AdmissionRules) -> str:
    names = [name for name, _ in value] if isinstance(value, tuple) else []
    return next((f"{each!a} is not the name of a variable" for each in names if not each or {*each} & {"=", "\0"}), "")


def _volumes(value: object, rules: AdmissionRules) -> str:
    for text in _texts(value):
        source, target, modes = volume_parts(text)
        if why := _target(target) or (_volume(source, rules) if source and not source.startswith("/") else ""):
            return why
        if unknown := [mode for mode in modes if mode not in _MODES]:
            return f"{text!a}: the mode {unknown[0]!a} is only for operators"
    return ""


def volume_parts(text: str) -> tuple[str, str, list[str]]:
    """Return source, target and modes of `[source:]target[:modes]`; raises ValueError."""
    parts = text.split(":")
    if len(parts) > 3 or not parts[-1]:
        raise ValueError(f"{text!a} is not SOURCE:TARGET[:MODE]")
    if len(parts) == 1:
        return "", parts[0], []
    return parts[0], parts[1], parts[2].split(",") if len(parts) == 3 else []


def _mounts(value: object, rules: AdmissionRules) -> str:
    for text in _texts(value):
        spec = docker_args.mount(text)
        if why := _target(spec.target):
            return why
        if spec.kind not in {"bind", "volume", "tmpfs"}:
            return f"mounts of the type {spec.kind} are only for operators"
        for key, given in spec.fields:
            is_private = key == "bind-propagation" and given in {"private", "rprivate"}
            if not is_private and key not in {"volume-nocopy", "tmpfs-size", "tmpfs-mode"}:
                return f"{key} is only for operators"
        if spec.kind == "volume" and spec.source and (why := _volume(spec.source, rules)):
            return why
        if spec.kind == "tmpfs" and spec.source:
            return "a tmpfs has no source"
    return ""


def _tmpfs(value: object, rules: AdmissionRules) -> str:
    return next(filter(None, (_target(text.partition(":")[0]) for text in _texts(value))), "")


def _volume(name: str, rules: AdmissionRules) -> str:
    own, shared = f"gputui-{rules.uid}-", rules.allow.named_volumes or ()
    if re.fullmatch(re.escape(own) + r"[\w.-]{1,200}", name, re.ASCII) or name in shared:
        return ""
    listed = f", or one of {', '.join(shared)}" if shared else ""
    return f"the volume {name!a} is not yours: a name that begins with {own}{listed}"


def _target(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        return f"{path!a} is not an absolute path in the container"
    whole = posixpath.normpath("/" + path.lstrip("/"))
    if whole == "/":
        return "the root directory of the container is its image's"
    if any(holds(each, whole) for each in _GPUS_BY_MOUNT):
        return f"{path!a} would choose GPUs, which the scheduler does"
    return f"{path!a} is the engine's own" if any(holds(each, whole) for each in _RESERVED) else ""


def _within(most: Callable[[AdmissionSettings], float | None], show: Callable[[float], str] = str) -> Rule:
    def check(value: object, rules: AdmissionRules) -> str:
        limit = most(rules.settings)
        if not isinstance(value, int | float) or not value > 0:  # 0 is no limit to the engine
            return "is no number above 0"
        return f"{show(value)} is more than {show(limit)}" if limit is not None and value > limit else ""

    return check


def _pids(value: object, rules: AdmissionRules) -> str:
    most = rules.settings.pids
    return "" if isinstance(value, int) and 0 < value <= most else f"{value} is not a number from 1 to {most}"


def _number_up_to(most: int) -> Rule:
    return lambda value, rules: "" if isinstance(value, int) and 0 <= value <= most else f"may be {most} at most"


def _network(value: object, rules: AdmissionRules) -> str:
    spec = docker_args.network(str(value))
    if spec.name.startswith("container:") or spec.name not in {"default", "bridge", "none", *rules.settings.networks}:
        listed = ", ".join(("bridge", "none", *rules.settings.networks))
        return f"the network {spec.name!a} is only for operators; users have {listed}"
    has_more = spec.aliases or spec.ip or spec.ip6 or spec.mac_address or spec.link_local_ips or spec.driver_options
    return "names and addresses in a network are only for operators" if has_more else ""


def _ulimits(value: object, rules: AdmissionRules) -> str:
    names = [text.partition("=")[0].strip().lower() for text in _texts(value)]
    wrong = [name for name in names if name not in _ULIMITS]
    return f"{wrong[0]!a} is only for operators" if wrong else ""


def _ports(value: object, rules: AdmissionRules) -> str:
    for text in _texts(value):
        for port in docker_args.published_ports(text):
            first = port.host_port.partition("-")[0]
            if first and int(first) < _LEAST_PORT:
                return f"port {first} of the host is below {_LEAST_PORT}"
    return ""


def _one_of(*words: str) -> Rule:
    return lambda value, rules: "" if value in words else f"{str(value)!a} is only for operators"


def _security(value: object, rules: AdmissionRules) -> str:
    plain = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
    wrong = [text for text in _texts(value) if text not in plain]
    return f"{wrong[0][:60]!a} is only for operators" if wrong else ""


def _seconds(value: object, rules: AdmissionRules) -> str:
    seconds = getattr(value, "total_seconds", float)()
    return "" if seconds >= _LEAST_INTERVAL else f"is at least {_LEAST_INTERVAL} seconds"


def _size(value: float) -> str:
    return format_size(int(value))


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "env": _env,
        "volumes": _volumes,
        "mounts": _mounts,
        "tmpfs": _tmpfs,
        "cpus": _within(lambda of: of.cpus),
        "memory": _within(lambda of: of.memory, _size),
        "shm_size": _within(lambda of: of.shm_size, _size),
        "pids_limit": _pids,
        "cpu_shares": _number_up_to(_USUAL_SHARES),
        "blkio_weight": _number_up_to(_USUAL_WEIGHT),
        "stop_timeout": _number_up_to(_LONGEST_STOP),
        "ipc": _one_of("none", "private", "shareable"),
        "cgroupns": _one_of("private"),
        "network": _network,
        "ulimits": _ulimits,
        "publish": _ports,
        "oom_score_adj": lambda value, _: "" if isinstance(value, int) and value >= 0 else "may not be below 0",
        "security_opt": _security,
        "volume_driver": _one_of("local"),
        "log_driver": _one_of(*_LOG_DRIVERS),
        "health_interval": _seconds,
        "health_start_interval": _seconds,
    }
)
"""Options with a rule; those that are neither here nor in FREE are closed."""
_OF_HOST_JOBS: Mapping[str, Rule] = MappingProxyType({"env": _env_of_host})


# mounts


def mount_refusal(
    source: MountSource, resolved: str, rules: AdmissionRules, roots: Iterable[str], guarded: Iterable[str], own: str
) -> OptionRefusal | None:
    """Return why a directory or file of the host may not be mounted.

    `resolved` is its path without links, `roots` what `mount_roots` returned, without links where an operator wrote it;
    `guarded` are sockets of engines and of ours, `own` is the state directory.
    """
    shown = source.shown(resolved)
    if any(holds_socket(resolved, each) or holds(each, resolved) for each in guarded):
        return OptionRefusal(source.option, f"{shown} holds a socket of the engine or of the queue", "mount another")
    if holds(resolved, own) or holds(own, resolved):
        return OptionRefusal(source.option, f"{shown} holds the queue's own files", "mount another directory")
    if any(holds(root, resolved) for root in roots):
        return None
    listed = ", ".join(rules.settings.mounts) or "no directory yet"
    what = f"{shown} is outside the directories that may be mounted"
    return OptionRefusal(source.option, what, f"admission.mounts lists {listed}")


def mount_roots(rules: AdmissionRules) -> Iterator[tuple[str, str]]:
    """Yield directories of `admission.mounts`: the part that the operator wrote, and the part from the user's name on.

    Links in the first part are the operator's own. In the second part none is followed: a user could make one.
    """
    is_plain = bool(re.fullmatch(r"[^./\0][^/\0]*", rules.user))
    for root in rules.settings.mounts:
        fixed, brace, rest = root.partition("{")
        if not brace:
            yield root, ""
        elif is_plain:
            above, _, begun = fixed.rpartition("/")
            whole = (begun + brace + rest).replace("{user}", rules.user).replace("{uid}", str(rules.uid))
            yield above or "/", posixpath.normpath(whole)
