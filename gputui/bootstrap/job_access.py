"""Ways to logs, measurements, shells and processes of jobs, with the rights of a user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.config import Options
from gputui.domain.audit import Actor
from gputui.domain.errors import GputuiError

if TYPE_CHECKING:
    from socket import socket

    from gputui.domain.attempt import Attempt
    from gputui.domain.container import ExecRequest
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.telemetry_series import Measured
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.files.console_marks import AttachWait
    from gputui.engine.files.logs import Logs
    from gputui.engine.job_exec import Entrance, JobExecRouter
    from gputui.ports import JobExec, JobStore, Permit, Runtime
    from gputui.ports.backend import DirectBackend
    from gputui.ports.foreign import ForeignContainers, HostProcesses


def open_logs(options: Options, store: JobStore) -> Logs:
    """Return the logs of all attempts, live or kept. Connects to a runtime only for a live one."""
    from gputui.engine.files.logs import Logs

    runtimes: dict[str, Runtime] = {}

    def find(name: str) -> Runtime | None:
        if not runtimes:
            runtimes.update({runtime.name: runtime for runtime in adapters.make_runtimes(options, store.store_id)})
        return runtimes.get(name)

    return Logs(store, options.state, find)


def measured(options: Options, job: Job) -> dict[int, Measured]:
    """Return the telemetry of each attempt of a job, by number. Reads files."""
    from gputui.engine.files import telemetry_files

    return {attempt.number: telemetry_files.measured(options.state, job, attempt) for attempt in job.attempts}


def output_of(options: Options, backend: DirectBackend, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
    """Yield the output of an ended attempt in pieces, each with whether it is standard error (None: unknown).

    Raises GputuiError.
    """
    from gputui.engine.files.logs import log_path
    from gputui.runtime.process.attach import kept_log, live_log
    from gputui.runtime.process.attempt_folder import AttemptFolder

    if job.spec.is_host:
        name = f"gputui-{backend.queue.store_id}-{job.id}-{attempt.number}"
        with suppress(OSError), closing(live_log(AttemptFolder(options.state / "attempts" / name))) as log:
            yield from log.rest()
            return
        with suppress(OSError), closing(kept_log(options.state / log_path(job.id, attempt.number))) as log:
            yield from log.rest()
            return
    with closing(backend.log(job.id, attempt.number)) as stream:
        yield from ((False, line + b"\n") for line in stream)


def open_job_exec(options: Options, store: JobStore, actor_uid: int | None = None) -> JobExecRouter:
    """Return shells, commands and process lists of running jobs. Connects to a runtime only on use.

    They are for the user of that uid; None: the user of this process.
    """
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.files.console_marks import InputMark
    from gputui.engine.job_exec import JobExecRouter

    permissions = UserPermissions(options.state, options.settings)
    rights = _EntryRights(permissions, os.geteuid() if actor_uid is None else actor_uid)

    def note_input(job_id: JobId) -> Callable[[], None]:
        return InputMark(options.state, job_id).set

    command = (sys.executable, "-P", "-m", "gputui", *options.arguments())

    def make() -> dict[str, JobExec]:
        return _job_execs(options, store.store_id)

    return JobExecRouter(make, lambda: store.store_id, rights.permit, note_input, command, rights.may_try)


def _job_execs(options: Options, store_id: str) -> dict[str, JobExec]:
    """Return the way into the jobs of each runtime, by its name."""
    from gputui.runtime.docker.job_exec import DockerExec
    from gputui.runtime.process.job_exec import ProcessExec

    found: dict[str, JobExec] = {"process": ProcessExec(store_id, options.state)}
    if options.runtime == "docker":
        found["docker"] = DockerExec(options.settings.runtime)
    return found


class _EntryRights:
    """Rights of a user to enter jobs: their own, and as an operator those of others."""

    def __init__(self, permissions: UserPermissions, uid: int) -> None:
        self._permissions = permissions
        self._uid = uid

    def permit(self, job: Job) -> Permit:
        """Return the check of who submitted a job, for the runtime, which knows the uid."""

        def check(submitter: int | None) -> None:
            if not self._permissions.may_enter(self._uid, submitter):
                raise _not_theirs(job, bootstrap.user_name(submitter) if submitter is not None else "somebody else")

        return check

    def may_try(self, job: Job) -> None:
        """Raise GputuiError where the queue says that the job is another user's; the runtime checks again on entry."""
        if not self._permissions.may_operate(self._uid) and job.submitted_by != bootstrap.user_name(self._uid):
            raise _not_theirs(job, job.submitted_by)


def _not_theirs(job: Job, submitter: str) -> GputuiError:
    hint = "only its submitter and operators may enter it"
    return GputuiError(f"job {job.shown_id} is a job of {submitter}", hint=hint)


def open_entrance(options: Options, store: JobStore) -> Entrance:
    """Return the way into jobs for this process's user: through the scheduler's relay where the queue is shared.

    In a shared queue only root and the owner of the state directory connect directly; others do so where no relay runs.
    """
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.job_exec import Entrance
    from gputui.runtime import frame_channel

    owner = options.state.stat().st_uid
    is_shared = UserPermissions(options.state, options.settings).is_shared
    direct, record = open_job_exec(options, store), partial(record_entry, store)
    if not is_shared or os.geteuid() in {0, owner}:
        return Entrance(direct, None, record)
    return Entrance(direct, partial(frame_channel.ask_relay, options.state, {0, owner, os.geteuid()}), record)


def viewer(options: Options, job_id: JobId) -> AttachWait:
    """Return this process's user as the viewer of a job that has not started yet."""
    from gputui.engine.files.console_marks import AttachWait

    return AttachWait(options.state, job_id)


def peer(connection: socket) -> int:
    """Return the uid of the process at the other end of a unix socket, as the kernel recorded it."""
    from gputui.runtime.frame_channel import peer_uid

    return peer_uid(connection)


def record_entry(
    store: JobStore, job: Job, verb: str, request: ExecRequest | None = None, uid: int | None = None
) -> None:
    """Record in the audit log that a user attached to a job or ran a command in it; `uid` None: this process's user."""
    import shlex

    from gputui.domain.audit import AuditEntry, target_of

    who = bootstrap.actor() if uid is None else Actor(uid=uid, user=bootstrap.user_name(uid))
    words = shlex.join(request.command)[:1000] if request else ""
    with store.transaction() as transaction:
        transaction.audit(AuditEntry(bootstrap.clock().now(), who.uid, who.user, verb, target_of(job), "", words))


def open_foreign_use(options: Options, store: Callable[[], JobStore], *, is_read_only: bool = False) -> ForeignUse:
    """Return actions on foreign processes and containers, with this process's rights. Connects only on use."""
    from gputui.engine.actions.foreign_use import ForeignUse

    def host() -> HostProcesses:
        from gputui.runtime.host_processes import LocalProcesses

        return LocalProcesses()

    def containers() -> ForeignContainers | None:
        from gputui.runtime.docker.foreign_containers import DockerContainers

        return DockerContainers(options.settings.runtime) if options.runtime == "docker" else None

    return ForeignUse(store, bootstrap.clock(), bootstrap.actor(), host, containers, is_read_only=is_read_only)
