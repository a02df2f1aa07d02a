"""What Slurm lists: jobs and nodes by `squeue` and `scontrol`, their states and reasons in our words, ends by `sacct`.

Names, comments and commands are whatever their users wrote, also `|` and line ends. So a number that nobody can guess
begins each record of squeue and each of these texts, which come last.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.slurm import commands
from gputui.cluster.slurm.batch_script import COMMENT
from gputui.cluster.slurm.commands import SlurmCommands, mark_of, words
from gputui.domain.cluster import element_id
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import Cause, CauseCode, ClusterRefusedError, cause_of_exit, signal_name
from gputui.domain.job_spec import JobId
from gputui.domain.runs import merged, runs_of
from gputui.domain.state import JobState, PendingReason, Reason, utc_moment

_WORDS = {
    JobState.PENDING: "PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT EXPEDITING",
    JobState.CONFIGURING: "CONFIGURING POWER_UP_NODE",
    JobState.RUNNING: "RUNNING RESIZING SIGNALING SUSPENDED STOPPED UPDATE_DB",
    JobState.COMPLETING: "COMPLETING STAGE_OUT",
    JobState.COMPLETED: "COMPLETED",
    JobState.CANCELLED: "CANCELLED REVOKED PREEMPTED",
    JobState.TIMEOUT: "TIMEOUT DEADLINE",
    JobState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    JobState.FAILED: "FAILED NODE_FAIL BOOT_FAIL LAUNCH_FAILED RECONFIG_FAIL END_UNKNOWN",
}
"""Slurm's words for each state."""
_STATES = {word: state for state, words in _WORDS.items() for word in words.split()}
END_UNKNOWN = "END_UNKNOWN"
"""Our own word for the state of a job that ended while nobody looked, and whose exit code nobody noted."""
_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
_PLAIN_CAUSES: Mapping[str, tuple[CauseCode, str]] = {
    "CANCELLED": (CauseCode.CANCELLED, "cancelled"),
    "REVOKED": (CauseCode.CANCELLED, "started in another cluster"),
    "PREEMPTED": (CauseCode.PREEMPTED, "preempted by Slurm for another job"),
    "DEADLINE": (CauseCode.TIME_LIMIT, "its deadline has passed"),
    "NODE_FAIL": (CauseCode.CONTAINER_LOST, "{node} was lost"),
    "BOOT_FAIL": (CauseCode.RUNTIME_UNAVAILABLE, "{node} did not start"),
    "LAUNCH_FAILED": (CauseCode.RUNTIME_ERROR, "could not be started on {node}"),
    "RECONFIG_FAIL": (CauseCode.RUNTIME_UNAVAILABLE, "{node} could not be configured"),
}
_UNSATISFIED = "DependencyNeverSatisfied"
_NO_OUTPUT = 53
"""Signal that Slurm names for a batch script whose output file it cannot open."""
_LAST_SIGNAL = 64
_WITHOUT_CODE = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_R = PendingReason
_REASONS: Mapping[str, tuple[PendingReason, str]] = {
    "Resources": (_R.RESOURCES, "waits for resources"),
    "Priority": (_R.PRIORITY, "jobs before it wait too"),
    "None": (_R.PRIORITY, "Slurm has not looked at it yet"),
    "Dependency": (_R.DEPENDENCY, "waits for other jobs"),
    "DependencyNeverSatisfied": (_R.DEPENDENCY, "waits for ever: a job that it depends on failed"),
    "BeginTime": (_R.BEGIN_TIME, "waits for its begin time"),
    "JobHeldUser": (_R.JOB_HELD_USER, "held by its user"),
    "JobHeldAdmin": (_R.JOB_HELD_USER, "held by an administrator"),
    "JobHoldMaxRequeue": (_R.JOB_HELD_USER, "held: it was requeued too often"),
    "job_requeued_in_held_state": (_R.JOB_HELD_USER, "held: it was requeued so"),
    "launch_failed_requeued_held": (_R.JOB_HELD_USER, "held: its start failed on the node"),
    "Reservation": (_R.RESERVATION, "waits for its reservation"),
    "ReservationDeleted": (_R.RESERVATION, "its reservation was deleted"),
    "JobArrayTaskLimit": (_R.RESOURCES, "as many elements of its array run as may at a time"),
    "Licenses": (_R.RESOURCES, "waits for licences"),
    "NodeDown": (_R.NODE_UNKNOWN, "a node that it needs is down"),
    "PartitionDown": (_R.SCHEDULER_PAUSED, "its partition starts no jobs: it is down"),
    "PartitionInactive": (_R.SCHEDULER_PAUSED, "its partition starts no jobs: it is inactive"),
    "PartitionNodeLimit": (_R.QUOTA_EXCEEDED, "asks for more nodes than its partition gives a job"),
    "PartitionTimeLimit": (_R.QUOTA_EXCEEDED, "its time limit is longer than its partition allows"),
    "InactiveLimit": (_R.QUOTA_EXCEEDED, "reached the partition's limit of inactive time"),
    "BadConstraints": (_R.RESOURCES, "no node has what it asks for"),
    "InvalidAccount": (_R.QUOTA_EXCEEDED, "its account is not valid"),
    "InvalidQOS": (_R.QUOTA_EXCEEDED, "its QOS is not valid"),
    "AccountingPolicy": (_R.QUOTA_EXCEEDED, "over a limit of its account"),
    "Cleaning": (_R.BACK_OFF, "its previous run is being cleaned up"),
    "Prolog": (_R.RESOURCES, "the prolog runs on its nodes"),
    "FrontEndDown": (_R.NODE_UNKNOWN, "no front end is up"),
    "SchedDefer": (_R.PRIORITY, "Slurm starts jobs at its next pass only"),
    "DeadLine": (_R.BEGIN_TIME, "cannot end before its deadline"),
    "BurstBufferResources": (_R.RESOURCES, "waits for burst buffers"),
    "BurstBufferStageIn": (_R.RESOURCES, "its data is being copied in"),
    "MaxJobCount": (_R.QUOTA_EXCEEDED, "Slurm has as many jobs as it takes"),
    "OutOfMemory": (_R.RESOURCES, "its last run ran out of memory"),
}
_LIMITED = (
    ("Minutes", ": time on GPUs, CPUs and the like"),
    ("Usage", ": use so far"),
    ("Submit", ": jobs in the queue"),
    ("Jobs", ": running jobs"),
    ("GRES", ": GPUs or other devices"),
    ("Cpu", ": CPUs"),
    ("Mem", ": memory"),
    ("Node", ": nodes"),
    ("Wall", ": run time"),
    ("Time", ": run time"),
    ("JobLimit", ": running jobs"),
)
"""Parts of Slurm's words for limits of accounts and QOS, in the order of search, and what is limited."""
_UNAVAILABLE = "ReqNodeNotAvail"


@lru_cache(maxsize=1024)
def state_of(word: str) -> JobState:
    """Return our state for Slurm's, `CANCELLED by 1000` included; a state of a later Slurm counts as running."""
    return _STATES.get(word.split(" ")[0].rstrip("+"), JobState.RUNNING)


def cause_of(
    word: str,
    exit_code: int | None,
    signal: int | None,
    *,
    nodes: tuple[str, ...] = (),
    limit: timedelta | None = None,
    reason: str = "",
    told: str = "",
) -> Cause | None:
    """Return why a job ended in a state of Slurm's; None if it succeeded or has not ended.

    `told` is what the batch script knew better: the code of a cause, a blank and a sentence.
    """
    state, where = word.split(" ")[0].rstrip("+"), ", ".join(nodes)
    if state == "TIMEOUT":
        return Cause(CauseCode.TIME_LIMIT, f"ran into its time limit{f' of {limit}' if limit else ''} (TIMEOUT)")
    if state == "OUT_OF_MEMORY":
        return Cause(CauseCode.OUT_OF_MEMORY, "ran over its memory limit (OUT_OF_MEMORY)")
    if state == "CANCELLED" and reason == _UNSATISFIED:
        return Cause(CauseCode.CANCELLED, f"cancelled by Slurm: a job that it depends on failed ({reason})")
    if state in _PLAIN_CAUSES:
        code, text = _PLAIN_CAUSES[state]
        return Cause(code, f"{text.format(node=f'node {where}' if where else 'a node')} ({state})")
    if state_of(word) is not JobState.FAILED:
        return None
    code_told, _, sentence = told.partition(" ")
    with suppress(ValueError):
        return Cause(CauseCode(code_told), sentence)
    if not nodes:
        return Cause(CauseCode.RUNTIME_ERROR, f"Slurm could not start it ({reason or state})")
    if signal == _NO_OUTPUT:
        return Cause(
            CauseCode.RUNTIME_ERROR, f"could not be started on node {where}: its output cannot be written there"
        )
    if signal and not exit_code:
        return Cause(CauseCode.SIGNALLED, f"ended by {signal_name(signal)}")
    return cause_of_exit(exit_code) if exit_code else Cause(CauseCode.NON_ZERO_EXIT, "failed (FAILED)")


def exit_code_of(word: str, exit_code: int | None, signal: int | None) -> int | None:
    """Return one number for exit code and signal, as shells do: 137 for SIGKILL.

    None where Slurm has the 0 of a job that did not come to its end, or a 1 of its own: a lost or cancelled one has no
    exit code.
    """
    if word in _WITHOUT_CODE or signal == _NO_OUTPUT:
        return None
    if exit_code:
        return exit_code
    if signal and signal <= _LAST_SIGNAL:  # 125 stands for memory that ran out
        return 128 + signal
    return exit_code if state_of(word) is JobState.COMPLETED else None


def is_held(state: str, reason: str) -> bool:
    return state in _HELD or (reason in _REASONS and _REASONS[reason][0] is _R.JOB_HELD_USER)


def reason_of(word: str, dependency: str, begins_at: datetime | None, now: datetime) -> Reason:
    """Return the reason for a word of Slurm's, with its dependencies or its begin time."""
    if begins_at is not None and word.split(",")[0].strip() == "BeginTime":
        return Reason(_R.BEGIN_TIME, f"begins at {utc_moment(begins_at, now)} (BeginTime)", (begins_at,))
    return _timeless(word, dependency)


@lru_cache(maxsize=1024)  # thousands of jobs wait for one reason
def _timeless(word: str, dependency: str) -> Reason:
    head = word.split(",")[0].strip()
    if head.startswith(_UNAVAILABLE):
        nodes = word.partition("UnavailableNodes:")[2].strip()
        which = f": {nodes}" if nodes else ""
        return Reason(_R.NODE_UNKNOWN, f"nodes that it needs are down, drained or reserved{which} ({_UNAVAILABLE})")
    code, text = _REASONS.get(head) or _guessed(head)
    if code is _R.DEPENDENCY and dependency:
        text += f": {dependency}"
    return Reason(code, f"{text} ({head})")


def _guessed(word: str) -> tuple[PendingReason, str]:
    """Return the kind of one of Slurm's many limits: `QOSMaxGRESPerUser`, `AssocGrpCpuLimit`."""
    who = "its QOS" if word.startswith("QOS") else "its account"
    if word.endswith("NotAllowed"):
        return _R.QUOTA_EXCEEDED, f"its partition does not take {who}"
    if word.startswith(("QOS", "Assoc", "Max", "Grp")) or word.endswith("Limit"):
        what = next((what for part, what in _LIMITED if part in word), "")
        return _R.QUOTA_EXCEEDED, f"over a limit of {who}{what}"
    if "Resv" in word or word.startswith("Reservation"):
        return _R.RESERVATION, "a reservation stands in its way"
    if "Held" in word or "Hold" in word or "held" in word:
        return _R.JOB_HELD_USER, "held"
    if "Node" in word or "Down" in word:
        return _R.NODE_UNKNOWN, "nodes that it needs are not there"
    return _R.RESOURCES, "waits"


_PLAIN, _FREE = "%A|%F|%K|%T|%r|%V|%S|%e|%l|%y|%Q|%u|%a|%P|%N|%D|%b|%E", ("%j", "%k", "%o")
"""Format of squeue for the fields of `JobRow`, in their order: its own words, and the texts of users."""
_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_BEGIN = r"^JobId={} (?:(?:Array|Het)\w+=\S+ )*JobName={} (?:(?:HetJobIdSet|SLUID)=\S+ )*(?=UserId=)"
_REQUESTS = ("AllocTRES", "TresPerJob", "TresPerNode", "TresPerTask", "ReqTRES", "TRES")
_RECORD = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_REASON = re.compile(r"\sReason=(.*?)\s\[([^\s\[\]@]+)@(\d+|Unknown)\]", re.DOTALL)


class JobRow(Struct, frozen=True):
    """A job, or the waiting elements of an array, as squeue lists it; its words, unread."""

    number: str
    """Slurm's own number, which elements of arrays have too."""
    array: str
    index: str
    """Index of an element, list of indices of waiting ones, or `N/A`."""
    state: str
    reason: str = "None"
    submitted: str = ""
    started: str = ""
    """Start, or expected start."""
    ended: str = ""
    """End, or end of the time limit."""
    limit: str = ""
    nice: str = "0"
    priority: str = "0"
    user: str = ""
    account: str = ""
    partition: str = ""
    nodes: str = ""
    node_count: str = "1"
    gres: str = ""
    dependency: str = ""
    name: str = ""
    comment: str = ""
    command: str = ""

    @property
    def job_id(self) -> JobId:
        """Id of the job, or of the first of the elements."""
        if self.index in commands.NOTHING:
            return int(self.number)
        return element_id(int(self.array), self.indices[0])

    @property
    def indices(self) -> list[int]:
        if self.index in commands.NOTHING:
            return []
        return commands.numbers(self.index.partition("%")[0].strip("[]"))

    @property
    def owner(self) -> int:
        """Number of the job, or of the array that it belongs to: what sbatch printed."""
        return int(self.array if self.index not in commands.NOTHING else self.number)

    @property
    def array_limit(self) -> int | None:
        """Number of elements that may run at a time; None: no limit."""
        limit = self.index.partition("%")[2]
        return int(limit) if limit.isdigit() else None

    @property
    def run_key(self) -> str:
        """Key of this run: another after a requeue."""
        return f"{self.number}@{'' if self.life is JobState.PENDING else self.started}"

    @property
    def end_key(self) -> str:
        return f"{self.run_key} {self.ended}"

    @property
    def life(self) -> JobState:
        return state_of(self.state)


def squeue_arguments(mark: str) -> list[str]:
    """Return the options of squeue for all jobs, with `mark` before each record and each free text."""
    return ["--noheader", "--all", "--states=all", "--format", mark + mark.join((_PLAIN, *_FREE))]


def is_mixed(row: JobRow) -> bool:
    return len(row.indices) > 1 and "," in row.reason and not row.reason.startswith("ReqNodeNotAvail")


def regrouped(elements: Iterable[JobRow], limit: int | None) -> list[JobRow]:
    groups: dict[JobRow, list[int]] = {}
    for row in elements:
        groups.setdefault(replace(row, number=row.array, index="", started=""), []).extend(row.indices)
    most = f"%{limit}" if limit else ""
    firsts = {indices[0]: (row, indices) for row, indices in groups.items() if indices}
    return [
        replace(row, index=",".join(map(str, merged(runs_of(0, sorted(indices))))) + most, started="N/A")
        for _, (row, indices) in sorted(firsts.items())
    ]


def parse_jobs(output: str, mark: str) -> list[JobRow]:
    """Return the jobs in the output of squeue; a record that cannot be read is left out."""
    rows: list[JobRow] = []
    pieces = output.split(mark)[1:]
    step = 1 + len(_FREE)
    for start in range(0, len(pieces) - step + 1, step):
        plain = pieces[start].split("|")
        if len(plain) != 1 + _PLAIN.count("|"):
            continue
        free = pieces[start + 1 : start + step]
        free[-1] = free[-1].removesuffix("\n")
        row = JobRow(*plain, *free)
        with contextlib.suppress(ValueError, IndexError):
            rows += [row] if row.job_id > 0 else []
    return rows


class JobDetail(Struct, frozen=True):
    run_key: str
    state: str
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    gpus: tuple[tuple[str, int], ...] = ()
    """Nodes and indices of its GPUs; empty before the start and after the end."""
    nodes: tuple[str, ...] = ()
    requested: int | None = None
    """Number of GPUs that it asks for; None: it is not known."""
    output: str = ""
    """Path of its standard output, as Slurm tells it."""
    share: float = 1.0
    """Share of its GPUs, where Slurm divides them into shards or by MPS."""
    told: str = ""
    """Why it failed, as its batch script knew: the code of a cause, a blank and a sentence."""
    alive: int = 0
    """Second since 1970 at which it had not ended, if nobody knows when it did."""


class Ended(Struct, frozen=True):
    """A run of a job that has ended, as far as it is known; one that has not ended yet was cancelled or requeued."""

    row: JobRow
    detail: JobDetail
    cancelled_at: str = ""
    """Second since 1970 at which it was cancelled from here."""


def parse_detail(text: str, row: JobRow) -> JobDetail | None:
    """Return the details in the answer to `scontrol -d -o show job`, of the job that squeue listed as `row`.

    For the first element of an array the answer has records of all. The job's name may hold anything, so it is cut off
    first; texts that follow the fields read here cannot change them.
    """
    begin = re.search(_BEGIN.format(row.number, re.escape(row.name)), text, re.MULTILINE)
    if begin is None:
        return None
    fields = text[begin.end() - 1 :].partition("\nJobId=")[0]
    head = fields.partition(" Command=")[0]
    if not (state := _value(head, "JobState")):
        return None
    code, _, signal = _value(head, "ExitCode").partition(":")
    gpus, shares = list[tuple[str, int]](), list[float]()
    for match in _NODES.finditer(head):
        shared = commands.shared_gpus(match[2])
        places = [index for _, _, indices in commands.gpu_lists(match[2]) for index in indices]
        places += [index for index in shared if index not in places]
        gpus += [(node, index) for node in commands.hosts(match[1]) for index in places]
        shares += [math.inf] if commands.gpu_count(match[2]) else shared.values()
    return JobDetail(
        run_key=row.run_key,
        state=state,
        exit_code=int(code) if code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else None,
        restarts=int(restarts) if (restarts := _value(head, "Restarts")).isdigit() else 0,
        gpus=tuple(gpus),
        share=min(1.0, sum(shares) / len(shares)) if shares else 1.0,  # 1 with any whole one
        nodes=commands.hosts(_value(head, "NodeList")),
        requested=_requested(fields, head, row),
        output=_last(fields, "StdOut"),
    )


def _value(text: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return match[1] if match else ""


def _last(text: str, name: str) -> str:
    """Return the last value of that name, which may have blanks: later ones are Slurm's, earlier ones a comment's."""
    found = text.rpartition(f" {name}=")[2] if f" {name}=" in text else ""
    return commands.some(re.split(r"\s+[A-Z]\w*=", found, maxsplit=1)[0].strip())


def _requested(fields: str, head: str, row: JobRow) -> int | None:
    """Return the number of GPUs in the first of Slurm's fields that names any."""
    nodes = int(row.node_count) if row.node_count.isdigit() else 1
    for name in _REQUESTS:
        value = _value(head, name) or _last(fields, name)
        if count := commands.gpu_count(value):
            tasks = _value(head, "NumTasks")
            return count * {"TresPerNode": nodes, "TresPerTask": int(tasks) if tasks.isdigit() else 1}.get(name, 1)
    return 0


class NodeRow(Struct, frozen=True):
    name: str
    states: tuple[str, ...]
    """State and flags, without `*` and the like: `IDLE`, `DRAIN`."""
    gpus: tuple[str, ...] = ()
    """Models of its GPUs by index; empty words where Slurm knows none."""
    used: tuple[int, ...] = ()
    """Indices of the allocated ones, also of those that jobs share by shards or MPS."""
    used_count: int = 0
    """Number of the allocated ones, also where Slurm does not tell which."""
    reason: str = ""
    reason_by: str = ""
    reason_at: int | None = None
    """Reason of its state by an administrator or Slurm, with the second since 1970."""


def parse_nodes(output: str) -> list[NodeRow]:
    """Return the nodes in the output of `scontrol -d -o show nodes`."""
    return [row for record in _RECORD.split(output) if (row := _row(record)) is not None]


def _row(record: str) -> NodeRow | None:
    head, _, _ = record.partition(" Reason=")
    name, state = _value(head, "NodeName"), _value(head, "State")
    if not name or not state:
        return None
    models = [model for model, count, _ in commands.gpu_lists(_value(head, "Gres")) for _ in range(min(count, 1024))]
    used = commands.gpu_lists(_value(head, "GresUsed"))
    whole = [index for _, _, indices in used for index in indices]
    shared = [index for index in commands.shared_gpus(_value(head, "GresUsed")) if index not in whole]
    has_used = "GresUsed=" in head
    reason = _REASON.search(record)
    return NodeRow(
        name,
        tuple(flag.strip("*~#!%$@^-") for flag in state.split("+")) + (("NOT_RESPONDING",) if "*" in state else ()),
        tuple(models),
        tuple(index for index in (*whole, *shared) if index < len(models)),
        sum(count for _, count, _ in used) + len(shared) if has_used else 0,
        " ".join(reason[1].split()) if reason else "",
        reason[2] if reason else "",
        int(reason[3]) if reason and reason[3].isdigit() else None,
    )


_FIELDS = (
    *("JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "User", "Account", "Partition"),
    *("NodeList", "NNodes", "ReqTRES", "AllocTRES", "Timelimit", "Comment", "JobName"),
)
_ENDED = ("BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO")
"""States asked for: without any, sacct leaves out jobs that were cancelled while they were held."""
_RANGES = tuple(map(timedelta, (366, 31, 7, 1)))
"""Days back for which all jobs are asked, until slurmdbd's MaxQueryTimeRange allows it: some sites have millions."""
_TOO_WIDE = "date range"


class _Number(Struct, frozen=True):
    number: int = 0


class _ExitCode(Struct, frozen=True):
    return_code: int | _Number = 0

    @property
    def code(self) -> int:
        """Number, which an object holds from Slurm 23.02 on."""
        return self.return_code if isinstance(self.return_code, int) else self.return_code.number


class _Job(Struct, frozen=True):
    job_id: int
    exit_code: _ExitCode = _ExitCode()


class _Jobs(Struct, frozen=True):
    jobs: tuple[_Job, ...] = ()


_JOBS = json_decoder(_Jobs)


def ended_jobs(commands: SlurmCommands, since: datetime | None, jobs: tuple[str, ...] = ()) -> Iterator[Ended]:
    """Yield jobs that ended, all users' as far as Slurm shows them; without `since`, those of a year at most."""
    mark, now = mark_of(), datetime.now(UTC)
    shape = ["--noheader", "--allocations", "--parsable", f"--delimiter={mark}", f"--format={','.join(_FIELDS)}"]
    for start in [since] if since or jobs else [now - each for each in _RANGES]:
        begin = [f"--starttime={start:%Y-%m-%dT%H:%M:%S}"] if start else []
        ended = [*begin, "--endtime=now", f"--state={','.join(_ENDED)}", "--allusers"]
        chosen = [f"--jobs={','.join(jobs)}"] if jobs else ended
        told = commands.run("sacct", *shape, *chosen)
        if _TOO_WIDE not in told.err:
            break
    if _TOO_WIDE in told.err:
        raise ClusterRefusedError(told.words, where="sacct", hint="slurmdbd has a MaxQueryTimeRange: --since -7d")
    if told.code:
        raise ClusterRefusedError(told.words, where="sacct")
    yield from parse_accounts(told.out, mark)


def ended_job(commands: SlurmCommands, job_id: JobId) -> Ended | None:
    """Return a job that ended, or an element of an array, with its whole exit code; None if accounts do not have it."""
    every = ended_jobs(commands, None, (words(job_id),))
    found = next((each for each in every if job_id in (each.row.job_id, each.row.owner)), None)
    if found is None or found.row.life is JobState.COMPLETED:
        return found
    # sacct of 24.11 takes 128 from codes that are not less, except in JSON
    told = commands.run("sacct", "--allocations", "--json", f"--jobs={found.row.number}")
    try:
        codes = [job.exit_code.code for job in _JOBS.decode(told.out).jobs if str(job.job_id) == found.row.number]
    except msgspec.MsgspecError:
        return found  # Slurm was built without JSON
    code = next((code for code in codes if code), found.detail.exit_code)
    return replace(found, detail=replace(found.detail, exit_code=code))


def parse_accounts(output: str, mark: str) -> Iterator[Ended]:
    """Yield the jobs in the output of sacct that have ended; a record that cannot be read is left out."""
    fields = output.split(mark)
    for start in range(0, len(fields) - len(_FIELDS), len(_FIELDS)):
        values = dict(zip(_FIELDS, fields[start : start + len(_FIELDS)], strict=True))
        values["JobIDRaw"] = values["JobIDRaw"].removeprefix("\n")
        try:
            array, underscore, index = values["JobID"].partition("_")
            code, _, signal = values["ExitCode"].partition(":")
            row = JobRow(
                number=values["JobIDRaw"],
                array=array,
                index=index if underscore else "N/A",
                state=values["State"].split(" ")[0],
                submitted=values["Submit"],
                started=values["Start"],
                ended=values["End"],
                limit=values["Timelimit"],
                user=values["User"],
                account=values["Account"],
                partition=values["Partition"],
                nodes=values["NodeList"] if values["NodeList"] != "None assigned" else "",
                node_count=values["NNodes"],
                name=values["JobName"],
                comment=values["Comment"] if values["Comment"].startswith(COMMENT) else "",
            )
            detail = JobDetail(
                row.run_key,
                row.state,
                int(code) if code.isdigit() else None,
                int(signal) if signal.isdigit() else None,
                nodes=commands.hosts(row.nodes),
                requested=commands.gpu_count(values["AllocTRES"] or values["ReqTRES"]),
            )
            found = Ended(row, detail)
            if found.row.life.is_terminal and found.row.job_id > 0:
                yield found
        except (ValueError, IndexError):
            continue
