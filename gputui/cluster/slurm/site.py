"""Slurm's answers about itself and this user: name, version, controller, rights."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.cluster.slurm.commands import SlurmCommands
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError

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
    completion_file: str = ""
    """File of ended jobs that the plugin jobcomp/filetxt writes."""
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
    kept = values.get("JobCompType") == "jobcomp/filetxt"
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
        completion_file=values.get("JobCompLoc", "") if kept else "",
        users_may_top="enable_user_top" in values.get("SchedulerParameters", ""),
        admin_level=values.get("AdminLevel", ""),
    )
