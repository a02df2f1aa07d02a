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
    from gputui.engine.files.console_marks import AttachWait
    from gputui.engine.files.logs import Logs
    from gputui.engine.job_exec import Entrance
    from gputui.ports import JobExec, JobStore, Runtime
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


def open_entrance(options: Options, store: JobStore, uid: int | None = None) -> Entrance:
    """Return shells, commands and process lists of running jobs. Connects to a runtime only on use.

    They are for the user of that uid, whom the relay serves; None: the user of this process. In a shared queue that is
    served through the scheduler's relay, unless it is root or the owner of the state directory, or no relay runs.
    """
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.files.console_marks import InputMark
    from gputui.engine.job_exec import Entrance

    permissions = UserPermissions(options.state, options.settings)
    user = os.geteuid() if uid is None else uid

    def make() -> dict[str, JobExec]:
        from gputui.runtime.docker.job_exec import DockerExec
        from gputui.runtime.process.job_exec import ProcessExec

        found: dict[str, JobExec] = {"process": ProcessExec(store.store_id, options.state)}
        if options.runtime == "docker":
            found["docker"] = DockerExec(options.settings.runtime)
        return found

    def refusal(job: Job, submitter: str) -> GputuiError:
        hint = "only its submitter and operators may enter it"
        return GputuiError(f"job {job.shown_id} is a job of {submitter}", hint=hint)

    def permit(job: Job, submitter: int | None) -> None:
        if not permissions.may_enter(user, submitter):
            raise refusal(job, bootstrap.user_name(submitter) if submitter is not None else "somebody else")

    def may_try(job: Job) -> None:  # the runtime checks again on entry
        if not permissions.may_operate(user) and job.submitted_by != bootstrap.user_name(user):
            raise refusal(job, job.submitted_by)

    def record(job: Job, verb: str, request: ExecRequest | None) -> None:
        import shlex

        from gputui.domain.audit import AuditEntry, target_of

        who = bootstrap.actor() if uid is None else Actor(uid=uid, user=bootstrap.user_name(uid))
        words = shlex.join(request.command)[:1000] if request else ""
        with store.transaction() as transaction:
            transaction.audit(AuditEntry(bootstrap.clock().now(), who.uid, who.user, verb, target_of(job), "", words))

    relay = None
    if uid is None and permissions.is_shared and user not in {0, owner := options.state.stat().st_uid}:
        from gputui.runtime.frame_channel import ask_relay

        relay = partial(ask_relay, options.state, {0, owner, user})
    return Entrance(
        make,
        lambda: store.store_id,
        permit,
        lambda job_id: InputMark(options.state, job_id).set,
        record,
        relay=relay,
        command=(sys.executable, "-P", "-m", "gputui", *options.arguments()),
        may_try=may_try,
    )


def viewer(options: Options, job_id: JobId) -> AttachWait:
    """Return this process's user as the viewer of a job that has not started yet."""
    from gputui.engine.files.console_marks import AttachWait

    return AttachWait(options.state, job_id)


def peer(connection: socket) -> int:
    """Return the uid of the process at the other end of a unix socket, as the kernel recorded it."""
    from gputui.runtime.frame_channel import peer_uid

    return peer_uid(connection)


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
