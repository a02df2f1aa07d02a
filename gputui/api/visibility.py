"""Jobs, snapshots and history as a caller may see them.

Operators see everything, and each user his own jobs. Of other jobs everybody sees who waits and runs, since when,
where, with which priority and why, but nothing that may hold a secret: neither environment, mounts nor output. What is
shown of a spec is listed here; everything that it may have besides is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from weakref import ref

from msgspec.structs import replace

from gputui.domain.access import Caller, Role
from gputui.domain.audit import AuditEntry
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.gpu import GpuProcess, GpuView, Holder
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import ContainerOptions, JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import AccessSettings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import Reason

EVERYTHING = "operators"
"""Class of callers who see everything."""
NOTHING_OWN = "viewers"
"""Class of callers who see all jobs as others do."""
_TOLD = frozenset(
    {
        CauseCode.NON_ZERO_EXIT,
        CauseCode.OUT_OF_MEMORY,
        CauseCode.SIGNALLED,
        CauseCode.TIME_LIMIT,
        CauseCode.CANCELLED,
        CauseCode.PREEMPTED,
        CauseCode.REQUEUED,
        CauseCode.DEPENDENCY_NEVER_MET,
        CauseCode.GPU_LOST,
        CauseCode.CONTAINER_LOST,
        CauseCode.END_UNKNOWN,
    }
)
"""Causes whose sentences are ours up to a semicolon; those of others may quote paths, options and programs."""
_HOOKS = "hooks."
"""Begin of notices about deliveries."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Visibility:
    """What callers see of the queue. Safe to use from any thread.

    A job as others see it is made once for each job object, and is the same object for all of them: so whatever is
    cached by the identity of jobs, such as their bytes, is cached for them too.
    """

    def __init__(self, access: AccessSettings) -> None:
        self._shows_commands = access.show_commands
        self._shows_logs = access.show_logs
        self._masked: dict[JobId, tuple[ref[Job], Job]] = {}

    @staticmethod
    def class_of(caller: Caller) -> Hashable:
        """Return a value that callers have in common who see the same of every snapshot."""
        if caller.operates:
            return EVERYTHING
        return caller.uid if caller.role is Role.USER else NOTHING_OWN

    def job(self, job: Job, caller: Caller) -> Job:
        """Return the job as the caller sees it."""
        return job if caller.may_act_on(job) else self.masked(job)

    def masked(self, job: Job) -> Job:
        """Return the job as everybody sees it but its submitter and operators."""
        known = self._masked.get(job.id)
        if known is not None and known[0]() is job:
            return known[1]
        made = self._made(job)
        self._masked[job.id] = (ref(job), made)
        return made

    def jobs(self, jobs: Iterable[Job], caller: Caller) -> Iterator[Job]:
        """Yield jobs as the caller sees them, and remember nothing of them: for history."""
        for job in jobs:
            yield job if caller.may_act_on(job) else self._made(job)

    def may_read_log(self, job: Job, caller: Caller) -> bool:
        """Return whether the caller may read the output of the job."""
        return caller.may_act_on(job) or (self._shows_logs and caller.role >= Role.USER)

    def snapshot(self, snapshot: Snapshot, caller: Caller) -> Snapshot:
        """Return the snapshot as the caller sees it; the same object for operators."""
        if caller.operates:
            return snapshot
        own = caller.uid if caller.role is Role.USER else None
        jobs = tuple(job if own is not None and job.submitted_uid == own else self.masked(job) for job in snapshot.jobs)
        if len(self._masked) > 2 * len(jobs) + 1000:
            self._forget(snapshot.jobs)
        recurring = tuple(self.recurring(each, caller) for each in snapshot.recurring)
        nodes = snapshot.nodes if self._shows_commands else tuple(self._node(each, caller) for each in snapshot.nodes)
        notices = tuple(each for each in snapshot.notices if self.may_read_notice(each.text, caller))
        told = {
            job.id: self.reason(job, reason, caller)
            for job in snapshot.jobs
            if _is_quoting(job) and (reason := snapshot.reasons.get(job.id)) is not None
        }
        reasons = {**snapshot.reasons, **told} if told else snapshot.reasons
        return replace(snapshot, jobs=jobs, recurring=recurring, nodes=nodes, notices=notices, reasons=reasons)

    def reason(self, job: Job, reason: Reason, caller: Caller) -> Reason:
        """Return why the job waits, without what it quotes of a hold and of earlier attempts of others."""
        if not _is_quoting(job) or caller.may_act_on(job):
            return reason
        text, masked = reason.text, self.masked(job)
        for quoted, words in ((job.hold_reason, masked.hold_reason), (job.end_words, masked.end_words)):
            text = text.replace(quoted, words or "") if quoted else text
        return replace(reason, text=text)

    @staticmethod
    def may_read_notice(text: str, caller: Caller) -> bool:
        """Return whether the caller may read the notice: those about deliveries quote addresses and commands."""
        return caller.operates or not text.startswith(_HOOKS)

    def recurring(self, entry: RecurringJob, caller: Caller) -> RecurringJob:
        """Return the recurring job as the caller sees it."""
        if caller.operates or (caller.role is Role.USER and entry.uid == caller.uid):
            return entry
        submission = entry.submission
        return replace(entry, submission=replace(submission, spec=self._spec(submission.spec)))

    def audit(self, entries: Iterable[AuditEntry], own: Collection[str], caller: Caller) -> Iterator[AuditEntry]:
        """Yield the entries that the caller may read: a user those of himself, and those whose targets are his own."""
        for entry in entries:
            if caller.operates or (caller.role is Role.USER and (entry.uid == caller.uid or entry.target in own)):
                yield entry

    def _forget(self, jobs: Iterable[Job]) -> None:
        present = {job.id for job in jobs}
        for job_id in [each for each in list(self._masked) if each not in present]:
            self._masked.pop(job_id, None)

    def _made(self, job: Job) -> Job:
        return replace(
            job,
            spec=self._spec(job.spec),
            cause=_cause(job.cause),
            attempts=tuple(map(_attempt, job.attempts)),
            stopping=replace(job.stopping, cause=_cause(job.stopping.cause)) if job.stopping is not None else None,
            hold_reason=_our_part(job.hold_reason) if job.hold_reason is not None else None,
            key="",
        )

    def _spec(self, spec: JobSpec) -> JobSpec:
        options, shown = spec.options, self._shows_commands
        labels = tuple(pair for pair in options.labels if pair[0] == "user")
        kept = ContainerOptions(
            labels=labels,
            cpus=options.cpus,
            memory=options.memory,
            shm_size=options.shm_size,
            entrypoint=options.entrypoint if shown else None,
        )
        return JobSpec(
            image=spec.image,
            command=spec.command if shown else (),
            name=spec.name,
            tenant=spec.tenant,
            gpus=spec.gpus,
            priority=spec.priority,
            nice=spec.nice,
            time_limit=spec.time_limit,
            retries=spec.retries,
            backoff=spec.backoff,
            retry_on=spec.retry_on,
            gpu_memory_step=spec.gpu_memory_step,
            warning=spec.warning,
            after=spec.after,
            after_any=spec.after_any,
            begin_at=spec.begin_at,
            preemptible=spec.preemptible,
            interactive=spec.interactive,
            idle_timeout=spec.idle_timeout,
            options=kept,
            comment=spec.comment,
            sweep=spec.sweep if shown else (),
        )

    def _node(self, node: Node, caller: Caller) -> Node:
        return replace(node, gpus=tuple(_view(view, caller) for view in node.gpus))


def _is_quoting(job: Job) -> bool:
    """Return whether the reason why the job waits may quote its own hold or its earlier attempts."""
    return job.hold_reason is not None or job.not_before is not None


def _our_part(text: str) -> str:
    """Return a sentence up to what it quotes of a cause or a note."""
    return text.partition(";")[0]


def _cause(cause: Cause | None) -> Cause | None:
    if cause is None:
        return None
    text = _our_part(cause.text) if cause.code in _TOLD else _WORD.sub(" ", cause.code).lower()
    return Cause(cause.code, text, cause.gpus)


def _attempt(attempt: Attempt) -> Attempt:
    return replace(attempt, container_id=None, cause=_cause(attempt.cause), log_path=None, notes=(), ports=(), error="")


def _view(view: GpuView, caller: Caller) -> GpuView:
    """Return the GPU with the names of other users' programs in place of their command lines."""
    holders = tuple(_holder(each, caller) for each in view.holders)
    sample = view.sample
    if sample is not None and sample.processes:
        sample = replace(sample, processes=tuple(_process(each, caller) for each in sample.processes))
    return replace(view, holders=holders, sample=sample)


def _process(process: GpuProcess, caller: Caller) -> GpuProcess:
    if process.command is None or process.user == caller.user:
        return process
    return replace(process, command=_program(process.command))


def _holder(holder: Holder, caller: Caller) -> Holder:
    if holder.kind != "process" or holder.user == caller.user:
        return holder
    return replace(holder, name=_program(holder.name))


def _program(command: str) -> str:
    return command.split(" ", 1)[0].rpartition("/")[2]
