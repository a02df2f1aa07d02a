"""What killed writers leave behind, and what is done about it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gputui.domain.errors import StoreAccessError, StoreFormatError
from gputui.store.faults import os_errors
from gputui.store.lock import StoreLock
from gputui.store.snapshot_file import read_meta


def journals(snapshot: Path) -> dict[int, Path]:
    """The journals beside a snapshot, by generation."""
    prefix = f"{snapshot.name}.wal."
    found = snapshot.parent.glob(f"{prefix}*")
    return {int(path.name[len(prefix) :]): path for path in found if path.name[len(prefix) :].isdigit()}


def next_generation(snapshot: Path, generation: int) -> int:
    """One whose journal cannot be mistaken for that of a snapshot put back from a backup."""
    return max([generation, *journals(snapshot)]) + 1


def retire_journal(path: Path, *, is_damaged: bool) -> None:
    """Remove a folded journal; one with damaged lines is kept, for whoever wants to look into them."""
    with os_errors(path):
        if is_damaged:
            path.replace(path.with_name(f"{path.name}.damaged"))
        else:
            path.unlink(missing_ok=True)


def kept_journals(snapshot: Path) -> list[Path]:
    """Folded journals with damaged lines, which somebody has yet to look into and remove."""
    return sorted(snapshot.parent.glob(f"{snapshot.name}.wal.*.damaged"))


def sweep(snapshot: Path, lock: StoreLock) -> None:
    """Remove half-written files, and journals that are folded already."""
    if not _leftovers(snapshot):
        return
    # somebody who may only read leaves the sweeping to others
    with suppress(StoreAccessError), lock.held():
        for path in _leftovers(snapshot):
            with os_errors(path):
                path.unlink(missing_ok=True)


def check_not_orphaned(snapshot: Path) -> None:
    """Raise StoreFormatError when there is a journal that belongs to a snapshot which is gone."""
    orphans = [path for path in journals(snapshot).values() if path.stat().st_size]
    if orphans:
        raise StoreFormatError(
            f"the queue is gone, but {orphans[0].name} is still there",
            where=str(snapshot),
            hint="put queue.json back from a backup, or move the journal away to begin anew",
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
        return False  # its writer has gone on meanwhile
