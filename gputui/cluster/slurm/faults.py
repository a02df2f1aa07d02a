"""Faults of a Slurm cluster that get in the way of jobs: missing commands, no epilog, a short memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.cluster import ClusterFault
from gputui.domain.errors import ClusterUnavailableError

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
SHORT_MEMORY = 60
"""Seconds below which the end of a job may be missed."""
_LINE = re.compile(r"^(\S+)\s*= (.*)$", re.MULTILINE)
_NONE = frozenset({"", "(null)", "n/a", "N/A"})


def faults(commands: SlurmCommands) -> Iterator[ClusterFault]:
    """Yield the faults that are found; one because of which nothing works ends them."""
    try:
        missing = _missing(commands)
        if missing:
            yield _not_installed(missing, commands.place)
            return
        values = dict(_LINE.findall(commands.ask("scontrol", "show", "config")))
    except ClusterUnavailableError as error:
        yield _silent(str(error), commands.place)
        return
    yield from _of_settings({name: value.strip() for name, value in values.items()})


def _missing(commands: SlurmCommands) -> list[str]:
    """Return the programs that are not installed where commands run."""
    lines = "; ".join(f"command -v {name} >/dev/null || echo {name}" for name in PROGRAMS)
    return commands.script(lines, "sh").out.split()


def _not_installed(missing: list[str], place: str) -> ClusterFault:
    where = f" on {place}" if place else ""
    return ClusterFault(
        "commands",
        f"{', '.join(missing)}: not found{where}",
        "gputui uses Slurm's own commands.",
        "Debian: sudo apt install slurm-client\nor on another machine: GPUTUI_CLUSTER=slurm+ssh://LOGIN_NODE",
        stops_jobs=True,
    )


def _silent(words: str, place: str) -> ClusterFault:
    if place and "ssh" in words:
        hint = f"ssh {place} true must work without a question: a key in an agent, the host in known_hosts"
        return ClusterFault("ssh", words, "Slurm's commands run on the login node.", hint, stops_jobs=True)
    if re.search("munge|authentication", words, re.IGNORECASE):
        hint = "systemctl status munge; munge -n | unmunge\nall machines need the same /etc/munge/munge.key and clock"
        return ClusterFault("munge", words, "Slurm's programs trust each other by munge.", hint, stops_jobs=True)
    hint = "scontrol ping; systemctl status slurmctld on the controller"
    return ClusterFault("controller", words, "Without it nothing is submitted or shown.", hint, stops_jobs=True)


def _of_settings(values: Mapping[str, str]) -> Iterator[ClusterFault]:
    if values.get("Epilog", "").strip() in _NONE and values.get("Epilog[0]", "") in _NONE:
        yield ClusterFault(
            "epilog",
            "no epilog is set",
            "Containers stay where a batch script is killed, and on a node that was cut off and came back.",
            "gputui cluster install, on every node",
        )
    if "gpu" not in values.get("GresTypes", "").split(","):
        yield ClusterFault(
            "gres",
            "slurm.conf has no GresTypes=gpu",
            "Slurm knows of no GPU.",
            "GresTypes=gpu and NodeName=… Gres=gpu:MODEL:N in slurm.conf, the device files in gres.conf",
            stops_jobs=True,
        )
    if values.get("PriorityType") == "priority/multifactor" and not any(_weights(values)):
        yield ClusterFault(
            "priority",
            "Slurm gives all jobs the same priority",
            "Without weights a lower priority changes nothing: jobs start in the order of their submission.",
            "PriorityWeightFairshare, PriorityWeightPartition, … in slurm.conf: gputui takes up to 50000 off their sum",
        )
    has_accounting = values.get("AccountingStorageType", "").endswith("slurmdbd")
    if has_accounting:
        yield from _of_accounts(values)
    age = values.get("MinJobAge", "").partition(" ")[0]
    if age.isdigit() and int(age) < SHORT_MEMORY and not has_accounting:
        yield ClusterFault(
            "MinJobAge",
            f"Slurm forgets jobs {age} s after their end, and has no slurmdbd",
            "Their exit codes are lost unless gputui sees them in time.",
            "MinJobAge=300 in slurm.conf, or slurmdbd",
        )


def _weights(values: Mapping[str, str]) -> Iterator[bool]:
    for name, value in values.items():
        if name.startswith("PriorityWeight"):
            yield value.strip() not in _NONE | {"0"}


def _of_accounts(values: Mapping[str, str]) -> Iterator[ClusterFault]:
    if not re.search(r"\bgres/gpu\b", values.get("AccountingStorageTRES", "")):
        yield ClusterFault(
            "accounts",
            "Slurm's accounts do not count GPUs",
            "history and report know no GPUs of jobs that gputui did not see running.",
            "AccountingStorageTRES=gres/gpu in slurm.conf",
        )
    if "job_comment" not in values.get("AccountingStoreFlags", ""):
        yield ClusterFault(
            "comments",
            "Slurm's accounts keep no comments of jobs",
            "By its comment a job is known as one of gputui's after Slurm has forgotten it.",
            "AccountingStoreFlags=job_comment in slurm.conf",
        )
