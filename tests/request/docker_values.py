"""A valid and an invalid value for each of docker run's rarer options, as typed."""

from __future__ import annotations

GOOD: dict[str, str] = {
    "publish": "127.0.0.1:8000-8001:80-81/udp auto:8888", "publish_all": "yes", "expose": "9000-9002/tcp",
    "hostname": "node1", "domainname": "example.org", "add_host": "db:10.0.0.1 host.docker.internal:host-gateway",
    "dns": "10.0.0.53", "dns_option": "ndots:2", "dns_search": "example.org", "network_alias": "db",
    "ip": "172.30.100.104", "ip6": "2001:db8::33", "link": "db:data", "link_local_ip": "169.254.34.22",
    "mac_address": "02:42:ac:11:00:02", "tmpfs": "/run:rw,size=64m", "volumes_from": "data:ro",
    "volume_driver": "local", "storage_opt": "size=120G", "read_only": "yes",
    "device": "/dev/infiniband /dev/fuse:/dev/fuse:rw", "device_cgroup_rule": "'c 10:* rwm'",
    "device_read_bps": "/dev/sda:1mb", "device_read_iops": "/dev/sda:1000", "device_write_bps": "/dev/sda:1mb",
    "device_write_iops": "/dev/sda:1000", "blkio_weight": "300", "blkio_weight_device": "/dev/sda:200",
    "privileged": "yes", "cap_add": "IPC_LOCK SYS_PTRACE", "cap_drop": "ALL",
    "security_opt": "no-new-privileges seccomp=unconfined", "group_add": "video 44",
    "sysctl": "net.core.somaxconn=1024", "pid": "host", "uts": "host", "userns": "host", "cgroupns": "private",
    "cgroup_parent": "jobs.slice", "cpuset_cpus": "0-3,8", "cpuset_mems": "0", "cpu_period": "100000",
    "cpu_quota": "50000", "cpu_rt_period": "1000000", "cpu_rt_runtime": "950000", "memory_swap": "-1",
    "memory_reservation": "1g", "memory_swappiness": "0", "oom_kill_disable": "yes", "oom_score_adj": "-500",
    "pids_limit": "-1", "stop_signal": "SIGINT", "stop_timeout": "120", "no_init": "yes", "pull": "always",
    "platform": "linux/amd64", "health_cmd": "curl -f http://localhost || exit 1", "health_interval": "30s",
    "health_timeout": "0.5s", "health_start_period": "1m30s", "health_start_interval": "5s", "health_retries": "3",
    "no_healthcheck": "yes", "log_driver": "local", "log_opt": "max-size=10m mode=non-blocking",
    "annotation": "run.oci.keep_original_groups=1",
}  # fmt: skip

BAD: dict[str, str] = {
    "publish": "99999:80", "expose": "80:80", "hostname": "-x", "domainname": "a b", "add_host": "db",
    "dns": "nowhere", "dns_option": "", "dns_search": "a b", "network_alias": "a b", "ip": "1.2.3", "ip6": "::x",
    "link": "a b", "link_local_ip": "x", "mac_address": "02:42", "tmpfs": "run", "volumes_from": ":ro",
    "volume_driver": "", "storage_opt": "size", "device": "fuse", "device_cgroup_rule": "c 10",
    "device_read_bps": "/dev/sda", "device_read_iops": "/dev/sda:1mb", "device_write_bps": "sda:1mb",
    "device_write_iops": "/dev/sda:-1", "blkio_weight": "2000", "blkio_weight_device": "/dev/sda",
    "cap_add": "IPC-LOCK", "cap_drop": "a b", "security_opt": "seccomp", "group_add": "a:b", "sysctl": "x",
    "pid": "private", "uts": "x", "userns": "x", "cgroupns": "x", "cgroup_parent": "", "cpuset_cpus": "0-",
    "cpuset_mems": "x", "cpu_period": "x", "cpu_quota": "x", "cpu_rt_period": "-1", "cpu_rt_runtime": "x",
    "memory_swap": "-2", "memory_reservation": "1k", "memory_swappiness": "101", "oom_score_adj": "1001",
    "pids_limit": "-2", "stop_signal": "WINK", "stop_timeout": "-1", "pull": "perhaps", "platform": "a b",
    "health_cmd": "\0", "health_interval": "soon", "health_timeout": "x", "health_start_period": "x",
    "health_start_interval": "x", "health_retries": "-1", "log_driver": "none", "log_opt": "x", "annotation": "x",
}  # fmt: skip
FLAGS = frozenset(name for name, text in GOOD.items() if text == "yes")
