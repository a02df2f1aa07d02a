"""Actions on foreign processes and containers, each with an audit entry before it and one with its result.

They do not go through the scheduler: it may run as root, and would lend its rights to all who can write the queue. This
process carries them out itself, with the rights of its user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property, partial

from msgspec import Struct

from gputui.domain.access import Actor, AuditEntry
from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu_processes import ContainerDetail, ProcessTarget
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.ports import Clock, JobStore, LogStream
from gputui.ports.machine import ForeignContainers, HostProcesses

SIGNALS: Mapping[str, int] = {"INT": 2, "TERM": 15, "KILL": 9}
"""Signals that may be sent, by name."""
PATIENCE = 3.0
"""Seconds for which a process is watched after a signal."""
_TICKS = os.sysconf("SC_CLK_TCK")
_TAG = "GPUTUI_ATTEMPT="


def parse_signal(text: str, where: str) -> str:
    """Return the name of a signal given as `TERM`, `SIGTERM` or `15`; raise InputError for any other."""
    word = text.strip().upper().removeprefix("SIG")
    found = next((name for name, number in SIGNALS.items() if word in {name, str(number)}), None)
    if found is None:
        raise InputError(f"{plain(text, 40)!r} is not one of {', '.join(SIGNALS)}", where=where)
    return found


class ForeignUse(Struct, eq=False, dict=True):
    """Foreign processes and containers, for one actor.

    Methods block, may be called from any thread, and raise GputuiError.

    `store`, `host` and `containers` are asked when they are first needed.
    """

    _store: Callable[[], JobStore]
    _clock: Clock
    _actor: Actor
    _make_host: Callable[[], HostProcesses]
    _make: Callable[[], ForeignContainers | None]
    is_read_only: bool = False
    _patience: float = PATIENCE
    _containers: ForeignContainers | None = None

    @cached_property
    def _host(self) -> HostProcesses:
        return self._make_host()

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        return self._host.rows(pids, with_parents=with_parents)

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Return `NAME=value` of a process; refused for other users' processes, except to root."""
        return self._host.environment(target)

    def container(self, name: str) -> ContainerDetail:
        return self._engine().inspect(name)

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool = False) -> LogStream:
        return self._engine().logs(container_id, tail=tail, follow=follow, stamped=stamped)

    def close(self) -> None:
        if self._containers is not None:
            self._containers.close()

    def signal(self, target: ProcessTarget, name: str) -> str:
        """Send INT, TERM or KILL to a process that belongs to no job; return the result as text."""
        words = target.sentence
        if target.ticks is not None:
            age = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - target.ticks / _TICKS)
            words = f"{words}, started {self._clock.now() - age:%Y-%m-%dT%H:%M:%SZ}"
        note = partial(self._note, "signal", f"pid {target.pid}", words)
        try:
            # neither a process of a job, nor one that cannot be identified
            self._check_writable()
            text, hint = target.refusal
            if text:
                raise GputuiError(text, hint=hint)
            job = self._job_of(target)
            if job is not None:
                hint = f"cancel the job: gputui cancel {job.shown_id}"
                raise GputuiError(f"pid {target.pid} belongs to job {job.shown_id}", hint=hint)
            outcome = self._host.signal(target, SIGNALS[name], self._patience, lambda: note(f"{name}: requested"))
        except GputuiError as error:
            note(f"{name}: refused: {error}")
            raise
        note(f"{name}: {outcome.sentence}")
        return f"{name} to {target.sentence}: {outcome.sentence}"

    def stop(self, container_id: str) -> str:
        """Stop a foreign container as `docker stop` does; return the result as text."""
        about = f"container {container_id}"
        note = partial(self._note, "stop-container", about, "")
        try:
            self._check_writable()
            detail = self._engine().inspect(container_id)
            about = f"container {detail.name}"
            note = partial(self._note, "stop-container", about, f"{detail.id[:12]} {detail.sentence}")
            if detail.store or detail.job:
                owner = f"job {detail.job or '?'} of the gputui queue {detail.store or '?'}"
                hint = f"cancel the job: gputui cancel {detail.job}" if detail.job else None
                raise GputuiError(f"container {detail.name} belongs to {owner}", hint=hint)
            if not detail.is_running:
                raise GputuiError(f"container {detail.name} does not run: it is {detail.state}")
            note("requested")
            began = time.monotonic()
            after = self._engine().stop(detail.id, detail.stop_timeout)
        except GputuiError as error:
            note(f"refused: {error}")
            raise
        seconds = time.monotonic() - began
        if after.is_running:
            again = f"; its restart policy is {after.restart}" if after.restart else ""
            result = f"still {after.state} after {seconds:.0f} s{again}"
        else:
            code = "" if after.exit_code is None else f" with exit code {after.exit_code}"
            killed = ": it ignored its stop signal and was killed" if after.exit_code == 137 else ""
            result = f"stopped after {seconds:.1f} s{code}{killed}"
        note(result)
        return f"{about}: {result}"

    def _note(self, verb: str, about: str, before: str, after: str) -> None:
        now, actor = self._clock.now(), self._actor
        words = plain(about, 100), plain(before, 600), plain(after, 400)
        self._store().note(AuditEntry(now, actor.uid, actor.user, verb, *words))

    def _check_writable(self) -> None:
        if self.is_read_only:
            raise GputuiError("this console is read-only", hint="start it without --read-only")

    def _job_of(self, target: ProcessTarget) -> Job | None:
        store = self._store()
        active = [job for job in store.jobs().values() if job.state.is_active and job.attempt]
        by_container = {job.attempt.container_id: job for job in active if job.attempt}
        if target.container_id is not None and target.container_id in by_container:
            return by_container[target.container_id]
        try:
            environment = self._host.environment(target)
        except GputuiError:
            return None  # then the signal is refused too, or the process has ended
        tag = next((word.removeprefix(_TAG) for word in environment if word.startswith(_TAG)), "")
        tags = {f"{store.store_id}:{job.id}:{job.attempt.number}": job for job in active if job.attempt}
        return tags.get(tag)

    def _engine(self) -> ForeignContainers:
        self._containers = self._containers or self._make()
        if self._containers is None:
            raise GputuiError("this console was started without a container engine")
        return self._containers
