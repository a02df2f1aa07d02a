"""Index of a store's host attempts, with their states from their directories and /proc."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from gputui.domain.cause import PART_OUT_OF_MEMORY, Cause, CauseCode, cause_of_exit
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.runtime import host_processes
from gputui.runtime.consumption import at_the_end
from gputui.runtime.host_processes import ProcessIdentity
from gputui.runtime.process import cgroup
from gputui.runtime.process.attempt_folder import AttemptFolder, Manifest, Records, parse_name

REFUSALS = frozenset(
    {CauseCode.COMMAND_NOT_FOUND, CauseCode.COMMAND_NOT_EXECUTABLE, CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR}
)
_STEPS = {
    "workdir": "its working directory",
    "user": "the change to its user",
    "ulimit": "one of its ulimits",
}
Stamp: TypeAlias = tuple[int, int]
"""Inode and change time of an attempt's directory."""


def refusal_cause(refusal: str, command: str) -> Cause:
    """Return the cause of a refusal `STEP ERRNO` of the wrapper."""
    step, _, number = refusal.partition(" ")
    code = int(number) if number.isdigit() else 0
    words = os.strerror(code) if code else "not possible"
    if step == "runner":
        return Cause(CauseCode.RUNTIME_ERROR, "its runner was killed before the command began")
    if step in _STEPS:
        return Cause(CauseCode.BAD_SPEC, f"{_STEPS[step]} was refused: {words}")
    if step != "command":
        return Cause(CauseCode.RUNTIME_ERROR, f"the host could not run it ({step}): {words}")
    if code in {errno.ENOENT, errno.ENOTDIR}:
        return Cause(CauseCode.COMMAND_NOT_FOUND, f"the command {command} was not found on this host")
    return Cause(CauseCode.COMMAND_NOT_EXECUTABLE, f"the command {command} could not be executed: {words}")


class AttemptIndex:
    """Index of the attempts of one store; final states are read once."""

    def __init__(self, store_id: str, root: Path) -> None:
        self._store_id = store_id
        self._root = root
        self._manifests: dict[str, tuple[Stamp, Manifest]] = {}
        """Manifests with the stamp of their directory, which changes if it is replaced."""
        self._ended: dict[str, tuple[Stamp, ContainerRecord]] = {}

    def all(self) -> tuple[ContainerRecord, ...]:
        """Return all attempts by job and attempt number. Raises OSError."""
        try:
            names = [each.name for each in self._root.iterdir()]
        except FileNotFoundError:
            return ()
        found = [self.find(name) for name in names]
        return tuple(sorted((each for each in found if each), key=lambda each: (each.job_id, each.attempt)))

    def find(self, name: str) -> ContainerRecord | None:
        """Return one attempt; None if there is none of that name. Raises OSError."""
        place = parse_name(name, self._store_id)
        if place is None:
            return None
        folder = AttemptFolder(self._root / name)
        try:
            status = folder.path.stat()
            stamp = status.st_ino, status.st_ctime_ns
            known = self._ended.get(name)
            return known[1] if known and known[0] == stamp else self._read(folder, stamp, *place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # an unreadable directory of another member must not hide all others
            if error.errno == errno.EACCES and os.access(self._root, os.X_OK):
                return ContainerRecord(name, *place, ContainerState.RUNNING)  # assumed, so that it is not run again
            if error.errno == errno.ELOOP:  # gputui creates no links
                return None
            raise

    def forget(self, name: str) -> None:
        """Drop one attempt from the index."""
        self._manifests.pop(name, None)
        self._ended.pop(name, None)

    def members(self, name: str) -> tuple[int, ...]:
        """Return the pids of an attempt's processes, without the wrapper's."""
        return self.reach(name)[0]

    def reach(self, name: str) -> tuple[tuple[int, ...], int | None]:
        """Return the pids of its processes, and the uid whose processes may be signalled (None: any)."""
        folder = AttemptFolder(self._root / name)
        records = folder.records()
        return self._members(folder, records), records.reach

    def awaited(self, record: ContainerRecord) -> tuple[int, ...]:
        """Return the pids whose end may end the attempt: the runner's, else the keeper's, else all members'."""
        records = AttemptFolder(self._root / record.id).records()
        for who in (records.runner, records.start.leader if records.start else None):
            if who is not None and host_processes.is_alive(who):
                return (who.pid,)
        return self.members(record.id)

    def _read(self, folder: AttemptFolder, stamp: Stamp, job_id: int, attempt: int) -> ContainerRecord:
        """Read the state: from the end record if there is one, else from the lock of its possible writers."""
        records = folder.records()
        manifest = self._manifest(folder, stamp)
        gpus = manifest.gpus if manifest else ()
        if not records.begun:
            return ContainerRecord(folder.path.name, job_id, attempt, ContainerState.CREATED, gpus)
        is_running = records.end is None and self._runs(folder, records)
        if not is_running and records.end is None:  # it may have ended between the two reads
            records = folder.records()
        start = records.start
        record = ContainerRecord(
            folder.path.name,
            job_id,
            attempt,
            ContainerState.RUNNING if is_running else ContainerState.EXITED,
            gpus,
            started_at=start.at if start else None,
            pid=start.leader.pid if start else None,
        )
        if is_running:
            return replace(record, is_suspended=folder.is_suspended())
        used = at_the_end(folder.cgroups())  # before they are removed with its directory
        record = replace(_ended(record, records, manifest), consumption=used)
        self._ended[folder.path.name] = (stamp, record)
        return record

    def _manifest(self, folder: AttemptFolder, stamp: Stamp) -> Manifest | None:
        known = self._manifests.get(folder.path.name)
        if known and known[0] == stamp:
            return known[1]
        manifest = folder.manifest()
        if manifest is not None:
            self._manifests[folder.path.name] = (stamp, manifest)
        return manifest

    def _runs(self, folder: AttemptFolder, records: Records) -> bool:
        is_watched = folder.is_watched()
        if is_watched is None:
            wrapper = (records.start.leader if records.start else None, records.runner)
            is_watched = any(who is not None and host_processes.is_alive(who) for who in wrapper)
        return is_watched or bool(self._members(folder, records))

    def _members(self, folder: AttemptFolder, records: Records) -> tuple[int, ...]:
        leader = records.start.leader if records.start else ProcessIdentity(-1, 0, host_processes.boot_id())
        grouped = cgroup.members(folder.cgroups())
        return host_processes.attempt_members(leader, records.runner, self._tag(folder.path.name), grouped)

    def _tag(self, name: str) -> str:
        job_id, attempt = parse_name(name, self._store_id) or (0, 0)
        return f"{self._store_id}:{job_id}:{attempt}"


def _ended(record: ContainerRecord, records: Records, manifest: Manifest | None) -> ContainerRecord:
    end = records.end
    if end is None:
        return replace(record, cause=_lost(records))
    if end.refusal:
        cause: Cause | None = refusal_cause(end.refusal, manifest.command if manifest else "")
    else:
        cause = cause_of_exit(end.code, oom_killed=end.oom_kills > 0)
    notes = (PART_OUT_OF_MEMORY,) if end.oom_kills > 0 and cause is None else ()
    return replace(record, ended_at=end.at, exit_code=end.code, cause=cause, notes=notes)


def _lost(records: Records) -> Cause:
    """Return the cause for a missing end record; whether the command may have run decides about a retry."""
    start = records.start
    if start is not None and start.leader.boot != host_processes.boot_id():
        return Cause(CauseCode.CONTAINER_LOST, "the machine was restarted while it ran")
    if not records.may_have_run and not records.is_damaged:
        return Cause(CauseCode.CONTAINER_LOST, "its wrapper was killed before its command began")
    why = "its record is damaged" if start is None or records.is_damaged else "its wrapper was killed"
    return Cause(CauseCode.END_UNKNOWN, f"{why}, so its end is unknown: it may have finished its work")
