"""Declares every verb once: name, key, texts, who may use it, on what, and its action.

Everything else is derived from this table: the console's commands with their keys, footer, menus, palette and help; the
what-if panel; actions on several jobs; which actions can be undone; docs/keys.md; and the help of the shell commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from gputui.domain.action import (
    Action,
    Cancel,
    DrainGpus,
    Hold,
    Pause,
    PauseRecurring,
    PlaceJobs,
    Release,
    RemoveRecurring,
    Requeue,
    ResumeGpus,
    ResumeRecurring,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unpause,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY
from gputui.domain.state import JobState
from gputui.domain.submit_action import Ids

if TYPE_CHECKING:
    from gputui.domain.gpu import GpuView
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls


S = TypeVar("S")
STEP = 10
"""Points of priority per key press."""
JOBS, QUEUE, GPUS, SCHEDULER = "Jobs", "Queue", "GPUs", "Scheduler"
"""Headings under which verbs are listed."""
PRIORITY_HELP = "Set a job's priority (0 to 100), raise or lower it, or put the job at the head of the queue."
"""Help text of `gputui priority`, which covers several verbs."""


class Who(Enum):
    """Users who may use a verb; `engine/actions/permissions.py` sees to it."""

    OWNER = "who submitted the job; operators for every job"
    CAPPED = "the same, up to the tenant's highest priority; operators beyond it"
    OPERATOR = "operators"


class BaseVerb(Struct, Generic[S], frozen=True, eq=False, kw_only=True):
    """Name, key and texts of a verb, on a subject of type S."""

    name: str
    """Name in the settings file and in calls."""
    action: str = ""
    """Action of the console that requests it; empty: its name, or `verb('NAME')` for a `Verb` about jobs."""
    keys: tuple[str, ...]
    """Keys in the console, as Textual names them."""
    footer_key: str = ""
    in_footer: bool = True
    label: str = ""
    """Short label for the footer, menus and the palette, one or two words; empty: its name."""
    help: str
    """A sentence for help, the palette and docs/keys.md."""
    group: str = JOBS
    needs: str = ""
    """Required subject, as in "it needs a waiting job"; empty: none."""
    may: Callable[[S], bool] = lambda _: True
    """Returns whether it can be used on the subject now."""
    who: Who = Who.OWNER
    capability: Capability | None = None
    """Capability that a cluster needs for it; None: none."""
    shell: str
    """The equivalent command, after `gputui`."""

    def __post_init__(self) -> None:
        force_setattr(self, "label", self.label or self.name)
        force_setattr(self, "action", self.action or self.name)


class FormVerb(BaseVerb[S], frozen=True, eq=False, kw_only=True):
    """A verb that opens a form, which shows the effects, checks the input and sends it.

    Help texts of its command stay with the command, because `gputui submit` must not load this table to start.
    """


class Verb(BaseVerb[S], frozen=True, eq=False, kw_only=True):
    """A verb that is carried out at once, or after its effects are shown."""

    wish: type[Action]
    """Kind of action that it asks for."""
    step: int = 0
    """Points of priority that it adds."""
    done: str
    """Message after the change of one `{subject}`; other names in braces are replaced by keys of verbs."""
    done_many: str = ""
    """Message after the change of several subjects; empty: the same."""
    proposal: str = ""
    """Description of the change in the what-if panel, for one `{title}`."""
    proposal_many: str = ""
    """Description of the change of several subjects in the what-if panel, after their ids."""
    fate: str = "no forecast"
    """Word for a job that has no start after the change."""
    question: str = ""
    """First word of the question before the change; empty: no question."""
    asks_reason: bool = False
    ends_work: bool = False
    """True if the verb ends running jobs; the what-if panel then shows the lost work."""
    shell_help: str
    """Help text of that command."""
    shell_done: str = "changed {}"
    """Sentence of the command about the jobs that it has changed."""
    shell_done_running: str = ""
    """Sentence about the running ones among them, which a scheduler ends; empty: the same."""

    def __post_init__(self) -> None:
        if self.group == JOBS and not self.action:
            force_setattr(self, "action", f"verb('{self.name}')")
        super().__post_init__()
        force_setattr(self, "done_many", self.done_many or self.done)

    def on(self, ids: Ids) -> Action:
        """Return the action on these jobs, for a verb about jobs that needs nothing else."""
        return SetPriority(ids, self.step, relative=True) if self.step else self.wish(ids)  # type: ignore[call-arg, arg-type]  # verbs about jobs have actions with ids


def is_drained(view: GpuView, controls: Controls) -> bool:
    return view.drain is not None or view.gpu.uuid in controls.drains


GpuSubject: TypeAlias = "tuple[GpuView, Controls]"


def _is_waiting(job: Job) -> bool:
    return job.state is JobState.PENDING


JOB_VERBS: tuple[Verb[Job], ...] = (
    Verb(
        name="hold",
        keys=("h",),
        help="Keep the waiting job from starting.",
        needs="a waiting job that is not held",
        may=lambda job: _is_waiting(job) and not job.held and not job.cancel_requested,
        wish=Hold,
        done="{subject} is held: {release} releases it",
        done_many="{subject} are held: {release} releases them",
        proposal="{title}: hold it until it is released",
        proposal_many="hold them until they are released",
        fate="held",
        capability=Capability.HOLD,
        shell="hold ID...",
        shell_help="Keep waiting jobs from starting until they are released.",
        shell_done="held {}; the time waited so far still counts",
    ),
    Verb(
        name="release",
        keys=("r",),
        help="Release the held job.",
        needs="a held job",
        may=lambda job: job.held and not job.state.is_terminal,
        wish=Release,
        done="{subject} is released",
        done_many="{subject} are released",
        proposal="{title}: release it, it may start",
        proposal_many="release them, they may start",
        capability=Capability.HOLD,
        shell="release ID...",
        shell_help="Release held jobs.",
        shell_done="released {}",
    ),
    Verb(
        name="cancel",
        keys=("c",),
        help="End the job, or take it out of the queue; asks first.",
        needs="a job that has neither ended nor is being cancelled",
        may=lambda job: not job.state.is_terminal and not job.cancel_requested,
        wish=Cancel,
        done="{subject} will be cancelled",
        proposal="{title}: cancel it",
        proposal_many="cancel them",
        fate="cancelled",
        question="Cancel",
        ends_work=True,
        shell="cancel ID...",
        shell_help="Cancel jobs. Running ones get their stop signal and are killed after a grace period; waiting ones "
        "never start.",
        shell_done="cancelled {}",
        shell_done_running="stopping {}",
    ),
    Verb(
        name="requeue",
        keys=("R",),
        help="Run the job again; a running job is stopped first.",
        needs="a job that runs, or has ended in a queue that runs it again",
        may=lambda job: not (_is_waiting(job) or job.requeue_requested or (job.runs_once and job.state.is_terminal)),
        wish=Requeue,
        done="{subject} will be requeued",
        proposal="{title}: run it again",
        proposal_many="run them again",
        ends_work=True,
        capability=Capability.REQUEUE,
        shell="requeue ID...",
        shell_help="Run jobs again. Running ones are stopped first; jobs keep their waiting time, except after a run "
        "that reached its time limit. Of an array named as a whole, completed elements are left alone.",
        shell_done="requeued {}",
        shell_done_running="stopping, to be run again: {}",
    ),
    Verb(
        name="raise",
        keys=("plus", "equals_sign"),
        footer_key="+/-",
        label="prio",
        help=f"Raise the job's priority by {STEP}, up to {MAX_PRIORITY}.",
        needs=f"a job of priority below {MAX_PRIORITY} that has not ended; requeue an ended one first",
        may=lambda job: not job.state.is_terminal and job.priority < MAX_PRIORITY,
        wish=SetPriority,
        step=STEP,
        done="{subject}: priority raised by {delta}",
        proposal="{title}: priority {priority}",
        proposal_many="priority +{delta} each",
        who=Who.CAPPED,
        capability=Capability.RAISE_PRIORITY,
        shell=f"priority ID +{STEP}",
        shell_help=PRIORITY_HELP,
    ),
    Verb(
        name="lower",
        keys=("minus",),
        in_footer=False,
        label="prio down",
        help=f"Lower the job's priority by {STEP}, down to 0.",
        needs="a job of priority above 0 that has not ended; requeue an ended one first",
        may=lambda job: not job.state.is_terminal and job.priority > 0,
        wish=SetPriority,
        step=-STEP,
        done="{subject}: priority lowered by {delta}",
        proposal="{title}: priority {priority}",
        proposal_many="priority -{delta} each",
        capability=Capability.LOWER_PRIORITY,
        shell=f"priority ID -{STEP}",
        shell_help=PRIORITY_HELP,
    ),
    Verb(
        name="top",
        keys=("t",),
        help="Put the waiting job at the head of the queue.",
        needs="a waiting job",
        may=_is_waiting,
        wish=Top,
        done="{subject} is at the head of the queue",
        done_many="{subject} are at the head of the queue",
        proposal="{title}: to the head of the queue",
        proposal_many="to the head of the queue, in the order they have",
        who=Who.CAPPED,
        capability=Capability.TOP,
        shell="priority ID top",
        shell_help=PRIORITY_HELP,
        shell_done="put at the head of the queue: {}",
    ),
)
"""Verbs about jobs, on every screen with a job."""


class SignalChoice(NamedTuple):
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
    help="Send the running job a signal, such as USR1 for a checkpoint; asks for the signal.",
    needs="a running job that is not suspended",
    may=_is_not_suspended,
    wish=Signal,
    done="{subject} will get the signal",
    capability=Capability.SIGNAL,
    shell="signal ID... SIGNAL",
    shell_help="Send running jobs a signal: USR1, SIGINT, 10. A container's first process gets it, of a host job every "
    "process. For its submitter and operators.",
)
SUSPEND = Verb[Job](
    name="suspend",
    keys=("Z",),
    in_footer=False,
    help="Stop the processes of the running job; it keeps its GPUs, and its time limit continues.",
    needs="a running job that is not suspended",
    may=_is_not_suspended,
    wish=Suspend,
    done="{subject} will be suspended: {unsuspend} lets it continue",
    done_many="{subject} will be suspended: {unsuspend} lets them continue",
    capability=Capability.SUSPEND,
    shell="suspend ID...",
    shell_help="Stop the processes of running jobs until they are unsuspended. They keep their GPUs and memory, and "
    "their time limits continue. For their submitters and operators.",
    shell_done="suspending {}, whose time limit continues",
)
UNSUSPEND = Verb[Job](
    name="unsuspend",
    keys=("Z",),
    in_footer=False,
    help="Continue the suspended job.",
    needs="a suspended job",
    may=lambda job: job.state is JobState.RUNNING and job.suspended,
    wish=Unsuspend,
    done="{subject} continues",
    done_many="{subject} continue",
    capability=Capability.SUSPEND,
    shell="unsuspend ID...",
    shell_help="Continue suspended jobs.",
    shell_done="continuing {}",
)
RUNNING_VERBS: tuple[Verb[Job], ...] = (SIGNAL, SUSPEND, UNSUSPEND)
MOVE = Verb[Job](
    name="move",
    action="move(1)",
    keys=("J",),
    in_footer=False,
    label="move down",
    help="Move the waiting job behind the next one; it takes over that job's priority and rank.",
    group=QUEUE,
    needs="a waiting job of the queue",
    may=lambda job: _is_waiting(job) and not job.cancel_requested,
    wish=PlaceJobs,
    done="{subject} is beside job {neighbour}",
    done_many="{subject} are beside job {neighbour}",
    proposal="{title}: {move}",
    proposal_many="{move}",
    who=Who.OPERATOR,
    capability=Capability.MOVE,
    shell="priority ID VALUE",
    shell_help=PRIORITY_HELP,
)
"""A move past neighbours; moving up has a key of its own."""
GPU_VERBS: tuple[Verb[GpuSubject], ...] = (
    Verb(
        name="drain",
        keys=("d",),
        help="Start no new jobs on the GPU; asks for the reason.",
        group=GPUS,
        needs="the focus on a GPU that is not drained",
        may=lambda gpu: not is_drained(*gpu),
        wish=DrainGpus,
        done="{subject} is drained: no new jobs start there",
        proposal="Drain GPU {title}: no new jobs{note}",
        asks_reason=True,
        who=Who.OPERATOR,
        capability=Capability.DRAIN_NODE,
        shell="drain GPU...",
        shell_help="Start no new jobs on GPUs, named by index, UUID or the beginning of a UUID; in a cluster, "
        "on nodes. Running jobs continue.",
    ),
    Verb(
        name="resume",
        keys=("d",),
        help="Start jobs on the drained GPU again.",
        group=GPUS,
        needs="the focus on a drained GPU",
        may=lambda gpu: is_drained(*gpu) or gpu[0].is_stopped_by_xid,
        wish=ResumeGpus,
        done="{subject} takes jobs again",
        proposal="Resume GPU {title}: jobs may start there again{note}",
        who=Who.OPERATOR,
        capability=Capability.DRAIN_NODE,
        shell="resume GPU...",
        shell_help="Start jobs again on GPUs that were drained, or that were reset after a fatal Xid error; "
        "in a cluster, on nodes.",
    ),
)
SCHEDULER_VERBS: tuple[Verb[Controls], ...] = (
    Verb(
        name="pause",
        keys=("P",),
        help="Start no new jobs; running jobs continue. Asks for the reason.",
        group=SCHEDULER,
        needs="a queue that is not paused",
        may=lambda controls: not controls.paused,
        wish=Pause,
        done="Paused: no new jobs start; running jobs continue",
        asks_reason=True,
        who=Who.OPERATOR,
        capability=Capability.PAUSE,
        shell="pause [REASON]...",
        shell_help="Start no new jobs; running jobs continue. REASON is shown to all users.",
    ),
    Verb(
        name="unpause",
        keys=("P",),
        help="Start jobs again.",
        group=SCHEDULER,
        needs="a paused queue",
        may=lambda controls: controls.paused,
        wish=Unpause,
        done="Jobs start again",
        who=Who.OPERATOR,
        capability=Capability.PAUSE,
        shell="unpause",
        shell_help="Start jobs again after a pause.",
    ),
)
RECURRING_VERBS: tuple[Verb[RecurringJob], ...] = (
    Verb(
        name="pause_recurring",
        keys=("h",),
        label="pause runs",
        help="Submit no more runs of the recurring job.",
        group=QUEUE,
        needs="a recurring job that is not paused, in its tab",
        may=lambda entry: not entry.paused,
        wish=PauseRecurring,
        done="recurring job {subject} is paused: {resume_recurring} resumes it",
        capability=Capability.RECURRING,
        shell="cron pause ID...",
        shell_help="Submit no more runs of recurring jobs until they are resumed.",
    ),
    Verb(
        name="resume_recurring",
        keys=("r",),
        label="resume runs",
        help="Submit runs of the recurring job again.",
        group=QUEUE,
        needs="a paused recurring job, in its tab",
        may=lambda entry: entry.paused,
        wish=ResumeRecurring,
        done="recurring job {subject} runs again at its next time",
        capability=Capability.RECURRING,
        shell="cron resume ID...",
        shell_help="Submit runs of paused recurring jobs again. Runs missed meanwhile are not made up.",
    ),
    Verb(
        name="remove",
        keys=("c",),
        help="End the recurring job or the reservation; asks first.",
        group=QUEUE,
        needs="a recurring job or a reservation, in its tab",
        wish=RemoveRecurring,
        done="recurring job {subject} is removed; its jobs stay",
        question="Remove",
        capability=Capability.RECURRING,
        shell="cron remove ID...",
        shell_help="Delete recurring jobs. Jobs already submitted stay.",
    ),
)
"""Verbs about the rows of the tab of recurring jobs."""
SUBMIT = FormVerb[None](
    name="submit",
    keys=("s",),
    help="Submit a new job with a form.",
    who=Who.CAPPED,
    shell="submit IMAGE COMMAND...",
)
ROW_FORM_VERBS: tuple[FormVerb[Job], ...] = (
    FormVerb(
        name="edit",
        keys=("e",),
        help="Edit the waiting job, or the time limit of the running one.",
        group=QUEUE,
        needs="a waiting or running job of the queue",
        may=lambda job: job.state in {JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING},
        who=Who.CAPPED,
        capability=Capability.EXTEND,
        shell="edit ID",
    ),
    FormVerb(
        name="clone",
        keys=("C",),
        in_footer=False,
        help="Submit another job like this one, after a review.",
        group=QUEUE,
        needs="a job",
        who=Who.CAPPED,
        shell="submit IMAGE COMMAND...",
    ),
    FormVerb(
        name="recur",
        keys=("E",),
        in_footer=False,
        label="again",
        help="Submit a job like this one at regular times; asks when.",
        group=QUEUE,
        needs="a job of the queue",
        who=Who.CAPPED,
        capability=Capability.RECURRING,
        shell="cron add EXPRESSION IMAGE COMMAND...",
    ),
)
"""Verbs about a row of the queue that open a form."""
RESERVE = FormVerb[None](
    name="reserve",
    keys=("B",),
    in_footer=False,
    help="Reserve GPUs for a time; shows first which jobs that delays.",
    group=GPUS,
    who=Who.OPERATOR,
    capability=Capability.RESERVE,
    shell="reserve add",
)
VERBS: tuple[Verb[Any], ...] = (*JOB_VERBS, *RUNNING_VERBS, MOVE, *GPU_VERBS, *SCHEDULER_VERBS, *RECURRING_VERBS)
BY_NAME: dict[str, Verb[Any]] = {verb.name: verb for verb in VERBS}
JOB_VERB: dict[str, Verb[Job]] = {verb.name: verb for verb in (*JOB_VERBS, MOVE)}
_OF_WISH = {verb.wish: verb for verb in VERBS}


def verb_of(action: Action) -> Verb[Any]:
    if isinstance(action, SetPriority):
        return BY_NAME["lower" if action.value < 0 else "raise"]
    return _OF_WISH[type(action)]


class Meaning(NamedTuple):
    """Words of one meaning, with what gputui has for it."""

    words: str
    """Separated by commas, from Slurm, PBS, Docker, htop and everyday language."""
    console: str = ""
    """Names of commands of the console, separated by commas."""
    shell: str = ""
    """Command of the shell, after `gputui`."""
    hint: str = ""
    """Sentence in place of a command of the shell, if there is none."""

    @property
    def names(self) -> list[str]:
        """All words of this meaning, in lower case, with the names of gputui's commands."""
        return [*filter(None, [*self.words.lower().split(", "), *self.console.split(", "), self.shell])]


MEANINGS = (
    Meaning("srun, salloc, start, launch, execute", shell="run"),
    Meaning("sbatch, qsub, bsub, add, new, create, run, start, launch, enqueue, queue up, srun", "submit", "submit"),
    Meaning("duplicate, copy job, resubmit, submit again", "clone", "submit"),
    Meaning("squeue, qstat, bjobs, jobs, ls, list, status, stat, state, waiting, pending", "tab_queue", "queue"),
    Meaning("why, when, forecast, reason", shell="explain"),
    Meaning("show, inspect, info, describe, env, environment, why, explain, scontrol, get, cat", "detail", "show"),
    Meaning("log, logs, tail, output, follow, stdout, stderr, watch, docker logs, cat", "follow", "logs"),
    Meaning("sattach, connect, reattach, foreground, fg", shell="attach"),
    Meaning("exec, shell, bash, sh, ssh, attach, enter, terminal, console, docker exec", "shell", "exec"),
    Meaning(
        "kill, scancel, qdel, bkill, stop, end, delete, del, remove, rm, terminate, abort, interrupt, signal",
        "cancel",
        "cancel",
    ),
    Meaning("qhold, defer, postpone, block, suspend, stash", "hold", "hold"),
    Meaning("qrls, unhold, unblock, unstash", "release", "release"),
    Meaning("rerun, restart, retry, repeat, redo, run again, resubmit, qrerun", "requeue", "requeue"),
    Meaning("increase, boost, priority, priority up, urgent, nice, renice, prio", "raise", "priority"),
    Meaning("decrease, reduce, priority down, nice, renice", "lower", "priority"),
    Meaning("first, front, head of queue, next, urgent", "top", "priority"),
    Meaning("reorder, rearrange, down, move, switch, swap", "move", "priority"),
    Meaning("extend, extension, time limit, timelimit, longer, shorten, deadline", "edit", "edit ID --time-limit +2h"),
    Meaning("modify, change, update, alter, qalter, scontrol, set, rename", "edit", "edit"),
    Meaning("freeze, stop, sigstop, docker pause, scontrol suspend, ctrl-z", "suspend", "suspend"),
    Meaning("continue, resume job, wake, thaw, sigcont, docker unpause, scontrol resume, fg", "unsuspend", "unsuspend"),
    Meaning("send, kill -USR1, interrupt, sigusr1, sigint, checkpoint, scancel --signal", "signal", "signal"),
    Meaning("gpu, gpus, nvidia-smi, smi, nvitop, nvtop, gpustat, sinfo, devices, metrics, graph", "gpu", "gpus"),
    Meaning("ps, top, htop, pids, process, tree, docker top", "processes"),
    Meaning("ps, processes, users, who, nvidia-smi pmon, foreign", "gpu_processes", "ps"),
    Meaning("disable, maintenance, offline, cordon", "drain", "drain"),
    Meaning("undrain, enable, online, uncordon", "resume", "resume"),
    Meaning("stop, suspend, freeze, halt", "pause", "pause"),
    Meaning("continue, resume scheduler, start, unfreeze, unhalt", "unpause", "unpause"),
    Meaning("reservation, book, block, allocate, salloc", "reserve", "reserve"),
    Meaning("reservations, bookings", "tab_reservations", "reserve list"),
    Meaning("share, shares, quota, quotas, fairshare, group, account, sacctmgr, limits", shell="tenant"),
    Meaning("cron, crontab, repeat, periodic, every day, schedule", "recur", "cron add"),
    Meaning("cron, crontab", "tab_recurring", "cron list"),
    Meaning("stop, suspend", "pause_recurring", "cron pause"),
    Meaning("continue, start", "resume_recurring", "cron resume"),
    Meaning("delete, rm, unreserve, drop, del", "remove", "cron remove"),
    Meaning("history, sacct, past, ended, done, completed, finished", "tab_finished", "history"),
    Meaning("done, completed, past", "finished"),
    Meaning("acknowledge, ack, failed, failures", "failures_seen"),
    Meaning("sreport, usage, accounting, statistics, stats, cost, bill", shell="report"),
    Meaning("simulate, simulation, benchmark, compare", shell="replay"),
    Meaning("daemon, server, scheduler, serve", shell="serve"),
    Meaning("service, systemd, setup, enable", shell="install"),
    Meaning("check, diagnose, health, test, verify", shell="doctor"),
    Meaning("backup", shell="state backup"),
    Meaning("restore", shell="state restore"),
    Meaning("repair, fix", shell="state repair"),
    Meaning("completion", shell="completions"),
    Meaning("browser, http, url", shell="web"),
    Meaning("dashboard, dashboards, grafana, prometheus, alerts", shell="metrics"),
    Meaning("try, simulator, example", shell="demo"),
    Meaning(
        "config, configure, configuration, settings, setting, preferences, options",
        "themes, columns, gpu_view, gpu_colours",
        hint="settings are in /etc/gputui/config.toml and ~/.config/gputui/config.toml; docs/cli.md lists them",
    ),
    Meaning("exit, close, bye, logout, quit", "quit", hint="q leaves the console; gputui --help lists the commands"),
    Meaning("keys, bindings, shortcuts, manual, man, F1, usage, help", "help", "--help"),
    Meaning("version, about", hint="gputui --version prints it"),
    Meaning("yank, clipboard", "copy"),
    Meaning("yank, clipboard", "copy_lines"),
    Meaning("gantt, schedule, calendar, plan, forecast, when", "timeline"),
    Meaning("revert, take back, mistake", "undo"),
    Meaning("errors, warnings, alerts, messages, events, problems", "notices"),
    Meaning("idle, forgotten, unused, go to, jump, problem", "alarm"),
    Meaning("history, zoom, minutes, hour, scale", "graph_span"),
    Meaning("heat, red, green, palette, intensity, nvitop, idle", "gpu_colours"),
    Meaning("color, colour, colors, colours, appearance, dark, light, skin", "themes"),
    Meaning("tag, select", "mark"),
    Meaning("tag all, select all", "mark_all"),
    Meaning("search, find, grep, user, only", "filter"),
    Meaning("order by, idle, nodes", "sort"),
    Meaning("fields, setup, format, display", "columns"),
    Meaning("expand, collapse, tree", "fold"),
    Meaning("maximize, full screen, fullscreen", "zoom"),
    Meaning("layout, compact, rows, cards", "gpu_view"),
    Meaning("find, grep", "log_search"),
    Meaning("line wrap, long lines", "log_wrap"),
    Meaning("time, timestamps, date", "log_times"),
    Meaning("download, export, write log", "save_log"),
)
"""Table of meanings; of several for a word, the likelier ones first."""


@cache
def words_of(name: str) -> tuple[str, ...]:
    found = (meaning.words for meaning in MEANINGS if name in meaning.console.split(", "))
    return tuple(word for words in found for word in words.split(", "))


def suggestion(typed: str, commands: Collection[str]) -> str:
    known = {word for meaning in MEANINGS for word in meaning.names}
    for word in _readings(typed.lower(), {*known, *commands}):
        meant = [meaning for meaning in MEANINGS if word in meaning.names]
        found = [word] if word in commands else []
        for meaning in meant if not found else ():  # those of a group are found by their own names
            is_command = meaning.shell.partition(" ")[0] in commands or meaning.shell == "--help"
            found += [meaning.shell] if is_command else [name for name in meaning.names if name in commands]
        if found:
            return f"did you mean {' or '.join(list(dict.fromkeys(found))[:3])}?"
        if hint := next((meaning.hint for meaning in meant if meaning.hint), ""):
            return hint
    return ""


def _readings(typed: str, known: Collection[str]) -> Iterator[str]:
    import difflib  # rarely needed

    if typed in known:
        yield typed
        return
    yield from (part for part in re.split(r"[-_ ]", typed) if part in known)
    if len(typed) >= 3:
        yield from sorted((word for word in known if word.startswith(typed)), key=lambda word: (len(word), word))
    yield from difflib.get_close_matches(typed, sorted(known), 3, 0.75)
