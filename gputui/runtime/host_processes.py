"""Processes of this host: what /proc tells of them, signals to those of others; accounts of attempts."""

from __future__ import annotations

import errno
import functools
import grp
import os
import pwd
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ProcessRow
from gputui.domain.errors import Cause, CauseCode, GputuiError, NotFoundError, RuntimeFault
from gputui.domain.gpu_processes import ProcessTarget, SignalOutcome
from gputui.domain.text import user_name

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessIdentity(Struct, frozen=True):
    """Identity of a process, distinct from any later process with the same pid."""

    pid: int
    ticks: int
    """Start time in clock ticks since boot."""
    boot: str
    """Id of the boot."""


class ProcessStat(Struct, frozen=True):
    """Fields of /proc/<pid>/stat that are needed here."""

    state: str
    parent: int
    session: int
    ticks: int


@functools.cache
def boot_id() -> str:
    return _read(_BOOT_ID).decode().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """Return a process; None if it is gone or a zombie."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    return ProcessStat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def is_alive(who: ProcessIdentity) -> bool:
    """Return whether that process lives, and not a later one with its pid."""
    found = read_stat(who.pid)
    return found is not None and found.ticks == who.ticks and who.boot == boot_id()


def attempt_members(
    leader: ProcessIdentity, runner: ProcessIdentity | None, tag: str, grouped: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the pids of an attempt's processes without the wrapper's own two, keeper (`leader`) and runner.

    `grouped` are the processes of its control groups, which always belong to it. While the keeper or the runner lives,
    so do the session and all descendants of both, daemons included, because both are subreapers. After both were
    killed, members are the processes of the session (whose id cannot be reused while a member lives) and those with
    the attempt's tag in their environment.
    """
    if leader.boot != boot_id():
        return ()
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names alone, of thousands
    everything = {pid: process for pid in pids if (process := read_stat(pid)) is not None}
    wrapper = [who for who in (leader, runner) if who is not None]
    keepers = {who.pid for who in wrapper if who.pid in everything and everything[who.pid].ticks == who.ticks}
    is_reused = leader.pid in everything and leader.pid not in keepers
    session = None if is_reused else leader.pid

    def belongs(pid: int) -> bool:
        if everything[pid].session == session:
            return True
        passed: set[int] = set()  # /proc is not read atomically, so a chain of parents may form a loop
        while (process := everything.get(pid)) is not None and pid not in passed:
            if process.parent in keepers:
                return True
            passed.add(pid)
            pid = process.parent
        return False

    def is_orphan(pid: int) -> bool:
        if everything[pid].ticks < leader.ticks:
            return False
        environment = _read(f"/proc/{pid}/environ")
        if f"GPUTUI_ATTEMPT={tag}".encode() in environment.split(b"\0"):
            return True
        # without the tag in its environment the session decides, unless its id was reused
        return everything[pid].session == session and b"GPUTUI_ATTEMPT=" not in environment

    is_member = belongs if keepers else is_orphan
    found = {pid for pid in everything if pid in grouped or is_member(pid)}
    # parents first: a shell must not see its child end before it is told to end itself
    return tuple(sorted(found - keepers))


def send_signal(pids: tuple[int, ...], number: int, only: int | None = None) -> tuple[int, ...]:
    """Send a signal to the processes that still live; with `only`, just to those of that uid.

    Return the pids that this user may not signal; those processes continue.
    """
    refused = []
    for pid in pids:
        try:
            if only is None or os.stat(f"/proc/{pid}").st_uid == only:  # noqa: PTH116
                os.kill(pid, number)
        except PermissionError:
            refused.append(pid)
        except (ProcessLookupError, FileNotFoundError):
            continue
    return tuple(refused)


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # it ended while being read
        return b""
    finally:
        os.close(descriptor)


class _Sampled(Struct, frozen=True):
    start: int
    """Start time in clock ticks since boot."""
    at: float
    """Time of the sample in monotonic seconds."""
    used: int
    """CPU time in clock ticks."""
    cpu: float | None
    user: str
    command: str


_LEAST = 0.5
"""Minimum seconds between two samples for computing CPU use: the kernel counts in hundredths."""
_SETTLED = 10.0
"""Seconds after which a process is assumed to keep its command; before that it may call exec."""


class ProcessSampler(Struct, eq=False):
    """Samples processes: computes CPU use between two samples, and reads command and user of each only once."""

    _known: dict[int, _Sampled] = field(default_factory=dict)

    def sample(self, pids: Iterable[int], *, with_parents: bool = False) -> list[ProcessRow]:
        """Return rows of the processes that still live; with `with_parents`, also of all their parents except pid 1.

        CPU use is that since the sample before, else since the start of the process.
        """
        now, uptime = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        rows: list[ProcessRow] = []
        sampled: dict[int, _Sampled] = {}
        wanted = list(dict.fromkeys(pids))
        asked = set(wanted)
        for pid in wanted:  # it grows by the parents
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            if len(fields) < 22 or fields[0] in {b"Z", b"X"}:
                continue
            parent, start, used = int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])
            age = max(0.0, uptime - start / _TICKS)
            before = self._known.get(pid)
            if before is None or before.start != start:
                cpu = used / _TICKS / age if age > 0 else None
                one = _Sampled(start, now, used, cpu, _user(pid), _command(pid))
            else:
                command = before.command if age > _SETTLED else _command(pid)
                if now - before.at < _LEAST:
                    one = replace(before, command=command)
                else:
                    cpu = (used - before.used) / _TICKS / (now - before.at)
                    one = _Sampled(start, now, used, cpu, before.user, command)
            sampled[pid] = one
            lasted, memory = timedelta(seconds=age), int(fields[21]) * _PAGE
            rows.append(ProcessRow(pid, one.user, one.command, one.cpu, memory, lasted, parent, start))
            if with_parents and parent > 1 and parent not in asked:
                asked.add(parent)
                wanted.append(parent)
        self._known = sampled
        return rows


def _command(pid: int) -> str:
    words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
    return (words or b"[%b]" % _read(f"/proc/{pid}/comm").strip()).decode(errors="replace")[:1000]


def _user(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
    except OSError:
        return ""


_LOOKS = 0.05
"""Seconds between two checks of a process without a pidfd."""
_NO_PIDFD = (errno.ENOSYS, errno.EPERM, errno.EINVAL)


class LocalProcesses(Struct, eq=False):
    """HostProcesses of this machine, with the rights of this process."""

    _sampler: ProcessSampler = field(default_factory=ProcessSampler)

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> dict[int, ProcessRow]:
        return {row.pid: row for row in self._sampler.sample(pids, with_parents=with_parents)}

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        _check(target)
        try:
            content = Path(f"/proc/{target.pid}/environ").read_bytes()
        except PermissionError:
            owner = _owner(target.pid)
            who = "root" if owner == "root" else f"{owner} and root"
            text = f"the environment of pid {target.pid} belongs to {owner}"
            raise GputuiError(text, hint=f"only {who} may read it") from None
        except OSError:
            raise _gone(target) from None
        _check(target)  # it may be another process's by now
        return tuple(word for word in content.decode(errors="replace").split("\0") if word)

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Raises GputuiError if the process has ended, is another one by now, or another user's."""
        pid, seen = os.getpid(), set[int]()
        while pid and pid not in seen:  # this process or a parent: the console would end with it
            if pid == target.pid:
                raise GputuiError(f"gputui itself runs in pid {pid}", hint="quit gputui instead")
            seen.add(pid)
            found = read_stat(pid)
            pid = found.parent if found else 0
        with _pidfd(target.pid) as fd:
            _check(target)  # with the pidfd open, it can no longer refer to another process
            self._send(fd, target, 0)
            before()
            _check(target)
            self._send(fd, target, number)
            began = time.monotonic()
            if fd is not None:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(patience * 1000)
            while True:  # a zombie counts as ended
                now, passed = read_stat(target.pid), time.monotonic() - began
                if now is None or now.ticks != target.ticks:
                    return SignalOutcome(has_ended=True, seconds=passed)
                if passed >= patience:
                    return SignalOutcome(has_ended=False, seconds=passed, state=now.state)
                time.sleep(_LOOKS)

    def _send(self, fd: int | None, target: ProcessTarget, number: int) -> None:
        try:
            if fd is None:
                os.kill(target.pid, number)
            else:
                signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            raise _gone(target) from None
        except PermissionError:
            owner = _owner(target.pid)
            who = "root" if owner == "root" else f"{owner} or root"
            raise GputuiError(f"pid {target.pid} belongs to {owner}", hint=f"ask {who}") from None


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise NotFoundError(
                f"pid {pid} is not running here: it has ended, or it cannot be seen from here"
            ) from None
        if error.errno not in _NO_PIDFD:
            raise GputuiError(f"pid {pid} cannot be identified: {error.strerror}") from error
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _check(target: ProcessTarget) -> None:
    """Raise GputuiError unless the pid still belongs to that process."""
    found = read_stat(target.pid)
    if found is None:
        raise _gone(target)
    if found.ticks != target.ticks:
        text = f"pid {target.pid} is another process now: its start time differs from the one shown"
        raise GputuiError(text, hint="look again; nothing was sent")


def _gone(target: ProcessTarget) -> GputuiError:
    return NotFoundError(f"pid {target.pid} has ended already")


def _owner(pid: int) -> str:
    return _user(pid) or "another user"


class Account(Struct, frozen=True):
    """Entry of the account database."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str

    @property
    def is_other(self) -> bool:
        return (self.uid, self.gid) != (os.geteuid(), os.getegid())


def account_of(user: str | None, run_as: int | None) -> Account:
    """Return the account for `NAME|UID[:GROUP|GID]`, by default the submitter's; raises BAD_SPEC."""
    submitter = _account(os.geteuid() if run_as is None else run_as)
    account = submitter if user is None else _chosen(user, submitter)
    if account.is_other and os.geteuid() != 0:
        text = f"it is a job of {account.name}: only a scheduler that runs as root can run jobs as other users"
        raise refused(text)
    return account


class ContainerUser(Struct, frozen=True):
    """User of a container, in the engine's notation."""

    user: str
    groups: tuple[str, ...]
    account: Account | None = None
    """The submitter's account; None if the job names another user."""


def container_user(
    user: str | None, run_as: int, wanted: Iterable[str] = (), *, is_boxed: bool = False
) -> ContainerUser:
    """Return `UID:GID` and additional groups for a container, `wanted` included; raises BAD_SPEC.

    In a plain user's box the job may name no other account. Ids are numbers: names in the image may be other users'.
    """
    if user is not None and not is_boxed:
        return ContainerUser(user, tuple(wanted))
    submitter = _account(run_as)
    account = submitter if user is None else _chosen(user, submitter, "operators")
    groups = [str(gid) for gid in account.groups if gid != account.gid]
    for group in wanted:
        gid = _group(group) if is_boxed else group
        if is_boxed and submitter.uid != 0 and gid not in (submitter.gid, *submitter.groups):
            raise refused(f"--group-add {group!a}: {submitter.name} is not in that group")
        groups.append(str(gid))
    return ContainerUser(f"{account.uid}:{account.gid}", tuple(dict.fromkeys(groups)), account)


def account_name(uid: int) -> str:
    """Return the user's name; the uid as text if there is none."""
    return _account(uid).name


def _account(uid: int) -> Account:
    if uid == os.geteuid():
        gid, groups = os.getegid(), tuple(os.getgroups())
    else:
        gid, groups = uid, (uid,)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, groups, str(uid), "/", "/bin/sh")
    if uid != os.geteuid():
        gid, groups = entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(uid, gid, groups, entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh")


def _chosen(user: str, submitter: Account, may_name_others: str = "root") -> Account:
    """Return the requested account: any for root, else the submitter's own with one of its groups."""
    name, _, group = user.partition(":")
    if _is_id(name):
        uid = int(name)  # there may be no such account
    else:
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise refused(f"--user: this host has no user {name!a}") from None
    if uid != submitter.uid and submitter.uid != 0:
        rule = f"jobs run as their submitter, here {submitter.name}; only {may_name_others} may name another user"
        raise refused(f"--user {user!a}: {rule}")
    account = submitter if uid == submitter.uid else _account(uid)
    if not group:
        return account
    gid = _group(group)
    if submitter.uid != 0 and gid not in (submitter.gid, *submitter.groups):
        raise refused(f"--user {user!a}: {submitter.name} is not in the group {group!a}")
    return replace(account, gid=gid, groups=(gid,))


def _group(name: str) -> int:
    if _is_id(name):
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise refused(f"--user or --group-add: this host has no group {name!a}") from None


def _is_id(text: str) -> bool:
    """Return whether this is a uid or gid; the kernel takes the last one, 2^32 - 1, for "leave it as it is"."""
    return text.isascii() and text.isdigit() and len(text) < 11 and int(text) < 2**32 - 1


def refused(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, text))
