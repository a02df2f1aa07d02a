"""How each attempt stands, from its directory and from /proc."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode, of_exit
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.runtime import process_session
from gputui.runtime.process_attempt import AttemptFolder, End, Manifest, Start, parse_end, parse_name, parse_start
from gputui.runtime.process_refusal import cause_of
from gputui.runtime.process_session import Identity


class Ledger:
    """The attempts of one store; what never changes any more is read once."""

    def __init__(self, store_id: str, root: Path) -> None:
        self._store_id = store_id
        self._root = root
        self._manifests: dict[str, tuple[int, Manifest]] = {}
        """With the inode of the directory they were read from: a replaced one is another directory."""
        self._ended: dict[str, tuple[int, ContainerRecord]] = {}

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
            inode = folder.path.stat().st_ino
            known = self._ended.get(name)
            return known[1] if known and known[0] == inode else self._read(folder, inode, *place)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def forget(self, name: str) -> None:
        """Drop what was read of it."""
        self._manifests.pop(name, None)
        self._ended.pop(name, None)

    def members(self, name: str) -> tuple[int, ...]:
        """Pids of its processes, the wrapper's aside."""
        folder = AttemptFolder(self._root / name)
        start = parse_start(folder.records()[0])
        return process_session.members(start.leader if start else _unknown(), self._tag(name))

    def awaited(self, record: ContainerRecord) -> tuple[int, ...]:
        """Pids whose end may be the attempt's: the wrapper's, or the orphans' when it was killed."""
        if record.pid is not None and process_session.stat(record.pid) is not None:
            return (record.pid,)
        return self.members(record.id)

    def _read(self, folder: AttemptFolder, inode: int, job_id: int, attempt: int) -> ContainerRecord:
        started, exited = folder.records()
        manifest = self._manifest(folder, inode)
        gpus = manifest.gpus if manifest else ()
        if not started and not exited:
            return ContainerRecord(folder.path.name, job_id, attempt, ContainerState.CREATED, gpus)
        start = parse_start(started)
        is_running = not exited and self._runs(folder.path.name, start)
        if not is_running and not exited:  # it may have ended between the two looks
            exited = folder.records()[1]
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
        record = _ended(record, parse_end(exited), start, manifest)
        self._ended[folder.path.name] = (inode, record)
        return record

    def _manifest(self, folder: AttemptFolder, inode: int) -> Manifest | None:
        known = self._manifests.get(folder.path.name)
        if known and known[0] == inode:
            return known[1]
        manifest = folder.manifest()
        if manifest is not None:
            self._manifests[folder.path.name] = (inode, manifest)
        return manifest

    def _runs(self, name: str, start: Start | None) -> bool:
        if start is not None and process_session.is_alive(start.leader):
            return True
        leader = start.leader if start else _unknown()
        return bool(process_session.members(leader, self._tag(name)))

    def _tag(self, name: str) -> str:
        job_id, attempt = parse_name(name, self._store_id) or (0, 0)
        return f"{self._store_id}:{job_id}:{attempt}"


def _unknown() -> Identity:
    """A leader that fits no process, so that the tag alone decides."""
    return Identity(-1, 0, process_session.boot_id())


def _ended(record: ContainerRecord, end: End | None, start: Start | None, manifest: Manifest | None) -> ContainerRecord:
    if end is None:
        return dataclasses.replace(record, cause=_lost(start))
    if end.refusal:
        cause: Cause | None = cause_of(end.refusal, manifest.command if manifest else "")
    else:
        cause = of_exit(end.code, oom_killed=end.code != 0 and end.oom_kills > 0)
    return dataclasses.replace(record, ended_at=end.at, exit_code=end.code, cause=cause)


def _lost(start: Start | None) -> Cause:
    if start is None:
        return Cause(CauseCode.CONTAINER_LOST, "its record is damaged and none of its processes lives")
    if start.leader.boot != process_session.boot_id():
        return Cause(CauseCode.CONTAINER_LOST, "the machine was restarted while it ran")
    return Cause(CauseCode.CONTAINER_LOST, "its wrapper was killed, so nobody knows how it ended")
