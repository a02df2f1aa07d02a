"""Shells, commands and process lists of the running jobs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.domain.cluster import Capability
from gputui.domain.container import Shell
from gputui.domain.errors import GputuiError
from gputui.domain.state import JobState
from gputui.engine.job_exec import SHELL, not_running
from gputui.ports.backend import Attach

if TYPE_CHECKING:
    from gputui.domain.container import ExecRequest, ProcessRow
    from gputui.domain.job import Job
    from gputui.engine.cluster.store import ClusterStore
    from gputui.ports import Channel


class ClusterJobAccess:
    """Passes requests to the cluster, for jobs that run. `command` runs gputui with the same options."""

    def __init__(self, store: ClusterStore, command: tuple[str, ...] = ("gputui",)) -> None:
        self._cluster = store.cluster
        self._command = command

    def shell(self, job: Job) -> Shell:
        """Return the command that opens a shell in the running job. Raises GputuiError."""
        self._check(job)
        return Shell((*self._command, "exec", "-it", job.shown_id, *SHELL), self._cluster.place(job))

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the processes of the running job."""
        self._check(job)
        return self._cluster.processes(job)

    def execute(self, job: Job, request: ExecRequest) -> Channel:
        """Run a command in the running job. Raises GputuiError."""
        self._check(job)
        return self._cluster.enter(job, request)

    def attach(self, job: Job, detach_keys: str = "") -> Channel:
        """Attach to a running job with a terminal or input. Raises GputuiError."""
        self._check(job, Capability.STREAMS)
        return self._cluster.enter(job, Attach(detach_keys))

    def _check(self, job: Job, capability: Capability = Capability.INSIDE) -> None:
        self._cluster.caps.need(capability)
        if job.state is not JobState.RUNNING:
            raise not_running(job)
        if job.suspended:
            hint = f"gputui unsuspend {job.shown_id}"
            raise GputuiError(f"job {job.shown_id} is suspended: no command can run in it", hint=hint)

    def close(self) -> None:
        """Do nothing: the queue closes the cluster."""
