"""Options of a container as `docker run` takes them, and the ports that it publishes."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from msgspec import Struct

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A mapping of strings, in order and frozen."""


class ContainerOptions(Struct, frozen=True):
    """Options of `docker run`, under the same names; sizes in bytes."""

    env: Pairs = ()
    volumes: tuple[str, ...] = ()
    """`source:target[:mode]`, as after `-v`."""
    mounts: tuple[str, ...] = ()
    """`type=bind,source=…,target=…`, as after `--mount`."""
    workdir: str | None = None
    user: str | None = None
    entrypoint: str | None = None
    cpus: float | None = None
    cpu_shares: int | None = None
    memory: int | None = None
    shm_size: int | None = None
    ipc: str | None = None
    network: str | None = None
    ulimits: tuple[str, ...] = ()
    """Limits, each `name=soft[:hard]`."""
    labels: Pairs = ()
    runtime: str | None = None
    """An OCI runtime that the engine knows, as after `--runtime`."""
    publish: tuple[str, ...] = ()
    """`[[IP:]HOST:]CONTAINER[/PROTOCOL]`; the host's port may be `auto`."""
    publish_all: bool = False
    expose: tuple[str, ...] = ()
    hostname: str | None = None
    domainname: str | None = None
    add_host: tuple[str, ...] = ()
    """Host entries, each `NAME:ADDRESS`."""
    dns: tuple[str, ...] = ()
    dns_option: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    network_alias: tuple[str, ...] = ()
    ip: str | None = None
    ip6: str | None = None
    link: tuple[str, ...] = ()
    link_local_ip: tuple[str, ...] = ()
    mac_address: str | None = None
    tmpfs: tuple[str, ...] = ()
    volumes_from: tuple[str, ...] = ()
    volume_driver: str | None = None
    storage_opt: tuple[str, ...] = ()
    read_only: bool = False
    device: tuple[str, ...] = ()
    device_cgroup_rule: tuple[str, ...] = ()
    device_read_bps: tuple[str, ...] = ()
    device_read_iops: tuple[str, ...] = ()
    device_write_bps: tuple[str, ...] = ()
    device_write_iops: tuple[str, ...] = ()
    blkio_weight: int | None = None
    blkio_weight_device: tuple[str, ...] = ()
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    """Security options; a seccomp profile is its JSON, not a file name."""
    group_add: tuple[str, ...] = ()
    sysctl: tuple[str, ...] = ()
    pid: str | None = None
    uts: str | None = None
    userns: str | None = None
    cgroupns: str | None = None
    cgroup_parent: str | None = None
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    cpu_period: int | None = None
    cpu_quota: int | None = None
    cpu_rt_period: int | None = None
    cpu_rt_runtime: int | None = None
    """CPU period, quota, and real-time period and runtime, all in microseconds."""
    memory_swap: int | None = None
    """Bytes of memory and swap together; -1: swap is not limited."""
    memory_reservation: int | None = None
    memory_swappiness: int | None = None
    oom_kill_disable: bool = False
    oom_score_adj: int | None = None
    pids_limit: int | None = None
    """Maximum number of processes; -1: no limit except the site's."""
    stop_signal: str | None = None
    stop_timeout: int | None = None
    """Seconds between the stop signal and SIGKILL, in place of the site's setting."""
    no_init: bool = False
    """The command is process 1 itself, as some images require."""
    pull: str | None = None
    """`always`, `missing` or `never`; None: missing."""
    platform: str | None = None
    health_cmd: str | None = None
    health_interval: timedelta | None = None
    health_timeout: timedelta | None = None
    health_start_period: timedelta | None = None
    health_start_interval: timedelta | None = None
    health_retries: int | None = None
    no_healthcheck: bool = False
    log_driver: str | None = None
    """`json-file` or `local`, whose logs can be read."""
    log_opt: tuple[str, ...] = ()
    annotation: tuple[str, ...] = ()


class PublishedPort(Struct, frozen=True):
    """A port of a container, and the host port that is forwarded to it."""

    container_port: int
    host_port: int
    protocol: str = "tcp"
    host_ip: str = "0.0.0.0"

    def __str__(self) -> str:
        host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
        return f"{host}:{self.host_port} -> {self.container_port}/{self.protocol}"

    def ssh(self, server: str) -> str | None:
        """Return the command that forwards it to another machine as http://localhost:PORT; None unless it is TCP."""
        if self.protocol != "tcp":
            return None
        here = self.container_port if self.container_port >= 1024 else self.host_port
        there = "localhost" if self.host_ip in {"0.0.0.0", "::", "127.0.0.1", "::1", ""} else self.host_ip
        return f"ssh -N -L {here}:{there}:{self.host_port} {server}"
