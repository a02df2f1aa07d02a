"""Options of a job as the fields of `POST /containers/create`, as docker's own client fills them in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from gputui.domain import docker_args
from gputui.domain.errors import InputError
from gputui.domain.job import ContainerOptions
from gputui.domain.units import parse_size
from gputui.runtime.docker_faults import bad_spec

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
    fields["NetworkMode"] = _parsed("--network", docker_args.network, options.network).name if options.network else None
    fields["SecurityOpt"] = [text for text in options.security_opt if text != _UNMASKED]
    return fields


def _capabilities(options: ContainerOptions) -> tuple[list[str], list[str]]:
    """Return the capabilities added and dropped, by the names and in the order docker's client sends."""
    added, dropped = ({_capability(name) for name in names} for names in (options.cap_add, options.cap_drop))
    kept = {"ALL"} if "ALL" in dropped else dropped - added
    return sorted({"ALL"} if "ALL" in added else added), sorted(kept)


def _capability(name: str) -> str:
    name = name.upper()
    return name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}"


def unmasked(options: ContainerOptions) -> dict[str, Any]:
    """Return the lists that are empty on purpose where the paths of the system are not to be masked."""
    return {"MaskedPaths": [], "ReadonlyPaths": []} if _UNMASKED in options.security_opt else {}


def other_devices(options: ContainerOptions) -> list[dict[str, Any]]:
    """Return requests for devices by their CDI names; GPUs are asked for elsewhere."""
    names = [spec.cdi for spec in _devices(options) if spec.cdi]
    return [{"Driver": "cdi", "DeviceIDs": names}] if names else []


def config_fields(options: ContainerOptions) -> dict[str, Any]:
    """Return the fields of Config that the options set."""
    ports: dict[str, dict[str, str]] = {port.key: {} for port in published(options)}
    for text in options.expose:
        ports |= {key: {} for key in _parsed("--expose", docker_args.exposed_ports, text)}
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
    """Return NetworkingConfig, where more is said of the network than its name."""
    found = _parsed("--network", docker_args.network, options.network or "")
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
    """Return the ports that are to be published by name."""
    return tuple(port for text in options.publish for port in _parsed("--publish", docker_args.published_ports, text))


def _bindings(options: ContainerOptions) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for port in published(options):
        found.setdefault(port.key, []).append({"HostIp": port.host_ip, "HostPort": port.host_port})
    return found


def _devices(options: ContainerOptions) -> list[docker_args.DeviceSpec]:
    return [_parsed("--device", docker_args.device, text) for text in options.device]


def _device(spec: docker_args.DeviceSpec) -> dict[str, str]:
    return {"PathOnHost": spec.host, "PathInContainer": spec.inside, "CgroupPermissions": spec.permissions}


def _rates(options: ContainerOptions, field: str, read: Callable[[str], int]) -> list[dict[str, Any]]:
    option = "--" + field.replace("_", "-")
    parts = [text.rpartition(":") for text in getattr(options, field)]
    return [{"Path": path, "Rate": _parsed(option, read, rate)} for path, _, rate in parts]


def _split(options: ContainerOptions, read: Callable[[str], int]) -> list[tuple[str, int]]:
    parts = [text.rpartition(":") for text in options.blkio_weight_device]
    return [(path, _parsed("--blkio-weight-device", read, weight)) for path, _, weight in parts]


def _health(options: ContainerOptions) -> dict[str, Any] | None:
    """Return Healthcheck; None leaves the image's as it is. Durations are nanoseconds there."""
    if options.no_healthcheck:
        return {"Test": ["NONE"]}
    times = {
        "Interval": options.health_interval,
        "Timeout": options.health_timeout,
        "StartPeriod": options.health_start_period,
        "StartInterval": options.health_start_interval,
    }
    fields: dict[str, Any] = {name: _nanoseconds(length) for name, length in times.items() if length is not None}
    fields |= {"Test": ["CMD-SHELL", options.health_cmd]} if options.health_cmd else {}
    fields |= {} if options.health_retries is None else {"Retries": options.health_retries}
    return fields or None


def _nanoseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1) * 1000


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _parsed(option: str, read: Callable[[str], T], text: str) -> T:
    """Return what the text means; raises BAD_SPEC, for a store may hold what no command would have taken."""
    try:
        return read(text)
    except (ValueError, InputError) as error:
        raise bad_spec(option, str(error)) from error
