"""The options of `docker run` that a job takes: each once, for the command line, job files and the form."""

from __future__ import annotations

from gputui.request import docker_specs, docker_values, numbers, texts
from gputui.request.key import Key, Kind

_MANY = Kind.MANY
_FLAG = Kind.FLAG

_USUAL = (
    Key(
        "env",
        "Set an environment variable; NAME alone takes its value from here.",
        docker_specs.pair,
        "NAME[=VALUE]",
        Kind.PAIRS,
        ("-e",),
    ),
    Key("env_file", "Read environment variables from a file.", docker_specs.env_file, "FILE", _MANY),
    Key(
        "volume",
        "Mount a host directory or a volume.",
        docker_specs.volume,
        "SOURCE:TARGET[:ro]",
        _MANY,
        ("-v",),
        container=True,
        field="volumes",
    ),
    Key(
        "mount",
        "Mount as docker's --mount does.",
        docker_specs.mount,
        "type=…,…",
        _MANY,
        container=True,
        field="mounts",
    ),
    Key("workdir", "Working directory.", docker_specs.workdir, "DIR", short=("-w",), field="workdir"),
    Key("user", "User to run as.", docker_specs.user, "NAME|UID[:GID]", short=("-u",), field="user"),
    Key(
        "entrypoint",
        "Run this instead of the image's entry point; empty: none.",
        docker_specs.entrypoint,
        container=True,
        field="entrypoint",
        write=docker_specs.entrypoint_text,
    ),
    Key("cpus", "How many CPUs it may use.", numbers.cpus, "N", field="cpus", write=numbers.cpus_text),
    Key("cpu_shares", "Its weight where CPUs are scarce.", numbers.cpu_shares, "N", short=("-c",), field="cpu_shares"),
    Key("memory", "Memory limit.", numbers.memory, "SIZE", short=("-m",), field="memory", write=numbers.size_text),
    Key(
        "shm_size",
        "Size of /dev/shm.",
        numbers.size,
        "SIZE",
        container=True,
        field="shm_size",
        write=numbers.size_text,
    ),
    Key("ipc", "IPC mode.", docker_specs.ipc, "MODE", container=True, field="ipc"),
    Key(
        "network",
        "Network to join: a name, host, none or container:NAME.",
        docker_values.network,
        "NAME",
        short=("--net",),
        container=True,
        field="network",
    ),
    Key("ulimit", "A limit, such as memlock=-1.", docker_specs.ulimit, "NAME=SOFT[:HARD]", _MANY, field="ulimits"),
    Key("label", "Label the container.", docker_specs.label, "NAME[=VALUE]", Kind.PAIRS, ("-l",)),
    Key("label_file", "Read labels from a file.", docker_specs.label_file, "FILE", _MANY),
    Key("runtime", "OCI runtime, as the engine knows it.", texts.token, "NAME", container=True, field="runtime"),
)


def _key(
    name: str,
    help: str,  # noqa: A002 - the field's name
    read: object = texts.token,
    metavar: str = "NAME",
    kind: Kind = Kind.ONE,
    short: tuple[str, ...] = (),
    write: object = str,
) -> Key:
    """Return a key of containers alone, whose field has its own name."""
    return Key(name, help, read, metavar, kind, short, container=True, field=name, write=write)  # type: ignore[arg-type]


_RARER = (
    _key(
        "publish",
        "Publish a port of the container; auto:PORT on a free port of the host, which show tells.",
        docker_values.publish,
        "[[IP:]PORT|auto:]PORT",
        _MANY,
        ("-p",),
    ),
    _key("publish_all", "Publish all exposed ports on free ports of the host.", kind=_FLAG, short=("-P",)),
    _key("expose", "Expose a port without publishing it.", docker_values.expose, "PORT[/PROTOCOL]", _MANY),
    _key("hostname", "Host name inside.", docker_values.hostname, short=("-h",)),
    _key("domainname", "NIS domain name inside."),
    _key("add_host", "Add a line to /etc/hosts.", docker_values.add_host, "NAME:ADDRESS", _MANY),
    _key("dns", "DNS server.", docker_values.address, "ADDRESS", _MANY),
    _key("dns_option", "Option of the resolver.", kind=_MANY, metavar="OPTION", short=("--dns-opt",)),
    _key("dns_search", "Domain to search.", kind=_MANY, metavar="DOMAIN"),
    _key("network_alias", "Further name in the network.", kind=_MANY, short=("--net-alias",)),
    _key("ip", "IPv4 address in the network.", docker_values.address, "ADDRESS"),
    _key("ip6", "IPv6 address in the network.", docker_values.address, "ADDRESS"),
    _key("link", "Link to another container.", docker_values.link, "NAME[:ALIAS]", _MANY),
    _key("link_local_ip", "Link-local address.", docker_values.address, "ADDRESS", _MANY),
    _key("mac_address", "MAC address.", docker_values.mac_address, "ADDRESS"),
    _key("tmpfs", "Mount a tmpfs.", docker_values.tmpfs, "DIR[:OPTIONS]", _MANY),
    _key("volumes_from", "Mount the volumes of another container.", docker_values.volumes_from, "NAME[:ro]", _MANY),
    _key("volume_driver", "Driver of volumes."),
    _key("storage_opt", "Option of the storage driver.", docker_values.name_value, "NAME=VALUE", _MANY),
    _key("read_only", "Make the root file system read-only.", kind=_FLAG),
    _key("device", "Add a device of the host; GPUs are asked for by --gpus.", docker_values.device, "DEVICE", _MANY),
    _key("device_cgroup_rule", "Allow a kind of device.", docker_values.device_rule, "'c 10:* rwm'", _MANY),
    _key("device_read_bps", "Limit reads of a device.", docker_values.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_read_iops", "Limit reads of a device.", docker_values.device_operations, "DEVICE:N", _MANY),
    _key("device_write_bps", "Limit writes to a device.", docker_values.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_write_iops", "Limit writes to a device.", docker_values.device_operations, "DEVICE:N", _MANY),
    _key("blkio_weight", "Its weight where disks are busy.", numbers.whole(0, 1000), "N"),
    _key("blkio_weight_device", "The same for one device.", docker_values.weight_device, "DEVICE:N", _MANY),
    _key("privileged", "Give it all privileges of the host.", kind=_FLAG),
    _key("cap_add", "Add a Linux capability.", docker_values.capability, "CAPABILITY", _MANY),
    _key("cap_drop", "Drop a Linux capability.", docker_values.capability, "CAPABILITY", _MANY),
    _key("security_opt", "Security option.", docker_values.security, "NAME=VALUE", _MANY),
    _key("group_add", "Further group of its user.", kind=_MANY, metavar="GROUP"),
    _key("sysctl", "Kernel parameter of its namespaces.", docker_values.name_value, "NAME=VALUE", _MANY),
    _key("pid", "PID namespace.", docker_values.pid, "host|container:NAME"),
    _key("uts", "UTS namespace.", docker_values.uts, "host"),
    _key("userns", "User namespace.", docker_values.userns, "host"),
    _key("cgroupns", "Cgroup namespace.", docker_values.cgroupns, "host|private"),
    _key("cgroup_parent", "Parent cgroup."),
    _key("cpuset_cpus", "CPUs it may use.", docker_values.cpu_list, "0-3,8"),
    _key("cpuset_mems", "Memory nodes it may use.", docker_values.cpu_list, "0,1"),
    _key("cpu_period", "Period of the CPU limit, in microseconds.", numbers.whole(0, 10**6), "N"),
    _key("cpu_quota", "CPU time in a period, in microseconds.", numbers.whole(-1, 10**12), "N"),
    _key("cpu_rt_period", "Real-time period, in microseconds.", numbers.whole(0, 10**6), "N"),
    _key("cpu_rt_runtime", "Real-time CPU time in a period, in microseconds.", numbers.whole(0, 10**6), "N"),
    _key(
        "memory_swap",
        "Memory and swap together; -1: no limit of swap; the default is twice the memory.",
        docker_values.swap,
        "SIZE",
        write=docker_values.swap_text,
    ),
    _key("memory_reservation", "Soft memory limit.", numbers.memory, "SIZE", write=numbers.size_text),
    _key("memory_swappiness", "How readily its memory is swapped.", numbers.whole(-1, 100), "N"),
    _key("oom_kill_disable", "Do not kill it when it is out of memory.", kind=_FLAG),
    _key("oom_score_adj", "Preference of the kernel to kill it.", numbers.whole(-1000, 1000), "N"),
    _key("pids_limit", "How many processes it may have; -1: no limit but the site's.", numbers.whole(-1, 2**22), "N"),
    _key("stop_signal", "Signal that asks it to end.", docker_values.stop_signal, "SIGNAL"),
    _key("stop_timeout", "Seconds from that signal to SIGKILL.", numbers.whole(0, 3600), "N"),
    _key("no_init", "Make the command process 1 itself (--init=false).", kind=_FLAG),
    _key("pull", "Fetch the image before it starts.", docker_values.pull, "always|missing|never"),
    _key("platform", "Platform that the image must have.", docker_values.platform, "OS/ARCH"),
    _key("health_cmd", "Command that checks its health.", texts.any_text, "COMMAND"),
    _key(
        "health_interval",
        "Pause between checks.",
        docker_values.go_duration,
        "DURATION",
        write=numbers.duration_text,
    ),
    _key(
        "health_timeout", "Longest time of a check.", docker_values.go_duration, "DURATION", write=numbers.duration_text
    ),
    _key(
        "health_start_period",
        "Time to start before checks count.",
        docker_values.go_duration,
        "DURATION",
        write=numbers.duration_text,
    ),
    _key(
        "health_start_interval",
        "Pause between checks in that time.",
        docker_values.go_duration,
        "DURATION",
        write=numbers.duration_text,
    ),
    _key("health_retries", "Failed checks that make it unhealthy.", numbers.whole(0, 10**6), "N"),
    _key("no_healthcheck", "Leave out the image's health check.", kind=_FLAG),
    _key("log_driver", "json-file or local: their logs can be read.", docker_values.log_driver, "json-file|local"),
    _key("log_opt", "Option of the log driver.", docker_values.name_value, "NAME=VALUE", _MANY),
    _key("annotation", "Annotation of the OCI runtime.", docker_values.name_value, "NAME=VALUE", _MANY),
)

DOCKER_KEYS = (*_USUAL, *_RARER)
RARER = frozenset(key.name for key in _RARER)
"""Options that few jobs need: a form has no field of its own for most of them."""
