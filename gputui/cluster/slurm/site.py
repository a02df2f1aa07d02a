"""Slurm's answers about itself and this user, the user's rights, and faults that get in the way of jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm.batch_script import IGNORED, REFUSED
from gputui.cluster.slurm.commands import SlurmCommands, moment, some, span
from gputui.domain.cluster import FOR_ONE_MACHINE, Capability, Caps, ClusterFault
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, InputError
from gputui.domain.frames import SHELL_SAYS
from gputui.domain.job_spec import NORMAL_PRIORITY, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.text import format_limit

_LINE = r"(?m)^(\S+)\s*= (.*)$"
FILE = "poll.json"
"""Name of the file in which the processes of a user share the last poll."""
LASTS = 600.0
"""Seconds after which the configuration is read again."""
_OVERLAPS_FROM = (20, 11)
"""First release whose srun has --overlap."""
_KEEPS_HOLDS_FROM = (24, 11)
"""First release that was seen to keep them."""
_PARTITION = r"(?m)^PartitionName=(\S+) (.*)$"
_WITHOUT_LIMIT = timedelta(hours=24)
"""Time limit of a job where neither its user nor the settings nor its partition give it one."""
_OF_TIME, _OF_QOS, _OF_PARTITION = ("--time", "-t"), ("--qos", "-q"), ("--partition", "-p")
"""Options of sbatch by which a site sets time limits itself, lifts those of partitions, or chooses partitions."""
_SCRIPT = (
    "id -un; id -u; printf '%s\\n' \"${HOME:-/}\"; config=$(scontrol show config) || exit; "
    "printf '%s\\n' \"$config\"; scontrol show partitions --oneliner; "
    "case $config in *accounting_storage/slurmdbd*) "
    'echo "AdminLevel = $(timeout 5 sacctmgr -nP show user "$(id -un)" format=AdminLevel 2>/dev/null | head -n 1)"'
    ";; esac"
)
"""The user's level in the accounts is not waited for long: the queue is there without slurmdbd."""
_ADMINISTRATORS = frozenset({"Administrator", "Admin"})
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
_NO_RAISE = "only Slurm's operators may raise a priority above 50"
_NO_DRAIN = "only Slurm's administrators may drain and resume nodes"
_NO_OVERLAP = "Slurm runs commands in running jobs from release 20.11 on, and this is {}"
_NO_TOP = "only Slurm's operators may reorder jobs here: SchedulerParameters lacks enable_user_top"
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
SHORT_MEMORY = 60
"""Seconds below which the end of a job may be missed."""
_UNSET = frozenset({"", "(null)", "n/a", "N/A"})


class Partition(Struct, frozen=True):
    name: str
    is_default: bool = False
    default_time: timedelta | None = None
    """Limit of a job without one of its own; None: the longest."""
    longest: timedelta | None = None
    """None: no limit."""


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
    partitions: tuple[Partition, ...] = ()
    priority_type: str = ""

    @property
    def is_operator(self) -> bool:
        return self.is_administrator or self.admin_level == "Operator"

    @property
    def is_administrator(self) -> bool:
        return self.uid == 0 or self.user == self.slurm_user or self.admin_level in _ADMINISTRATORS

    @property
    def release(self) -> tuple[int, int] | None:
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def keeps_holds(self) -> bool:
        """Return whether a held job stays held if its nice value changes: Slurm 22.05 lets it start."""
        is_weighed = self.priority_type == "priority/multifactor"
        return is_weighed and self.release is not None and self.release >= _KEEPS_HOLDS_FROM

    @property
    def started_at(self) -> datetime | None:
        return moment(str(self.booted_at or ""))


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
    result = commands.script(_SCRIPT, "scontrol")
    if result.code:
        raise ClusterRefusedError(result.words, where="scontrol show config")
    return parse(result.out)


def parse(output: str) -> SlurmSite:
    user, uid, home, config = (*output.split("\n", 3), "", "", "", "")[:4]
    values = {name: some(value.strip()) for name, value in re.findall(_LINE, config)}
    booted = moment(values.get("BOOT_TIME", ""))
    partitions = []
    for name, rest in re.findall(_PARTITION, config):
        its = dict(re.findall(r"(\w+)=(\S+)", rest))
        default, longest = (span(its.get(key, "")) for key in ("DefaultTime", "MaxTime"))
        partitions.append(Partition(name, its.get("Default") == "YES", default, longest))
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
        partitions=tuple(partitions),
        priority_type=values.get("PriorityType", ""),
    )


def with_limit(submission: Submission, settings: ClusterSettings, site: SlurmSite) -> tuple[Submission, str]:
    """Return a job with the time limit that it is submitted with, and a sentence if its user asked for none.

    Without a limit in the job or the settings, that of its partition counts, which Slurm itself sets. Raises InputError
    for more than its partition ever allows, and CapabilityError for a priority that only operators give.
    """
    spec = submission.spec
    if spec.priority > NORMAL_PRIORITY:
        caps_of(site).need(Capability.RAISE_PRIORITY)
    chosen, where = _partitions_of(settings, site)
    if not chosen or any(option.startswith(_OF_TIME) for option in settings.sbatch_options):
        return submission, ""
    lengths = [each.longest for each in chosen if each.longest is not None]
    is_lifted = any(option.startswith(_OF_QOS) for option in settings.sbatch_options)
    longest = max(lengths) if len(lengths) == len(chosen) and not is_lifted else None
    if spec.time_limit is not None:
        if longest is not None and spec.time_limit > longest:
            what = f"{where} allows {format_limit(longest)} at most"
            raise InputError(what, where="--time-limit", hint="a QOS may allow more: cluster.sbatch_options")
        return submission, ""
    default = next((each.default_time for each in chosen if each.default_time is not None), None)
    if settings.default_time is None and default is not None:
        return submission, f"time limit {format_limit(default)}, the default of {where}"
    limit, why = settings.default_time or _WITHOUT_LIMIT, "since it asks for none"
    if longest is not None and limit > longest:
        limit, why = longest, f"the longest of {where}"
    told = f"time limit {format_limit(limit)}, {why}"
    return replace(submission, spec=replace(spec, time_limit=limit)), told


def _partitions_of(settings: ClusterSettings, site: SlurmSite) -> tuple[list[Partition], str]:
    names = settings.partition or ""
    for option in settings.sbatch_options:
        if option.startswith(_OF_PARTITION):
            names = re.sub(r"--partition[= ]|-p ?", "", option)
    wanted = set(names.split(",")) if names else {each.name for each in site.partitions if each.is_default}
    return [each for each in site.partitions if each.name in wanted], f"partition {','.join(sorted(wanted))}"


def caps_of(site: SlurmSite | None) -> Caps:
    """Return the capabilities; before Slurm has answered, those of a user without rights."""
    lacking = dict(_NEVER)
    if site is None or not site.is_administrator:
        lacking[_C.DRAIN_NODE] = _NO_DRAIN
    if site is None or not site.is_operator:
        lacking[_C.RAISE_PRIORITY] = _NO_RAISE
        if site is None or not site.users_may_top:
            lacking[_C.TOP] = _NO_TOP
    if site is not None and site.release is not None and site.release < _OVERLAPS_FROM:
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
    age = values.get("MinJobAge", "").partition(" ")[0]
    if age.isdigit() and int(age) < SHORT_MEMORY and not has_accounting:
        yield ClusterFault(
            "MinJobAge",
            f"Slurm forgets jobs {age} s after their end, and has no slurmdbd",
            "Ends of jobs that were not submitted from here are lost unless gputui sees them in time.",
            "MinJobAge=300 in slurm.conf, or slurmdbd",
        )
