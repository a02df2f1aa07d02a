"""Builds the body of `POST /containers/create` from a Launch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import docker_args
from gputui.domain.container import DEFAULT_ENVIRONMENT, Box, HeldMount, Launch
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import Cause, CauseCode, InputError, RuntimeFault
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.policy.availability import CDI_KIND
from gputui.domain.settings import RuntimeSettings
from gputui.domain.text import parse_size
from gputui.runtime.docker.connection import bad_spec
from gputui.runtime.docker.engine import EngineFacts, GpuMode
from gputui.runtime.host_processes import Account, ContainerUser, boot_id, container_user

T = TypeVar("T")
_AS_THEY_ARE = {
    "BlkioWeight": "blkio_weight",
    "CgroupParent": "cgroup_parent",
    "CgroupnsMode": "cgroupns",
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuRealtimePeriod": "cpu_rt_period",
    "CpuRealtimeRuntime": "cpu_rt_runtime",
    "CpuShares": "cpu_shares",
    "CpusetCpus": "cpuset_cpus",
    "CpusetMems": "cpuset_mems",
    "DeviceCgroupRules": "device_cgroup_rule",
    "Dns": "dns",
    "DnsOptions": "dns_option",
    "DnsSearch": "dns_search",
    "ExtraHosts": "add_host",
    "GroupAdd": "group_add",
    "IpcMode": "ipc",
    "Links": "link",
    "Memory": "memory",
    "MemoryReservation": "memory_reservation",
    "MemorySwap": "memory_swap",
    "MemorySwappiness": "memory_swappiness",
    "OomScoreAdj": "oom_score_adj",
    "PidMode": "pid",
    "Runtime": "runtime",
    "ShmSize": "shm_size",
    "UTSMode": "uts",
    "UsernsMode": "userns",
    "VolumeDriver": "volume_driver",
    "VolumesFrom": "volumes_from",
}
_FLAGS = {
    "OomKillDisable": "oom_kill_disable",
    "Privileged": "privileged",
    "PublishAllPorts": "publish_all",
    "ReadonlyRootfs": "read_only",
}
_PAIRS = {"Annotations": "annotation", "StorageOpt": "storage_opt", "Sysctls": "sysctl"}
_RATES: dict[str, tuple[str, Callable[[str], int]]] = {
    "BlkioDeviceReadBps": ("device_read_bps", parse_size),
    "BlkioDeviceReadIOps": ("device_read_iops", int),
    "BlkioDeviceWriteBps": ("device_write_bps", parse_size),
    "BlkioDeviceWriteIOps": ("device_write_iops", int),
}
HELD = "gputui.source"
"""Label of a volume that is a directory of the host: its path."""
_UNMASKED = "systempaths=unconfined"


def _host_fields(
    options: ContainerOptions, launch: Launch, facts: EngineFacts, settings: RuntimeSettings
) -> dict[str, Any]:
    """Return the fields of HostConfig, also those that the options leave open."""
    set_so = ((name, getattr(options, field)) for name, field in _AS_THEY_ARE.items())
    fields: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in set_so}
    fields |= {name: True for name, field in _FLAGS.items() if getattr(options, field)}
    fields |= {name: _pairs(getattr(options, field)) for name, field in _PAIRS.items() if getattr(options, field)}
    for name, (field, read) in _RATES.items():
        rates = [text.rpartition(":") for text in getattr(options, field)]
        option = "--" + field.replace("_", "-")
        fields[name] = [{"Path": path, "Rate": _parse(option, read, rate)} for path, _, rate in rates]
    asked = (map(str.upper, names) for names in (options.cap_add, options.cap_drop))
    added, dropped = (
        {name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}" for name in names} for names in asked
    )
    kept = {"ALL"} if "ALL" in dropped else dropped - added
    fields["CapAdd"], fields["CapDrop"] = sorted({"ALL"} if "ALL" in added else added), sorted(kept)
    weights = (text.rpartition(":") for text in options.blkio_weight_device)
    fields["BlkioWeightDevice"] = [
        {"Path": path, "Weight": _parse("--blkio-weight-device", int, weight)} for path, _, weight in weights
    ]
    fields["Tmpfs"] = {path: rest for path, _, rest in (text.partition(":") for text in options.tmpfs)} or None
    devices = [_parse("--device", docker_args.device, text) for text in options.device]
    fields["Devices"] = [
        {"PathOnHost": spec.host, "PathInContainer": spec.inside, "CgroupPermissions": spec.permissions}
        for spec in devices
        if not spec.cdi
    ]
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in published(options):
        bindings.setdefault(port.key, []).append({"HostIp": port.host_ip, "HostPort": port.host_port})
    fields["PortBindings"] = bindings or None
    fields["NetworkMode"] = _parse("--network", docker_args.network, options.network).name if options.network else None
    fields["SecurityOpt"] = [text for text in options.security_opt if text != _UNMASKED]
    # as PID 1 a process ignores SIGTERM unless it handles it; below an init it ends
    fields["Init"] = None if options.no_init else True
    fields["AutoRemove"] = False  # the exit code would be lost with the container if the event were missed
    # the site's rotation, unless the job sets its own
    rotation = {"max-size": str(settings.log_max_size), "max-file": str(settings.log_max_files)}
    fields["LogConfig"] = {"Type": options.log_driver or "json-file", "Config": rotation | _pairs(options.log_opt)}
    pids, most_pids = options.pids_limit, settings.pids_limit
    if most_pids is not None:
        pids = min(pids, most_pids) if pids is not None and pids > 0 else most_pids
    fields["PidsLimit"] = pids
    fields["Ulimits"] = [ulimit(text) for text in options.ulimits]
    fields["Binds"] = [bind(text) for text in options.volumes if ":" in text]
    fields["Mounts"] = [*map(mount, options.mounts), *map(_held_mount, launch.held)]
    named = [spec.cdi for spec in devices if spec.cdi]
    by_name = [{"Driver": "cdi", "DeviceIDs": named}] if named else []
    fields["DeviceRequests"] = [*_device_requests(launch, facts), *by_name]
    return fields


def config_fields(options: ContainerOptions) -> dict[str, Any]:
    ports: dict[str, dict[str, str]] = {port.key: {} for port in published(options)}
    for text in options.expose:
        ports |= {key: {} for key in _parse("--expose", docker_args.exposed_ports, text)}
    return {
        "Hostname": options.hostname,
        "Domainname": options.domainname,
        "ExposedPorts": ports or None,
        "StopSignal": options.stop_signal,
        "StopTimeout": options.stop_timeout,
        "MacAddress": options.mac_address,
        "Healthcheck": _health(options),
    }


def networking(options: ContainerOptions) -> dict[str, Any] | None:
    """Return NetworkingConfig; None if the options give no more than the network's name."""
    found = _parse("--network", docker_args.network, options.network or "")
    aliases = [*found.aliases, *options.network_alias]
    if not found.is_user_defined and not (aliases or options.ip or options.ip6 or options.link_local_ip):
        return None
    addresses: dict[str, Any] = {
        "IPv4Address": found.ip or options.ip,
        "IPv6Address": found.ip6 or options.ip6,
        "LinkLocalIPs": [*found.link_local_ips, *options.link_local_ip],
    }
    addresses = {key: value for key, value in addresses.items() if value}
    endpoint = {
        "Aliases": aliases,
        "IPAMConfig": addresses,
        "Links": list(options.link) if found.is_user_defined else [],
        "MacAddress": found.mac_address,
        "DriverOpts": dict(found.driver_options),
    }
    kept = {key: value for key, value in endpoint.items() if value}
    return {"EndpointsConfig": {found.name or "default": kept}}


def published(options: ContainerOptions) -> tuple[docker_args.PortSpec, ...]:
    return tuple(port for text in options.publish for port in _parse("--publish", docker_args.published_ports, text))


def _health(options: ContainerOptions) -> dict[str, Any] | None:
    """Return Healthcheck, with durations in nanoseconds; None keeps the image's."""
    if options.no_healthcheck:
        return {"Test": ["NONE"]}
    times = {
        "Interval": options.health_interval,
        "Timeout": options.health_timeout,
        "StartPeriod": options.health_start_period,
        "StartInterval": options.health_start_interval,
    }
    fields: dict[str, Any] = {
        name: length // timedelta(microseconds=1) * 1000 for name, length in times.items() if length is not None
    }
    fields |= {"Test": ["CMD-SHELL", options.health_cmd]} if options.health_cmd else {}
    fields |= {} if options.health_retries is None else {"Retries": options.health_retries}
    return fields or None


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _parse(option: str, read: Callable[[str], T], text: str) -> T:
    """Parse the text; raises BAD_SPEC, since a store may contain values that no command would accept."""
    try:
        return read(text)
    except (ValueError, InputError) as error:
        raise bad_spec(option, str(error)) from error


def mount(text: str) -> dict[str, Any]:
    """Return the API's Mount of `type=bind,source=/a,target=/b,readonly`."""
    try:
        spec = docker_args.mount(text)
        special = _SPECIAL[spec.kind](spec)
    except ValueError as error:
        raise bad_spec("--mount", f"{text!r}: {error}") from error
    made: dict[str, Any] = {"Type": spec.kind, "Target": spec.target}
    if spec.source:
        made["Source"] = spec.source
    if spec.readonly:
        made["ReadOnly"] = True
    if special:
        made[f"{spec.kind.capitalize()}Options"] = special
    return made


def _held_mount(held: HeldMount) -> dict[str, Any]:
    """Return the API's Mount of a directory that the scheduler holds open.

    The engine itself mounts the device of a volume, so it may be a descriptor. The source of a bind mount may not: runc
    mounts that in the container's mount namespace, to which the descriptor does not belong.
    """
    how = "rbind,ro" if held.is_readonly else "rbind"  # the API takes no ReadOnly for a volume without a name
    driver = {"Name": "local", "Options": {"type": "none", "o": how, "device": held.descriptor}}
    volume = {"NoCopy": True, "Labels": {HELD: held.path}, "DriverConfig": driver}
    return {"Type": "volume", "Target": held.target, "VolumeOptions": volume}


def _bind(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if propagation := spec.get("bind-propagation"):
        options["Propagation"] = propagation
    recursive = spec.get("bind-recursive")
    if docker_args.is_true(spec.get("bind-nonrecursive") or "false") or recursive == "disabled":
        options["NonRecursive"] = True
    options |= {"ReadOnlyNonRecursive": True} if recursive == "writable" else {}
    options |= {"ReadOnlyForceRecursive": True} if recursive == "readonly" else {}
    if recursive not in {"", "enabled", "disabled", "writable", "readonly"}:
        raise ValueError(f"bind-recursive is enabled, disabled, writable or readonly, not {recursive!a}")
    return options


def _volume(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if docker_args.is_true(spec.get("volume-nocopy") or "false"):
        options["NoCopy"] = True
    if labels := spec.every("volume-label"):
        options["Labels"] = _pairs(labels)
    if subpath := spec.get("volume-subpath"):
        options["Subpath"] = subpath
    driver: dict[str, Any] = {}
    if name := spec.get("volume-driver"):
        driver["Name"] = name
    if own := spec.every("volume-opt"):
        driver["Options"] = _pairs(own)
    return options | ({"DriverConfig": driver} if driver else {})


def _tmpfs(spec: MountSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    try:
        if size := spec.get("tmpfs-size"):
            options["SizeBytes"] = parse_size(size)
    except InputError as error:
        raise ValueError(f"tmpfs-size: {error}") from error
    if mode := spec.get("tmpfs-mode"):
        if not mode.isascii() or not mode.isdigit() or set(mode) & {"8", "9"}:
            raise ValueError("tmpfs-mode is an octal number")
        options["Mode"] = int(mode, 8)
    return options


_SPECIAL: dict[str, Callable[[MountSpec], dict[str, Any]]] = {
    "bind": _bind,
    "volume": _volume,
    "tmpfs": _tmpfs,
    "image": lambda spec: {"Subpath": subpath} if (subpath := spec.get("image-subpath")) else {},
}


def bind(volume: str) -> str:
    """Return a `--volume` with a source; raises BAD_SPEC unless that is an absolute path or a volume's name."""
    source = volume.partition(":")[0]
    if not source or source.startswith((".", "~")):
        raise bad_spec("--volume", f"the source is an absolute path or a volume's name, not {source!r}")
    return volume


def ulimit(text: str) -> dict[str, Any]:
    """Return the API's Ulimit of `name=soft[:hard]`; raises BAD_SPEC."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    try:
        low = int(soft)
        return {"Name": name, "Soft": low, "Hard": int(hard) if hard else low}
    except ValueError as error:
        raise bad_spec("--ulimit", f"{text!r} is not name=soft[:hard]") from error


STORE = "gputui.store"
JOB = "gputui.job"
ATTEMPT = "gputui.attempt"
GPUS = "gputui.gpus"
SUBMITTER = "gputui.submitter"
GUEST = "gputui.guest"
"""Label of jobs on an engine elsewhere: the machine of their scheduler."""
BOOT = "gputui.boot"
PROBE = "gputui.probe"
"""Label of a container that reads GPUs for a console; `records.is_probe` judges whether it is one."""
USER = "user"
_OURS = "gputui."

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_GPU_CHOICE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CreateRequest(Struct, frozen=True):
    body: dict[str, Any]
    notes: tuple[str, ...] = ()


def create_request(launch: Launch, facts: EngineFacts, settings: RuntimeSettings) -> CreateRequest:
    if not launch.spec.image:
        raise bad_spec("image", "a job without an image runs as a host process, not in Docker")
    options, box = launch.spec.options, launch.box
    for name, api, docker in _NEEDED_API:
        if getattr(options, name) and facts.api and facts.api < api:
            raise bad_spec(f"--{name.replace('_', '-')}", f"{facts.name} does not know it: it needs Docker {docker}")
    if box is not None:  # its limits, where the job asks for none
        options = replace(
            options,
            pids_limit=options.pids_limit or box.pids,
            memory=options.memory or box.memory,
            cpus=options.cpus or box.cpus,
            shm_size=options.shm_size or box.shm_size,
            ipc=options.ipc or "private",
            cgroupns=options.cgroupns or "private",
        )
    notes: list[str] = []
    cpus = None if options.cpus is None else round(options.cpus * 1e9)
    if options.cpus is not None and facts.cpus and options.cpus > facts.cpus:  # the engine refuses more than it has
        cpus = facts.cpus * 10**9
        notes.append(f"--cpus {options.cpus:g} was lowered to the host's {facts.cpus}")
    user: ContainerUser | None = None  # the one whom the image or the job names
    if launch.run_as is not None and not (box is not None and (box.is_image_user or facts.remaps_users)):
        user = container_user(options.user, launch.run_as, options.group_add, is_boxed=box is not None)
    env, env_notes = _env(launch, facts, user.account if user else None)
    host = _given(_host_fields(options, launch, facts, settings) | {"NanoCpus": cpus})
    if _UNMASKED in options.security_opt:
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    _restrict(host, user, box)
    body: dict[str, Any] = {
        "Image": launch.spec.image,
        "Env": env,
        "Labels": _labels(launch, is_guest=bool(facts.gpus.elsewhere)),
        "Volumes": {path: {} for path in options.volumes if ":" not in path},
        "HostConfig": host,
        **_given({"Cmd": list(launch.spec.command), "WorkingDir": options.workdir}),
        **_given({"User": user.user if user else options.user}),
        **_given(config_fields(options)),
        **_given({"NetworkingConfig": networking(options)}),
    }
    if (interactive := launch.spec.interactive) is not None:
        # as docker run does: the input ends with the first client, unless it is a terminal
        stdin = interactive.stdin
        body |= {"Tty": interactive.tty, "OpenStdin": stdin, "StdinOnce": stdin, "AttachStdin": stdin}
        body |= {"AttachStdout": True, "AttachStderr": True}
    if options.entrypoint is not None:
        body["Entrypoint"] = [options.entrypoint]
    return CreateRequest(body, (*notes, *env_notes))


def _restrict(host: dict[str, Any], user: ContainerUser | None, box: Box | None) -> None:
    """Take from a HostConfig the rights that its user, or a plain user's box, may not have."""
    if user is not None:
        host |= _given({"GroupAdd": list(user.groups)})
        if user.account is not None:  # no more rights than the account has, as by setuid programs
            host |= {"SecurityOpt": [*host.get("SecurityOpt", ()), "no-new-privileges"]}
            host |= {"CapDrop": ["ALL"]} if user.account.uid else {}
    if box is not None:  # whatever the engine's own defaults are
        able = list(_ROOT_IN_A_BOX) if user is None else []
        host |= {"CapDrop": ["ALL"], "CapAdd": able, "SecurityOpt": ["no-new-privileges"], "Privileged": False}


def _labels(launch: Launch, *, is_guest: bool) -> dict[str, str]:
    # programs that watch the engine obey labels, some with root's rights
    own = launch.spec.options.labels if launch.box is None else ()
    labels = {key: value for key, value in own if not key.startswith(_OURS)}
    labels |= {USER: launch.spec.tenant} if launch.spec.tenant else {}
    labels |= {STORE: launch.store_id, JOB: str(launch.job_id), ATTEMPT: str(launch.attempt)}
    labels |= {GPUS: ",".join(launch.gpus), BOOT: boot_id()}
    # an image may have any label, which counts unless it is given here
    labels[GUEST] = socket.gethostname() if is_guest else ""
    labels[SUBMITTER] = "" if launch.submitter is None else str(launch.submitter)
    return labels


_NEEDED_API: tuple[tuple[str, tuple[int, int], str], ...] = (
    ("cgroupns", (1, 41), "20.10"),
    ("platform", (1, 41), "20.10"),
    ("annotation", (1, 43), "24"),
    ("health_start_interval", (1, 44), "25"),
)
"""Options that older engines ignore without a word, the API version that has them, and its engine."""


_ROOT_IN_A_BOX = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")
"""Capabilities of the users of an image in a box, over files and processes of its own."""


def _device_requests(launch: Launch, facts: EngineFacts) -> list[dict[str, Any]]:
    """Return the request for GPUs by UUID, never by count: the engine would choose other GPUs."""
    if not launch.gpus:
        return []
    if facts.gpu_mode is GpuMode.CDI:
        return [{"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}={name}" for name in launch.gpu_names or launch.gpus]}]
    if facts.gpu_mode is GpuMode.NONE:
        cause = Cause(CauseCode.GPU_SETUP_FAILED, f"{facts.name} silently ignores requests for GPUs")
        raise RuntimeFault(cause, hint="run `gputui doctor`")
    request = launch.spec.gpus
    return [
        {
            "Driver": request.driver or "",
            "DeviceIDs": list(launch.gpus),
            # as docker's own --gpus: the engine sets NVIDIA_DRIVER_CAPABILITIES to whatever else is listed
            "Capabilities": [[*_create_capabilities(launch), "gpu"]],
            "Options": dict(request.driver_options),
        }
    ]


def _create_capabilities(launch: Launch) -> tuple[str, ...]:
    """Return the driver capabilities to request; none if the job's environment names them."""
    return () if _CAPABILITIES in dict(launch.spec.options.env) else launch.spec.gpus.capabilities


def _env(launch: Launch, facts: EngineFacts, account: Account | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the job's environment, with gputui's variables and without its own choice of GPUs, and notes."""
    if account is not None and account.uid:
        options = launch.spec.options
        targets = [text.partition(":")[2].partition(":")[0] for text in options.volumes]
        targets += [docker_args.mount(text).target for text in options.mounts]
        targets += [held.target for held in launch.held]
        # home is the account's if the job has it mounted: images have none for this user
        is_mounted = any(target and Path(account.home).is_relative_to(target) for target in targets)
        given = {"USER": account.name, "LOGNAME": account.name, "HOME": (account.home if is_mounted else "/tmp")}  # noqa: S108 - the container's
    else:
        given = {}
    given |= DEFAULT_ENVIRONMENT
    given |= {key: value for key, value in launch.spec.options.env if key not in _GPU_CHOICE}
    dropped = [key for key, _ in launch.spec.options.env if key in _GPU_CHOICE]
    notes = tuple(f"{key} was left out: the scheduler chooses the GPUs" for key in dict.fromkeys(dropped))
    if launch.gpus and launch.spec.gpus.capabilities and not _create_capabilities(launch):
        notes += (f"the capabilities of --gpus were left out: {_CAPABILITIES} of the job names others",)
    ours = {"GPUTUI_ATTEMPT": launch.tag, "GPUTUI_JOB_ID": str(launch.job_id), "GPUTUI_GPUS": str(len(launch.gpus))}
    if launch.promised:
        ours["GPUTUI_GPU_MEMORY"] = str(launch.promised)
    if launch.array_index is not None:
        ours["GPUTUI_ARRAY_INDEX"] = str(launch.array_index)
    if not launch.gpus or facts.gpu_mode is GpuMode.CDI:
        # NVIDIA's images set `all`, which with NVIDIA's runtime as default gives every GPU to a job without GPUs
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    return [f"{key}={value}" for key, value in (given | ours).items()], notes


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value != []}
