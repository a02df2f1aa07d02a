"""Verbs about running jobs."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from gputui.domain.action import Signal, Suspend, Unsuspend
from gputui.domain.cluster import Capability
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.verb import Verb, Who

T = TypeVar("T")
JOBS = "Jobs"


class SignalChoice(Struct, frozen=True):
    """A signal that the console offers."""

    name: str
    use: str


SIGNALS = (
    SignalChoice("USR1", "defined by the program; many trainers write a checkpoint"),
    SignalChoice("USR2", "defined by the program"),
    SignalChoice("INT", "interrupt, as Ctrl-C does"),
    SignalChoice("TERM", "end; the job has then failed, unlike a cancelled one"),
    SignalChoice("HUP", "hang up; daemons read their settings again"),
    SignalChoice("QUIT", "end, and write a core dump or the stacks of all threads"),
    SignalChoice("KILL", "end immediately"),
)


def _is_not_suspended(job: Job) -> bool:
    return job.state is JobState.RUNNING and not job.suspended


SIGNAL = Verb[Job](
    name="signal",
    action="signal",
    keys=("I",),
    in_footer=False,
    label="signal",
    help="Send the running job a signal, such as USR1 for a checkpoint; asks for the signal.",
    group=JOBS,
    needs="a running job that is not suspended",
    may=_is_not_suspended,
    wish=Signal,
    done="{subject} will get the signal",
    done_many="{subject} will get the signal",
    who=Who.OWNER,
    capability=Capability.SIGNAL,
    shell="signal ID... SIGNAL",
    shell_help="Send running jobs a signal: USR1, SIGINT, 10. A container's first process gets it, of a host job every "
    "process. For its submitter and operators.",
)
SUSPEND = Verb[Job](
    name="suspend",
    action="suspend",
    keys=("Z",),
    in_footer=False,
    label="suspend",
    help="Stop the processes of the running job; it keeps its GPUs, and its time limit continues.",
    group=JOBS,
    needs="a running job that is not suspended",
    may=_is_not_suspended,
    wish=Suspend,
    done="{subject} will be suspended: {unsuspend} lets it continue",
    done_many="{subject} will be suspended: {unsuspend} lets them continue",
    who=Who.OWNER,
    capability=Capability.SUSPEND,
    shell="suspend ID...",
    shell_help="Stop the processes of running jobs until they are unsuspended. They keep their GPUs and memory, and "
    "their time limits continue. For their submitters and operators.",
)
UNSUSPEND = Verb[Job](
    name="unsuspend",
    action="unsuspend",
    keys=("Z",),
    in_footer=False,
    label="unsuspend",
    help="Continue the suspended job.",
    group=JOBS,
    needs="a suspended job",
    may=lambda job: job.state is JobState.RUNNING and job.suspended,
    wish=Unsuspend,
    done="{subject} continues",
    done_many="{subject} continue",
    who=Who.OWNER,
    capability=Capability.SUSPEND,
    shell="unsuspend ID...",
    shell_help="Continue suspended jobs.",
)
RUNNING_VERBS: tuple[Verb[Job], ...] = (SIGNAL, SUSPEND, UNSUSPEND)
