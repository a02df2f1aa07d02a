"""Sources of mounts, opened once: a container gets the very file or directory that was checked.

An engine resolves the path of a mount, as root, when the container starts. Whoever may write to a directory on that
path could put a link in its place between check and start. So a path that only root can change is passed on without
links; any other directory is held open, and the engine mounts it by its descriptor; any other file is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import docker_args
from gputui.domain.container import HeldMount
from gputui.domain.job_spec import JobSpec
from gputui.domain.policy.permitted_options import MountSource
from gputui.engine.actions.file_rights import FileAccount, as_account, may

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""As in Linux; see path_resolution(7)."""
_HELD_MODES = frozenset({"", "rw", "ro", "private", "rprivate", "consistent", "cached", "delegated"})
"""Modes of a mount that a held directory can have."""

Approve: TypeAlias = Callable[[MountSource, str], None]
"""Raises an error unless this source, whose path without links is the second argument, may be mounted."""


class OpenSource(Struct, frozen=True):
    """Source of a mount, open."""

    fd: int
    path: str
    """Path without links."""
    is_directory: bool
    is_fixed: bool
    """True if only root can put something else in its place."""
    is_writable: bool = True
    """False if the account for which it was opened may only read it."""


class AllowedMounts(Struct, frozen=True):
    """Spec with the mounts that the engine gets by their paths, and those that it gets by descriptor."""

    spec: JobSpec
    held: tuple[HeldMount, ...] = ()


def open_mounts(
    spec: JobSpec, root: str, approve: Approve, until: ExitStack, account: FileAccount | None = None
) -> AllowedMounts:
    """Open and approve the sources of mounts, as seen from that root directory, until the stack is closed.

    With an account they are opened with its rights, and what it may not write is mounted read-only: the engine itself
    makes directories for mounts below mounts and for `--workdir`, as root.
    Raises ValueError with a sentence for a source that cannot be mounted safely, OSError for one that cannot be opened,
    and the errors of `approve`.
    """
    volumes: list[str] = []
    mounts: list[str] = []
    held: list[HeldMount] = []

    def opened(source: MountSource) -> OpenSource:
        try:
            found = open_source(root, source.path, until, account)
        except OSError as error:
            raise OSError(error.errno, error.strerror, source.path) from error
        approve(source, found.path)
        return found

    def is_held(source: OpenSource) -> bool:
        return not source.is_fixed or (account is not None and source.is_directory)

    for text in spec.options.volumes:
        path = docker_args.volume_source(text)
        if not path.startswith("/"):
            volumes.append(text)
            continue
        found = opened(MountSource("--volume", path))
        target, _, mode = text[len(path) + 1 :].partition(":")
        if is_held(found):
            held.append(_held(found, target, mode.split(",")))
        elif ":" in found.path:
            raise ValueError(f"{path} is {found.path}, which has a colon in it")
        elif not found.is_writable:
            volumes.append(f"{found.path}:{target}:ro")
        else:
            volumes.append(found.path + text[len(path) :])
    for text in spec.options.mounts:
        wanted = docker_args.mount(text)
        if wanted.kind != "bind":
            mounts.append(text)
            continue
        found = opened(MountSource("--mount", wanted.source))
        if is_held(found):
            modes = [value if key == "bind-propagation" else key for key, value in wanted.fields]
            held.append(_held(found, wanted.target, [*modes, "ro" if wanted.readonly else "rw"]))
        else:
            read_only = "" if found.is_writable or wanted.readonly else ",readonly"
            mounts.append(docker_args.with_source(text, found.path) + read_only)
    options = replace(spec.options, volumes=tuple(volumes), mounts=tuple(mounts))
    return AllowedMounts(replace(spec, options=options), tuple(held))


def _held(source: OpenSource, target: str, modes: list[str]) -> HeldMount:
    if not source.is_directory:
        text = f"{source.path} is a file that others than root can replace while the job starts"
        raise ValueError(f"{text}: mount its directory, or a file in directories of root")
    if unknown := [mode for mode in modes if mode not in _HELD_MODES]:
        text = f"{source.path} can be replaced by others than root while the job starts"
        raise ValueError(f"{text}, so it is mounted with `ro` or `rw` alone, not with {unknown[0]!a}")
    return HeldMount(
        f"/proc/{os.getpid()}/fd/{source.fd}", source.path, target, "ro" in modes or not source.is_writable
    )


def open_source(root: str, path: str, until: ExitStack, account: FileAccount | None = None) -> OpenSource:
    """Open a file or directory below that root directory, following links as a process with that root would.

    Every step starts from the directory that the last one opened, so the result is what was there, whatever is renamed
    meanwhile. Links of /proc that lead elsewhere than their text are not followed. With an account each step has its
    rights alone, and what is neither file nor directory is refused. Raises OSError.
    """
    with ExitStack() as steps:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        steps.callback(os.close, top)
        if account is None:
            walked, may_write_it = _walk(top, path, steps), True
        else:
            served = _fuse_mounts(root, of_users=True)
            walked, may_write_it = as_account(account, lambda: _walk_and_try(top, path, steps, served))
        names, places = walked
        mode = os.fstat(places[-1]).st_mode
        if account is not None and not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise OSError(errno.EACCES, "neither a file nor a directory")
        fd = os.dup(places[-1])
        until.callback(os.close, fd)
        return OpenSource(fd, "/" + "/".join(names), stat.S_ISDIR(mode), _is_fixed(root, places), may_write_it)


_Walked: TypeAlias = tuple[list[str], list[int]]
"""Names of the directories on the way without links, and all of them open, from the root on."""


def _walk_and_try(top: int, path: str, until: ExitStack, served: set[str]) -> tuple[_Walked, bool]:
    names, places = _walk(top, path, until, served)
    last = places[-1]
    if not may(last, os.X_OK if stat.S_ISDIR(os.fstat(last).st_mode) else os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return (names, places), may(last, os.W_OK)


def _walk(top: int, path: str, until: ExitStack, served: Collection[str] = ()) -> _Walked:
    """Open each directory on the way. Mounts that users serve are not entered: their answers may never come."""
    places, names = [top], list[str]()
    rest, links = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name == "..":
            del places[max(1, len(places) - 1) :], names[-1:]
        elif name not in {"", "."}:
            place = os.open(name, _PLACE, dir_fd=places[-1])
            until.callback(os.close, place)
            if served and _mount_of(place) in served:
                raise OSError(errno.EACCES, "it is on a file system that a user serves")
            if stat.S_ISLNK(os.fstat(place).st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=place)
                if target.startswith("/"):
                    del places[1:], names[:]
                rest += target.split("/")[::-1]
            else:
                places.append(place)
                names.append(name)
    return names, places


def _is_fixed(root: str, places: list[int]) -> bool:
    """Return whether only root can rename or replace an entry of these directories, each in the one before it."""
    for above, below in pairwise(map(os.fstat, places)):
        is_open = bool(above.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if above.st_uid != 0 or (is_open and not (above.st_mode & stat.S_ISVTX and below.st_uid == 0)):
            return False
    try:
        return not _fuse_mounts(root) & {_mount_of(place) for place in places}
    except OSError:  # no root directory of a process, whose mounts could be known
        return False


def _mount_of(fd: int) -> str:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")


def _fuse_mounts(root: str, of_users: bool = False) -> set[str]:
    """Return the ids of mounts whose owners and modes a user may have made up; see proc_pid_mountinfo(5).

    `of_users` leaves out those that root serves.
    """
    of_process = Path("/proc/self/root" if root == "/" else root)
    lines = of_process.with_name("mountinfo").read_bytes().split(b"\n")
    found = [(line.split()[0].decode(), kind) for line in lines if (kind := line.partition(b" - ")[2])[:4] == b"fuse"]
    return {mount for mount, kind in found if not (of_users and b",user_id=0," in kind)}
