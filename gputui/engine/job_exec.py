"""Shells, commands and process lists of running jobs, and the streams of interactive ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import to_builtins

from gputui.domain.attempt import Attempt
from gputui.domain.container import ExecRequest, ProcessRow, Shell
from gputui.domain.errors import GputuiError, RuntimeUnavailableError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.ports import Channel, JobExec, Permit

SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
"""Command that becomes the best shell there is."""
RelayRequest = Callable[[Mapping[str, Any]], "Channel | None"]
"""Asks the relay for a stream; None if no relay runs. Raises GputuiError if it refuses."""


class JobExecRouter:
    """Passes requests to the runtime of a job. Calls block, from any thread; `processes` only one at a time.

    `command` runs gputui with the same options, and `may_try` raises if it would be refused.
    """

    def __init__(
        self,
        make: Callable[[], dict[str, JobExec]],
        store_id: Callable[[], str],
        permit: Callable[[Job], Permit],
        note_input: Callable[[JobId], Callable[[], None]],
        command: tuple[str, ...] = ("gputui",),
        may_try: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._command = command
        self._may_try = may_try
        self._make = make
        self._note_input = note_input
        self._store_id = store_id
        self._permit = permit
        self._by_runtime: dict[str, JobExec] = {}
        self._lock = threading.Lock()

    def shell(self, job: Job) -> Shell:
        """Return the command that opens a shell in the running job. Raises GputuiError."""
        container_id = _running_container(job)
        self._may_try(job)
        place = "this host, with the job's environment, directory and limits"
        where = place if job.spec.is_host else f"container {container_id[:12]}"
        return Shell((*self._command, "exec", "-it", str(job.id), *SHELL), where)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the processes of the running job."""
        container_id = _running_container(job)
        with self._lock:
            return self._find(job).processes(container_id)

    def attach(self, job: Job, detach_keys: str = "") -> Channel:
        """Attach to an interactive job, also while it starts. Raises GputuiError."""
        interactive, attempt = job.spec.interactive, job.attempt
        if interactive is None:
            raise GputuiError(f"job {job.shown_id} is not interactive", hint="gputui run starts such jobs")
        if attempt is None or attempt.is_over or not job.state.is_active:
            raise GputuiError(f"job {job.shown_id} is {job.state}: it is not running")
        with self._lock:
            found = self._find(job)
        channel = found.attach(self._name(job, attempt), interactive, self._permit(job), detach_keys)
        return self._noted(job, channel)

    def execute(self, job: Job, request: ExecRequest) -> Channel:
        """Run a command in the running job. Raises GputuiError."""
        _running_container(job)
        with self._lock:
            found = self._find(job)
        return self._noted(job, found.execute(self._name(job, job.attempts[-1]), request, self._permit(job)))

    def _noted(self, job: Job, channel: Channel) -> Channel:
        """Return the channel; for a job with an idle timeout, its input counts as activity."""
        if job.spec.idle_timeout:
            channel.on_input = self._note_input(job.id)
        return channel

    def _name(self, job: Job, attempt: Attempt) -> str:
        """Return the name of the attempt's launch, not the queue's container id, which members may write."""
        return f"gputui-{self._store_id()}-{job.id}-{attempt.number}"

    def close(self) -> None:
        """Close connections."""
        with self._lock:
            for job_exec in self._by_runtime.values():
                job_exec.close()

    def _find(self, job: Job) -> JobExec:
        self._by_runtime = self._by_runtime or self._make()
        found = self._by_runtime.get(job.spec.runtime_name)
        if found is None:
            raise GputuiError(
                f"job {job.shown_id} runs in a container, and this console was started without a container engine"
            )
        return found


def _running_container(job: Job) -> str:
    attempt = job.attempt
    if job.state is not JobState.RUNNING or attempt is None or attempt.container_id is None:
        raise not_running(job)
    return attempt.container_id


def not_running(job: Job) -> GputuiError:
    """Return the error for a job that cannot be entered now."""
    return GputuiError(
        f"job {job.shown_id} is {job.state}: a shell and its processes are only available while it is RUNNING"
    )


class Entrance:
    """Attaches to jobs and runs commands in them."""

    def __init__(
        self, direct: JobExecRouter, relay: RelayRequest | None, record: Callable[[Job, str, ExecRequest | None], None]
    ) -> None:
        self._direct = direct
        self._record = record
        self._relay = relay

    def attach(self, job: Job, detach_keys: str = "") -> Channel:
        """Attach to an interactive job. Raises GputuiError."""
        asked = {"verb": "attach", "job": job.id, "detach_keys": detach_keys}
        if (relayed := self._by_relay(asked)) is not None:
            return relayed
        channel = self._directly(job.id, lambda: self._direct.attach(job, detach_keys))
        self._record(job, "attach", None)
        return channel

    def execute(self, job: Job, request: ExecRequest) -> Channel:
        """Run a command in a running job. Raises GputuiError."""
        asked = {"verb": "exec", "job": job.id, "request": to_builtins(request)}
        if (relayed := self._by_relay(asked)) is not None:
            return relayed
        channel = self._directly(job.id, lambda: self._direct.execute(job, request))
        self._record(job, "exec", request)
        return channel

    def _by_relay(self, request: Mapping[str, Any]) -> Channel | None:
        return None if self._relay is None else self._relay(request)

    def _directly(self, job_id: JobId, enter: Callable[[], Channel]) -> Channel:
        try:
            return enter()
        except RuntimeUnavailableError as error:
            if self._relay is None:
                raise
            hint = "start `gputui serve`, which relays, or get access to the engine"
            text = f"job {job_id} cannot be reached: no scheduler is running here that could relay, and {error.what}"
            raise GputuiError(text, hint=hint) from error

    def close(self) -> None:
        """Close connections."""
        self._direct.close()
