"""Ways into running jobs of this machine: shells, commands, process lists, and the streams of interactive jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import to_builtins

from gputui.domain.container import ExecRequest, ProcessRow, Shell
from gputui.domain.errors import GputuiError, RuntimeUnavailableError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId
from gputui.domain.state import JobState
from gputui.ports import Channel, JobExec
from gputui.ports.backend import Attach, Entry

SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
"""Command that becomes the best shell there is."""
RelayRequest = Callable[[Mapping[str, Any]], "Channel | None"]
"""Asks the relay for a stream; None if no relay runs. Raises GputuiError if it refuses."""


class Entrance:
    """Passes requests to the relay, if there is one, else to the runtime of a job, and records what entered.

    Calls block, from any thread, and raise GputuiError; `processes` only one at a time.
    """

    def __init__(
        self,
        make: Callable[[], Mapping[str, JobExec]],
        store_id: Callable[[], str],
        permit: Callable[[Job, int | None], None],
        note_input: Callable[[JobId], Callable[[], None]],
        record: Callable[[Job, str, ExecRequest | None], None],
        *,
        relay: RelayRequest | None = None,
        command: tuple[str, ...] = ("gputui",),
        may_try: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """`make` returns the way into the jobs of each runtime, by its name.

        `permit` raises for a job of a submitter whom the runtime proved (None: unknown), `may_try` where the queue says
        that it would. `command` runs gputui with the same options.
        """
        self._make = make
        self._store_id = store_id
        self._permit = permit
        self._note_input = note_input
        self._record = record
        self._relay = relay
        self._command = command
        self._may_try = may_try
        self._by_runtime: Mapping[str, JobExec] = {}
        self._lock = threading.Lock()

    def shell(self, job: Job) -> Shell:
        """Return the command that opens a shell in the running job."""
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

    def enter(self, job: Job, request: Entry) -> Channel:
        """Run a command in the running job, or attach to an interactive one, also while it starts."""
        is_attach = isinstance(request, Attach)
        verb = "attach" if is_attach else "exec"
        if self._relay is not None:
            asked = {"detach_keys": request.detach_keys} if is_attach else {"request": to_builtins(request)}
            if (relayed := self._relay({"verb": verb, "job": job.id, **asked})) is not None:
                return relayed
        try:
            channel = self._entered(job, request)
        except RuntimeUnavailableError as error:
            if self._relay is None:
                raise
            hint = "start `gputui serve`, which relays, or get access to the engine"
            text = f"job {job.id} cannot be reached: no scheduler is running here that could relay, and {error.what}"
            raise GputuiError(text, hint=hint) from error
        if job.spec.idle_timeout:
            channel.on_input = self._note_input(job.id)
        self._record(job, verb, None if isinstance(request, Attach) else request)
        return channel

    def _entered(self, job: Job, request: Entry) -> Channel:
        """Enter by the name of the attempt's launch, not the queue's container id, which members may write."""
        attempt, interactive, permit = job.attempt, job.spec.interactive, partial(self._permit, job)
        if isinstance(request, ExecRequest):
            _running_container(job)
        elif interactive is None:
            raise GputuiError(f"job {job.shown_id} is not interactive", hint="gputui run starts such jobs")
        elif attempt is None or attempt.is_over or not job.state.is_active:
            raise GputuiError(f"job {job.shown_id} is {job.state}: it is not running")
        with self._lock:
            found = self._find(job)
        name = f"gputui-{self._store_id()}-{job.id}-{job.attempts[-1].number}"
        if isinstance(request, ExecRequest):
            return found.execute(name, request, permit)
        return found.attach(name, interactive or Interactive(), permit, request.detach_keys)

    def close(self) -> None:
        """Close connections."""
        with self._lock:
            for job_exec in self._by_runtime.values():
                job_exec.close()

    def _find(self, job: Job) -> JobExec:
        self._by_runtime = self._by_runtime or self._make()
        found = self._by_runtime.get(job.spec.runtime_in(self._by_runtime))
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
