"""Slurm's answers about itself and this user, the user's rights, and faults that get in the way of jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.cluster.slurm.batch_script import IGNORED, REFUSED
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.cluster import FOR_ONE_MACHINE, Capability, Caps, ClusterFault
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError
from gputui.domain.marks import SHELL_SAYS

_LINE = r"(?m)^(\S+)\s*= (.*)$"
FILE = "poll.json"
"""Name of the file in which the processes of a user share the last poll."""
LASTS = 600.0
"""Seconds after which the configuration is read again."""
_OVERLAPS_FROM = (20, 11)
"""First release whose srun has --overlap."""
_SCRIPT = (
    "id -un; id -u; printf '%s\\n' \"${HOME:-/}\"; scontrol show config || exit; "
    'case $(scontrol show config 2>/dev/null | grep "^AccountingStorageType ") in *slurmdbd*) '
    'echo "AdminLevel = $(timeout 5 sacctmgr -nP show user "$(id -un)" format=AdminLevel 2>/dev/null | head -n 1)"'
    ";; esac"
)
"""The user's level in the accounts is not waited for long: the queue is there without slurmdbd."""
_OPERATORS = frozenset({"Operator", "Administrator", "Admin"})
_C = Capability
_NEVER = {
    _C.MOVE: "Slurm orders its queue itself: give the job another priority",
    _C.EDIT: "a job in Slurm is not changed: cancel it and submit it again",
    _C.PAUSE: "Slurm has no pause for the whole cluster: drain nodes, or let its administrators close a partition",
    _C.DRAIN_GPU: "Slurm drains nodes, not single GPUs",
    _C.RESERVE: "reservations of Slurm are made by its administrators, with scontrol create reservation",
    _C.RECURRING: "Slurm repeats jobs by scrontab, not from here",
    _C.WHAT_IF: "Slurm forecasts the start of one job, not the effect of a change on others",
}
_COMMANDS = {
    **FOR_ONE_MACHINE,
    "reserve": "an administrator reserves nodes: scontrol create reservation",
    "tenant": "an administrator sets shares and limits: sacctmgr",
    "cron": "submit at regular times by scrontab",
    "pause": "an administrator stops a partition: scontrol update PartitionName=NAME State=DOWN",
    "unpause": "an administrator starts a partition again: scontrol update PartitionName=NAME State=UP",
}
_OPERATORS_ONLY = {
    _C.RAISE_PRIORITY: "only Slurm's operators may raise a priority above 50",
    _C.DRAIN_NODE: "only Slurm's operators may drain and resume nodes",
}
_NO_OVERLAP = "Slurm runs commands in running jobs from release 20.11 on, and this is {}"
_NO_TOP = "only Slurm's operators may reorder jobs here: SchedulerParameters lacks enable_user_top"
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
SHORT_MEMORY = 60
"""Seconds below which the end of a job may be missed."""
_UNSET = frozenset({"", "(null)", "n/a", "N/A"})


class SlurmSite(Struct, frozen=True):
    """Slurm's configuration, as far as it matters here, and the user there."""

    cluster: str = ""
    version: str = ""
    user: str = ""
    uid: int = 0
    home: str = "/"
    slurm_user: str = ""
    controller: str = ""
    booted_at: int | None = None
    """Second since 1970 at which the controller started."""
    has_accounting: bool = False
    users_may_top: bool = False
    admin_level: str = ""

    @property
    def is_operator(self) -> bool:
        """Return whether the user may act on the jobs of others and on nodes."""
        return self.uid == 0 or self.user == self.slurm_user or self.admin_level in _OPERATORS

    @property
    def can_overlap(self) -> bool:
        """Return whether a step can share what the job's other steps have; an unreadable version counts as new."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return match is None or (int(match[1]), int(match[2])) >= _OVERLAPS_FROM

    @property
    def started_at(self) -> datetime | None:
        """Time at which the controller started."""
        from gputui.cluster.slurm import texts

        return texts.moment(str(self.booted_at or ""))


class _Known(Struct, frozen=True):
    """The part of the file of the last poll about the site, without its jobs and nodes."""

    site: SlurmSite = SlurmSite()
    site_at: float = 0.0


def known(poll: Path) -> SlurmSite | None:
    """Return the site as the file of the last poll has it; None if it is not there or too old."""
    with suppress(OSError, msgspec.DecodeError, ValueError):
        found = decode_json(poll.read_bytes(), _Known)
        if is_recent(found.site, found.site_at):
            return found.site
    return None


def is_recent(site: SlurmSite, asked_at: float) -> bool:
    """Return whether Slurm answered, and not so long ago that it has to be asked again."""
    return bool(site.cluster) and 0 <= time.time() - asked_at < LASTS


def ask(commands: SlurmCommands) -> SlurmSite:
    """Return what Slurm says now."""
    result = commands.script(_SCRIPT, "scontrol")
    if result.code:
        raise ClusterRefusedError(result.words, where="scontrol show config")
    return parse(result.out)


def parse(output: str) -> SlurmSite:
    """Return the site of the user's name, number and home on three lines, and of `scontrol show config`."""
    from gputui.cluster.slurm import texts  # not needed for a known site

    user, uid, home, config = (*output.split("\n", 3), "", "", "", "")[:4]
    values = {name: texts.some(value.strip()) for name, value in re.findall(_LINE, config)}
    booted = texts.moment(values.get("BOOT_TIME", ""))
    return SlurmSite(
        cluster=values.get("ClusterName", ""),
        version=values.get("SLURM_VERSION", ""),
        user=user.strip(),
        uid=int(uid) if uid.strip().isdigit() else -1,
        home=home.strip() or "/",
        slurm_user=values.get("SlurmUser", "").partition("(")[0],
        controller=(values.get("SlurmctldHost[0]") or values.get("ControlMachine") or "").partition("(")[0],
        booted_at=int(booted.timestamp()) if booted else None,
        has_accounting=values.get("AccountingStorageType", "").endswith("slurmdbd"),
        users_may_top="enable_user_top" in values.get("SchedulerParameters", ""),
        admin_level=values.get("AdminLevel", ""),
    )


def caps_of(site: SlurmSite | None) -> Caps:
    """Return the capabilities; before Slurm has answered, those of a user without rights."""
    lacking = dict(_NEVER)
    if site is None or not site.is_operator:
        lacking |= _OPERATORS_ONLY
        if site is None or not site.users_may_top:
            lacking[_C.TOP] = _NO_TOP
    if site is not None and not site.can_overlap:
        lacking |= dict.fromkeys((_C.INSIDE, _C.STREAMS), _NO_OVERLAP.format(site.version))
    return Caps("Slurm", lacking, REFUSED | IGNORED, _COMMANDS)


def faults(commands: SlurmCommands, container: str) -> Iterator[ClusterFault]:
    """Yield the faults that are found, for this way into containers; one because of which nothing works ends them."""
    try:
        lines = "; ".join(f"command -v {name} >/dev/null || echo {name}" for name in PROGRAMS)
        if missing := commands.script(lines, "sh").out.split():
            yield ClusterFault(
                "commands",
                f"{', '.join(missing)}: not found{f' on {commands.place}' if commands.place else ''}",
                "gputui uses Slurm's own commands.",
                "Debian: sudo apt install slurm-client\nor on another machine: GPUTUI_CLUSTER=slurm+ssh://LOGIN_NODE",
                stops_jobs=True,
            )
            return
        values = dict(re.findall(_LINE, commands.ask("scontrol", "show", "config")))
    except ClusterUnavailableError as error:
        yield _silence(str(error), commands.place)
        return
    if commands.noise:
        yield ClusterFault(
            "login shell",
            f"{commands.place}: {SHELL_SAYS.format(commands.noise)}",
            "Other programs that run commands over ssh, such as scp and git, stumble on them.",
            "print them for terminals only, in ~/.bashrc for example: [ -t 1 ] && echo …",
        )
    yield from _of_settings({name: value.strip() for name, value in values.items()}, container)


def _silence(words: str, place: str) -> ClusterFault:
    if place and "ssh" in words:
        hint = f"ssh {place} true must work without a question: a key in an agent, the host in known_hosts"
        return ClusterFault("ssh", words, "Slurm's commands run on the login node.", hint, stops_jobs=True)
    if re.search("munge|authentication", words, re.IGNORECASE):
        hint = "systemctl status munge; munge -n | unmunge\nall machines need the same /etc/munge/munge.key and clock"
        return ClusterFault("munge", words, "Slurm's programs trust each other by munge.", hint, stops_jobs=True)
    hint = "scontrol ping; systemctl status slurmctld on the controller"
    return ClusterFault("controller", words, "Without it nothing is submitted or shown.", hint, stops_jobs=True)


def _of_settings(values: Mapping[str, str], container: str) -> Iterator[ClusterFault]:
    has_epilog = any(values.get(name, "") not in _UNSET for name in ("Epilog", "Epilog[0]"))
    if container == "docker" and not has_epilog:
        yield ClusterFault(
            "epilog",
            "no epilog is set",
            "Containers stay where a batch script is killed, and on a node that was cut off and came back: "
            "on GPUs that Slurm gives to the next job.",
            "gputui cluster install, on every node",
            is_grave=True,
        )
    if "gpu" not in values.get("GresTypes", "").split(","):
        yield ClusterFault(
            "gres",
            "slurm.conf has no GresTypes=gpu",
            "Slurm knows of no GPU.",
            "GresTypes=gpu and NodeName=… Gres=gpu:MODEL:N in slurm.conf, the device files in gres.conf",
            stops_jobs=True,
        )
    if values.get("PriorityType") == "priority/multifactor" and all(
        value.strip() in _UNSET | {"0"} for name, value in values.items() if name.startswith("PriorityWeight")
    ):
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
