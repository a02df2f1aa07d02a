"""What engines of clusters share: results of changes, of which an engine may refuse some, and GPUs of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType

from msgspec import Struct, field

from gputui.domain.errors import ClusterError, ClusterRefusedError
from gputui.domain.gpu import Drain, Gpu, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId

LONG_AGO = datetime.fromtimestamp(0, UTC)
_NAMED = 10
"""Maximum number of jobs named in one sentence."""


class ChangeResults(Struct, eq=False):
    """Jobs that were changed and jobs that were refused, each of which is told: a refusal stops no other change.

    It is used as a context, which adds what was done to the text of an error that ends the change.
    """

    _words: str
    """Word for what is done to them: `cancelled`."""
    _kind: str = "job"
    """Word for what they are."""
    changed: list[JobId] = field(default_factory=list)
    """Jobs that were changed so far."""
    _done: list[str] = field(default_factory=list)
    _refused: dict[str, list[str]] = field(default_factory=dict)
    _hint: str | None = None

    def did(self, name: str, ids: Sequence[JobId] = ()) -> None:
        self._done.append(name)
        self.changed += ids

    def refuse(self, name: str, words: str, hint: str | None = None) -> None:
        self._refused.setdefault(words, []).append(name)
        self._hint = self._hint or hint

    @contextmanager
    def of(self, name: str, ids: Sequence[JobId] = ()) -> Iterator[None]:
        try:
            yield
        except ClusterRefusedError as error:
            self.refuse(name, error.what, error.hint)
        else:
            self.did(name, ids)

    def ids(self) -> tuple[JobId, ...]:
        """Return the changed jobs; raises ClusterRefusedError, which names every refused one, if there is any."""
        if self._refused:
            (words, names), *others = self._refused.items()
            more = "".join(f"; {self._named(each)}: {why}" for why, each in others)
            what = f"not {self._words}: {words}{more}"
            raise ClusterRefusedError(what, where=self._named(names), hint=self._hint)
        return tuple(self.changed)

    def __enter__(self) -> ChangeResults:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, ClusterError) and self._done:
            hint = f" ({error.hint})" if error.hint else ""  # it is about what was refused
            error.what, error.hint = f"{error.what}{hint}; {self._words}: {self._named(self._done)}", None

    def _named(self, names: Sequence[str]) -> str:
        more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return f"{self._kind}{'s' * (len(names) > 1)} {', '.join([*names[:_NAMED], *more])}"


def gpu_view(
    gpu: Gpu,
    jobs: Sequence[Job],
    use: str | None,
    *,
    down: str = "",
    broken: str = "",
    shut: str = "",
    drain: Drain | None = None,
) -> GpuView:
    """Return a GPU with the jobs that have it. `use` tells of its use by unknown ones; None: it is free.

    Why it cannot be used: its node is `down`, it is `broken`, or its node is `shut` for new jobs.
    """
    state, why, health = GpuState.FREE, "", Health()
    if fault := down or ("" if use is not None else broken):
        state, why, health = GpuState.UNKNOWN, fault, Health(HealthCode.UNKNOWN, fault)
    elif use is not None:
        state, why = GpuState.ALLOCATED, "" if jobs else use
    elif shut:
        state, why = GpuState.DRAINED if drain is not None else GpuState.UNKNOWN, shut
    return GpuView(
        gpu,
        state,
        health,
        why=why,
        job_id=jobs[0].id if jobs else None,
        job_ids=tuple(job.id for job in jobs),
        holders=tuple(Holder("job", job.name, job.submitted_by) for job in jobs),
        drain=drain,
    )
