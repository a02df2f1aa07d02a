"""Capabilities of Slurm for a user."""

from __future__ import annotations

from gputui.cluster.slurm.site import SlurmSite
from gputui.domain.cluster import FOR_ONE_MACHINE, Capability, Caps

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


def caps_of(site: SlurmSite | None) -> Caps:
    """Return the capabilities; before Slurm has answered, those of a user without rights."""
    lacking = dict(_NEVER)
    if site is None or not site.is_operator:
        lacking |= _OPERATORS_ONLY
        if site is None or not site.users_may_top:
            lacking[_C.TOP] = _NO_TOP
    if site is not None and not site.can_overlap:
        lacking |= dict.fromkeys((_C.INSIDE, _C.STREAMS), _NO_OVERLAP.format(site.version))
    return Caps("Slurm", lacking, _COMMANDS)
