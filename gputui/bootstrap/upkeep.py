"""Construction of what looks after a state directory: limits, backups, checks and repairs of its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputui import __version__
from gputui.domain.errors import GputuiError, StoreFormatError
from gputui.domain.kept_data import Finding

if TYPE_CHECKING:
    from gputui.config import Options
    from gputui.domain.kept_data import KeptData
    from gputui.store.transfer import Converted

_PART = 256 * 1024


def kept_data(options: Options) -> list[KeptData]:
    """Return the use of the state directory by ended jobs, by kind; logs are counted for a second at most."""
    from gputui.engine import saved_logs
    from gputui.store.history import line_files

    settings = options.settings.store
    lines = [files.kept() for files in line_files(options.state, settings)]
    return [*saved_logs.kept(options.state, settings), *lines]


class BackupResult(Struct, frozen=True):
    path: Path
    files: int
    size: int
    """Bytes of the files in it."""
    findings: list[Finding]
    """Findings that are not harmless."""
    removed: int = 0
    """Old backups that were removed."""


def checked_backup(options: Options, target: Path, now: datetime, *, with_logs: bool) -> BackupResult:
    """Write a backup of the state directory and read it again; it stays if something in it cannot be read."""
    files, size = back_up(options, target, now, with_logs=with_logs)
    found = [finding for finding in _verify_backup(target) if not finding.is_harmless]
    return BackupResult(target, files, size, found)


def scheduled_backup(
    options: Options, folder: Path, keep: timedelta | None, now: datetime, *, with_logs: bool
) -> BackupResult:
    """Write a backup with the time in its name into a directory, check it, and record the result.

    A good one is followed by the removal of those older than `keep`. One in which something cannot be read, or that
    cannot be checked, gets a name that says so, and no good one is removed; where `keep` is given, the latest few of
    the damaged ones stay. Whatever ends the attempt is recorded too.
    """
    from gputui.store.backup import new_name, remove_abandoned, rotate, set_apart, thin_damaged
    from gputui.store.files import os_errors

    _check_exists(options.state)
    remove_abandoned(folder)
    target = new_name(folder, now)
    is_new = not target.exists()
    try:
        with os_errors(folder):
            result = checked_backup(options, target, now, with_logs=with_logs)
    except BaseException as error:
        with suppress(OSError, GputuiError):  # the first error is the one to tell
            _record_backup(options, folder, now, str(error) or type(error).__name__)
        if is_new and target.exists():
            set_apart(target)
        raise
    if result.findings:
        _record_backup(options, folder, now, result.findings[0].sentence)
        apart = set_apart(result.path)
        return replace(result, path=apart, removed=thin_damaged(folder) if keep is not None else 0)
    _record_backup(options, folder, now)
    return replace(result, removed=rotate(folder, keep, now)) if keep is not None else result


def _record_backup(options: Options, folder: Path, now: datetime, problem: str = "") -> None:
    """Record the result of a backup for the scheduler; raises GputuiError where that is not possible."""
    from gputui.domain.kept_data import BackupRecord
    from gputui.engine.files import BACKUP_RECORD, read_backup_record, write_backup_record
    from gputui.store.files import os_errors

    before = read_backup_record(options.state)
    good_at = (before.good_at if before else None) if problem else now
    with os_errors(options.state / BACKUP_RECORD):
        write_backup_record(options.state, BackupRecord(now, str(folder), problem, good_at))


def make_directory(options: Options) -> None:
    """Create the state directory if it is missing, as the first submission would; raises StoreError."""
    from gputui.store.files import open_directory

    open_directory(options.state)


def is_shared(options: Options) -> bool:
    """Return whether the state directory is one that a group shared, and that `convert` has not taken over."""
    from gputui.store.transfer import is_shared

    return is_shared(options.state)


def convert(options: Options, backup: Path, now: datetime) -> Converted:
    """Give a state directory that a group shared to this user alone, after a backup without logs.

    Raises GputuiError beside a scheduler.
    """
    from gputui.bootstrap import actor
    from gputui.domain.snapshot import Leader
    from gputui.engine.leadership import Leadership, current_leader
    from gputui.store.transfer import convert

    leadership = Leadership(options.state)
    me = Leader(os.getpid(), os.uname().nodename, actor().user, "convert", now, uid=os.geteuid(), version=__version__)
    if not leadership.acquire(me):
        found = current_leader(options.state)
        who = f"{found.kind} of {found.user}, pid {found.pid}," if found else "another process"
        what = f"{who} schedules there; nothing was changed"
        raise GputuiError(what, where=str(options.state), hint="stop it, then convert; jobs run on")
    try:
        back_up(options, backup, now, with_logs=False)
        return convert(options.state, options.settings.store, now)
    finally:
        leadership.release()


def back_up(options: Options, target: Path, now: datetime, *, with_logs: bool) -> tuple[int, int]:
    """Write a backup of the state directory; return the number of files in it and their bytes."""
    from gputui.store.backup import write_backup

    _check_exists(options.state)
    files = write_backup(options.state, target, now, __version__, with_logs=with_logs).files
    return len(files), sum(file.size for file in files.values())


def backup_parts(options: Options, now: datetime) -> Iterator[bytes]:
    """Write a backup without logs, and yield it in parts; it is complete before the first."""
    with tempfile.TemporaryDirectory(prefix="gputui-backup-") as place:
        target = Path(place) / "gputui.tar.gz"
        back_up(options, target, now, with_logs=False)
        with target.open("rb") as file:
            while part := file.read(_PART):
                yield part


def verify(path: Path) -> list[Finding]:
    from gputui.store.repair import verify_directory

    if path.is_dir():
        return list(verify_directory(path))
    return _verify_backup(path)


def _verify_backup(path: Path) -> list[Finding]:
    from gputui.store.backup import check_is_backup, unpack
    from gputui.store.repair import verify_directory

    check_is_backup(path)
    with tempfile.TemporaryDirectory(prefix="gputui-verify-") as place:
        found = list(unpack(path, Path(place), with_logs=False, with_owners=False))
        if all(finding.is_harmless for finding in found):
            found += verify_directory(Path(place))
    return found


def restore(options: Options, backup: Path) -> list[Finding]:
    """Fill an empty or missing state directory from a backup; return what is harmless.

    Raises StoreFormatError, without a file left there, for a backup that is damaged.
    """
    from gputui.store.backup import check_is_backup, unpack
    from gputui.store.files import os_errors
    from gputui.store.transfer import staged

    check_is_backup(backup)
    with staged(options.state) as staging, os_errors(options.state):
        found = list(unpack(backup, staging))
        bad = [finding for finding in found if not finding.is_harmless]
        if bad:
            hint = f"gputui state verify {backup} lists everything; restore another backup"
            raise StoreFormatError(f"it is damaged: {bad[0].where}: {bad[0].text}", where=str(backup), hint=hint)
    return found


def export(options: Options, now: datetime) -> Iterator[bytes]:
    from gputui.store.transfer import export_lines

    _check_exists(options.state)
    return export_lines(options.state, now, __version__)


def export_to(options: Options, target: Path, now: datetime) -> None:
    """Write an export into a new file, which gets its name when it is complete."""
    from gputui.store.backup import new_private_file

    with new_private_file(target) as file:
        file.writelines(export(options, now))


def import_(options: Options, lines: Iterable[bytes], source: str) -> None:
    from gputui.store.transfer import import_lines

    import_lines(options.state, lines, source)


def damaged_lines(options: Options) -> list[str]:
    from gputui.store.repair import damaged_files

    return [file.sentence for file in damaged_files(options.state)]


def move_damaged_lines(options: Options, now: datetime) -> Path:
    """Move lines that cannot be read into a new directory, and return it; raises GputuiError beside a scheduler."""
    from gputui.engine.leadership import current_leader
    from gputui.store.repair import damaged_files, move_aside

    if (found := current_leader(options.state)) is not None:
        hint = "stop it, then repair; jobs run on"
        raise GputuiError(f"{found.kind} schedules there, pid {found.pid}", where=str(options.state), hint=hint)
    return move_aside(options.state, damaged_files(options.state), now)


def _check_exists(directory: Path) -> None:
    if not directory.is_dir():
        hint = "name it by --state"
        raise StoreFormatError("there is no state directory", where=str(directory), hint=hint)
