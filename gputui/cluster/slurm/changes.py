"""Changes of jobs and nodes by `scancel` and `scontrol`. Refusals have Slurm's own words, ours in front."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.shared import ChangeResults
from gputui.cluster.slurm import commands, listings
from gputui.cluster.slurm.batch_script import clock, nice_of
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.cluster.slurm.listings import Ended, JobDetail, JobRow
from gputui.cluster.slurm.poll import Poll, Suspension
from gputui.domain.action import (
    Cancel,
    DrainGpus,
    EditJobs,
    Hold,
    JobAction,
    Release,
    Requeue,
    ResumeGpus,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.job_spec import NORMAL_PRIORITY, JobId
from gputui.domain.state import JobState
from gputui.ports.cluster import EngineAction

_TOGETHER = 100
"""Number of jobs named in one command."""
_DENIED = ("denied", "Invalid user")
_WOULD_START = "it is held, and this Slurm would let it start"
_OF_JOB = r"(?:Kill job error on job id \S+: | for job [\d_]\S*?(?=;|$))"
_PAUSE, _CONTINUE = 20, 28
"""SIGTSTP and SIGWINCH, on which the batch script pauses its container, and continues a paused one."""
_ORDERS: Mapping[type[JobAction], str] = {
    Hold: "uhold",  # so that their users may release them
    Release: "release",
    Requeue: "requeue",
    Top: "top",
    Suspend: "suspend",
    Unsuspend: "resume",
}
"""Commands of scontrol that take a list of jobs."""
_DONE: Mapping[type[JobAction], str] = {
    Hold: "held",
    Release: "released",
    Cancel: "cancelled",
    Requeue: "requeued",
    Signal: "signalled",
    Suspend: "suspended",
    Unsuspend: "continued",
    SetPriority: "given that priority",
    Top: "put first",
    EditJobs: "given that time limit",
}
"""What is done to the jobs."""
_ONCE = (Requeue, Signal, Suspend, Unsuspend)
"""Actions that no job must get twice."""
_Orders = Callable[[Sequence[str]], list[tuple[str, ...]]]


def needed(action: EngineAction) -> Capability | None:
    if isinstance(action, SetPriority) and action.value > NORMAL_PRIORITY:
        return Capability.RAISE_PRIORITY  # above that of a job submitted without one
    if isinstance(action, DrainGpus | ResumeGpus):
        return Capability.DRAIN_NODE
    return Capability.TOP if isinstance(action, Top) else None


def fits(action: JobAction, row: JobRow) -> bool:
    match action:
        case Hold() | Release() | SetPriority() | Top():
            return row.life is JobState.PENDING
        case Cancel() | EditJobs():
            return not row.life.is_terminal
        case Requeue():
            return row.life.is_active or row.life.is_terminal
    return row.life.is_active


class JobChanger(Struct, eq=False):
    """Changes jobs by their ids, many in one command where Slurm's commands take a list."""

    _commands: SlurmCommands
    _poll: Poll
    _is_ours: Callable[[JobRow], bool]
    _is_contained: Callable[[JobRow], bool]
    """Tells whether a batch script of ours runs a job in a container, beyond Slurm's reach."""
    _can_requeue: bool

    def act(self, action: JobAction, rows: Mapping[JobId, JobRow]) -> tuple[JobId, ...]:
        with ChangeResults(_DONE[type(action)]) as results:
            match action:
                case Cancel():
                    try:
                        self._each(rows, results, lambda named: [("scancel", *named)])
                    finally:
                        self._poll.records.add(_cancelled({job_id: rows[job_id] for job_id in results.changed}))
                case Requeue():
                    self._requeue(action, rows, results)
                case Signal() | Suspend() | Unsuspend():
                    self._signal(action, rows, results)
                case SetPriority():
                    self._prioritise(action, rows, results)
                case EditJobs():
                    hint = "users may only lower the time limit of their running jobs; Slurm's operators may raise it"
                    limit = _update(f"TimeLimit={clock(action.edit.spec['time_limit'])}")
                    self._each(rows, results, limit, denied_hint=hint)
                case _:
                    self._listed(action, rows, results)
            return results.ids()

    def _prioritise(self, action: SetPriority, rows: Mapping[JobId, JobRow], results: ChangeResults) -> None:
        """Set nice values, which outlast a hold and a release; a held job gets none where Slurm would let it start."""
        is_kept = self._poll.site().keeps_holds
        held = {job_id for job_id, row in rows.items() if listings.is_held(row.state, row.reason) and not is_kept}
        for named, _ in commands.grouped(held):
            results.refuse(named, _WOULD_START, "release it, then change its priority")
        others = [job_id for job_id in rows if job_id not in held]
        self._each(others, results, _update(f"Nice={nice_of(action.value)}"))

    def update_nodes(self, action: DrainGpus | ResumeGpus) -> None:
        if isinstance(action, DrainGpus):
            words = " ".join(action.reason.split()) or "no reason given"
            results, assignments = ChangeResults("drained", "node"), ["State=DRAIN", f"Reason={words}"]
        else:
            results, assignments = ChangeResults("resumed", "node"), ["State=RESUME"]
        with results:
            for node in action.uuids:  # of several at once Slurm may change some before it refuses one
                result = self._commands.run("scontrol", "update", f"NodeName={node}", *assignments)
                if result.code:
                    results.refuse(node, _words(result))
                else:
                    results.did(node)
            results.ids()

    def _listed(self, action: JobAction, chosen: Iterable[JobId], results: ChangeResults) -> None:
        order = _ORDERS[type(action)]
        self._each(
            chosen, results, lambda named: [("scontrol", order, ",".join(named))], is_once=isinstance(action, _ONCE)
        )

    def _requeue(self, action: Requeue, rows: Mapping[JobId, JobRow], results: ChangeResults) -> None:
        """Run jobs again: running ones at once, ended ones as far as they were submitted with --requeue."""

        def orders(named: Sequence[str]) -> list[tuple[str, ...]]:
            allow = [("scontrol", "update", f"JobId={each}", "Requeue=1") for each in named]
            return [*allow, ("scontrol", "requeue", ",".join(named))]

        self._each((job_id for job_id, row in rows.items() if row.life.is_active), results, orders, is_once=True)
        if not self._can_requeue:  # of itself, for example after a node was lost
            for named, _ in commands.grouped(job_id for job_id in results.changed if self._is_ours(rows[job_id])):
                self._commands.run("scontrol", "update", f"JobId={named}", "Requeue=0")
        asked, before = [job_id for job_id, row in rows.items() if row.life.is_terminal], set(results.changed)
        try:
            self._listed(action, asked, results)
        finally:
            again = [job_id for job_id in results.changed if job_id not in before]
            live, now = (replace(rows[job_id], state="REQUEUED") for job_id in again), int(time.time())
            self._poll.records.add(Ended(row, JobDetail(row.run_key, row.state, alive=now)) for row in live)

    def _signal(
        self, action: Signal | Suspend | Unsuspend, rows: Mapping[JobId, JobRow], results: ChangeResults
    ) -> None:
        """Signal batch scripts with containers; have Slurm signal, stop or continue the processes of other jobs."""
        contained = [job_id for job_id, row in rows.items() if self._is_contained(row)]
        others = [job_id for job_id in rows if job_id not in contained]
        if isinstance(action, Signal):
            self._send(contained, action.number, "--batch", results)
            self._send(others, action.number, "--full", results)
            return
        is_pause = isinstance(action, Suspend)
        self._send(contained, _PAUSE if is_pause else _CONTINUE, "--batch", results)
        self._poll.suspensions.add(Suspension(job_id, rows[job_id].run_key, is_pause) for job_id in results.changed)
        self._listed(action, others, results)

    def _send(self, chosen: Iterable[JobId], number: int, to: str, results: ChangeResults) -> None:
        order = ("scancel", f"--signal={number}", to)
        self._each(chosen, results, lambda named: [(*order, *named)], is_once=True)

    def _each(
        self,
        chosen: Iterable[JobId],
        results: ChangeResults,
        orders: _Orders,
        *,
        denied_hint: str = "it is another user's job, or only Slurm's operators may do that",
        is_once: bool = False,
    ) -> None:
        """Carry out the orders for all jobs; when they fail for many at once, for each, to know which is refused.

        Some of the many are changed then, so those that must not get an order twice get it one by one.
        """
        groups, size = list(commands.grouped(chosen)), 1 if is_once else _TOGETHER
        for start in range(0, len(groups), size):
            batch = groups[start : start + size]
            refusal = self._refusal(orders([named for named, _ in batch]))
            for named, members in batch:
                found = self._refusal(orders([named])) if refusal and len(batch) > 1 else refusal
                if found is None:
                    results.did(named, members)
                    continue
                hint = denied_hint if _is_denied(found) else None
                if "already finished" in found.err or "presently disabled" in found.err:
                    hint = hint or "submit it again; with cluster.requeue = true Slurm runs ended jobs again too"
                results.refuse(named, _words(found), hint)

    def _refusal(self, orders: Iterable[tuple[str, ...]]) -> Result | None:
        for order in orders:
            result = self._commands.run(*order)
            if result.code:
                return result
        return None


def _update(assignment: str) -> _Orders:
    return lambda named: [("scontrol", "update", f"JobId={each}", assignment) for each in named]


def _cancelled(rows: Mapping[JobId, JobRow]) -> Iterator[Ended]:
    """Yield records of jobs that never started, and have ended now, and that others were cancelled.

    Slurm itself forgets elements of arrays as soon as they are cancelled, and others before anybody may look again.
    """
    at = int(time.time())
    now = str(at)
    for job_id, row in rows.items():
        _, index = commands.parts(job_id)
        each = row if index is None else replace(row, index=str(index))
        if row.life is JobState.PENDING:
            each = replace(each, state="CANCELLED", reason="None", started=now, ended=now, nodes="")
        yield Ended(each, JobDetail(each.run_key, each.state, alive=at), now)


def _is_denied(result: Result) -> bool:
    return any(word in result.err for word in _DENIED)


def _words(refusal: Result) -> str:
    """Return Slurm's words without the job, after ours where its own name the wrong trouble."""
    parts = dict.fromkeys(re.sub(_OF_JOB, "", refusal.words).split("; "))
    words = "; ".join(part for part in parts if not re.fullmatch(r"\w+ error", part)) or refusal.words
    return f"access denied: {words}" if _is_denied(refusal) else words
