"""Table of all options of a job, for `submit`, the keys of a job file and the form."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct

from gputui.domain.job_spec import MAX_ELEMENTS
from gputui.request import docker_values as docker
from gputui.request import job_values as values

YES = "yes"
"""The text of a flag that is set."""


class OptionKind(Enum):
    """Kind of an option: single, repeatable, flag or pairs."""

    ONE = "one"
    MANY = "many"
    FLAG = "flag"
    PAIRS = "pairs"


class JobOption(Struct, frozen=True):
    name: str
    """The key in a job file; the option is the same with hyphens."""
    help: str
    read: Callable[[str, str], object] = values.any_text
    metavar: str = "TEXT"
    kind: OptionKind = OptionKind.ONE
    short: tuple[str, ...] = ()
    """Short forms of the option."""
    container: bool = False
    """True if it applies to containers only."""
    has_lists: bool = False
    """True if a value in a job file may be a list."""
    field: str = ""
    """The field of ContainerOptions that takes its value unchanged."""
    write: Callable[[Any], str] = str
    """Converts a value back to its text."""

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    def written(self, value: Any) -> str:
        """Return the text of a value in a draft; empty for none."""
        if self.kind is OptionKind.FLAG:
            return YES if value else ""
        if isinstance(value, tuple):
            return shlex.join(value)
        return "" if value is None else self.write(value)


_MANY = OptionKind.MANY
_FLAG = OptionKind.FLAG


def _key(
    name: str,
    help: str,  # noqa: A002 - the field's name
    read: object = values.token,
    metavar: str = "NAME",
    kind: OptionKind = OptionKind.ONE,
    short: tuple[str, ...] = (),
    write: object = str,
    field: str = "",
) -> JobOption:
    """Return a key for containers only, whose field has the same name unless one is given."""
    return JobOption(name, help, read, metavar, kind, short, container=True, field=field or name, write=write)  # type: ignore[arg-type]


_USUAL = (
    JobOption(
        "env",
        "Set an environment variable; NAME alone copies its value from your environment.",
        docker.pair,
        "NAME[=VALUE]",
        OptionKind.PAIRS,
        ("-e",),
    ),
    JobOption("env_file", "Read environment variables from a file.", docker.env_file, "FILE", _MANY),
    _key(
        "volume",
        "Mount a host directory or a volume.",
        docker.volume,
        "SOURCE:TARGET[:ro]",
        _MANY,
        ("-v",),
        field="volumes",
    ),
    _key("mount", "Mount as docker's --mount does.", docker.mount, "type=…,…", _MANY, field="mounts"),
    JobOption("workdir", "Working directory.", docker.workdir, "DIR", short=("-w",), field="workdir"),
    JobOption("user", "User to run as.", docker.user, "NAME|UID[:GID]", short=("-u",), field="user"),
    _key(
        "entrypoint",
        "Run this instead of the image's entry point; empty: none.",
        docker.entrypoint,
        "TEXT",
        write=docker.entrypoint_text,
    ),
    JobOption(
        "cpus",
        "Maximum number of CPUs.",
        values.cpus,
        "N",
        field="cpus",
        write=lambda number: f"{number:.9f}".rstrip("0").rstrip("."),
    ),
    JobOption(
        "cpu_shares",
        "CPU weight relative to other containers.",
        values.cpu_shares,
        "N",
        short=("-c",),
        field="cpu_shares",
    ),
    JobOption("memory", "Memory limit.", values.memory, "SIZE", short=("-m",), field="memory", write=values.size_text),
    _key("shm_size", "Size of /dev/shm.", values.size, "SIZE", write=values.size_text),
    _key("ipc", "IPC mode.", docker.ipc, "MODE"),
    _key("network", "Network to join: a name, host, none or container:NAME.", docker.network, short=("--net",)),
    JobOption("ulimit", "A limit, such as memlock=-1.", docker.ulimit, "NAME=SOFT[:HARD]", _MANY, field="ulimits"),
    JobOption("label", "Label the container.", docker.label, "NAME[=VALUE]", OptionKind.PAIRS, ("-l",)),
    JobOption("label_file", "Read labels from a file.", docker.label_file, "FILE", _MANY),
    _key("runtime", "OCI runtime, as the engine knows it."),
)


_RARER = (
    _key(
        "publish",
        "Publish a port of the container; auto:PORT on a free port of the host; see gputui show.",
        docker.publish,
        "[[IP:]PORT|auto:]PORT",
        _MANY,
        ("-p",),
    ),
    _key("publish_all", "Publish all exposed ports on free ports of the host.", kind=_FLAG, short=("-P",)),
    _key("expose", "Expose a port without publishing it.", docker.expose, "PORT[/PROTOCOL]", _MANY),
    _key("hostname", "Host name of the container.", docker.hostname, short=("-h",)),
    _key("domainname", "NIS domain name of the container."),
    _key("add_host", "Add a line to /etc/hosts.", docker.add_host, "NAME:ADDRESS", _MANY),
    _key("dns", "DNS server.", docker.address, "ADDRESS", _MANY),
    _key("dns_option", "Option of the resolver.", kind=_MANY, metavar="OPTION", short=("--dns-opt",)),
    _key("dns_search", "Domain to search.", kind=_MANY, metavar="DOMAIN"),
    _key("network_alias", "Additional name in the network.", kind=_MANY, short=("--net-alias",)),
    _key("ip", "IPv4 address in the network.", docker.address, "ADDRESS"),
    _key("ip6", "IPv6 address in the network.", docker.address, "ADDRESS"),
    _key("link", "Link to another container.", docker.link, "NAME[:ALIAS]", _MANY),
    _key("link_local_ip", "Link-local address.", docker.address, "ADDRESS", _MANY),
    _key("mac_address", "MAC address.", docker.mac_address, "ADDRESS"),
    _key("tmpfs", "Mount a tmpfs.", docker.tmpfs, "DIR[:OPTIONS]", _MANY),
    _key("volumes_from", "Mount the volumes of another container.", docker.volumes_from, "NAME[:ro]", _MANY),
    _key("volume_driver", "Driver of volumes."),
    _key("storage_opt", "Option of the storage driver.", docker.name_value, "NAME=VALUE", _MANY),
    _key("read_only", "Make the root file system read-only.", kind=_FLAG),
    _key("device", "Add a device of the host; GPUs are requested with --gpus.", docker.device, "DEVICE", _MANY),
    _key("device_cgroup_rule", "Allow a kind of device.", docker.device_rule, "'c 10:* rwm'", _MANY),
    _key("device_read_bps", "Limit reads of a device.", docker.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_read_iops", "Limit reads of a device.", docker.device_operations, "DEVICE:N", _MANY),
    _key("device_write_bps", "Limit writes to a device.", docker.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_write_iops", "Limit writes to a device.", docker.device_operations, "DEVICE:N", _MANY),
    _key("blkio_weight", "Disk I/O weight relative to other containers.", partial(values.whole, 0, 1000), "N"),
    _key("blkio_weight_device", "Disk I/O weight on one device.", docker.weight_device, "DEVICE:N", _MANY),
    _key("privileged", "Give it all privileges of the host.", kind=_FLAG),
    _key("cap_add", "Add a Linux capability.", docker.capability, "CAPABILITY", _MANY),
    _key("cap_drop", "Drop a Linux capability.", docker.capability, "CAPABILITY", _MANY),
    _key("security_opt", "Security option.", docker.security, "NAME=VALUE", _MANY),
    _key("group_add", "Additional group of the user.", docker.group, "GROUP", _MANY),
    _key("sysctl", "Kernel parameter of its namespaces.", docker.name_value, "NAME=VALUE", _MANY),
    _key("pid", "PID namespace.", docker.pid, "host|container:NAME"),
    _key("uts", "UTS namespace.", docker.uts, "host"),
    _key("userns", "User namespace.", docker.userns, "host"),
    _key("cgroupns", "Cgroup namespace.", docker.cgroupns, "host|private"),
    _key("cgroup_parent", "Parent cgroup."),
    _key("cpuset_cpus", "CPUs it may use.", docker.cpu_list, "0-3,8"),
    _key("cpuset_mems", "Memory nodes it may use.", docker.cpu_list, "0,1"),
    _key("cpu_period", "Period of the CPU limit, in microseconds.", partial(values.whole, 0, 10**6), "N"),
    _key("cpu_quota", "CPU time in a period, in microseconds.", partial(values.whole, -1, 10**12), "N"),
    _key("cpu_rt_period", "Real-time period, in microseconds.", partial(values.whole, 0, 10**6), "N"),
    _key("cpu_rt_runtime", "Real-time CPU time in a period, in microseconds.", partial(values.whole, 0, 10**6), "N"),
    _key(
        "memory_swap",
        "Memory and swap together; -1: no limit of swap; the default is twice the memory.",
        docker.swap,
        "SIZE",
        write=lambda size: "-1" if size == -1 else values.size_text(size),
    ),
    _key("memory_reservation", "Soft memory limit.", values.memory, "SIZE", write=values.size_text),
    _key("memory_swappiness", "Swappiness of its memory, 0 to 100.", partial(values.whole, -1, 100), "N"),
    _key("oom_kill_disable", "Do not kill it when it is out of memory.", kind=_FLAG),
    _key(
        "oom_score_adj",
        "OOM score adjustment, -1000 to 1000; higher is killed first.",
        partial(values.whole, -1000, 1000),
        "N",
    ),
    _key(
        "pids_limit",
        "Maximum number of processes; -1: no limit except the site's.",
        partial(values.whole, -1, 2**22),
        "N",
    ),
    _key("stop_signal", "Signal that asks it to end.", docker.stop_signal, "SIGNAL"),
    _key("stop_timeout", "Seconds from that signal to SIGKILL.", partial(values.whole, 0, 3600), "N"),
    _key("no_init", "Make the command process 1 itself (--init=false).", kind=_FLAG),
    _key("pull", "When to pull the image.", docker.pull, "always|missing|never"),
    _key("platform", "Platform that the image must have.", docker.platform, "OS/ARCH"),
    _key("health_cmd", "Command that checks its health.", values.any_text, "COMMAND"),
    _key("health_interval", "Pause between checks.", docker.go_duration, "DURATION", write=values.duration_text),
    _key("health_timeout", "Longest time of a check.", docker.go_duration, "DURATION", write=values.duration_text),
    _key(
        "health_start_period",
        "Start-up time during which failed checks do not count.",
        docker.go_duration,
        "DURATION",
        write=values.duration_text,
    ),
    _key(
        "health_start_interval",
        "Pause between checks during the start-up time.",
        docker.go_duration,
        "DURATION",
        write=values.duration_text,
    ),
    _key("health_retries", "Failed checks that make it unhealthy.", partial(values.whole, 0, 10**6), "N"),
    _key("no_healthcheck", "Leave out the image's health check.", kind=_FLAG),
    _key("log_driver", "json-file or local: their logs can be read.", docker.log_driver, "json-file|local"),
    _key("log_opt", "Option of the log driver.", docker.name_value, "NAME=VALUE", _MANY),
    _key("annotation", "Annotation of the OCI runtime.", docker.name_value, "NAME=VALUE", _MANY),
)

DOCKER_KEYS = (*_USUAL, *_RARER)
RARER = frozenset(key.name for key in _RARER)
"""Rarely needed options: a form has no field of its own for most of them."""


KEYS = (
    JobOption(
        "gpus",
        "How many GPUs (2, 2-4, all), or which ones (device=0,GPU-…), as in docker run.",
        values.gpus,
        "N|N-M|all|device=…",
    ),
    JobOption("gpu_memory", "Memory each GPU must have in total.", values.size, "SIZE"),
    JobOption("share", "Share its GPUs with other such jobs; the job gets --gpu-memory of each.", kind=_FLAG),
    JobOption("gpu_model", "Part of the GPU model's name, such as h100.", values.gpu_model),
    JobOption("priority", "0 to 100; the default is 50, higher goes first.", values.priority, "N"),
    JobOption(
        "nice", "Put the job behind jobs of its priority with a lower value; below 0 counts as 0.", values.nice, "N"
    ),
    JobOption("time_limit", "End the job after this long.", values.time_span, "DURATION"),
    JobOption(
        "signal", "Send a signal this long before the time limit: TERM@60, USR1@2m.", values.warning, "SIGNAL@DURATION"
    ),
    JobOption(
        "idle_timeout",
        "End the job after this long without output, input and use of its GPUs.",
        values.time_span,
        "DURATION",
    ),
    JobOption("retries", "Maximum number of retries of a failed job.", values.retries, "N"),
    JobOption(
        "backoff", "Pause before the first retry, doubled each time; the default is 5s.", values.duration, "DURATION"
    ),
    JobOption(
        "retry_on",
        "Retry only after these: exit codes, EXIT, SIGNAL, OOM, GPU_OOM, TIMEOUT; the default is all but TIMEOUT.",
        values.retry_on,
        "CODE|WORD[,…]",
        _MANY,
    ),
    JobOption(
        "gpu_memory_step", "After running out of GPU memory, ask for this much more per GPU.", values.size, "SIZE"
    ),
    JobOption(
        "after",
        "Start when all of these jobs have COMPLETED (afterok); an array's id means all its elements, 12_5 one.",
        values.job_ids,
        "ID[,ID…]",
        _MANY,
    ),
    JobOption(
        "after_any",
        "Start when all of these jobs have ended, in any state (afterany).",
        values.job_ids,
        "ID[,ID…]",
        _MANY,
    ),
    JobOption("begin", "Do not start before: in 2h, 18:00, tomorrow 9am, Mon 14:00, 2026-03-02T18:00.", metavar="TIME"),
    JobOption("array", "One job for each index: 0-9, 1,3,5-9; %2: two at a time.", values.array, "INDICES[%N]"),
    JobOption(
        "sweep",
        "Array of all combinations of values: lr=1e-3,1e-4 and seed=0-9 make 20 jobs.",
        values.sweep,
        "NAME=VALUES",
        OptionKind.PAIRS,
        has_lists=True,
    ),
    JobOption(
        "sweep_limit",
        "Run at most this many elements of the sweep at a time.",
        partial(values.whole, 1, MAX_ELEMENTS),
        "N",
    ),
    JobOption("tenant", "Tenant that the job is charged to; the default is you.", values.tenant_name, "NAME"),
    JobOption("hold", "Wait until released.", kind=_FLAG),
    JobOption("preemptible", "May be stopped and requeued for a higher class.", kind=_FLAG),
    JobOption("name", "The job's name; the default is the image's or the command's.", values.job_name, "NAME"),
    JobOption("comment", "A note about the job, for people and for filters.", values.one_line),
    JobOption(
        "env_all",
        "Host jobs: take over all of your environment, not only PATH and similar variables.",
        kind=OptionKind.FLAG,
    ),
    *DOCKER_KEYS,
)
BY_NAME = {key.name: key for key in KEYS}
