"""How each attempt stands, from its directory and from /proc."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import TypeAlias

from gputui.domain.cause import Cause, CauseCode, of_exit
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.runtime import process_cgroup, process_session
from gputui.runtime.process_attempt import AttemptFolder, Manifest, Records, parse_name
from gputui.runtime.process_refusal import cause_of
from gputui.runtime.process_session import Identity

Stamp: TypeAlias = tuple[int, int]
"""Inode and time of change of an attempt's directory."""


class Ledger:
    """The attempts of one store; what never changes any more is read once."""

    def __init__(self, store_id: str, root: Path) -> None:
        self._store_id = store_id
        self._root = root
        self._manifests: dict[str, tuple[Stamp, Manifest]] = {}
        """With the directory they were read from: a replaced one is another directory."""
        self._ended: dict[str, tuple[Stamp, ContainerRecord]] = {}

    def all(self) -> tuple[ContainerRecord, ...]:
        """Every attempt, by job and attempt. Raises OSError."""
        try:
            names = [each.name for each in self._root.iterdir()]
        except FileNotFoundError:
            return ()
        found = [self.find(name) for name in names]
        return tuple(sorted((each for each in found if each), key=lambda each: (each.job_id, each.attempt)))

    def find(self, name: str) -> ContainerRecord | None:
        """One attempt; None when there is none of that name. Raises OSError."""
        place = parse_name(name, self._store_id)
        if place is None:
            return None
        folder = AttemptFolder(self._root / name)
        try:
            stamp = _stamp(folder)
            known = self._ended.get(name)
            return known[1] if known and known[0] == stamp else self._read(folder, stamp, *place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # of another member: one directory must not hide all others
            if error.errno == errno.EACCES and os.access(self._root, os.X_OK):
                return ContainerRecord(name, *place, ContainerState.RUNNING)  # for all we know: it is not run again
            if error.errno == errno.ELOOP:  # links are none of ours
                return None
            raise

    def forget(self, name: str) -> None:
        """Drop what was read of it."""
        self._manifests.pop(name, None)
        self._ended.pop(name, None)

    def members(self, name: str) -> tuple[int, ...]:
        """Return the pids of its processes, the wrapper's aside."""
        return self.reach(name)[0]

    def reach(self, name: str) -> tuple[tuple[int, ...], int | None]:
        """Return the same, and the uid whose processes alone may be signalled; None: all that we may signal."""
        folder = AttemptFolder(self._root / name)
        records = folder.records()
        return self._members(folder, records), records.reach

    def awaited(self, record: ContainerRecord) -> tuple[int, ...]:
        """Return the pids whose end may be the attempt's: the runner's, else the keeper's, else the orphans'."""
        records = AttemptFolder(self._root / record.id).records()
        for who in (records.runner, records.start.leader if records.start else None):
            if who is not None and process_session.is_alive(who):
                return (who.pid,)
        return self.members(record.id)

    def _read(self, folder: AttemptFolder, stamp: Stamp, job_id: int, attempt: int) -> ContainerRecord:
        """Judge by the end record alone, and where there is none, by the lock that whoever may write one holds."""
        records = folder.records()
        manifest = self._manifest(folder, stamp)
        gpus = manifest.gpus if manifest else ()
        if not records.begun:
            return ContainerRecord(folder.path.name, job_id, attempt, ContainerState.CREATED, gpus)
        is_running = records.end is None and self._runs(folder, records)
        if not is_running and records.end is None:  # it may have ended between the two looks
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
            return record
        record = _ended(record, records, manifest)
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
            is_watched = any(who is not None and process_session.is_alive(who) for who in wrapper)
        return is_watched or bool(self._members(folder, records))

    def _members(self, folder: AttemptFolder, records: Records) -> tuple[int, ...]:
        leader = records.start.leader if records.start else _unknown()
        grouped = process_cgroup.members(folder.cgroups())
        return process_session.members(leader, records.runner, self._tag(folder.path.name), grouped)

    def _tag(self, name: str) -> str:
        job_id, attempt = parse_name(name, self._store_id) or (0, 0)
        return f"{self._store_id}:{job_id}:{attempt}"


def _unknown() -> Identity:
    """A leader that fits no process, so that the tag alone decides."""
    return Identity(-1, 0, process_session.boot_id())


def _ended(record: ContainerRecord, records: Records, manifest: Manifest | None) -> ContainerRecord:
    end = records.end
    if end is None:
        return dataclasses.replace(record, cause=_lost(records))
    if end.refusal:
        cause: Cause | None = cause_of(end.refusal, manifest.command if manifest else "")
    else:
        cause = of_exit(end.code, oom_killed=end.code != 0 and end.oom_kills > 0)
    return dataclasses.replace(record, ended_at=end.at, exit_code=end.code, cause=cause)


def _lost(records: Records) -> Cause:
    """Return why there is no end record, and whether the command may have run to its end."""
    start = records.start
    if start is not None and start.leader.boot != process_session.boot_id():
        return Cause(CauseCode.CONTAINER_LOST, "the machine was restarted while it ran")
    if not records.may_have_run and not records.is_damaged:
        return Cause(CauseCode.CONTAINER_LOST, "its wrapper was killed before its command began")
    why = "its record is damaged" if start is None or records.is_damaged else "its wrapper was killed"
    return Cause(CauseCode.END_UNKNOWN, f"{why}, so nobody knows how it ended: it may have done its work")


def _stamp(folder: AttemptFolder) -> Stamp:
    """Tell a directory from the next one under its name, which may get its inode."""
    status = folder.path.stat()
    return status.st_ino, status.st_ctime_ns
