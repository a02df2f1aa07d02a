"""What a job may be asked for: each thing once, for the options of `submit` and the keys of a job file alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gputui.request import docker_specs, endings, gpu_specs, numbers, specs, texts


class Kind(Enum):
    """How often a thing can be given, and of what kind."""

    ONE = "one"
    MANY = "many"
    FLAG = "flag"
    PAIRS = "pairs"


@dataclass(frozen=True)
class Key:
    """One thing a job may be asked for."""

    name: str
    """The key in a job file; the option is the same with hyphens."""
    help: str
    read: Callable[[str, str], object] = texts.any_text
    metavar: str = "TEXT"
    kind: Kind = Kind.ONE
    short: tuple[str, ...] = ()
    """Other ways to write the option."""
    container: bool = False
    """Makes sense for containers alone."""

    @property
    def option(self) -> str:
        """The long option."""
        return "--" + self.name.replace("_", "-")


KEYS = (
    Key(
        "gpus",
        "How many GPUs (2, 2-4, all), or which ones (device=0,GPU-…), as in docker run.",
        gpu_specs.gpus,
        "N|N-M|all|device=…",
    ),
    Key("gpu_memory", "Memory each GPU must have in total.", numbers.size, "SIZE"),
    Key("share", "Let other such jobs on its GPUs: of each it is promised --gpu-memory, no more.", kind=Kind.FLAG),
    Key("gpu_model", "Part of the model's name, such as h100.", specs.gpu_model),
    Key("priority", "0 to 100; the default is 50, higher goes first.", numbers.priority, "N"),
    Key("nice", "Lowers the job's rank by so much.", numbers.nice, "N"),
    Key("time_limit", "End the job after this long.", numbers.time_limit, "DURATION"),
    Key(
        "signal",
        "Announce the time limit by a signal so long before it: TERM@60, USR1@2m.",
        endings.warning,
        "SIGNAL@DURATION",
    ),
    Key("retries", "Run a job that failed again so many times.", numbers.retries, "N"),
    Key("backoff", "Pause before the first retry, doubled each time; the default is 5s.", numbers.duration, "DURATION"),
    Key(
        "retry_on",
        "Only after these: exit codes, EXIT, SIGNAL, OOM, GPU_OOM, TIMEOUT; the default is all but TIMEOUT.",
        endings.retry_on,
        "CODE|WORD[,…]",
        Kind.MANY,
    ),
    Key("gpu_memory_step", "After running out of GPU memory, ask for so much more per GPU.", numbers.size, "SIZE"),
    Key(
        "after",
        "Start when all of these jobs COMPLETED (afterok); an array's id means all its elements, 12_5 one.",
        numbers.job_ids,
        "ID[,ID…]",
        Kind.MANY,
    ),
    Key("after_any", "Start when all of these jobs ended, however.", numbers.job_ids, "ID[,ID…]", Kind.MANY),
    Key("begin", "Do not start before: +1h, 18:00, or 2026-03-02T18:00.", metavar="TIME"),
    Key("array", "One job for each index: 0-9, 1,3,5-9; %2: two at once.", specs.array, "INDICES[%N]"),
    Key("tenant", "Whom the job is charged to; the default is you.", texts.tenant_name, "NAME"),
    Key("hold", "Wait until released.", kind=Kind.FLAG),
    Key("preemptible", "May be stopped and requeued for a higher class.", kind=Kind.FLAG),
    Key("name", "The job's name; the default is the image's or the command's.", texts.job_name, "NAME"),
    Key(
        "env",
        "Set an environment variable; NAME alone takes its value from here.",
        docker_specs.pair,
        "NAME[=VALUE]",
        Kind.PAIRS,
        ("-e",),
    ),
    Key("env_file", "Read environment variables from a file.", docker_specs.env_file, "FILE", Kind.MANY),
    Key(
        "volume",
        "Mount a host directory or a volume.",
        docker_specs.volume,
        "SOURCE:TARGET[:ro]",
        Kind.MANY,
        ("-v",),
        container=True,
    ),
    Key("mount", "Mount as docker's --mount does.", docker_specs.mount, "type=…,…", Kind.MANY, container=True),
    Key("workdir", "Working directory.", docker_specs.workdir, "DIR", short=("-w",)),
    Key("user", "User to run as.", docker_specs.user, "NAME|UID[:GID]", short=("-u",)),
    Key("entrypoint", "Run this instead of the image's entry point.", docker_specs.entrypoint, container=True),
    Key("cpus", "How many CPUs it may use.", numbers.cpus, "N"),
    Key("cpu_shares", "Its weight where CPUs are scarce.", numbers.cpu_shares, "N", short=("-c",)),
    Key("memory", "Memory limit.", numbers.memory, "SIZE", short=("-m",)),
    Key("shm_size", "Size of /dev/shm.", numbers.size, "SIZE", container=True),
    Key("ipc", "IPC mode.", docker_specs.ipc, "MODE", container=True),
    Key("network", "Network to join.", texts.token, "NAME", short=("--net",), container=True),
    Key("ulimit", "A limit, such as memlock=-1.", docker_specs.ulimit, "NAME=SOFT[:HARD]", Kind.MANY),
    Key("label", "Label the container.", docker_specs.label, "NAME[=VALUE]", Kind.PAIRS, ("-l",)),
    Key("runtime", "OCI runtime, as the engine knows it.", texts.token, "NAME", container=True),
)
BY_NAME = {key.name: key for key in KEYS}
