"""Ways into running jobs of this machine: shells, commands, process lists, and the streams of interactive jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct, field

from gputui.domain.container import ExecRequest, ProcessRow, Shell
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, not_running
from gputui.domain.job_spec import Interactive, JobId
from gputui.domain.state import JobState
from gputui.ports import Channel, JobExec
from gputui.ports.backend import Entry

SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
"""Command that becomes the best shell there is."""


class Entrance(Struct, eq=False):
    """Passes requests to the runtime of a job, and records what entered then.

    Calls block, from any thread, and raise GputuiError; `processes` only one at a time.

    `make` returns the way into the jobs of each runtime, by its name.

    `permit` raises for a job of a submitter whom the runtime proved (None: unknown), `may_try` where the queue says
    that it would. `command` runs gputui with the same options.
    """

    _make: Callable[[], Mapping[str, JobExec]]
    _store_id: Callable[[], str]
    _permit: Callable[[Job, int | None], None]
    _note_input: Callable[[JobId], Callable[[], None]]
    _record: Callable[[Job, str, ExecRequest | None], None]
    command: tuple[str, ...] = ("gputui",)
    may_try: Callable[[Job], None] = lambda job: None
    _by_runtime: Mapping[str, JobExec] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def shell(self, job: Job) -> Shell:
        container_id = _running_container(job)
        self.may_try(job)
        place = "this host, with the job's environment, directory and limits"
        where = place if job.spec.is_host else f"container {container_id[:12]}"
        return Shell((*self.command, "exec", "-it", str(job.id), *SHELL), where)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        container_id = _running_container(job)
        with self._lock:
            return self._find(job).processes(container_id)

    def enter(self, job: Job, request: Entry) -> Channel:
        """Run a command in the running job, or attach to an interactive one, also while it starts."""
        attempt, interactive, permit = job.attempt, job.spec.interactive, partial(self._permit, job)
        if isinstance(request, ExecRequest):
            _running_container(job)
        elif interactive is None:
            raise GputuiError(f"job {job.shown_id} is not interactive", hint="gputui run starts such jobs")
        elif attempt is None or attempt.is_over or not job.state.is_active:
            raise GputuiError(f"job {job.shown_id} is {job.state}: it is not running")
        with self._lock:
            found = self._find(job)
        # by the name of the attempt's launch, not by the queue's container id
        name = f"gputui-{self._store_id()}-{job.id}-{job.attempts[-1].number}"
        if isinstance(request, ExecRequest):
            channel = found.execute(name, request, permit)
        else:
            channel = found.attach(name, interactive or Interactive(), permit, request.detach_keys)
        if job.spec.idle_timeout:
            channel.on_input = self._note_input(job.id)
        execute = request if isinstance(request, ExecRequest) else None
        self._record(job, "exec" if execute else "attach", execute)
        return channel

    def close(self) -> None:
        with self._lock:
            for job_exec in self._by_runtime.values():
                job_exec.close()

    def _find(self, job: Job) -> JobExec:
        self._by_runtime = self._by_runtime or self._make()
        found = self._by_runtime.get(job.spec.runtime_in(self._by_runtime))
        if found is None:
            what = f"job {job.shown_id} runs in a container"
            raise GputuiError(f"{what}, and this console was started without a container engine")
        return found


def _running_container(job: Job) -> str:
    attempt = job.attempt
    if job.state is not JobState.RUNNING or attempt is None or attempt.container_id is None:
        raise not_running(job)
    return attempt.container_id
