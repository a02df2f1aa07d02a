"""Table of all options of a job, for `submit`, the keys of a job file and the form."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct

from gputui.domain.job_spec import MAX_ELEMENTS
from gputui.request import docker_values, job_values

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
    read: Callable[[str, str], object] = job_values.any_text
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
        """Long option, as on the command line."""
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

_USUAL = (
    JobOption(
        "env",
        "Set an environment variable; NAME alone copies its value from your environment.",
        docker_values.pair,
        "NAME[=VALUE]",
        OptionKind.PAIRS,
        ("-e",),
    ),
    JobOption("env_file", "Read environment variables from a file.", docker_values.env_file, "FILE", _MANY),
    JobOption(
        "volume",
        "Mount a host directory or a volume.",
        docker_values.volume,
        "SOURCE:TARGET[:ro]",
        _MANY,
        ("-v",),
        container=True,
        field="volumes",
    ),
    JobOption(
        "mount",
        "Mount as docker's --mount does.",
        docker_values.mount,
        "type=…,…",
        _MANY,
        container=True,
        field="mounts",
    ),
    JobOption("workdir", "Working directory.", docker_values.workdir, "DIR", short=("-w",), field="workdir"),
    JobOption("user", "User to run as.", docker_values.user, "NAME|UID[:GID]", short=("-u",), field="user"),
    JobOption(
        "entrypoint",
        "Run this instead of the image's entry point; empty: none.",
        docker_values.entrypoint,
        container=True,
        field="entrypoint",
        write=docker_values.entrypoint_text,
    ),
    JobOption("cpus", "Maximum number of CPUs.", job_values.cpus, "N", field="cpus", write=job_values.cpus_text),
    JobOption(
        "cpu_shares",
        "CPU weight relative to other containers.",
        job_values.cpu_shares,
        "N",
        short=("-c",),
        field="cpu_shares",
    ),
    JobOption(
        "memory", "Memory limit.", job_values.memory, "SIZE", short=("-m",), field="memory", write=job_values.size_text
    ),
    JobOption(
        "shm_size",
        "Size of /dev/shm.",
        job_values.size,
        "SIZE",
        container=True,
        field="shm_size",
        write=job_values.size_text,
    ),
    JobOption("ipc", "IPC mode.", docker_values.ipc, "MODE", container=True, field="ipc"),
    JobOption(
        "network",
        "Network to join: a name, host, none or container:NAME.",
        docker_values.network,
        "NAME",
        short=("--net",),
        container=True,
        field="network",
    ),
    JobOption(
        "ulimit", "A limit, such as memlock=-1.", docker_values.ulimit, "NAME=SOFT[:HARD]", _MANY, field="ulimits"
    ),
    JobOption("label", "Label the container.", docker_values.label, "NAME[=VALUE]", OptionKind.PAIRS, ("-l",)),
    JobOption("label_file", "Read labels from a file.", docker_values.label_file, "FILE", _MANY),
    JobOption(
        "runtime", "OCI runtime, as the engine knows it.", job_values.token, "NAME", container=True, field="runtime"
    ),
)


def _key(
    name: str,
    help: str,  # noqa: A002 - the field's name
    read: object = job_values.token,
    metavar: str = "NAME",
    kind: OptionKind = OptionKind.ONE,
    short: tuple[str, ...] = (),
    write: object = str,
) -> JobOption:
    """Return a key for containers only, whose field has the same name."""
    return JobOption(name, help, read, metavar, kind, short, container=True, field=name, write=write)  # type: ignore[arg-type]


_RARER = (
    _key(
        "publish",
        "Publish a port of the container; auto:PORT on a free port of the host; see gputui show.",
        docker_values.publish,
        "[[IP:]PORT|auto:]PORT",
        _MANY,
        ("-p",),
    ),
    _key("publish_all", "Publish all exposed ports on free ports of the host.", kind=_FLAG, short=("-P",)),
    _key("expose", "Expose a port without publishing it.", docker_values.expose, "PORT[/PROTOCOL]", _MANY),
    _key("hostname", "Host name of the container.", docker_values.hostname, short=("-h",)),
    _key("domainname", "NIS domain name of the container."),
    _key("add_host", "Add a line to /etc/hosts.", docker_values.add_host, "NAME:ADDRESS", _MANY),
    _key("dns", "DNS server.", docker_values.address, "ADDRESS", _MANY),
    _key("dns_option", "Option of the resolver.", kind=_MANY, metavar="OPTION", short=("--dns-opt",)),
    _key("dns_search", "Domain to search.", kind=_MANY, metavar="DOMAIN"),
    _key("network_alias", "Additional name in the network.", kind=_MANY, short=("--net-alias",)),
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
    _key("device", "Add a device of the host; GPUs are requested with --gpus.", docker_values.device, "DEVICE", _MANY),
    _key("device_cgroup_rule", "Allow a kind of device.", docker_values.device_rule, "'c 10:* rwm'", _MANY),
    _key("device_read_bps", "Limit reads of a device.", docker_values.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_read_iops", "Limit reads of a device.", docker_values.device_operations, "DEVICE:N", _MANY),
    _key("device_write_bps", "Limit writes to a device.", docker_values.device_rate, "DEVICE:SIZE", _MANY),
    _key("device_write_iops", "Limit writes to a device.", docker_values.device_operations, "DEVICE:N", _MANY),
    _key("blkio_weight", "Disk I/O weight relative to other containers.", partial(job_values.whole, 0, 1000), "N"),
    _key("blkio_weight_device", "Disk I/O weight on one device.", docker_values.weight_device, "DEVICE:N", _MANY),
    _key("privileged", "Give it all privileges of the host.", kind=_FLAG),
    _key("cap_add", "Add a Linux capability.", docker_values.capability, "CAPABILITY", _MANY),
    _key("cap_drop", "Drop a Linux capability.", docker_values.capability, "CAPABILITY", _MANY),
    _key("security_opt", "Security option.", docker_values.security, "NAME=VALUE", _MANY),
    _key("group_add", "Additional group of the user.", docker_values.group, "GROUP", _MANY),
    _key("sysctl", "Kernel parameter of its namespaces.", docker_values.name_value, "NAME=VALUE", _MANY),
    _key("pid", "PID namespace.", docker_values.pid, "host|container:NAME"),
    _key("uts", "UTS namespace.", docker_values.uts, "host"),
    _key("userns", "User namespace.", docker_values.userns, "host"),
    _key("cgroupns", "Cgroup namespace.", docker_values.cgroupns, "host|private"),
    _key("cgroup_parent", "Parent cgroup."),
    _key("cpuset_cpus", "CPUs it may use.", docker_values.cpu_list, "0-3,8"),
    _key("cpuset_mems", "Memory nodes it may use.", docker_values.cpu_list, "0,1"),
    _key("cpu_period", "Period of the CPU limit, in microseconds.", partial(job_values.whole, 0, 10**6), "N"),
    _key("cpu_quota", "CPU time in a period, in microseconds.", partial(job_values.whole, -1, 10**12), "N"),
    _key("cpu_rt_period", "Real-time period, in microseconds.", partial(job_values.whole, 0, 10**6), "N"),
    _key(
        "cpu_rt_runtime", "Real-time CPU time in a period, in microseconds.", partial(job_values.whole, 0, 10**6), "N"
    ),
    _key(
        "memory_swap",
        "Memory and swap together; -1: no limit of swap; the default is twice the memory.",
        docker_values.swap,
        "SIZE",
        write=docker_values.swap_text,
    ),
    _key("memory_reservation", "Soft memory limit.", job_values.memory, "SIZE", write=job_values.size_text),
    _key("memory_swappiness", "Swappiness of its memory, 0 to 100.", partial(job_values.whole, -1, 100), "N"),
    _key("oom_kill_disable", "Do not kill it when it is out of memory.", kind=_FLAG),
    _key(
        "oom_score_adj",
        "OOM score adjustment, -1000 to 1000; higher is killed first.",
        partial(job_values.whole, -1000, 1000),
        "N",
    ),
    _key(
        "pids_limit",
        "Maximum number of processes; -1: no limit except the site's.",
        partial(job_values.whole, -1, 2**22),
        "N",
    ),
    _key("stop_signal", "Signal that asks it to end.", docker_values.stop_signal, "SIGNAL"),
    _key("stop_timeout", "Seconds from that signal to SIGKILL.", partial(job_values.whole, 0, 3600), "N"),
    _key("no_init", "Make the command process 1 itself (--init=false).", kind=_FLAG),
    _key("pull", "When to pull the image.", docker_values.pull, "always|missing|never"),
    _key("platform", "Platform that the image must have.", docker_values.platform, "OS/ARCH"),
    _key("health_cmd", "Command that checks its health.", job_values.any_text, "COMMAND"),
    _key(
        "health_interval",
        "Pause between checks.",
        docker_values.go_duration,
        "DURATION",
        write=job_values.duration_text,
    ),
    _key(
        "health_timeout",
        "Longest time of a check.",
        docker_values.go_duration,
        "DURATION",
        write=job_values.duration_text,
    ),
    _key(
        "health_start_period",
        "Start-up time during which failed checks do not count.",
        docker_values.go_duration,
        "DURATION",
        write=job_values.duration_text,
    ),
    _key(
        "health_start_interval",
        "Pause between checks during the start-up time.",
        docker_values.go_duration,
        "DURATION",
        write=job_values.duration_text,
    ),
    _key("health_retries", "Failed checks that make it unhealthy.", partial(job_values.whole, 0, 10**6), "N"),
    _key("no_healthcheck", "Leave out the image's health check.", kind=_FLAG),
    _key("log_driver", "json-file or local: their logs can be read.", docker_values.log_driver, "json-file|local"),
    _key("log_opt", "Option of the log driver.", docker_values.name_value, "NAME=VALUE", _MANY),
    _key("annotation", "Annotation of the OCI runtime.", docker_values.name_value, "NAME=VALUE", _MANY),
)

DOCKER_KEYS = (*_USUAL, *_RARER)
RARER = frozenset(key.name for key in _RARER)
"""Rarely needed options: a form has no field of its own for most of them."""


KEYS = (
    JobOption(
        "gpus",
        "How many GPUs (2, 2-4, all), or which ones (device=0,GPU-…), as in docker run.",
        job_values.gpus,
        "N|N-M|all|device=…",
    ),
    JobOption("gpu_memory", "Memory each GPU must have in total.", job_values.size, "SIZE"),
    JobOption("share", "Share its GPUs with other such jobs; the job gets --gpu-memory of each.", kind=OptionKind.FLAG),
    JobOption("gpu_model", "Part of the GPU model's name, such as h100.", job_values.gpu_model),
    JobOption("priority", "0 to 100; the default is 50, higher goes first.", job_values.priority, "N"),
    JobOption(
        "nice", "Put the job behind jobs of its priority with a lower value; below 0 counts as 0.", job_values.nice, "N"
    ),
    JobOption("time_limit", "End the job after this long.", job_values.time_span, "DURATION"),
    JobOption(
        "signal",
        "Send a signal this long before the time limit: TERM@60, USR1@2m.",
        job_values.warning,
        "SIGNAL@DURATION",
    ),
    JobOption(
        "idle_timeout",
        "End the job after this long without output, input and use of its GPUs.",
        job_values.time_span,
        "DURATION",
    ),
    JobOption("retries", "Maximum number of retries of a failed job.", job_values.retries, "N"),
    JobOption(
        "backoff",
        "Pause before the first retry, doubled each time; the default is 5s.",
        job_values.duration,
        "DURATION",
    ),
    JobOption(
        "retry_on",
        "Retry only after these: exit codes, EXIT, SIGNAL, OOM, GPU_OOM, TIMEOUT; the default is all but TIMEOUT.",
        job_values.retry_on,
        "CODE|WORD[,…]",
        OptionKind.MANY,
    ),
    JobOption(
        "gpu_memory_step", "After running out of GPU memory, ask for this much more per GPU.", job_values.size, "SIZE"
    ),
    JobOption(
        "after",
        "Start when all of these jobs have COMPLETED (afterok); an array's id means all its elements, 12_5 one.",
        job_values.job_ids,
        "ID[,ID…]",
        OptionKind.MANY,
    ),
    JobOption(
        "after_any",
        "Start when all of these jobs have ended, in any state (afterany).",
        job_values.job_ids,
        "ID[,ID…]",
        OptionKind.MANY,
    ),
    JobOption("begin", "Do not start before: in 2h, 18:00, tomorrow 9am, Mon 14:00, 2026-03-02T18:00.", metavar="TIME"),
    JobOption("array", "One job for each index: 0-9, 1,3,5-9; %2: two at a time.", job_values.array, "INDICES[%N]"),
    JobOption(
        "sweep",
        "Array of all combinations of values: lr=1e-3,1e-4 and seed=0-9 make 20 jobs.",
        job_values.sweep,
        "NAME=VALUES",
        OptionKind.PAIRS,
        has_lists=True,
    ),
    JobOption(
        "sweep_limit",
        "Run at most this many elements of the sweep at a time.",
        partial(job_values.whole, 1, MAX_ELEMENTS),
        "N",
    ),
    JobOption("tenant", "Tenant that the job is charged to; the default is you.", job_values.tenant_name, "NAME"),
    JobOption("hold", "Wait until released.", kind=OptionKind.FLAG),
    JobOption("preemptible", "May be stopped and requeued for a higher class.", kind=OptionKind.FLAG),
    JobOption("name", "The job's name; the default is the image's or the command's.", job_values.job_name, "NAME"),
    JobOption("comment", "A note about the job, for people and for filters.", job_values.one_line),
    JobOption(
        "env_all",
        "Host jobs: take over all of your environment, not only PATH and similar variables.",
        kind=OptionKind.FLAG,
    ),
    *DOCKER_KEYS,
)
BY_NAME = {key.name: key for key in KEYS}
