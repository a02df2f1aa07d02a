"""A disk that loses power: of each change without a sync any part may be there, in any order.

The rules are stricter than those of ext4, XFS and btrfs. The content of a file is certain once the file was synced, its
name once the directory was; neither implies the other. A rename is there as a whole or not at all. What is overwritten
within a sector is old or new; what is appended may be cut anywhere, or be zeros.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.store.power.recording import Change

SECTOR = 512
Tree = dict[str, bytes | None]
"""Contents of files by their paths; None for directories."""


class Write(NamedTuple):
    """Write that is not synced; a truncation has no data."""

    at: int
    data: bytes | None


class File:
    def __init__(self, content: bytes = b"") -> None:
        self.certain = content
        self.now = content
        self.unsynced: list[Write] = []

    def change(self, write: Write) -> None:
        self.now = changed(self.now, write)
        self.unsynced.append(write)

    def sync(self) -> None:
        self.certain = self.now
        self.unsynced.clear()


class Folder:
    def __init__(self) -> None:
        self.certain: dict[str, Node] = {}
        self.now: dict[str, Node] = {}


Node = File | Folder


class NameChange(NamedTuple):
    """Change of one or two names, all or none of which are there afterwards."""

    effects: tuple[tuple[Folder, str, Node | None], ...]

    def apply(self, names: Callable[[Folder], dict[str, Node]]) -> None:
        for folder, name, node in self.effects:
            if node is None:
                names(folder).pop(name, None)
            else:
                names(folder)[name] = node

    def touches(self, other: NameChange) -> bool:
        return any((folder, name) == (one, its) for folder, name, _ in self.effects for one, its, _ in other.effects)


Names = Callable[[list[NameChange], random.Random], list[NameChange]]
Contents = Callable[[File, random.Random], bytes]


class Disk:
    """Files below a directory, as they are and as a power loss may leave them."""

    def __init__(self, root: Path) -> None:
        """Take what is there now as certain."""
        self._root = Folder()
        self._files: dict[int, File] = {}
        self._unsynced: list[NameChange] = []
        for place, folders, files in os.walk(root):
            folder = self._at(os.path.relpath(place, root))
            assert isinstance(folder, Folder)
            made: dict[str, Node] = {name: Folder() for name in folders}
            for path in filter(Path.is_file, (Path(place) / name for name in files)):
                made[path.name] = self._files[path.stat().st_ino] = File(path.read_bytes())
            folder.now.update(made)
            folder.certain.update(made)

    def apply(self, change: Change) -> None:
        if change.what in {"create", "mkdir"}:
            made: Node = Folder()
            if change.what == "create":  # maybe with the inode of a file that is gone
                made = self._files[change.inode] = File()
            self._rename((change.name, made))
        elif change.what == "write":
            self._files[change.inode].change(Write(change.number, change.data))
        elif change.what == "truncate":
            self._files[change.inode].change(Write(change.number, None))
        elif change.what == "sync":
            self._sync(change)
        elif change.what == "syncall":
            self._settle(self._unsynced)
            for file in self._files.values():
                file.sync()
        elif change.what == "unlink":
            self._rename((change.name, None))
        elif change.what in {"rename", "link"} and (moved := self._at(change.name)) is not None:
            gone = ((change.name, None),) if change.what == "rename" else ()
            self._rename((change.to, moved), *gone)

    def content(self, name: str) -> bytes:
        """Return the content of a file as it is."""
        found = self._at(name)
        return found.now if isinstance(found, File) else b""

    def after_power_loss(self, names: Names, contents: Contents, chance: random.Random) -> Tree:
        """Return what is there if so much of what was not synced is kept."""
        kept: dict[int, dict[str, Node]] = {}
        for change in names(self._unsynced, chance):
            change.apply(lambda folder: kept.setdefault(id(folder), dict(folder.certain)))

        def walk(folder: Folder, above: str) -> Iterator[tuple[str, bytes | None]]:
            for name, node in sorted(kept.get(id(folder), folder.certain).items()):
                if isinstance(node, Folder):
                    yield above + name, None
                    yield from walk(node, f"{above}{name}/")
                else:
                    yield above + name, contents(node, chance)

        return dict(walk(self._root, ""))

    def _at(self, name: str) -> Node | None:
        node: Node | None = self._root
        for part in Path(name).parts:
            node = node.now.get(part) if isinstance(node, Folder) else None
        return node

    def _rename(self, *names: tuple[str, Node | None]) -> None:
        effects = []
        for name, node in names:
            folder = self._at(str(Path(name).parent))
            assert isinstance(folder, Folder), name
            effects.append((folder, Path(name).name, node))
        change = NameChange(tuple(effects))
        change.apply(lambda folder: folder.now)
        self._unsynced.append(change)

    def _sync(self, change: Change) -> None:
        node = self._at(change.name)
        if isinstance(node, Folder):
            self._settle([each for each in self._unsynced if any(place is node for place, _, _ in each.effects)])
        else:
            self._files[change.inode].sync()

    def _settle(self, changes: list[NameChange]) -> None:
        """Make these certain, and earlier ones of the same names."""
        wanted = list(changes)
        for change in reversed(self._unsynced):
            if change not in wanted and any(change.touches(later) for later in wanted):
                wanted.append(change)
        for change in [each for each in self._unsynced if each in wanted]:
            change.apply(lambda folder: folder.certain)
            self._unsynced.remove(change)


def changed(content: bytes, write: Write) -> bytes:
    if write.data is None:
        return content[: write.at].ljust(write.at, b"\0")
    return content[: write.at].ljust(write.at, b"\0") + write.data + content[write.at + len(write.data) :]


def all_of(changes: list[NameChange], _: random.Random) -> list[NameChange]:
    return changes


def none_of(_: list[NameChange], __: random.Random) -> list[NameChange]:
    return []


def early(changes: list[NameChange], _: random.Random) -> list[NameChange]:
    return changes[: len(changes) // 2]


def late(changes: list[NameChange], _: random.Random) -> list[NameChange]:
    return changes[-1:]


def some(changes: list[NameChange], chance: random.Random) -> list[NameChange]:
    return [change for change in changes if chance.random() < 0.5]


def now(file: File, _: random.Random) -> bytes:
    return file.now


def certain(file: File, _: random.Random) -> bytes:
    return file.certain


def torn(file: File, _: random.Random) -> bytes:
    """Return the content with half of the last write."""
    content = file.certain
    for write in file.unsynced[:-1]:
        content = changed(content, write)
    for write in file.unsynced[-1:]:
        if write.data is not None:
            half = len(write.data) // 2
            half -= 0 if write.at + half >= len(content) else (write.at + half) % SECTOR
            content = changed(content, Write(write.at, write.data[: max(0, half)])) if half > 0 else content
    return content


def zeros(file: File, _: random.Random) -> bytes:
    """Return the certain content in a file that has its new length."""
    return file.certain[: len(file.now)].ljust(len(file.now), b"\0")


def last_only(file: File, _: random.Random) -> bytes:
    """Return the certain content with the last write alone."""
    return changed(file.certain, file.unsynced[-1]) if file.unsynced else file.certain


def sectors(file: File, chance: random.Random) -> bytes:
    """Return the content with any sectors of the writes, and any truncations."""
    content = file.certain
    for write in file.unsynced:
        for piece in [write] if write.data is None else _pieces(write.at, write.data):
            if chance.random() < 0.5:
                content = changed(content, piece)
    return content if chance.random() < 0.5 else content[: len(file.now)].ljust(len(file.now), b"\0")


def _pieces(at: int, data: bytes) -> Iterator[Write]:
    edges = [at, *range(at - at % SECTOR + SECTOR, at + len(data), SECTOR), at + len(data)]
    for start, end in pairwise(edges):
        yield Write(start, data[start - at : end - at])


LOSSES: dict[str, tuple[Names, Contents]] = {
    "a kill": (all_of, now),
    "a kill within a write": (all_of, torn),
    "all that was not synced is gone": (none_of, certain),
    "names without content": (all_of, certain),
    "content without names": (none_of, now),
    "names without content, of their length": (all_of, zeros),
    "the earlier names": (early, now),
    "the last name": (late, certain),
    "the last write": (all_of, last_only),
    "the last write of certain names": (none_of, last_only),
}
"""Ways to lose power, by what is left."""


class Moment(NamedTuple):
    """Disk after a power loss."""

    tree: Tree
    number: int
    """Number of changes before it."""
    loss: str
    told: bytes
    """Output of the program before it."""


def moments(disk: Disk, changes: list[Change], *, samples: int, seed: int = 0, since: int = 0) -> list[Moment]:
    """Return the distinct disks after a power loss at each change from `since` on, and `samples` of any parts of each.

    Of equal ones the last counts, before which most was acknowledged.
    """
    found: dict[int, Moment] = {}
    told = b""
    for number, change in enumerate(changes, 1):
        if change.what == "out":
            told += change.data
        else:
            disk.apply(change)
        if number <= since:
            continue
        losses = {**LOSSES, **{f"sample {seed}-{number}-{each}": (some, sectors) for each in range(samples)}}
        for loss, (names, contents) in losses.items():
            tree = disk.after_power_loss(names, contents, random.Random(loss))
            key = hash(tuple(tree.items()))
            found.pop(key, None)
            found[key] = Moment(tree, number, loss, told)
    return list(found.values())


def is_as_recorded(disk: Disk, root: Path) -> bool:
    """Return whether the files below a directory are as the changes made them: none was missed."""
    tree = disk.after_power_loss(all_of, now, random.Random(0))
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return files == {name: content for name, content in tree.items() if content is not None}


def put(tree: Tree, into: Path) -> None:
    """Write the files of a tree into a new directory."""
    into.mkdir(mode=0o700)
    for name, content in tree.items():
        if content is None:
            (into / name).mkdir(mode=0o700)
        else:
            (into / name).write_bytes(content)
            (into / name).chmod(0o600)
