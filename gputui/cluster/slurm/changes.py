"""Changes of jobs and nodes by `scancel` and `scontrol`. Refusals have Slurm's own words, ours in front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from gputui.cluster.slurm import ids
from gputui.cluster.slurm.commands import Result, SlurmCommands
from gputui.cluster.slurm.jobs import limit_words, nice_of
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import JobId

_TOGETHER = 100
"""Number of jobs named in one command."""
_DENIED = ("denied", "Invalid user")


class JobChanger:
    """Changes jobs by their ids, many in one command where Slurm's commands take a list."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    def cancel(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """End jobs."""
        return self._each(chosen, "cancelled", lambda named: [("scancel", *named)])

    def signal(self, chosen: Iterable[JobId], number: int, *, whole: bool) -> tuple[JobId, ...]:
        """Send a signal to the batch scripts; with `whole` also to all processes that Slurm started."""
        to = "--full" if whole else "--batch"
        return self._each(chosen, "signalled", lambda named: [("scancel", f"--signal={number}", to, *named)])

    def hold(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Hold jobs so that their users may release them."""
        return self._each(chosen, "held", lambda named: [("scontrol", "uhold", ",".join(named))])

    def release(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Release jobs."""
        return self._each(chosen, "released", lambda named: [("scontrol", "release", ",".join(named))])

    def requeue(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Run ended jobs again, as far as they were submitted with --requeue."""
        return self._each(chosen, "requeued", lambda named: [("scontrol", "requeue", ",".join(named))])

    def restart(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """End running jobs and run them again, also those that were submitted with --no-requeue, once."""

        def orders(named: Sequence[str]) -> list[tuple[str, ...]]:
            allow = [("scontrol", "update", f"JobId={each}", "Requeue=1") for each in named]
            return [*allow, ("scontrol", "requeue", ",".join(named))]

        return self._each(chosen, "requeued", orders)

    def never_requeue(self, chosen: Iterable[JobId]) -> None:
        """Keep Slurm itself from running jobs again, for example after a node was lost."""
        for named, _ in ids.grouped(chosen):
            self._commands.run("scontrol", "update", f"JobId={named}", "Requeue=0")

    def set_priority(self, chosen: Iterable[JobId], value: int) -> tuple[JobId, ...]:
        """Set the nice value that stands for a priority."""
        return self._each(chosen, "given that priority", _update(f"Nice={nice_of(value)}"))

    def top(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Put jobs before the others of their user."""
        return self._each(chosen, "put first", lambda named: [("scontrol", "top", ",".join(named))])

    def set_time_limit(self, chosen: Iterable[JobId], limit: timedelta) -> tuple[JobId, ...]:
        """Set the time limit."""
        hint = "users may only lower the time limit of their running jobs; Slurm's operators may raise it"
        return self._each(chosen, "given that time limit", _update(f"TimeLimit={limit_words(limit)}"), hint)

    def suspend(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Stop the processes that Slurm started."""
        return self._each(chosen, "suspended", lambda named: [("scontrol", "suspend", ",".join(named))])

    def resume_jobs(self, chosen: Iterable[JobId]) -> tuple[JobId, ...]:
        """Continue them."""
        return self._each(chosen, "continued", lambda named: [("scontrol", "resume", ",".join(named))])

    def update_nodes(self, nodes: Sequence[str], what: str, *assignments: str) -> None:
        """Change nodes."""
        if nodes:
            result = self._commands.run("scontrol", "update", f"NodeName={','.join(nodes)}", *assignments)
            if result.code:
                raise ClusterRefusedError(f"not {what}: {_words(result)}", where=", ".join(nodes))

    def _each(
        self,
        chosen: Iterable[JobId],
        done_words: str,
        orders: Callable[[Sequence[str]], list[tuple[str, ...]]],
        denied_hint: str = "it is another user's job, or only Slurm's operators may do that",
    ) -> tuple[JobId, ...]:
        """Carry out the orders for all jobs; when they fail for many at once, for each, to know which is refused."""
        done: list[JobId] = []
        for batch in _batches(list(ids.grouped(chosen))):
            if self._refusal(orders([named for named, _ in batch])) is None:
                done += [job_id for _, members in batch for job_id in members]
                continue
            for named, members in batch:
                if (refusal := self._refusal(orders([named]))) is not None:
                    what = f"not {done_words}: {_words(refusal)}{_so_far(done)}"
                    raise ClusterRefusedError(what, where=f"job {named}", hint=_hint(refusal, denied_hint))
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


def _batches(groups: list[tuple[str, tuple[JobId, ...]]]) -> Iterator[list[tuple[str, tuple[JobId, ...]]]]:
    for start in range(0, len(groups), _TOGETHER):
        yield groups[start : start + _TOGETHER]


def _is_denied(result: Result) -> bool:
    return any(word in result.err for word in _DENIED)


def _words(refusal: Result) -> str:
    """Return Slurm's words, after ours where its own name the wrong trouble."""
    return f"access denied: {refusal.words}" if _is_denied(refusal) else refusal.words


def _hint(refusal: Result, denied_hint: str) -> str | None:
    if _is_denied(refusal):
        return denied_hint
    if "already finished" in refusal.err or "presently disabled" in refusal.err:
        return "submit it again; with cluster.requeue = true Slurm runs ended jobs again too"
    return None


def _so_far(done: Sequence[JobId]) -> str:
    return f"; done: {', '.join(map(ids.words, done))}" if done else ""
