"""Options of `docker run` that `submit` does not take, each with what to do instead."""

from __future__ import annotations

IGNORED = ("--rm", "-d", "--detach", "--init")
"""What every job does anyhow: it runs in the background, has an init, and leaves no container behind."""

_TERMINAL = "a job has no terminal: leave it out, and read with gputui logs -f"
_GPUS_ONLY = "a job gets its GPUs by --gpus, and no other device"
_NO_PRIVILEGE = "jobs run without extra privileges: leave it out"
_NO_PORTS = "a job publishes no ports: use --network host, or a network both ends are in"
_LOGS = "output is kept and shown by gputui logs: leave it out"

HINTS = {
    "-i": _TERMINAL,
    "-t": _TERMINAL,
    "-a": _LOGS,
    "--interactive": _TERMINAL,
    "--tty": _TERMINAL,
    "--attach": _LOGS,
    "--detach-keys": _TERMINAL,
    "--restart": "write --retries N: gputui starts a failed job again itself",
    "-p": _NO_PORTS,
    "-P": _NO_PORTS,
    "--publish": _NO_PORTS,
    "--publish-all": _NO_PORTS,
    "--expose": _NO_PORTS,
    "--privileged": _NO_PRIVILEGE,
    "--cap-add": _NO_PRIVILEGE,
    "--cap-drop": _NO_PRIVILEGE,
    "--security-opt": _NO_PRIVILEGE,
    "--group-add": "write --user UID:GID",
    "--device": _GPUS_ONLY,
    "--device-cgroup-rule": _GPUS_ONLY,
    "--pull": "a missing image is pulled before GPUs are taken; fetch a newer one by docker pull",
    "--platform": "name the image of this machine's platform",
    "--cidfile": "gputui show ID names the container",
    "--env-from-file": "write --env-file",
    "--label-file": "write --label NAME=VALUE for each",
    "--log-driver": _LOGS,
    "--log-opt": "the settings log_max_size and log_max_files bound what is kept",
    "--memory-swap": "swap is off for jobs: --memory bounds all of it",
    "--memory-reservation": "write --memory",
    "--cpu-quota": "write --cpus",
    "--cpu-period": "write --cpus",
    "--cpuset-cpus": "write --cpus",
    "--pids-limit": "the setting pids_limit bounds every job's processes",
    "--stop-timeout": "the setting stop_grace is the pause before SIGKILL",
    "--stop-signal": "set it in the image, by STOPSIGNAL",
    "--tmpfs": "write --mount type=tmpfs,target=DIR",
    "--volumes-from": "write --volume for each",
    "--hostname": "a job's host name is its container's",
    "--add-host": "use a network with names of its own",
    "--dns": "use a network with names of its own",
    "--link": "write --network NAME for both",
    "--time": "write --time-limit",
    "--gres": "write --gpus N",
    "--dependency": "write --after ID or --after-any ID",
}


def hint(option: str) -> str | None:
    """What to do instead of that option of docker's or Slurm's."""
    return HINTS.get(option.partition("=")[0])


WITHOUT_VALUE = frozenset(
    {
        *(
            "-i",
            "--interactive",
            "-t",
            "--tty",
            "-P",
            "--publish-all",
            "--privileged",
            "--read-only",
            "--no-healthcheck",
        ),
        *("--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "-q", "--quiet"),
    }
)
"""Of docker's options that `submit` does not take, those that are written without a value."""
FURTHER = (
    *("--read-only", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "-q"),
    *("--quiet", "--annotation", "--blkio-weight", "--cgroup-parent", "--cgroupns", "--cpuset-mems", "--cpu-rt-period"),
    *("--cpu-rt-runtime", "--device-read-bps", "--device-read-iops", "--device-write-bps", "--device-write-iops"),
    *("--dns-option", "--dns-search", "--domainname", "--health-cmd", "--health-interval", "--health-retries"),
    *(
        "--health-start-period",
        "--health-timeout",
        "--ip",
        "--ip6",
        "--isolation",
        "--kernel-memory",
        "--link-local-ip",
    ),
    *("--mac-address", "--memory-swappiness", "--network-alias", "--oom-score-adj", "--pid", "--storage-opt"),
    *("--sysctl", "--userns", "--uts", "--volume-driver", "-h"),
)
"""Those for which there is nothing to be done instead."""
