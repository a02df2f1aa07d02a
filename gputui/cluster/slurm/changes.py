"""Changes of jobs and nodes by `scancel` and `scontrol`. Refusals have Slurm's own words, ours in front."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from gputui.cluster.slurm import ids
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.cluster.slurm.listings import Ended, JobDetail, JobRow
from gputui.cluster.slurm.picture import limit_words, nice_of
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
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import NORMAL_PRIORITY, JobId
from gputui.domain.state import JobState
from gputui.ports.cluster import EngineAction

_TOGETHER = 100
"""Number of jobs named in one command."""
_DENIED = ("denied", "Invalid user")
_PAUSE, _CONTINUE = 20, 28
"""SIGTSTP and SIGWINCH, on which the batch script pauses its container, and continues a paused one."""
_ORDERS: Mapping[type[JobAction], tuple[str, str]] = {
    Hold: ("uhold", "held"),  # so that their users may release them
    Release: ("release", "released"),
    Requeue: ("requeue", "requeued"),
    Top: ("top", "put first"),
    Suspend: ("suspend", "suspended"),
    Unsuspend: ("resume", "continued"),
}
"""Commands of scontrol that take a list of jobs, and what is done to these."""


def needed(action: EngineAction) -> Capability | None:
    """Return what the user must be able to do, besides what Slurm itself checks."""
    if isinstance(action, SetPriority) and action.value > NORMAL_PRIORITY:
        return Capability.RAISE_PRIORITY  # above that of a job submitted without one
    if isinstance(action, DrainGpus | ResumeGpus):
        return Capability.DRAIN_NODE
    return Capability.TOP if isinstance(action, Top) else None


def fits(action: JobAction, row: JobRow) -> bool:
    """Return whether the action is for jobs in this state; others are left out."""
    match action:
        case Hold() | Release() | SetPriority() | Top():
            return row.life is JobState.PENDING
        case Cancel() | EditJobs():
            return not row.life.is_terminal
        case Requeue():
            return row.life.is_active or row.life.is_terminal
    return row.life.is_active


class JobChanger:
    """Changes jobs by their ids, many in one command where Slurm's commands take a list."""

    def __init__(
        self,
        commands: SlurmCommands,
        poll: Poll,
        is_ours: Callable[[JobRow], bool],
        is_contained: Callable[[JobRow], bool],
        can_requeue: bool,
    ) -> None:
        """`is_contained` tells whether a batch script of ours runs a job in a container, beyond Slurm's reach."""
        self._commands = commands
        self._poll = poll
        self._is_ours = is_ours
        self._is_contained = is_contained
        self._can_requeue = can_requeue

    def act(self, action: JobAction, rows: Mapping[JobId, JobRow]) -> tuple[JobId, ...]:
        """Carry out an action on jobs that fit it; return the ids of those changed."""
        match action:
            case Cancel():
                done = self._each(rows, "cancelled", lambda named: [("scancel", *named)])
                self._poll.records.add(_cancelled({job_id: rows[job_id] for job_id in done}))
                return done
            case Requeue():
                return self._requeue(action, rows)
            case Signal() | Suspend() | Unsuspend():
                return self._signal(action, rows)
            case SetPriority():
                return self._each(rows, "given that priority", _update(f"Nice={nice_of(action.value)}"))
            case EditJobs():
                hint = "users may only lower the time limit of their running jobs; Slurm's operators may raise it"
                limit = _update(f"TimeLimit={limit_words(action.edit.spec['time_limit'])}")
                return self._each(rows, "given that time limit", limit, hint)
        return self._listed(action, rows)

    def update_nodes(self, action: DrainGpus | ResumeGpus) -> None:
        """Drain nodes or resume them."""
        if isinstance(action, DrainGpus):
            words = " ".join(action.reason.split()) or "no reason given"
            what, assignments = "drained", ["State=DRAIN", f"Reason={words}"]
        else:
            what, assignments = "resumed", ["State=RESUME"]
        if action.uuids:
            result = self._commands.run("scontrol", "update", f"NodeName={','.join(action.uuids)}", *assignments)
            if result.code:
                raise ClusterRefusedError(f"not {what}: {_words(result)}", where=", ".join(action.uuids))

    def _listed(self, action: JobAction, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        order, done_words = _ORDERS[type(action)]
        return self._each(chosen, done_words, lambda named: [("scontrol", order, ",".join(named))])

    def _requeue(self, action: Requeue, rows: Mapping[JobId, JobRow]) -> tuple[JobId, ...]:
        """Run jobs again: running ones at once, ended ones as far as they were submitted with --requeue."""

        def orders(named: Sequence[str]) -> list[tuple[str, ...]]:
            allow = [("scontrol", "update", f"JobId={each}", "Requeue=1") for each in named]
            return [*allow, ("scontrol", "requeue", ",".join(named))]

        done = self._each((job_id for job_id, row in rows.items() if row.life.is_active), "requeued", orders)
        if not self._can_requeue:  # of itself, for example after a node was lost
            for named, _ in ids.grouped(job_id for job_id in done if self._is_ours(rows[job_id])):
                self._commands.run("scontrol", "update", f"JobId={named}", "Requeue=0")
        again = self._listed(action, [job_id for job_id, row in rows.items() if row.life.is_terminal])
        live, now = (replace(rows[job_id], state="REQUEUED") for job_id in again), int(time.time())
        self._poll.records.add(Ended(row, JobDetail(row.run_key, row.state, alive=now)) for row in live)
        return done + again

    def _signal(self, action: Signal | Suspend | Unsuspend, rows: Mapping[JobId, JobRow]) -> tuple[JobId, ...]:
        """Signal batch scripts with containers; have Slurm signal, stop or continue the processes of other jobs."""
        contained = [job_id for job_id, row in rows.items() if self._is_contained(row)]
        others = [job_id for job_id in rows if job_id not in contained]
        if isinstance(action, Signal):
            return self._send(contained, action.number, "--batch") + self._send(others, action.number, "--full")
        is_pause = isinstance(action, Suspend)
        done = self._send(contained, _PAUSE if is_pause else _CONTINUE, "--batch")
        self._poll.suspensions.add(Suspension(job_id, rows[job_id].run_key, is_pause) for job_id in done)
        return done + self._listed(action, others)

    def _send(self, chosen: Iterable[JobId], number: int, to: str) -> tuple[JobId, ...]:
        return self._each(chosen, "signalled", lambda named: [("scancel", f"--signal={number}", to, *named)])

    def _each(
        self,
        chosen: Iterable[JobId],
        done_words: str,
        orders: Callable[[Sequence[str]], list[tuple[str, ...]]],
        denied_hint: str = "it is another user's job, or only Slurm's operators may do that",
    ) -> tuple[JobId, ...]:
        """Carry out the orders for all jobs; when they fail for many at once, for each, to know which is refused."""
        done: list[JobId] = []
        groups = list(ids.grouped(chosen))
        for start in range(0, len(groups), _TOGETHER):
            batch = groups[start : start + _TOGETHER]
            if self._refusal(orders([named for named, _ in batch])) is None:
                done += [job_id for _, members in batch for job_id in members]
                continue
            for named, members in batch:
                if (refusal := self._refusal(orders([named]))) is not None:
                    so_far = f"; done: {', '.join(map(ids.words, done))}" if done else ""
                    hint = denied_hint if _is_denied(refusal) else None
                    if "already finished" in refusal.err or "presently disabled" in refusal.err:
                        hint = hint or "submit it again; with cluster.requeue = true Slurm runs ended jobs again too"
                    what = f"not {done_words}: {_words(refusal)}{so_far}"
                    raise ClusterRefusedError(what, where=f"job {named}", hint=hint)
                done += members
        return tuple(done)

    def _refusal(self, orders: Iterable[tuple[str, ...]]) -> Result | None:
        for order in orders:
            result = self._commands.run(*order)
            if result.code:
                return result
        return None


def _update(assignment: str) -> Callable[[Sequence[str]], list[tuple[str, ...]]]:
    return lambda named: [("scontrol", "update", f"JobId={each}", assignment) for each in named]


def _cancelled(rows: Mapping[JobId, JobRow]) -> Iterator[Ended]:
    """Yield records of jobs that never started, and have ended now, and that others were cancelled.

    Slurm itself forgets elements of arrays as soon as they are cancelled, and others before anybody may look again.
    """
    at = int(time.time())
    now = str(at)
    for job_id, row in rows.items():
        _, index = ids.parts(job_id)
        each = row if index is None else replace(row, index=str(index))
        if row.life is JobState.PENDING:
            each = replace(each, state="CANCELLED", reason="None", started=now, ended=now, nodes="")
        yield Ended(each, JobDetail(each.run_key, each.state, alive=at), now)


def _is_denied(result: Result) -> bool:
    return any(word in result.err for word in _DENIED)


def _words(refusal: Result) -> str:
    """Return Slurm's words, after ours where its own name the wrong trouble."""
    return f"access denied: {refusal.words}" if _is_denied(refusal) else refusal.words
