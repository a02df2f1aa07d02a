"""Conversion of a state directory that a group shared into one of a single account.

Before, every member wrote the files, and a *warrant*, a file of the submitter's own in `warrants/UID/`, was all that
proved who submitted a job. Afterwards the owner of the directory alone writes, and `Job.submitted_uid` says it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.decoding import decode_json
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.settings import StoreSettings
from gputui.domain.text import user_name
from gputui.store.codec import encode
from gputui.store.files import OTHERS_WRITE, open_file, os_errors, sync_directory
from gputui.store.tinydb_store import TinyJobStore

WARRANTS = "warrants"
NO_WARRANT = "none"
"""Warrant of a job of which nothing proves the submitter: it never starts."""
HELD = "nothing proves who submitted it: submit it again"
"""Reason for which a waiting job without a warrant is held."""
_WARRANT = re.compile(r"(\d{1,10})/([0-9a-f]{24})", re.ASCII)
_LARGEST = 16 * 1024**2
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_SCHEDULERS = "attempts"
"""Directory whose directories keep their owners: with a member's rights alone may a member's attempts be ended."""
_COPY = ".converted."
"""Beginning of the name of a copy that is not whole yet."""
_GONE = "warrants.done"
_CLOSED = 0o700
_PRIVATE = 0o600


class Converted(Struct):
    """Result of a conversion."""

    proven: int = 0
    """Live jobs that a warrant proves."""
    held: list[JobId] = msgspec.field(default_factory=list)
    """Waiting jobs that are held because nothing proves who submitted them."""
    paused: list[JobId] = msgspec.field(default_factory=list)
    """Recurring jobs that are paused for the same reason."""
    left: list[str] = msgspec.field(default_factory=list)
    """Files that stay as they are, because they have another name or are none of ours."""


def is_shared(directory: Path) -> bool:
    """Return whether others than the owner may write the state directory, or could until a conversion failed."""
    try:
        return bool(directory.stat().st_mode & OTHERS_WRITE) or (directory / WARRANTS).is_dir()
    except FileNotFoundError:
        return False


def convert(directory: Path, settings: StoreSettings, now: datetime) -> Converted:
    """Give the directory and its files to this user alone, and record the proven submitters of its jobs.

    The caller has the leadership, and a backup. From the first step on no member reaches a file by its name; files that
    members may still have open are replaced by copies. May be repeated after a failure.
    """
    is_to_be_proven = is_shared(directory)
    with os_errors(directory):
        if is_to_be_proven and not (directory / WARRANTS).is_dir():
            (directory / WARRANTS).mkdir()  # until the end it tells a repetition to believe nothing that members wrote
        os.chown(directory, os.geteuid(), os.getegid())
        directory.chmod(_CLOSED)
    found = Converted()
    with closing(TinyJobStore(directory, settings)) as store:
        if is_to_be_proven:
            _record_submitters(store, Proofs(directory / WARRANTS, store.store_id), now, found)
        store.storage.checkpoint()
    with os_errors(directory):
        _close(directory, found)
    return found


class Proofs(Struct, frozen=True):
    """The warrants of one queue."""

    folder: Path
    store_id: str

    def submitter(self, spec: JobSpec) -> int | None:
        """Return the uid of the user who submitted exactly this; None: nothing proves it."""
        match = _WARRANT.fullmatch(spec.warrant)
        if match is None:
            return None
        uid = int(match[1])
        try:
            content = self._read(match[1], match[2], uid)
        except (OSError, msgspec.DecodeError):
            return None
        is_his = content == {"store": self.store_id, "runs": encode(spec.what_runs)}
        return uid if is_his and not (uid == 0 and spec.is_host) else None

    def _read(self, user: str, name: str, uid: int) -> Any:
        """Return the content of a warrant; raises OSError for one that others than its submitter can have written."""
        root = os.open(self.folder, _DIRECTORY)
        try:
            place = os.open(user, _DIRECTORY, dir_fd=root)
        finally:
            os.close(root)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if not (_is_of(uid, os.fstat(place)) and _is_of(uid, status)):
                    raise PermissionError
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > _LARGEST:
                    raise PermissionError
                return decode_json(file.read())
        finally:
            os.close(place)


def _is_of(uid: int, status: os.stat_result) -> bool:
    return status.st_uid == uid and not status.st_mode & OTHERS_WRITE


def _record_submitters(store: TinyJobStore, proofs: Proofs, now: datetime, found: Converted) -> None:
    with store.transaction() as transaction:
        for job in list(transaction.jobs().values()):
            uid = proofs.submitter(job.spec)
            transaction.put(_unproven(job, now) if uid is None else _proven(job, uid))
            found.proven += uid is not None and not job.state.is_terminal
            found.held += job.ids if uid is None and job.state is JobState.PENDING else ()
        for entry in list(transaction.recurring().values()):
            uid = proofs.submitter(entry.submission.spec)
            submission = replace(entry.submission, spec=_marked(entry.submission.spec, uid))
            entry = replace(entry, submission=submission)
            if uid is not None:
                transaction.put_recurring(replace(entry, uid=uid, added_by=user_name(uid)))
            else:
                found.paused += [] if entry.paused else [entry.id]
                transaction.put_recurring(replace(entry, paused=True))
        me = os.geteuid()
        after = f"{found.proven} jobs proven, {len(found.held)} held"
        transaction.audit(AuditEntry(now, me, user_name(me), "convert", "queue", "shared by a group", after))


def _proven(job: Job, uid: int) -> Job:
    return job.evolve(spec=_marked(job.spec, uid), submitted_uid=uid, submitted_by=user_name(uid))


def _unproven(job: Job, now: datetime) -> Job:
    """Return the job as one that starts for nobody, not even if an operator releases it, whoever it names."""
    marked = job.evolve(spec=_marked(job.spec, None), submitted_uid=None)
    if job.state is not JobState.PENDING:
        return marked
    return marked.evolve(held=True, hold_reason=HELD, held_by="", held_at=now)


def _marked(spec: JobSpec, uid: int | None) -> JobSpec:
    """Return the spec; one that nothing proves gets a warrant that is none. A proof stays, for a repetition."""
    return spec if uid is not None or spec.warrant else replace(spec, warrant=NO_WARRANT)


def _close(directory: Path, found: Converted) -> None:
    """Give all files to this user; those at the top, to which members wrote, are replaced by copies."""
    for partial in directory.glob(f"{_COPY}*"):  # of a conversion that failed
        partial.unlink()
    _remove(directory / _GONE)
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        if stat.S_ISSOCK(status.st_mode):
            path.unlink()
        elif stat.S_ISREG(status.st_mode):
            _replace(path, found)
        elif stat.S_ISDIR(status.st_mode) and path.name == WARRANTS:
            continue  # it goes last: without it, this is no shared directory any more
        elif stat.S_ISDIR(status.st_mode) and path.name != _OF_SCHEDULERS:
            _give(path, found)
        elif stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and path.is_dir():  # on another disk
            _give(path.resolve(), found)
        elif stat.S_ISDIR(status.st_mode):
            fd = os.open(path, _DIRECTORY)
            try:
                _give_one(fd, _CLOSED)
            finally:
                os.close(fd)
        else:
            found.left.append(str(path))
    if os.path.lexists(directory / WARRANTS):
        (directory / WARRANTS).rename(directory / _GONE)  # all at once: a part of them would prove a part of the jobs
    sync_directory(directory)
    _remove(directory / _GONE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _replace(path: Path, found: Converted) -> None:
    """Replace a file by a copy that no process of a member has open."""
    new = path.with_name(f"{_COPY}{os.getpid()}")
    source = open_file(path, os.O_RDONLY)
    try:
        status = os.fstat(source)
        if status.st_nlink != 1:
            found.left.append(str(path))
            return
        target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        with os.fdopen(source, "rb", closefd=False) as old, os.fdopen(target, "wb") as file:
            os.fchmod(target, _PRIVATE)
            shutil.copyfileobj(old, file, 1 << 20)
            file.flush()
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(target)
        new.replace(path)
    finally:
        os.close(source)


def _give(folder: Path, found: Converted) -> None:
    """Give a directory and all in it to this user, without following a link."""
    for place, _, files, at in os.fwalk(folder, follow_symlinks=False):
        _give_one(at, _CLOSED)
        for name in files:
            for problem in _given(name, at):
                found.left.append(f"{place}/{name}: {problem}")


def _given(name: str, at: int) -> Iterator[str]:
    """Give a file to this user, or yield why not."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        yield error.strerror or "it cannot be opened"
        return
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            yield "it is no file"
        elif status.st_nlink != 1:
            yield "it has another name (a hard link)"
        else:
            _give_one(fd, _PRIVATE)
    finally:
        os.close(fd)


def _give_one(fd: int, mode: int) -> None:
    os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, mode)
