"""Jobs as processes of this host: the Runtime for machines, or jobs, without an engine."""

from __future__ import annotations

import errno
import logging
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Event

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import (
    Capability,
    ContainerRecord,
    ContainerState,
    Created,
    ForeignContainer,
    Launch,
    RuntimeStatus,
)
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Clock, LogStream
from gputui.runtime import process_cgroup, process_plan, process_refusal, process_session, wrapper
from gputui.runtime.process_attempt import AttemptFolder, Manifest, attempts_in, prepare, put, sweep
from gputui.runtime.process_log import FileLogStream, save
from gputui.runtime.process_record import Ledger
from gputui.runtime.process_user import account_name
from gputui.runtime.process_watch import ExitWatch

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds a wrapper may take to come up."""


class ProcessRuntime:
    """Runs attempts as host processes, kept in `<directory>/attempts/`; they outlive every gputui process.

    A service that schedules must leave its jobs alone when it stops: under systemd, `KillMode=process`.
    """

    name = "process"

    def __init__(
        self,
        store_id: str,
        directory: Path,
        settings: RuntimeSettings,
        clock: Clock,
    ) -> None:
        self._store_id = store_id
        self._root = directory / "attempts"
        self._log_limit = settings.log_max_size * settings.log_max_files
        self._clock = clock
        self._ledger = Ledger(store_id, self._root)
        self._watch = ExitWatch()
        self._out_of_reach: set[str] = set()
        """Attempts with processes that this user may not signal."""
        self._status = self._look()

    def status(self) -> RuntimeStatus:
        """How it stood when last asked."""
        return self._status

    def check(self) -> RuntimeStatus:
        """Whether attempts can be kept here and watched."""
        looked = self._look()
        if looked.up:
            sweep(self._root, self._clock.now())
        if (looked.up, looked.text, looked.warnings) != (self._status.up, self._status.text, self._status.warnings):
            self._status = looked
        return self._status

    def has_image(self, image: str) -> bool:
        """True: host processes have none."""
        return True

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        """Nothing: host processes have no image."""

    def create(self, launch: Launch) -> Created:
        """Make the attempt's directory, not started; raises BAD_SPEC for what a host process cannot have."""
        process_plan.check(launch)
        with self._disk():
            place = self._root / launch.name
            if place.is_dir() and (adopted := self._adopt(place, launch)) is not None:
                return adopted
            return self._make(launch)

    def start(self, container_id: str) -> None:
        """Start the wrapper, which starts the command once, however often and from wherever it is asked to.

        When it stays open whether the command runs, that is RuntimeUnavailable: the next listing tells.
        """
        deadline = time.monotonic() + _PATIENCE
        while not self._has_started(container_id):
            answer = self._spawn(container_id, deadline)
            if self._has_started(container_id):  # whatever the wrapper could say or not
                break
            if answer not in {b"already", b"busy", b"moved"}:
                raise _fault(f"the wrapper of {container_id} did not come up: {answer[-500:].decode(errors='replace')}")
            if time.monotonic() > deadline:
                raise _unknown(container_id)
            time.sleep(0.002)  # another wrapper is about to write that it starts
        record = self._there(container_id)
        if record.cause is not None and record.cause.code in process_refusal.CODES:
            raise RuntimeFault(record.cause)
        self._notice(record)

    def terminate(self, container_id: str) -> None:
        """SIGTERM to all processes of the attempt."""
        self._send(container_id, signal.SIGTERM)

    def signal(self, container_id: str, number: int) -> None:
        """Send that signal to all processes of the attempt."""
        self._send(container_id, number)

    def kill(self, container_id: str) -> None:
        """SIGKILL to all processes of the attempt; the wrapper stays to write down how it ended."""
        self._send(container_id, signal.SIGKILL)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """All of this store's attempts."""
        with self._disk():
            records = self._ledger.all()
        for record in records:
            self._notice(record)
        return records

    def inspect(self, container_id: str) -> ContainerRecord | None:
        """One of them."""
        with self._disk():
            record = self._ledger.find(container_id)
        if record is not None:
            self._notice(record)
        return record

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """None: processes of others are the probe's to see."""
        return ()

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        """None: those of other state directories are the probe's to see."""
        del container_id
        return ()

    def save_log(self, container_id: str, path: Path) -> None:
        """Copy its output, as far as the disk kept it."""
        self._there(container_id)
        with self._disk():
            save(self._folder(container_id).log(), path)

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Its output from the last `tail` lines on; with `follow`, until it ends. Nobody noted times."""
        del stamped
        self._there(container_id)

        def is_over() -> bool:
            record = self._ledger.find(container_id)
            return record is None or record.state is ContainerState.EXITED

        with self._disk():
            return FileLogStream(self._folder(container_id).log(), tail=tail, follow=follow, is_over=is_over)

    def remove(self, container_id: str) -> None:
        """Remove one that does not run, with its control groups."""
        record = self.inspect(container_id)
        if record is None:
            return
        folder = self._folder(container_id)
        with self._disk():
            groups = folder.cgroups()
        # the wrapper of one that ended may have the lock for a moment yet
        with self._disk(), _owned(folder), folder.claimed() as mine:
            if record.state is ContainerState.RUNNING or (record.state is ContainerState.CREATED and not mine):
                raise _fault(f"{container_id} runs: it cannot be removed")
            folder.move_away()
        process_cgroup.remove(groups)
        self._ledger.forget(container_id)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when an attempt of this store's may have ended."""
        self._watch.subscribe(wake)
        with suppress(RuntimeFault):  # the disk is away: they are found when it is back
            self.containers()

    def close(self) -> None:
        """Let go of the thread; attempts run on."""
        self._watch.close()

    def _look(self) -> RuntimeStatus:
        up, text = True, "host processes, without containers"
        parent = next((each for each in (self._root, *self._root.parents) if each.exists()), self._root)
        if not os.access(parent, os.W_OK | os.X_OK):
            up, text = False, f"{parent} cannot be written to: host jobs cannot be kept there"
        elif not sys.executable:
            up, text = False, "the Python interpreter does not know its own path: host jobs cannot be started"
        warnings = tuple(_beyond(each) for each in sorted(self._out_of_reach) if self._may_run(each))
        capability = Capability(limits=True)
        return RuntimeStatus(self.name, up, text, platform.release(), self._clock.now(), warnings, capability)

    def _may_run(self, container_id: str) -> bool:
        try:
            record = self._ledger.find(container_id)
        except OSError:
            return True
        return record is not None and record.state is ContainerState.RUNNING

    def _make(self, launch: Launch) -> Created:
        plan = process_plan.plan_of(launch, log_limit=self._log_limit)
        with attempts_in(self._root) as (root, access):
            group = process_cgroup.make(launch.name, launch.spec.options)
            manifest = Manifest(launch.gpus, launch.tag, launch.spec.command[0], group.folders, group.notes)
            plan += process_plan.encode(group.records())
            is_new = put(root, prepare(root, access, launch, manifest, plan), launch.name)
        return Created(launch.name, adopted=not is_new, notes=group.notes)

    def _adopt(self, place: Path, launch: Launch) -> Created | None:
        """The one that is there; None once it was removed because it never started and is not just what is wanted."""
        folder = AttemptFolder(place)
        manifest = folder.manifest()
        if manifest is None or manifest.gpus != launch.gpus or not folder.is_ours():
            with _owned(folder), folder.claimed() as mine:
                if mine and not folder.records().begun:
                    folder.move_away()
                    self._ledger.forget(launch.name)
                    return None
        return Created(launch.name, adopted=True, notes=manifest.notes if manifest else ())

    def _folder(self, container_id: str) -> AttemptFolder:
        return AttemptFolder(self._root / container_id)

    def _there(self, container_id: str) -> ContainerRecord:
        with self._disk():
            record = self._ledger.find(container_id)
        if record is None:
            raise _fault(f"there is no attempt {container_id}")
        return record

    def _has_started(self, container_id: str) -> bool:
        return self._there(container_id).state is not ContainerState.CREATED

    def _notice(self, record: ContainerRecord) -> None:
        if record.state is ContainerState.RUNNING:
            for pid in self._ledger.awaited(record):
                self._watch.add(pid)

    def _spawn(self, container_id: str, deadline: float) -> bytes:
        """Start a wrapper; return its answer, once the command runs or will not."""
        command = [sys.executable, "-I", "-S", wrapper.__file__, str(self._root / container_id)]
        loader = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        answers, answer = os.pipe()
        try:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=answer, cwd="/", env=loader):
                pass  # it forks away at once
        except OSError as error:
            os.close(answers)
            raise _fault(f"the wrapper of {container_id} could not be started: {error.strerror}") from error
        finally:
            os.close(answer)
        with open(answers, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            return self._heard(file, container_id, deadline)

    def _heard(self, file: FileIO, container_id: str, deadline: float) -> bytes:
        """Read to the end, which is there when no wrapper has anything to say any more."""
        heard, poll = b"", select.poll()
        poll.register(file, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (part := file.read(4096)):
                return heard
            heard += part
        raise _unknown(container_id)

    def _send(self, container_id: str, number: int) -> None:
        """Signal all its processes, and those they make meanwhile when they are to be killed."""
        seen: set[int] = set()
        folder = self._folder(container_id)
        for _ in range(50):
            if self._there(container_id).state is not ContainerState.RUNNING:
                return
            if number == signal.SIGKILL:
                process_cgroup.kill(folder.cgroups())
            pids, only = self._ledger.reach(container_id)
            fresh = tuple(pid for pid in pids if pid not in seen)
            if process_session.send(fresh, number, only) and container_id not in self._out_of_reach:
                self._out_of_reach.add(container_id)
                log.warning("%s", _beyond(container_id))
            if fresh and number is not signal.SIGKILL:
                return
            if not fresh and seen:
                return
            seen.update(fresh)
            if not fresh:  # the wrapper is there, its command not yet
                time.sleep(0.002)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn what the disk refuses into faults."""
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                text = f"no space left for host jobs in {self._root}"
                raise RuntimeFault(Cause(CauseCode.DISK_FULL, text), hint="free some space") from error
            raise RuntimeUnavailableError(f"{self._root}: {error.strerror or error}") from error


@contextmanager
def _owned(folder: AttemptFolder) -> Iterator[None]:
    """Say of another user's attempt, which we may neither begin nor remove, whose it is.

    Whether that user's scheduler has begun it is not known, so it ends as EndUnknown instead of running twice.
    """
    try:
        yield
    except PermissionError as error:
        name = account_name(folder.path.stat(follow_symlinks=False).st_uid)
        who = "root" if name == "root" else f"{name} or root"
        text = f"{folder.path.name} was made by the scheduler of {name}: only {who} can begin or remove it"
        raise RuntimeFault(Cause(CauseCode.END_UNKNOWN, text), hint="let root schedule") from error


def _beyond(container_id: str) -> str:
    who = account_name(os.geteuid())
    return f"{container_id} runs as another user, whose processes {who} cannot end; let root schedule"


def _unknown(container_id: str) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(f"the wrapper of {container_id} has not answered for {_PATIENCE:.0f} s")


def _fault(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, text))
