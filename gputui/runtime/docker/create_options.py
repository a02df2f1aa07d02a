"""Container options of a job as fields of `POST /containers/create`, with the defaults of docker's own client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from gputui.domain import docker_args
from gputui.domain.container import HeldMount
from gputui.domain.container_options import ContainerOptions
from gputui.domain.docker_args import MountSpec
from gputui.domain.errors import InputError
from gputui.domain.units import parse_size
from gputui.runtime.docker.faults import bad_spec

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


def host_fields(options: ContainerOptions) -> dict[str, Any]:
    """Return the fields of HostConfig that the options set."""
    fields: dict[str, Any] = {name: _plain(getattr(options, field)) for name, field in _AS_THEY_ARE.items()}
    fields |= {name: True for name, field in _FLAGS.items() if getattr(options, field)}
    fields |= {name: _pairs(getattr(options, field)) for name, field in _PAIRS.items() if getattr(options, field)}
    fields |= {name: _rates(options, *rate) for name, rate in _RATES.items()}
    fields["CapAdd"], fields["CapDrop"] = _capabilities(options)
    fields["BlkioWeightDevice"] = [{"Path": path, "Weight": weight} for path, weight in _split(options, int)]
    fields["Tmpfs"] = {path: rest for path, _, rest in (text.partition(":") for text in options.tmpfs)} or None
    fields["Devices"] = [_device(spec) for spec in _devices(options) if not spec.cdi]
    fields["PortBindings"] = _bindings(options) or None
    fields["NetworkMode"] = _parse("--network", docker_args.network, options.network).name if options.network else None
    fields["SecurityOpt"] = [text for text in options.security_opt if text != _UNMASKED]
    return fields


def _capabilities(options: ContainerOptions) -> tuple[list[str], list[str]]:
    """Return the capabilities added and dropped, with the names and in the order of docker's client."""
    added, dropped = ({_capability(name) for name in names} for names in (options.cap_add, options.cap_drop))
    kept = {"ALL"} if "ALL" in dropped else dropped - added
    return sorted({"ALL"} if "ALL" in added else added), sorted(kept)


def _capability(name: str) -> str:
    name = name.upper()
    return name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}"


def unmasked(options: ContainerOptions) -> dict[str, Any]:
    """Return empty lists of masked and read-only paths if system paths are not to be masked."""
    return {"MaskedPaths": [], "ReadonlyPaths": []} if _UNMASKED in options.security_opt else {}


def other_devices(options: ContainerOptions) -> list[dict[str, Any]]:
    """Return requests for devices by CDI names, other than GPUs."""
    names = [spec.cdi for spec in _devices(options) if spec.cdi]
    return [{"Driver": "cdi", "DeviceIDs": names}] if names else []


def config_fields(options: ContainerOptions) -> dict[str, Any]:
    """Return the fields of Config that the options set."""
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
    """Return the ports of `--publish`."""
    return tuple(port for text in options.publish for port in _parse("--publish", docker_args.published_ports, text))


def _bindings(options: ContainerOptions) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for port in published(options):
        found.setdefault(port.key, []).append({"HostIp": port.host_ip, "HostPort": port.host_port})
    return found


def _devices(options: ContainerOptions) -> list[docker_args.DeviceSpec]:
    return [_parse("--device", docker_args.device, text) for text in options.device]


def _device(spec: docker_args.DeviceSpec) -> dict[str, str]:
    return {"PathOnHost": spec.host, "PathInContainer": spec.inside, "CgroupPermissions": spec.permissions}


def _rates(options: ContainerOptions, field: str, read: Callable[[str], int]) -> list[dict[str, Any]]:
    option = "--" + field.replace("_", "-")
    parts = [text.rpartition(":") for text in getattr(options, field)]
    return [{"Path": path, "Rate": _parse(option, read, rate)} for path, _, rate in parts]


def _split(options: ContainerOptions, read: Callable[[str], int]) -> list[tuple[str, int]]:
    parts = [text.rpartition(":") for text in options.blkio_weight_device]
    return [(path, _parse("--blkio-weight-device", read, weight)) for path, _, weight in parts]


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


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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


def held_mount(held: HeldMount) -> dict[str, Any]:
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


def _image(spec: MountSpec) -> dict[str, Any]:
    return {"Subpath": spec.get("image-subpath")} if spec.get("image-subpath") else {}


_SPECIAL = {"bind": _bind, "volume": _volume, "tmpfs": _tmpfs, "image": _image}


def is_anonymous(volume: str) -> bool:
    """Return whether a `--volume` specifies only its mount point."""
    return ":" not in volume


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
