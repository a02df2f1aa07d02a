"""Permissions of users: options of docker run and longest time.

Options are checked at submission and again at the start: settings and links may have changed.
"""

from __future__ import annotations

import errno
import grp
import os
import posixpath
import pwd
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import docker_args
from gputui.domain.access import Caller
from gputui.domain.container import HeldMount, Launch
from gputui.domain.errors import AccessError, Cause, CauseCode, InputError, InputErrors, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.policy import admission
from gputui.domain.policy.admission import (
    SOCKETS,
    AdmissionRules,
    MountSource,
    OptionRefusal,
    forbidden_mount,
    holds,
    limits_mounts,
    mount_sources,
    option_refusals,
)
from gputui.domain.settings import AllowSettings, SchedulerSettings, Settings
from gputui.domain.state import NO_HOST_JOBS
from gputui.domain.text import format_limit

T = TypeVar("T")
_SET_GROUPS: Mapping[str, int] = MappingProxyType({"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81})
_FACCESSAT2 = 439
_AT_EACCESS, _AT_EMPTY_PATH = 0x200, 0x1000


# Files as another account may open them: the kernel decides, so groups, access lists and mounts all count. Linux keeps
# the ids with which files are opened for each thread. So the work is done in a thread that ends with it; C libraries
# set the groups of all threads, hence the system call.
class FileAccount(Struct, frozen=True):
    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str


def file_account(uid: int) -> FileAccount:
    """Return the account as the database knows it, which is also how its jobs run."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return FileAccount(uid, uid, (uid,), str(uid))
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return FileAccount(uid, entry.pw_gid, tuple(groups), entry.pw_name)


def as_account(account: FileAccount, work: Callable[[], T]) -> T:
    """Do the work with the account's rights to files, in a thread of its own, and return what it returns.

    Only root can: raises PermissionError for others, and NotImplementedError on machines that are not known.
    """
    if os.geteuid() == account.uid:
        return work()
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _become(account)
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="files-of-user", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def may(fd: int, how: int) -> bool:
    """Return whether this thread may use the file or directory of that place in this way: os.R_OK, W_OK or X_OK."""
    import ctypes  # few jobs mount anything

    libc = ctypes.CDLL(None, use_errno=True)
    return not libc.syscall(_FACCESSAT2, fd, b"", how, _AT_EACCESS | _AT_EMPTY_PATH)


def _become(account: FileAccount) -> None:
    """Give this thread the account's rights to files, for good; raises OSError."""
    import ctypes  # few jobs mount anything

    number = _SET_GROUPS.get(os.uname().machine)
    if number is None:
        raise NotImplementedError(f"files cannot be opened as another user on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    groups = (ctypes.c_uint32 * len(account.groups))(*account.groups)
    if libc.syscall(number, ctypes.c_size_t(len(groups)), groups):
        raise PermissionError(ctypes.get_errno(), "only root can open files as another user")
    libc.setfsgid(ctypes.c_uint32(account.gid))
    libc.setfsuid(ctypes.c_uint32(account.uid))
    # both tell nothing but the id before: an id that is none only asks
    nobody = ctypes.c_uint32(2**32 - 1)
    if (libc.setfsgid(nobody), libc.setfsuid(nobody)) != (account.gid, account.uid):
        raise PermissionError("only root can open files as another user")


_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""As in Linux; see path_resolution(7)."""
_HELD_MODES = frozenset({"", "rw", "ro", "private", "rprivate", "consistent", "cached", "delegated"})
"""Modes of a mount that a held directory can have."""

Approve: TypeAlias = Callable[[MountSource, str], None]
"""Raises an error unless this source, whose path without links is the second argument, may be mounted."""


# Sources of mounts are opened once: a container gets the very file or directory that was checked. An engine resolves
# the path of a mount, as root, when the container starts. Whoever may write to a directory on that path could put a
# link in its place between check and start. So a path that only root can change is passed on without links; any other
# directory is held open, and the engine mounts it by its descriptor; any other file is refused.
class OpenSource(Struct, frozen=True):
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

            def walk_and_try() -> tuple[_Walked, bool]:
                names, places = _walk(top, path, steps, served)
                last = places[-1]
                if not may(last, os.X_OK if stat.S_ISDIR(os.fstat(last).st_mode) else os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                return (names, places), may(last, os.W_OK)

            walked, may_write_it = as_account(account, walk_and_try)
        names, places = walked
        mode = os.fstat(places[-1]).st_mode
        if account is not None and not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise OSError(errno.EACCES, "neither a file nor a directory")
        fd = os.dup(places[-1])
        until.callback(os.close, fd)
        return OpenSource(fd, "/" + "/".join(names), stat.S_ISDIR(mode), _is_fixed(root, places), may_write_it)


_Walked: TypeAlias = tuple[list[str], list[int]]
"""Names of the directories on the way without links, and all of them open, from the root on."""


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


class NotAdmitted(Exception):  # noqa: N818 - a refusal of the rules, not a failure
    """A refusal on its way to the error that fits the moment."""

    def __init__(self, refusal: OptionRefusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class PlainUser(Struct, frozen=True):
    uid: int
    directory: Path
    settings: Settings
    guarded: tuple[str, ...]
    """Sockets of engines and of ours, also without links."""
    machine: str = ""
    """Name of the machine of the mounts if that is known to be another."""

    def check(self, spec: JobSpec, account: FileAccount) -> None:
        """Raise AccessError for a job that this user may not submit; what is missing may be made before the start."""
        rules = self._rules(account)
        found = list(admission.refusals(spec, rules))
        if spec.is_host and os.geteuid() not in {0, self.uid}:
            what = f"only a scheduler of root can run host jobs as {account.name}"
            found.append(OptionRefusal("--host", what, "run it in a container, or let root schedule"))
        found += [] if rules.is_root_image(spec.image) else _as_another(spec.options, account)
        try:
            if not found and any(mount_sources(spec.options)):
                if self.machine:
                    what = f"files of {self.machine} cannot be opened with your rights from here"
                    hint = f"use a volume of your own: -v gputui-{self.uid}-NAME:/PATH"
                    raise NotAdmitted(OptionRefusal("--volume", what, hint))
                with ExitStack() as opened:
                    self._open(spec, _root(), rules, account, opened)
        except FileNotFoundError:  # why sources may not be mounted even once they exist
            refusal = self._mount_check(_root(), rules)
            for source in mount_sources(spec.options):
                path = _expected(_root(), source.path, account)
                if path and (refused := refusal(source, path)):
                    found.append(refused)
        except NotAdmitted as error:
            found.append(error.refusal)
        except (OSError, ValueError, NotImplementedError) as error:
            found.append(_unopened(error))
        if not found:
            return
        first = found[0]
        rule = f"admission-{first.option.lstrip('-')}"
        if len(found) == 1:
            raise AccessError(first.what, rule=rule, where=first.option, hint=first.hint)
        raise AccessError("; ".join(f"{each.option} {each.what}" for each in found), rule=rule, hint=first.hint)

    def admitted(self, root: Callable[[], str], launch: Launch, until: ExitStack) -> Launch:
        """Return the launch in its box, with mounts held open until the stack is closed; raises RuntimeFault.

        `root` returns the root directory as the runtime sees it.
        """
        account, spec = file_account(self.uid), launch.spec
        rules = self._rules(account)
        for each in admission.refusals(spec, rules):
            raise not_allowed(each.sentence)
        box = admission.box(spec, rules)
        allowed = AllowedMounts(spec)
        if any(mount_sources(spec.options)):
            try:
                allowed = self._open(spec, root(), rules, account, until)
            except NotAdmitted as refused:
                raise not_allowed(str(refused)) from refused
            except (OSError, ValueError, NotImplementedError) as error:
                raise not_allowed(_unopened(error).sentence) from error
        return replace(launch, spec=allowed.spec, held=allowed.held, box=box, run_as=self.uid)

    def _open(
        self, spec: JobSpec, root: str, rules: AdmissionRules, account: FileAccount, until: ExitStack
    ) -> AllowedMounts:
        if rules.is_root_image(spec.image):
            raise NotAdmitted(_FROM_ROOT)
        refusal = self._mount_check(root, rules)

        def approve(source: MountSource, path: str) -> None:
            if found := refusal(source, path):
                raise NotAdmitted(found)

        return open_mounts(spec, root, approve, until, account)

    def _mount_check(self, root: str, rules: AdmissionRules) -> Callable[[MountSource, str], OptionRefusal | None]:
        roots, own = [], os.path.realpath(self.directory)
        for fixed, rest in admission.mount_roots(rules):  # with the operator's links below that root directory resolved
            with suppress(OSError), ExitStack() as opened:  # what does not exist holds nothing
                place = open_source(root, fixed, opened).path
                roots.append(posixpath.join(place, rest) if rest else place)
        return lambda source, path: admission.mount_refusal(source, path, rules, roots, self.guarded, own)

    def _rules(self, account: FileAccount) -> AdmissionRules:
        return AdmissionRules(self.uid, account.name, self.settings.admission, self.settings.policy.allow)


def _as_another(options: ContainerOptions, account: FileAccount) -> Iterator[OptionRefusal]:
    name, _, group = (options.user or "").partition(":")
    if name and _number(name, lambda word: pwd.getpwnam(word).pw_uid) != account.uid:
        hint = "leave it out, or an operator lists the image in admission.root_images"
        yield OptionRefusal("--user", f"{name!a} is another user than {account.name}, as whom the job runs", hint)
    for option, wanted in (("--user", group), *(("--group-add", each) for each in options.group_add)):
        if wanted and _number(wanted, lambda word: grp.getgrnam(word).gr_gid) not in {account.gid, *account.groups}:
            yield OptionRefusal(option, f"{account.name} is not in the group {wanted!a}", "leave it out")


def _number(name: str, find: Callable[[str], int]) -> int | None:
    with suppress(KeyError, ValueError):
        return int(name) if name.isascii() and name.isdigit() else find(name)
    return None


_FROM_ROOT = OptionRefusal(
    "--volume", "an image that may run as root gets no directories of the host", "use a volume of your own"
)


def _expected(root: str, path: str, account: FileAccount) -> str:
    """Return where the file will be when it is made, as far as its directories exist; empty if they are closed."""
    place = Path(path)
    for above in (place, *place.parents):
        try:
            with ExitStack() as opened:
                seen = open_source(root, str(above), opened, account).path
        except FileNotFoundError:
            continue
        except OSError:
            break
        return posixpath.normpath(posixpath.join(seen, place.relative_to(above)))
    return ""


def _root() -> str:
    """Return the machine's root directory: a service sees other files at its own, such as an empty /home."""
    of_machine = "/proc/1/root"
    return of_machine if os.access(f"{of_machine}/", os.X_OK) else "/"


def _unopened(error: Exception) -> OptionRefusal:
    if isinstance(error, OSError) and error.filename:
        what = f"{error.filename} cannot be mounted: {(error.strerror or str(error)).lower()}"
        return OptionRefusal("--volume", what, "mount what you may open yourself, and make it before the job starts")
    return OptionRefusal("--volume", str(error), "mount another directory")


def not_allowed(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.NOT_ALLOWED, text))


_LOCAL = {"", "unix", "http+unix"}
"""Schemes of engines whose mounts are paths of this machine."""
RealPath: TypeAlias = Callable[[str], str]
"""Returns the path without links; raises OSError where they cannot be followed."""


class UserPermissions(Struct, frozen=True):
    directory: Path
    settings: Settings
    engine_url: Callable[[], str] = str
    """Returns the address of the engine; empty: it is not known."""
    jobs_machine: Callable[[], str] = str
    """Returns the name of the machine where jobs run if that is known to be another."""

    def check(self, spec: JobSpec, uid: int, caller: Caller | None = None) -> None:
        """Raise InputError, or InputErrors with all of them, for options that this user may not use.

        Raises AccessError for what admission refuses to a plain user. With a caller the kernel has told who that is,
        and no account database is asked, which may be slow.
        """
        if spec.is_host and (machine := self.jobs_machine()):
            raise InputError(NO_HOST_JOBS.format(machine), where="--host", hint="name an image")
        if caller is not None and not caller.operates:
            account = FileAccount(caller.uid, caller.gid, caller.groups, caller.user)
            self._plain_user(caller.uid).check(spec, account)
            return
        if caller is None and not self.is_operator(uid):
            self._plain_user(uid).check(spec, file_account(uid))
            return
        found = list(option_refusals(spec.options, self._allow))
        if limits_mounts(self._allow):
            # links of another machine are followed when the job starts
            follow = os.path.realpath if self._address[0] in _LOCAL else posixpath.normpath
            found += self._mount_refusals(spec, follow)
        errors = tuple(InputError(each.what, where=each.option, hint=each.hint) for each in found)
        if errors:
            raise errors[0] if len(errors) == 1 else InputErrors(errors)

    def permitted(
        self, root: Callable[[], str], launch: Launch, until: ExitStack, follow: RealPath = os.path.realpath
    ) -> Launch:
        """Return the launch as the site allows it to its submitter, with links in its mounts resolved where limited.

        Raises RuntimeFault for options that this user may not use. `root` returns the root directory as the runtime
        sees it, `follow` the path that one has on the machine of the containers.
        """
        if launch.submitter is not None and not self.is_operator(launch.submitter):
            return self._plain_user(launch.submitter).admitted(root, launch, until)
        followed = cache(partial(self._follow_below_listed, follow))  # what was checked is what is mounted
        is_limited = limits_mounts(self._allow)
        refused = self._mount_refusals(launch.spec, followed) if is_limited else ()
        try:
            for each in (*option_refusals(launch.spec.options, self._allow), *refused):
                raise not_allowed(each.sentence)
            spec = _resolved(launch.spec, followed) if is_limited else launch.spec
        except OSError as error:
            raise not_allowed(f"{_unopened(error).what} (make it before the job starts)") from error
        except ValueError as error:
            raise not_allowed(str(error)) from error
        return replace(launch, spec=spec)

    @property
    def _allow(self) -> AllowSettings:
        return self.settings.policy.allow

    def _mount_refusals(self, spec: JobSpec, follow: RealPath) -> Iterator[OptionRefusal]:
        sources = list(mount_sources(spec.options))
        if not sources:
            return
        roots, sockets = [*(self._allow.mounts or ())], self._engine_sockets(follow)
        for root in self._allow.mounts or ():
            with suppress(OSError):
                roots.append(follow(root))
        for source in sources:
            try:
                resolved = follow(source.path)
            except OSError as error:  # a link that only the engine may follow, such as /proc/1/root
                what = f"{source.path} cannot be checked: {error.filename}: {error.strerror}"
                yield OptionRefusal(
                    source.option, what, "mount a directory that is listed itself, or that you may look into"
                )
            else:
                if found := forbidden_mount(source, resolved, self._allow, roots, sockets):
                    yield found

    def _follow_below_listed(self, follow: RealPath, path: str) -> str:
        """Return the path without links; a listed directory whose links cannot be followed as it is written.

        Its links are the site's own, unless it is below another one, where a job could make some.
        """
        try:
            return follow(path)
        except OSError:
            plain, listed = posixpath.normpath(path), list(map(posixpath.normpath, self._allow.mounts or ()))
            if {root for root in listed if holds(root, plain)} == {plain}:
                return plain
            raise

    def _engine_sockets(self, follow: RealPath = os.path.realpath) -> list[str]:
        kind, place = self._address
        path = place.lstrip("/") if kind in _LOCAL else unquote(place.partition("/")[2]) if kind == "ssh" else ""
        sockets = [*SOCKETS, *filter(None, [path and f"/{path}", self.settings.access.socket])]
        found = [*sockets, *map(os.path.realpath, sockets)]
        with suppress(OSError):  # else as it is written
            found += [follow(f"/{path}")] if path else []
        return found

    @property
    def _address(self) -> tuple[str, str]:
        """Scheme of the engine's address, and what follows it."""
        kind, _, place = self.engine_url().partition("://")
        return kind, place

    def _plain_user(self, uid: int) -> PlainUser:
        return PlainUser(uid, self.directory, self.settings, tuple(self._engine_sockets()), self.jobs_machine())

    def is_operator(self, uid: int) -> bool:
        """Return whether this user is root, owns the state directory, or is named by `policy.operators`."""
        if uid == 0:
            return True
        with suppress(OSError):
            if self.directory.stat().st_uid == uid:
                return True
        for number, is_group in map(account_number, self.settings.policy.operators):
            if number is not None and is_group:
                with suppress(KeyError):
                    account = pwd.getpwuid(uid)
                    if number in os.getgrouplist(account.pw_name, account.pw_gid):
                        return True
            elif number == uid:
                return True
        return False


def account_number(name: str) -> tuple[int | None, bool]:
    """Return the id of a name of the settings, `alice` or `@group`, and whether it is a group's; None: unknown."""
    word = name.removeprefix("@")
    is_group = word != name
    try:
        if word.isascii() and word.isdigit():
            return int(word), is_group
        return grp.getgrnam(word).gr_gid if is_group else pwd.getpwnam(word).pw_uid, is_group
    except KeyError:
        return None, is_group


def _resolved(spec: JobSpec, follow: RealPath) -> JobSpec:
    volumes, mounts = [], []
    for text in spec.options.volumes:
        source = docker_args.volume_source(text)
        real = follow(source) if source.startswith("/") else source
        if ":" in real:
            raise ValueError(f"{source} is {real}, which has a colon in it")
        volumes.append(real + text[len(source) :])
    for text in spec.options.mounts:
        wanted = docker_args.mount(text)
        is_bind = wanted.kind == "bind"
        mounts.append(docker_args.with_source(text, follow(wanted.source)) if is_bind else text)
    return replace(spec, options=replace(spec.options, volumes=tuple(volumes), mounts=tuple(mounts)))


def within_time_limits(spec: JobSpec, settings: SchedulerSettings) -> JobSpec:
    """Return the spec with the site's time limit; raises InputError for a longer one or a pointless warning."""
    longest, limit = settings.max_time, spec.time_limit
    if longest is not None and limit is not None and limit > longest:
        text = f"{format_limit(limit)} is longer than a job may run here"
        hint = f"at most {format_limit(longest)}: the setting scheduler.max_time"
        raise InputError(text, where="--time-limit", hint=hint)
    if limit is None and longest is not None and settings.limit_all:
        spec = replace(spec, time_limit=longest)
    check_warning(spec)
    return spec


def check_warning(spec: JobSpec) -> None:
    """Raise InputError for a warning without a time limit, or before the start."""
    limit = spec.time_limit
    if spec.warning is not None and limit is None:
        raise InputError("warns of a time limit, but the job has none", where="--signal", hint="add --time-limit")
    if spec.warning is not None and limit is not None and spec.warning.before >= limit:
        text = f"{format_limit(spec.warning.before)} before the end is before the start"
        raise InputError(text, where="--signal", hint=f"the time limit is {format_limit(limit)}")
