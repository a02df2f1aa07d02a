"""Callers, by what the kernel and the account database tell, and what they may see of the queue.

Operators see everything, and each user his own jobs. Of other jobs everybody sees who waits and runs, since when,
where, with which priority and why, but nothing that may hold a secret: neither environment, mounts nor output. What is
shown of a spec is listed here; everything that it may have besides is left out. The account database never keeps a
request waiting for a directory service that hangs.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from weakref import ref

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.api.http import Peer
from gputui.domain.access import AuditEntry, Caller, Role, job_of, role_of, targets_of
from gputui.domain.accounting import JobRecord
from gputui.domain.arrays import Entries
from gputui.domain.errors import Cause, CauseCode, NotFoundError
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, JobId, JobSpec
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import AccessSettings, Settings
from gputui.domain.snapshot import Controls, Node, Snapshot, Unreadable
from gputui.domain.state import Reason
from gputui.ports import JobStore

PATIENCE = 1.0
"""Seconds for which an answer is waited for."""
KEPT = 300.0
"""Seconds for which an answer is taken as it was."""
MISSING_KEPT = 10.0
"""Seconds for which what the database does not have is not asked for again."""
PAUSE = 5.0
"""Seconds after an answer in vain for which only known answers are given."""
MOST_QUESTIONS = 8
"""Maximum number of questions that wait for their answers."""


class AccountNames(Struct, eq=False, kw_only=True):
    """Names, ids and groups of accounts. Safe to use from any thread; each answer is remembered for some minutes.

    What a hanging database does not tell in time is as before, else unknown: so it takes no rights from those it told
    of before, and gives none. `name_of` and the others ask the database, may hang, and raise KeyError for what it does
    not have.
    """

    patience: float = PATIENCE
    now: Callable[[], float] = time.monotonic
    name_of: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_name
    uid_of: Callable[[str], int] = lambda name: pwd.getpwnam(name).pw_uid
    gid_of: Callable[[str], int] = lambda name: grp.getgrnam(name).gr_gid
    groups_of: Callable[[str], tuple[int, ...]] = lambda name: tuple(os.getgrouplist(name, pwd.getpwnam(name).pw_gid))
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _known: dict[Hashable, tuple[Any, float]] = field(default_factory=dict)
    """Answers, None where there is none, and until when they are taken."""
    _asked: set[Hashable] = field(default_factory=set)
    _paused_until: float = 0.0

    def name(self, uid: int) -> str:
        """Return the name of the account, or the number where there is none."""
        return self._answer(("name", uid), lambda: self.name_of(uid)) or str(uid)

    def number(self, name: str) -> tuple[int | None, bool]:
        """Return the id of a name of the settings, `alice`, `1000` or `@group`, and whether it is a group's.

        None: unknown.
        """
        word = name.removeprefix("@")
        is_group = word != name
        if word.isascii() and word.isdigit() and len(word) < 11:
            return int(word), is_group
        ask = self.gid_of if is_group else self.uid_of
        return self._answer(("number", name), lambda: ask(word)), is_group

    def groups(self, uid: int) -> tuple[int, ...]:
        """Return the groups that the database knows the account to be in; none if it knows none."""
        return self._answer(("groups", uid), lambda: self.groups_of(self.name_of(uid))) or ()

    def home(self, uid: int) -> str:
        """Return the home directory of the account; empty where it is unknown."""
        return self._answer(("home", uid), lambda: pwd.getpwuid(uid).pw_dir) or ""

    def _answer(self, about: Hashable, ask: Callable[[], Any]) -> Any:
        def work() -> None:
            value: Any = None
            kept = MISSING_KEPT
            with suppress(Exception):  # a border: who asks waits, and a database of accounts may be anybody's
                value, kept = ask(), KEPT
            with self._lock:
                self._known[about] = (value, self.now() + kept)
                self._asked.discard(about)
                self._lock.notify_all()

        with self._lock:
            now, known = self.now(), self._known.get(about)
            if known is not None and now < known[1]:
                return known[0]
            if about not in self._asked and len(self._asked) < MOST_QUESTIONS:
                self._asked.add(about)
                threading.Thread(target=work, name="accounts", daemon=True).start()
            if now >= self._paused_until and not self._lock.wait_for(lambda: about not in self._asked, self.patience):
                self._paused_until = self.now() + PAUSE
            return self._known[about][0] if about in self._known else None


VIA = "gputui-via"
"""Header with the program that asks for its user, in lower case as all."""
SUDO_UID = "gputui-sudo-uid"
"""Header of root's requests with the uid of the user who called sudo."""
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Full id of a container, as Docker, containerd, CRI-O and Podman have it in the names of control groups."""
_OTHERS = re.compile(r"/lxc/[^/\s]+|/lxc\.payload[^/\s]*|/machine\.slice/[^/\s]+|/kubepods[^/\s]*|/buildkit/[^/\s]+")
"""Control groups of LXC, systemd-nspawn and virtual machines, of Kubernetes, and of builds of images."""
_VIA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)


class Whereabouts(Struct, frozen=True):
    """Containers and host jobs in which a process runs, by its control groups."""

    containers: frozenset[str] = frozenset()
    """Full ids of containers, or control groups of other engines."""
    attempts: frozenset[tuple[int, int]] = frozenset()
    """Host jobs of this queue, with the numbers of their attempts."""


def whereabouts_of(cgroups: str, store_id: str) -> Whereabouts:
    """Return the place that the text of /proc/PID/cgroup describes."""
    attempts = re.findall(rf"/gputui-{re.escape(store_id)}-(\d{{1,18}})-(\d{{1,9}})(?![^/\s])", cgroups, re.ASCII)
    containers = {*_ID.findall(cgroups), *_OTHERS.findall(cgroups)}
    return Whereabouts(frozenset(containers), frozenset((int(job), int(attempt)) for job, attempt in attempts))


def via_of(headers: Mapping[str, str]) -> str:
    """Return the program that asks for its user, for the audit; empty: none says so."""
    return word if _VIA.fullmatch(word := headers.get(VIA, "")) else ""


class Callers(Struct, eq=False):
    """Finds the caller of a request. Safe to use from any thread."""

    _settings: Settings
    _owner: int
    """Uid of the state directory."""
    _store_id: str
    _jobs: Callable[[], Iterable[Job]]
    """Returns those of the queue."""
    _names: AccountNames
    _own: Whereabouts
    """Place of this process: who shares its container is in none."""

    def caller_of(self, peer: Peer, headers: Mapping[str, str]) -> Caller:
        """Return who asks; of the headers only names for the audit are believed, and root's word whom it acts for."""
        via = via_of(headers)
        caller = Caller(peer.uid, peer.gid, peer.groups, self._names.name(peer.uid), Role.VIEWER, peer.pid, via=via)
        if not peer.cgroup:
            return caller
        place = whereabouts_of(peer.cgroup, self._store_id)
        containers, attempts = place.containers - self._own.containers, place.attempts - self._own.attempts
        if containers or attempts:
            return self._inside(caller, containers, attempts)
        if peer.is_mapped and caller.user == str(peer.uid):
            return caller  # with an id that has no account, but is lent to one
        caller = replace(caller, role=self._role(peer.uid, (peer.gid, *peer.groups)))
        sudo = headers.get(SUDO_UID, "")
        if peer.uid == 0 and sudo.isascii() and sudo.isdigit() and len(sudo) < 11 and int(sudo):
            return replace(caller, user=self._names.name(int(sudo)), via=f"sudo {via}".rstrip())
        return caller

    def _role(self, uid: int, groups: Iterable[int]) -> Role:
        return role_of(uid, groups, self._owner, self._settings, self._names.number)

    def _inside(self, caller: Caller, containers: frozenset[str], attempts: frozenset[tuple[int, int]]) -> Caller:
        """Return the caller in a container or a host job.

        An operator's container may only look: with his rights it could start another one as root. His host jobs can
        do that anyway.
        """

        def runs_here(job: Job) -> bool:  # the job's present attempt; of nested containers any may be it
            attempt = job.attempt
            if attempt is None or attempt.is_over:
                return False
            return attempt.container_id in containers or (job.id, attempt.number) in attempts

        job = next(filter(runs_here, self._jobs()), None)
        uid = job.submitted_uid if job is not None else None
        if job is None or uid is None or caller.uid not in {0, uid}:
            return caller
        if not containers and caller.uid == uid:
            return replace(caller, role=self._role(uid, (caller.gid, *caller.groups)), job=job.id)
        groups = self._names.groups(uid)
        if (role := self._role(uid, groups)) is Role.OPERATOR:
            return replace(caller, job=job.id)
        gid = caller.gid if caller.uid == uid else next(iter(groups), uid)
        return replace(caller, uid=uid, gid=gid, groups=groups, user=self._names.name(uid), role=role, job=job.id)


EVERYTHING = "operators"
"""Class of callers who see everything."""
NOTHING_OWN = "viewers"
"""Class of callers who see all jobs as others do."""
_TOLD = frozenset(
    {CauseCode.NON_ZERO_EXIT, CauseCode.OUT_OF_MEMORY, CauseCode.SIGNALLED, CauseCode.TIME_LIMIT}
    | {CauseCode.CANCELLED, CauseCode.PREEMPTED, CauseCode.REQUEUED, CauseCode.DEPENDENCY_NEVER_MET}
    | {CauseCode.GPU_LOST, CauseCode.CONTAINER_LOST, CauseCode.END_UNKNOWN}
)
"""Causes whose sentences are ours up to a semicolon; those of others may quote paths, options and programs."""
_SHOWN = (
    *("image", "name", "tenant", "gpus", "priority", "nice", "time_limit", "retries", "backoff", "retry_on"),
    *("gpu_memory_step", "warning", "after", "after_any", "begin_at", "preemptible", "interactive", "idle_timeout"),
    "comment",
)
"""Fields of a specification that everybody sees, besides some options."""
_HOOKS = "hooks."
"""Begin of notices about deliveries."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Visibility(Struct, eq=False):
    """Shows the queue to callers, without what is not theirs to see. Safe to use from any thread.

    A job as others see it is made once for each job object, and is the same object for all of them: so whatever is
    cached by the identity of jobs, such as their bytes, is cached for them too.
    """

    _access: AccessSettings
    _masked: dict[JobId, tuple[ref[Job], Job]] = field(default_factory=dict)

    @staticmethod
    def class_of(caller: Caller) -> Hashable:
        """Return a value that callers have in common who see the same of every snapshot."""
        if caller.operates:
            return EVERYTHING
        return caller.uid if caller.role is Role.USER else NOTHING_OWN

    def job(self, job: Job, caller: Caller) -> Job:
        return job if caller.may_act_on(job) else self.masked(job)

    def masked(self, job: Job) -> Job:
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
        return caller.may_act_on(job) or (self._access.show_logs and caller.role >= Role.USER)

    def snapshot(self, snapshot: Snapshot, caller: Caller) -> Snapshot:
        """Return the snapshot as the caller sees it; the same object for operators."""
        if caller.operates:
            return snapshot
        own = caller.uid if caller.role is Role.USER else None
        jobs = tuple(job if own is not None and job.submitted_uid == own else self.masked(job) for job in snapshot.jobs)
        if len(self._masked) > 2 * len(jobs) + 1000:
            present = {job.id for job in snapshot.jobs}
            for job_id in [each for each in list(self._masked) if each not in present]:
                self._masked.pop(job_id, None)
        recurring = tuple(self.recurring(each, caller) for each in snapshot.recurring)
        nodes = tuple(map(_quiet_node, snapshot.nodes))
        if not self._access.show_commands:
            nodes = tuple(replace(node, gpus=tuple(_view(view, caller) for view in node.gpus)) for node in nodes)
        notices = tuple(each for each in snapshot.notices if self.may_read_notice(each.severity, each.text, caller))
        told = {
            job.id: self.reason(job, reason, caller)
            for job in snapshot.jobs
            if _is_quoting(job) and (reason := snapshot.reasons.get(job.id)) is not None
        }
        reasons = {**snapshot.reasons, **told} if told else snapshot.reasons
        return replace(snapshot, jobs=jobs, recurring=recurring, nodes=nodes, notices=notices, reasons=reasons)

    def reason(self, job: Job, reason: Reason, caller: Caller) -> Reason:
        if not _is_quoting(job) or caller.may_act_on(job):
            return reason
        text, masked = reason.text, self.masked(job)
        for quoted, words in ((job.hold_reason, masked.hold_reason), (job.end_words, masked.end_words)):
            text = text.replace(quoted, words or "") if quoted else text
        return replace(reason, text=text)

    @staticmethod
    def may_read_notice(severity: str, text: str, caller: Caller) -> bool:
        """Return whether the notice is for the caller: warnings are of what operators alone can mend.

        Notices about deliveries quote addresses and commands.
        """
        return caller.operates or (severity != "warning" and not text.startswith(_HOOKS))

    def recurring(self, entry: RecurringJob, caller: Caller) -> RecurringJob:
        if caller.operates or (caller.role is Role.USER and entry.uid == caller.uid):
            return entry
        submission = entry.submission
        return replace(entry, submission=replace(submission, spec=self._spec(submission.spec)))

    def audit(self, entries: Iterable[AuditEntry], own: Collection[str], caller: Caller) -> Iterator[AuditEntry]:
        """Yield the entries that the caller may read: a user those of himself, and those whose targets are his own."""
        for entry in entries:
            if caller.operates or (caller.role is Role.USER and (entry.uid == caller.uid or entry.target in own)):
                yield entry

    def _made(self, job: Job) -> Job:
        return replace(
            job,
            spec=self._spec(job.spec),
            cause=_cause(job.cause),
            attempts=tuple(
                replace(each, container_id=None, cause=_cause(each.cause), log_path=None, notes=(), ports=(), error="")
                for each in job.attempts
            ),
            stopping=replace(job.stopping, cause=_cause(job.stopping.cause)) if job.stopping is not None else None,
            hold_reason=_our_part(job.hold_reason) if job.hold_reason is not None else None,
            key="",
        )

    def _spec(self, spec: JobSpec) -> JobSpec:
        options, shown = spec.options, self._access.show_commands
        labels = tuple(pair for pair in options.labels if pair[0] == "user")
        kept = ContainerOptions(
            labels=labels,
            cpus=options.cpus,
            memory=options.memory,
            shm_size=options.shm_size,
            entrypoint=options.entrypoint if shown else None,
        )
        given: dict[str, Any] = {name: getattr(spec, name) for name in _SHOWN}
        if shown:
            given |= {"command": spec.command, "sweep": spec.sweep}
        return JobSpec(**given, options=kept)


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


def _quiet_node(node: Node) -> Node:
    """Return the node without the warnings of its runtimes."""
    runtimes = tuple(
        replace(each, warnings=(), gpus=replace(each.gpus, warnings=()) if each.gpus is not None else None)
        if each.all_warnings
        else each
        for each in node.runtimes
    )
    return replace(node, runtimes=runtimes)


def _view(view: GpuView, caller: Caller) -> GpuView:
    """Return the GPU with the names of other users' programs in place of their command lines."""

    def name_of(command: str) -> str:
        return command.split(" ", 1)[0].rpartition("/")[2]

    holders = tuple(
        replace(each, name=name_of(each.name)) if each.kind == "process" and each.user != caller.user else each
        for each in view.holders
    )
    sample = view.sample
    if sample is not None and sample.processes:
        processes = tuple(
            each if each.command is None or each.user == caller.user else replace(each, command=name_of(each.command))
            for each in sample.processes
        )
        sample = replace(sample, processes=processes)
    return replace(view, holders=holders, sample=sample)


class CallerQueue(Struct, eq=False):
    """Reading side of a store, with the eyes of a caller who is no operator."""

    _store: JobStore
    _caller: Caller
    _visibility: Visibility
    _seen: tuple[Entries, Entries] | None = None

    @property
    def store_id(self) -> str:
        return self._store.store_id

    def jobs(self) -> Entries:
        entries = self._store.jobs()
        if self._seen is None or self._seen[0] is not entries:
            see, caller = self._visibility.job, self._caller
            self._seen = (entries, Entries({key: see(job, caller) for key, job in entries.items()}))
        return self._seen[1]

    def whole_id(self, number: JobId) -> JobId:
        return number

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        return self._store.arrays()

    def get(self, job_id: JobId) -> Job:
        [job] = self._visibility.jobs((self._store.get(job_id),), self._caller)
        return job

    def controls(self) -> Controls:
        return self._store.controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {key: self._visibility.recurring(each, self._caller) for key, each in self._store.recurring().items()}

    def version(self) -> object:
        return self._store.version()

    def watch(self) -> None:
        return None

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        return self._visibility.jobs(self._store.past(since, until), self._caller)

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        return self._store.records(since)

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        entries, caller = self._store.audit_log(target), self._caller
        if target is not None:
            owns = False
            with suppress(NotFoundError):
                owns = (job_id := job_of(target)) is not None and caller.owns(self._store.get(job_id))
            return self._visibility.audit(entries, {target} if owns else (), caller)
        own = {
            each
            for job in self._store.jobs().values()
            if caller.owns(job)
            for single in (map(job.element, job.ids) if job.runs else iter((job,)))
            for each in targets_of(single)
        }

        def with_submitted() -> Iterator[AuditEntry]:
            """Add to the own targets what he has submitted, before its entries follow.

            So history, which may be long, is not read for it.
            """
            for entry in entries:
                if entry.verb == "submit" and entry.uid == caller.uid:
                    own.add(entry.target)
                yield entry

        return self._visibility.audit(with_submitted(), own, caller)

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        return self._store.requests(uid) if uid == self._caller.uid else iter(())

    def check(self) -> None:
        self._store.check()

    def unread(self) -> tuple[str, ...]:
        return self._store.unread()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return self._store.unreadable()
