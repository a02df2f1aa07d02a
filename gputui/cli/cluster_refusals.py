"""Commands that cluster mode refuses, each with what the engine does instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gputui.domain.cluster import ENGINES, parse_engine
from gputui.domain.errors import CapabilityError

if TYPE_CHECKING:
    from gputui.domain.settings import ClusterSettings

REFUSED: Mapping[str, str] = {
    "reserve": "an administrator reserves nodes: scontrol create reservation",
    "tenant": "an administrator sets shares and limits: sacctmgr",
    "cron": "submit at regular times by scrontab",
    "pause": "an administrator stops a partition: scontrol update PartitionName=NAME State=DOWN",
    "unpause": "an administrator starts a partition again: scontrol update PartitionName=NAME State=UP",
    "install": "the engine schedules; there is no service of gputui to install",
    "ps": "log in to the job's node: gputui ps shows the processes on its GPUs there, without the cluster",
    "state": "the queue is in the engine's own files",
}
"""Commands that cluster mode refuses, each with what to do instead: in Slurm's words where they differ."""
_IN_KUBERNETES: Mapping[str, str] = {
    "reserve": "an administrator keeps nodes for somebody by taints, or by quotas of Kueue",
    "tenant": "an administrator sets limits by ResourceQuotas of namespaces, or by quotas of Kueue",
    "cron": "submit at regular times by a CronJob",
    "pause": "an administrator stops a queue of Kueue: stopPolicy of its ClusterQueue",
    "unpause": "an administrator starts a queue of Kueue again: stopPolicy of its ClusterQueue",
}


def check_command(name: str, settings: ClusterSettings) -> None:
    """Raise CapabilityError for a command that makes no sense in cluster mode."""
    if name in REFUSED:
        engine = parse_engine(settings.engine)
        kind = engine.kind if engine is not None else ""
        hint = _IN_KUBERNETES.get(name, REFUSED[name]) if kind == "kubernetes" else REFUSED[name]
        words = f"gputui {name} is for the queue of one machine, not for {ENGINES.get(kind, kind)}"
        raise CapabilityError(words, hint=hint)
