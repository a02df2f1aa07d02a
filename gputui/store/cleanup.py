"""Cleans up files that killed writers left behind, and checks for a missing queue."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gputui.domain.errors import StoreAccessError, StoreBusyError, StoreFormatError
from gputui.store.files import os_errors
from gputui.store.lock import StoreLock
from gputui.store.replica import lock_path
from gputui.store.rescue import rescue_paths
from gputui.store.snapshot_file import read_meta
from gputui.store.write_record import read_record_at


def journals(snapshot: Path) -> dict[int, Path]:
    """Return the journals beside a snapshot, by generation."""
    prefix = f"{snapshot.name}.wal."
    found = snapshot.parent.glob(f"{prefix}*")
    return {int(path.name[len(prefix) :]): path for path in found if path.name[len(prefix) :].isdigit()}


def next_generation(snapshot: Path, generation: int) -> int:
    """Return a generation later than all journals, so that none is taken for the journal of a restored snapshot."""
    return max([generation, *journals(snapshot)]) + 1


def retire_journal(path: Path) -> None:
    """Remove a folded journal."""
    with os_errors(path):
        path.unlink(missing_ok=True)


def kept_journals(snapshot: Path) -> list[Path]:
    """Return journals with damaged lines that version 0.1 folded and kept."""
    return sorted(snapshot.parent.glob(f"{snapshot.name}.wal.*.damaged"))


def remove_leftovers(snapshot: Path, lock: StoreLock) -> None:
    """Remove half-written files and journals that are already folded."""
    if not _leftovers(snapshot):
        return
    # left to others if this process may only read, or would have to wait
    with suppress(StoreAccessError, StoreBusyError), lock.lock_timeout(0), lock.held():
        for path in _leftovers(snapshot):
            with os_errors(path):
                path.unlink(missing_ok=True)


def is_lone(snapshot: Path) -> bool:
    """Return whether the snapshot is alone in its directory, so that it was copied there and has no journal yet."""
    return list(snapshot.parent.iterdir()) == [snapshot]


def check_not_orphaned(snapshot: Path) -> None:
    """Raise StoreFormatError if other files prove that a snapshot with jobs is missing."""
    left = [path.name for path in (*journals(snapshot).values(), *rescue_paths(snapshot)) if path.stat().st_size]
    record = read_record_at(lock_path(snapshot))
    if record is not None and record.next_id > 1:
        left.append(f"{lock_path(snapshot).name}, which records ids up to {record.next_id - 1},")
    if left:
        raise StoreFormatError(
            f"the queue is gone, but {left[0]} is still there",
            where=str(snapshot),
            hint="put queue.json back from a backup, or run `gputui state repair`",
        )


def _leftovers(snapshot: Path) -> list[Path]:
    found = read_meta(snapshot)
    if found is None:
        return []
    folded = [path for generation, path in journals(snapshot).items() if generation < found[0].generation]
    begun = [path for generation, path in journals(snapshot).items() if generation > found[0].generation]
    return [*snapshot.parent.glob("*.json.*.tmp"), *folded, *filter(_is_empty, begun)]


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return False  # its writer has continued meanwhile
