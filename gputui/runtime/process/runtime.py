"""Runtime for jobs as processes of this host, without an engine: plans for their wrappers, and a watch for ends."""

from __future__ import annotations

import errno
import logging
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from msgspec import Struct, field
from msgspec.structs import asdict

from gputui.domain.container import (
    DEFAULT_ENVIRONMENT,
    ContainerRecord,
    ContainerState,
    Created,
    ForeignContainer,
    Launch,
    RuntimeFeatures,
    RuntimeStatus,
)
from gputui.domain.errors import Cause, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.domain.telemetry import Consumption
from gputui.ports import Clock, LogStream
from gputui.runtime import cgroups, host_processes
from gputui.runtime.cgroups import ConsumptionReader
from gputui.runtime.host_processes import Account, account_name, account_of, read_stat, refused
from gputui.runtime.process import attempt_folder, wrapper
from gputui.runtime.process.attempt_folder import (
    AttemptFolder,
    AttemptIndex,
    Manifest,
    attempts_in,
    closed_after,
    parse_name,
    prepare,
    publish,
    remove_stale,
)
from gputui.runtime.process.log import FileLogStream, save
from gputui.threads import Watcher

log = logging.getLogger(__name__)

_OF_HOSTS = frozenset({"env", "workdir", "user", "cpus", "cpu_shares", "memory", "ulimits", "labels"})
"""Options that apply to a host process; the others are for containers."""
_OPTIONS = {"volumes": "--volume", "mounts": "--mount"}
_PATH = "/usr/local/bin:/usr/bin:/bin"
_ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def plan_of(launch: Launch, *, log_limit: int) -> bytes:
    """Return the plan: `key=value` records, each ended by NUL; raises BAD_SPEC."""
    options = launch.spec.options
    account = account_of(options.user, launch.run_as)
    env = environment(launch, account)
    records = [("arg", each) for each in launch.spec.command]
    records += [("env", f"{name}={value}") for name, value in env.items()]
    if (inherited := launch.spec.inherited) is not None:
        records += [("umask", str(inherited.umask & 0o777))]
        limits = ((_known(name), soft) for name, soft in inherited.limits)
        records += [("soft", f"{which}:{soft}") for which, soft in limits if which is not None]
    records += [("rlimit", _rlimit(each, is_bound=launch.box is not None)) for each in options.ulimits]
    records += [("cwd", options.workdir or env.get("HOME") or "/"), ("log_limit", str(log_limit))]
    if (interactive := launch.spec.interactive) is not None:
        owner = account.uid if launch.run_as is None else launch.run_as
        records += [("session", "tty" if interactive.tty else "pipes"), ("session_uid", str(owner))]
        records += [("session_input", "1")] if interactive.stdin else []
    if account.is_other:
        records += [("uid", str(account.uid)), ("gid", str(account.gid))]
        records += [("group", str(group)) for group in account.groups]
    return _encoded(records)


def _encoded(records: Iterable[tuple[str, str]]) -> bytes:
    encoded = []
    for key, value in records:
        try:
            content = os.fsencode(value)
        except UnicodeEncodeError:
            content = b"\0"
        if b"\0" in content:
            raise refused(f"{value[:40]!a} holds characters that no command line or environment can")
        encoded.append(key.encode() + b"=" + content + b"\0")
    return b"".join(encoded)


def environment(launch: Launch, account: Account) -> dict[str, str]:
    """Return the job's environment: the account's, the submitter's variables, and gputui's.

    Nothing of the scheduler's own environment is included.
    """
    env = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    env["PATH"] = _PATH if account.uid else _ROOT_PATH
    for name, _ in launch.spec.options.env:
        if not name or "=" in name:
            raise refused(f"{name!a} cannot be the name of an environment variable")
    env |= DEFAULT_ENVIRONMENT | dict(launch.spec.options.env)
    visible = ",".join(launch.gpus)
    env |= {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}
    env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUTUI_ATTEMPT": launch.tag}
    env |= {"GPUTUI_JOB_ID": str(launch.job_id), "GPUTUI_GPUS": str(len(launch.gpus))}
    if launch.promised:
        env["GPUTUI_GPU_MEMORY"] = str(launch.promised)
    if launch.array_index is not None:
        env["GPUTUI_ARRAY_INDEX"] = str(launch.array_index)
    return env


def _rlimit(text: str, *, is_bound: bool) -> str:
    """Return the record of a `--ulimit`; the scheduler's own hard limits bound those of plain users."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    which = _known(name.strip())
    numbers = []
    for each in (soft, hard or soft):
        if each.strip() in {"-1", "unlimited"}:
            numbers.append(resource.RLIM_INFINITY)
        elif each.isascii() and each.isdigit() and len(each) < 19:
            numbers.append(int(each))
    if which is None or len(numbers) < 2:
        raise refused(f"--ulimit {text!a} is not NAME=SOFT[:HARD] of a limit this host knows")
    most = resource.getrlimit(which)[1]
    if is_bound and any(number > most or number < 0 for number in numbers) and most >= 0:
        raise refused(f"--ulimit {text!a} is more than {most}, the most that the scheduler itself may have")
    return f"{which}:{numbers[0]}:{numbers[1]}"


def _known(name: str) -> int | None:
    which = getattr(resource, f"RLIMIT_{name.upper()}", None)
    return which if isinstance(which, int) else None


_BLIND = 0.1
"""Polling interval in seconds for kernels without process descriptors (before Linux 5.3)."""


class ExitWatch(Struct, eq=False):
    """Daemon thread that calls `wake` when any of the watched processes ends."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pids: dict[int, int] = {}
    """Process descriptors by pid."""
    _blind: set[int] = set()
    """Pids without a descriptor, which are polled."""
    _wakes: list[Callable[[], None]] = []
    _bell: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    _thread: threading.Thread | None = None
    _closed: bool = False

    def subscribe(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakes.append(wake)
            if self._thread is None and not self._closed:
                self._thread = Watcher("gputui-process-watch", self._run)
                self._thread.start()

    def add(self, pid: int) -> None:
        """Watch a process. Without a subscriber nothing is watched."""
        with self._lock:
            if self._thread is None or self._closed or pid in self._pids or pid in self._blind:
                return
            try:
                self._pids[pid] = os.pidfd_open(pid)
            except OSError:  # already gone, no descriptors left, or an old kernel: poll
                self._blind.add(pid)
            self._ring()

    def close(self) -> None:
        """End the thread. No `wake` is called after the return, unless a `wake` calls this."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._thread is None:
            self._close_descriptors()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _close_descriptors(self) -> None:
        for descriptor in (self._bell, *self._pids.values()):
            os.close(descriptor)
        self._pids.clear()

    def _run(self) -> None:
        while not self._closed:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            with self._lock:
                pids = {descriptor: pid for pid, descriptor in self._pids.items()}
                pause = _BLIND * 1000 if self._blind else None
            for descriptor in pids:
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(pause)}
            if self._bell in ready:
                os.eventfd_read(self._bell)
            with self._lock:
                ended = [pids[descriptor] for descriptor in ready & pids.keys()]
                for pid in ended:
                    os.close(self._pids.pop(pid))
                vanished = {pid for pid in self._blind if read_stat(pid) is None}
                self._blind -= vanished
            for wake in tuple(self._wakes) if (ended or vanished) and not self._closed else ():
                try:
                    wake()
                except Exception:  # one listener's failure must not affect the others
                    log.exception("a listener for ends of host jobs failed")
        self._close_descriptors()


_PATIENCE = 10.0
"""Seconds that a wrapper may take to start."""


class ProcessRuntime:
    """Runtime for host processes, kept in `<directory>/attempts/`; they outlive every gputui process.

    A service that schedules must not end its jobs when it stops: under systemd, `KillMode=process`.
    """

    name = "process"

    def __init__(self, store_id: str, directory: Path, settings: RuntimeSettings, clock: Clock) -> None:
        self._store_id = store_id
        self._root = directory / "attempts"
        self._log_limit = settings.log_max_size * settings.log_max_files
        self._clock = clock
        self._index = AttemptIndex(store_id, self._root)
        self._watch = ExitWatch()
        self._consumption = ConsumptionReader()
        self._out_of_reach: set[str] = set()
        """Attempts with processes that this user may not signal."""
        self._status = self._current_status()

    def status(self) -> RuntimeStatus:
        return self._status

    def check(self) -> RuntimeStatus:
        """Return whether attempts can be kept and started here, and remove stale directories and groups."""
        looked = self._current_status()
        if looked.up:

            def is_stale(name: str) -> bool:
                is_own = parse_name(name, self._store_id) is not None
                return is_own and self._root.is_dir() and not (self._root / name).exists()

            remove_stale(self._root, self._clock.now())
            cgroups.remove_stale(is_stale, self._clock.now())
        if (looked.up, looked.text, looked.warnings) != (self._status.up, self._status.text, self._status.warnings):
            self._status = looked
        return self._status

    def has_image(self, image: str) -> bool:
        return True  # host processes have none

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None: ...

    def create(self, launch: Launch) -> Created:
        """Create the attempt's directory without starting it; raises BAD_SPEC for options of containers."""
        spec = launch.spec
        if spec.image is not None:
            raise refused("the job has an image, but this runtime runs commands of the host, without containers")
        if not spec.command or not spec.command[0]:
            raise refused("a host job needs a command")
        for name, value in asdict(spec.options).items():
            if name not in _OF_HOSTS and value not in (None, ()) and value is not False:
                option = _OPTIONS.get(name) or "--" + name.replace("_", "-")
                raise refused(f"{option} works only for containers, not for host jobs")
        with self._disk():
            folder = AttemptFolder(self._root / launch.name)
            if folder.path.is_dir():
                manifest = folder.manifest()
                if not self._was_removed(folder, manifest, launch):
                    return Created(launch.name, adopted=True, notes=manifest.notes if manifest else ())
            planned = plan_of(launch, log_limit=self._log_limit)
            with attempts_in(self._root) as (root, is_others):
                group = cgroups.make(launch.name, spec.options)
                manifest = Manifest(
                    launch.gpus, launch.tag, spec.command[0], group.folders, group.notes, launch.submitter
                )
                planned += _encoded(group.records())
                is_new = publish(root, prepare(root, launch, manifest, planned, is_readable=is_others), launch.name)
            return Created(launch.name, adopted=not is_new, notes=group.notes)

    def _was_removed(self, folder: AttemptFolder, manifest: Manifest | None, launch: Launch) -> bool:
        """Remove an existing attempt that has never started and is different; return whether it was removed."""
        if manifest is None or manifest.gpus != launch.gpus or not folder.is_ours():
            with _owned(folder), folder.claimed() as mine:
                if mine and not folder.records().begun:
                    cgroups.remove(folder.cgroups())  # with the limits that they have
                    folder.move_away()
                    self._index.forget(launch.name)
                    return True
        return False

    def start(self, container_id: str) -> None:
        """Start the wrapper, which runs the command once, no matter how often the wrapper is started.

        Raises RuntimeUnavailableError if it remains unknown whether the command runs; the next listing shows it.
        """
        deadline = time.monotonic() + _PATIENCE
        while not self._has_started(container_id):
            answer = self._spawn(container_id, deadline)
            if self._has_started(container_id):  # regardless of the wrapper's answer
                break
            if answer not in {b"already", b"busy", b"moved"}:
                raise _fault(f"the wrapper of {container_id} did not start: {answer[-500:].decode(errors='replace')}")
            if time.monotonic() > deadline:
                raise _silent(container_id)
            time.sleep(0.002)  # another wrapper is about to write its start record
        record = self._there(container_id)
        if record.cause is not None and record.cause.code in attempt_folder.REFUSALS:
            raise RuntimeFault(record.cause)
        self._notice(record)

    def terminate(self, container_id: str) -> None:
        """Send SIGTERM to all processes of the attempt, and continue them if they are suspended."""
        self._send(container_id, signal.SIGTERM)
        self.unsuspend(container_id)

    def signal(self, container_id: str, number: int) -> None:
        self._send(container_id, number)

    def kill(self, container_id: str) -> None:
        """Send SIGKILL to all processes of the attempt; the wrapper stays to record the end."""
        self._send(container_id, signal.SIGKILL)
        self.unsuspend(container_id)

    def suspend(self, container_id: str) -> None:
        """Freeze its control group, or without one send SIGSTOP to all its processes."""
        if self._there(container_id).state is not ContainerState.RUNNING:
            return
        folder = self._folder(container_id)
        with self._disk(container_id):
            folder.set_suspended(is_suspended=True)
        if not cgroups.freeze(folder.cgroups(), is_frozen=True):
            self._send(container_id, signal.SIGSTOP)

    def unsuspend(self, container_id: str) -> None:
        folder = self._folder(container_id)
        if not folder.is_suspended():
            return
        if not cgroups.freeze(folder.cgroups(), is_frozen=False):
            self._send(container_id, signal.SIGCONT)
        with self._disk():
            folder.set_suspended(is_suspended=False)

    def containers(self) -> tuple[ContainerRecord, ...]:
        with self._disk():
            records = self._index.all()
        for record in records:
            self._notice(record)
        return records

    def inspect(self, container_id: str) -> ContainerRecord | None:
        with self._disk():
            record = self._index.find(container_id)
        if record is not None:
            self._notice(record)
        return record

    def foreign(self) -> tuple[ForeignContainer, ...]:
        return ()  # the probe sees foreign processes

    def root_directory(self) -> str:
        return "/"

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        return ()  # the probe sees processes of other state directories

    def save_log(self, container_id: str, path: Path) -> None:
        from gputui.runtime.process.job_exec import save_marks  # with all of attaching, so not before a job has ended

        self._there(container_id)
        with self._disk(container_id):
            folder = self._folder(container_id)
            save_marks(folder, save(folder.log(), path), path)

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Return its output; times are not recorded."""
        self._there(container_id)

        def is_over() -> bool:
            record = self._index.find(container_id)
            return record is None or record.state is ContainerState.EXITED

        with self._disk(container_id):
            return FileLogStream(self._folder(container_id).log(), tail=tail, follow=follow, is_over=is_over)

    def activity(self, container_id: str) -> object:
        """Return the time of the last write to its log, which its wrapper also sets with input."""
        with self._disk(container_id), closed_after(self._folder(container_id).log()) as descriptor:
            status = os.fstat(descriptor)
        return status.st_mtime_ns, status.st_size

    def consumption(self, container_id: str) -> Consumption | None:
        """Return the consumption from its control groups; None on a host where it has none."""
        folder = self._folder(container_id)
        with self._disk(container_id):
            return self._consumption.of_groups(container_id, folder.cgroups)

    def remove(self, container_id: str) -> None:
        """Remove an attempt that is not running, with its control groups."""
        record = self.inspect(container_id)
        if record is None:
            return
        folder = self._folder(container_id)
        with self._disk():
            groups = folder.cgroups()
        # the wrapper of an ended attempt may hold the lock a moment longer
        with self._disk(), _owned(folder), folder.claimed() as mine:
            if record.state is ContainerState.RUNNING or (record.state is ContainerState.CREATED and not mine):
                raise _fault(f"{container_id} is running and cannot be removed")
            cgroups.remove(groups)  # first: once the directory is gone, nothing names them
            folder.move_away()
        self._index.forget(container_id)

    def watch(self, wake: Callable[[], None]) -> None:
        self._watch.subscribe(wake)
        self.check()
        with suppress(RuntimeFault):  # the disk is unavailable: attempts are found when it is back
            self.containers()

    def close(self) -> None:
        self._watch.close()

    def _current_status(self) -> RuntimeStatus:
        up, text = True, "host processes, without containers"
        parent = next((each for each in (self._root, *self._root.parents) if each.exists()), self._root)
        if not os.access(parent, os.W_OK | os.X_OK):
            up, text = False, f"{parent} cannot be written to: host jobs cannot be kept there"
        elif not sys.executable:
            up, text = False, "the Python interpreter does not know its own path: host jobs cannot be started"
        warnings = []
        for name in sorted(self._out_of_reach):
            try:
                record = self._index.find(name)
                may_run = record is not None and record.state is ContainerState.RUNNING
            except OSError:
                may_run = True
            warnings += [_beyond(name)] if may_run else []
        capability = RuntimeFeatures(limits=True)
        return RuntimeStatus(self.name, up, text, platform.release(), self._clock.now(), tuple(warnings), capability)

    def _folder(self, container_id: str) -> AttemptFolder:
        return AttemptFolder(self._root / container_id)

    def _there(self, container_id: str) -> ContainerRecord:
        with self._disk():
            record = self._index.find(container_id)
        if record is None:
            raise _gone(container_id)
        return record

    def _has_started(self, container_id: str) -> bool:
        return self._there(container_id).state is not ContainerState.CREATED

    def _notice(self, record: ContainerRecord) -> None:
        if record.state is ContainerState.RUNNING:
            for pid in self._index.awaited(record):
                self._watch.add(pid)

    def _spawn(self, container_id: str, deadline: float) -> bytes:
        """Start a wrapper; return its answer once the command runs or was refused."""
        command = [sys.executable, "-I", "-S", wrapper.__file__, str(self._root / container_id)]
        loader = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        answers, answer = os.pipe()
        try:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=answer, cwd="/", env=loader):  # noqa: S603 - this Python, and our own module
                pass  # it forks away at once
        except OSError as error:
            os.close(answers)
            raise _fault(f"the wrapper of {container_id} could not be started: {error.strerror}") from error
        finally:
            os.close(answer)
        with open(answers, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            heard, poll = b"", select.poll()
            poll.register(file, select.POLLIN)
            while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                if not (part := file.read(4096)):
                    return heard
                heard += part
            raise _silent(container_id)

    def _send(self, container_id: str, number: int) -> None:
        """Signal all its processes; for SIGKILL also those created meanwhile."""
        seen: set[int] = set()
        folder = self._folder(container_id)
        for _ in range(50):
            if self._there(container_id).state is not ContainerState.RUNNING:
                return
            if number == signal.SIGKILL:
                cgroups.kill(folder.cgroups())
            pids, only = self._index.reach(container_id)
            fresh = tuple(pid for pid in pids if pid not in seen)
            if host_processes.send_signal(fresh, number, only) and container_id not in self._out_of_reach:
                self._out_of_reach.add(container_id)
                log.warning("%s", _beyond(container_id))
            if fresh and number not in {signal.SIGKILL, signal.SIGSTOP}:
                return
            if not fresh and seen:
                return
            seen.update(fresh)
            if not fresh:  # the wrapper has not started the command yet
                time.sleep(0.002)

    @contextmanager
    def _disk(self, container_id: str | None = None) -> Iterator[None]:
        """Raise OSErrors of the disk as RuntimeFaults; if the attempt was removed meanwhile, that it is gone."""
        try:
            yield
        except OSError as error:
            if container_id and isinstance(error, FileNotFoundError) and not (self._root / container_id).exists():
                raise _gone(container_id) from error
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                text = f"no space left for host jobs in {self._root}"
                raise RuntimeFault(Cause(CauseCode.DISK_FULL, text), hint="free some space") from error
            raise RuntimeUnavailableError(f"{self._root}: {error.strerror or error}") from error


@contextmanager
def _owned(folder: AttemptFolder) -> Iterator[None]:
    """Raise a fault that names the owner if another user's attempt can be neither started nor removed.

    Whether that user's scheduler started it is unknown, so it ends as EndUnknown instead of running twice.
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


def _silent(container_id: str) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(f"the wrapper of {container_id} has not answered for {_PATIENCE:.0f} s")


def _gone(container_id: str) -> RuntimeFault:
    return _fault(f"there is no attempt {container_id}")


def _fault(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, text))


class DemoRuntime(ProcessRuntime):
    """Host processes, and simulated foreign containers."""

    def __init__(
        self,
        store_id: str,
        directory: Path,
        settings: RuntimeSettings,
        clock: Clock,
        others: Callable[[], tuple[ForeignContainer, ...]] = tuple,
    ) -> None:
        super().__init__(store_id, directory, settings, clock)
        self._others = others
        self._wakes: list[Callable[[], None]] = []

    def watch(self, wake: Callable[[], None]) -> None:
        super().watch(wake)
        self._wakes.append(wake)

    def wake(self) -> None:
        """Report that a simulated container has ended."""
        for wake in self._wakes:
            wake()

    def foreign(self) -> tuple[ForeignContainer, ...]:
        return self._others()
