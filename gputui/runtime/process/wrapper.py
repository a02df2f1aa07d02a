"""Runs one host attempt and records its end: `python -I -S wrapper.py DIRECTORY`, once per start().

Standard library only and few imports, because every start of a host job waits for this file to load. It does not
import gputui: it outlives every gputui process, and may outlive the version of gputui that started it.

Start protocol. Two processes watch over a command. The *keeper* leads its own session, takes the attempt's lock, writes
the start record durably, and forks the *runner*, which forks the command and waits for it. Both are subreapers, so
processes that the command leaves behind stay below them, and when the runner is killed the command becomes a child of
the keeper, which then takes over. When the keeper is killed the runner continues alone.

Why a command runs once and its end is found, whatever is killed when:

1. A command runs only after the start record is on disk, and no wrapper runs a command of an attempt that has one.
2. Keeper, runner and the command before its exec share one open lock. The lock is free only when all of them are gone
   (or the command has taken over its process), so a free lock means that no further record will be written.
3. The command writes its pid before its exec. A free lock and no such pid mean that the command never ran.
4. The runner looks at the exit status without reaping it (WNOWAIT) and reaps it, by ending, after the end record is
   written. Until then the kernel keeps the status, and hands it to the keeper if the runner dies.
5. Each record fills a sector of its own and begins with its checksum, so a reader that meets a writer halfway can tell.

So an end is lost only if runner and keeper are both killed before the command ends. The command keeps running then;
when it is gone, its end is unknown, and the scheduler says so instead of running it again.

Records are overwritten in place, in a file whose blocks exist since create(): that works on a full disk, and one
sector is written whole or not at all.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys
import time
import zlib

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from gputui.runtime.process.terminal import Terminal

SECTOR = 512
STARTED_AT, EXITED_AT, RUNNER_AT, COMMAND_AT = (SECTOR * place for place in range(4))
"""Offsets of the records in the state file: the keeper and when it began, the end, the runner, the command."""
STATE_SIZE = 4 * SECTOR
TRIM_EVERY = 5.0
"""Seconds between checks of the output's size."""
REST_WITHIN = 60.0
"""Seconds to wait for the end of processes that the command left behind."""
_PR_SET_CHILD_SUBREAPER = 36
_PUNCH_HOLE_KEEP_SIZE = 3

Instructions = dict[bytes, list[bytes]]


def main() -> None:
    """Become independent of the caller, then run the attempt if no other wrapper does."""
    above, name = os.path.split(sys.argv[1])
    flags = os.O_DIRECTORY | os.O_NOFOLLOW  # a link in place of attempts/ might lead to another queue's
    place = os.open(name, os.O_RDONLY | flags, dir_fd=os.open(above, os.O_PATH | flags))
    report = os.dup(1)
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    answer = claim(place)
    if answer:
        tell(report, answer)
        return
    keep(place, report)


def claim(place: int) -> bytes:
    """Take the lock, held until keeper and runner have ended; else return the obstacle."""
    owner = os.fstat(place)
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        return b"foreign"  # another user could have written the plan
    lock = os.open("claim", os.O_RDWR | os.O_NOFOLLOW, dir_fd=place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return b"busy"
    try:
        moved = not os.path.samestat(os.stat(sys.argv[1]), os.fstat(place))  # noqa: PTH116
    except OSError:
        moved = True
    if moved:  # replaced or removed during our start
        return b"moved"
    return b"already" if read_state(place, STARTED_AT).strip() else b""


def keep(place: int, report: int) -> None:
    """Record the start, fork the runner, and take over if the runner is killed."""
    plan = read_plan(place)
    log = os.open("output.log", os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, dir_fd=place)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    collect_orphans()
    write_state(place, STARTED_AT, b"%s %d" % (identity(), time.time_ns()))
    try:
        terminal = terminal_of(place, plan, log)
        runner = os.fork()
    except (OSError, ImportError) as error:
        write_exit(place, 127, plan, b"start %d" % (getattr(error, "errno", None) or 0))
        return
    if not runner:
        try:
            os.setpgid(0, 0)  # a signal to the keeper's group then leaves one of the two alive
            collect_orphans()
            write_state(place, RUNNER_AT, identity(), durably=False)
            run(place, plan, log, report, terminal)
        except BaseException:  # noqa: BLE001 - the border of the process: it must not go on as the keeper
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(report)
    if terminal is not None:
        terminal.leave_to_runner()
    os.waitpid(runner, 0)
    take_over(place, plan, log, terminal)


def terminal_of(place: int, plan: Instructions, log: int) -> Terminal | None:
    """Return the streams of an interactive command; None for others, which need not load that module."""
    if b"session" not in plan:
        return None
    package = os.path.abspath(__file__)  # noqa: PTH100
    for _ in range(4):
        package = os.path.dirname(package)  # noqa: PTH120
    sys.path.append(package)
    from gputui.runtime.process.terminal import Terminal

    owner = int(plan[b"session_uid"][0])
    return Terminal(place, log, is_tty=plan[b"session"] == [b"tty"], has_input=b"session_input" in plan, owner=owner)


def run(place: int, plan: Instructions, log: int, report: int, terminal: Terminal | None) -> None:
    """Run the command to its end and record the end."""
    if terminal is not None:
        terminal.hear_children()
    child, refusal = spawn(place, plan, terminal)
    if refusal:
        write_exit(place, 127, plan, refusal)
        tell(report, b"refused " + refusal)
        return
    tell(report, b"started")
    os.close(report)
    keep_log_small(log, int(plan[b"log_limit"][0]))
    if terminal is not None:
        terminal.close_theirs()
    finish(place, plan, child, terminal)


def take_over(place: int, plan: Instructions, log: int, terminal: Terminal | None) -> None:
    """Finish the attempt after the runner has ended; there is nothing left to do unless it was killed."""
    if unsealed(read_state(place, EXITED_AT)):
        return
    command = unsealed(read_state(place, COMMAND_AT))
    child = int(command) if command else next(iter(children()), 0)
    if terminal is not None:
        terminal.hear_children()
    if child:
        keep_log_small(log, int(plan[b"log_limit"][0]))
        finish(place, plan, child, terminal)
    else:
        write_exit(place, 127, plan, b"runner 0")


def finish(place: int, plan: Instructions, child: int, terminal: Terminal | None) -> None:
    """Wait for the command, kill processes that it left behind, and record its end."""
    code = wait(child, terminal)
    end_the_rest(child)
    if terminal is not None:
        terminal.drain()
    write_exit(place, code, plan, b"")
    if terminal is not None:
        terminal.tell_end(code)


def collect_orphans() -> None:
    """Become the parent of descendants that lose their parent."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tell(report: int, answer: bytes) -> None:
    """Answer the process that requested the start. If it was killed meanwhile, the attempt still continues."""
    try:  # noqa: SIM105 - contextlib is slow to import
        os.write(report, answer)
    except BrokenPipeError:
        pass


def identity() -> bytes:
    """Return the identity of this process: pid, start in ticks since boot, boot id."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        ticks = file.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
        boot = file.read().strip()
    return b"%d %s %s" % (os.getpid(), ticks, boot)


def read_plan(place: int) -> Instructions:
    """Read the plan: `key=value` records, each ended by NUL; keys may repeat."""
    descriptor = os.open("plan", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        records = file.read().split(b"\0")[:-1]
    plan: Instructions = {}
    for record in records:
        key, _, value = record.partition(b"=")
        plan.setdefault(key, []).append(value)
    return plan


def read_state(place: int, offset: int) -> bytes:
    descriptor = os.open("state", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place)
    try:
        return os.pread(descriptor, SECTOR, offset)
    finally:
        os.close(descriptor)


def write_state(place: int, offset: int, record: bytes, *, durably: bool = True) -> None:
    """Write a record with its checksum; it fills one sector."""
    descriptor = os.open("state", os.O_WRONLY | os.O_NOFOLLOW, dir_fd=place)
    try:
        os.pwrite(descriptor, sealed(record), offset)
        if durably:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sealed(record: bytes) -> bytes:
    """Return the sector that holds a record and its checksum."""
    record = record.strip()
    return (b"%08x %s" % (zlib.crc32(record), record)).ljust(SECTOR - 1) + b"\n"


def unsealed(sector: bytes) -> bytes:
    """Return the record of a sector; empty when there is none, or it is damaged or only half written."""
    seal, _, record = sector.strip().partition(b" ")
    return record if seal == b"%08x" % zlib.crc32(record) else b""


def write_exit(place: int, code: int, plan: Instructions, refusal: bytes) -> None:
    """Write the end record, retrying for ever: copy-on-write file systems may be full now.

    If the attempt was removed meanwhile, nothing is written.
    """
    record = b"%d %d %d %s" % (code, time.time_ns(), oom_kills(plan), refusal)
    while True:
        try:
            return write_state(place, EXITED_AT, record)
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.5)


def oom_kills(plan: Instructions) -> int:
    """Return how many processes of this attempt the kernel killed for its memory limit."""
    for path in plan.get(b"oom_events", []):
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        return int(counts.get(b"oom_kill", b"0"))
    return 0


def spawn(place: int, plan: Instructions, terminal: Terminal | None) -> tuple[int, bytes]:
    """Start the command; return its pid, and `STEP ERRNO` when that failed."""
    failed, failure = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        return 0, b"start %d" % (error.errno or 0)
    if not child:
        step = [b"start"]
        try:
            write_state(place, COMMAND_AT, b"%d" % os.getpid(), durably=False)
            if terminal is None:
                os.setpgid(0, 0)  # `kill 0` in a job's clean-up must not reach the wrapper
            else:
                terminal.enter()
            become(plan, step)
        except OSError as error:
            os.write(failure, b"%s %d" % (step[0], error.errno or 0))
        except ValueError:
            os.write(failure, b"%s 0" % step[0])
        finally:
            os._exit(127)
    os.close(failure)
    refusal = os.read(failed, 100)  # closed by a successful exec
    os.close(failed)
    return child, refusal


def become(plan: Instructions, step: list[bytes]) -> None:
    """Exec the command; on failure `step` names the failed step."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    step[0] = b"cgroup"
    for path in plan.get(b"cgroup", []):
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"0")
    for path in plan.get(b"tracked", []):
        try:
            with open(path, "wb", buffering=0) as file:  # noqa: PTH123
                file.write(b"0")
        except OSError:
            continue  # its processes are found in other ways too
    step[0] = b"ulimit"
    for limit in plan.get(b"soft", []):
        which, soft = (int(part) for part in limit.split(b":"))
        most = resource.getrlimit(which)[1]  # the scheduler's hard limits are the site's ceilings
        if most != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > most):
            soft = most
        resource.setrlimit(which, (soft, most))
    for limit in plan.get(b"rlimit", []):
        which, soft, hard = (int(part) for part in limit.split(b":"))
        resource.setrlimit(which, (soft, hard))
    step[0] = b"user"
    if b"uid" in plan:
        os.setgroups([int(group) for group in plan.get(b"group", [])])
        os.setgid(int(plan[b"gid"][0]))
        os.setuid(int(plan[b"uid"][0]))
    step[0] = b"workdir"
    os.chdir(plan[b"cwd"][0])
    step[0] = b"command"
    if b"umask" in plan:
        os.umask(int(plan[b"umask"][0]))
    execute(plan[b"arg"], dict(entry.split(b"=", 1) for entry in plan[b"env"]))


def execute(command: list[bytes], env: dict[bytes, bytes]) -> None:
    """Exec as execvp(3) does, with the job's PATH; a file that is not executable is reported before a missing one."""
    if b"/" in command[0]:
        os.execve(command[0], command, env)  # noqa: S606 - the job's command
    worst: OSError = FileNotFoundError(2, "not found")
    for folder in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve((folder or b".") + b"/" + command[0], command, env)  # noqa: S606 - the job's command
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            worst = error
    raise worst


def wait(child: int, terminal: Terminal | None) -> int:
    """Return the exit code of the command, 128 + n for a signal, and leave its status in the kernel.

    Orphans that became children of this process are reaped on the way, and the streams of a terminal passed on.
    """
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | (os.WNOHANG if terminal is not None else 0))
        if found is None and terminal is not None:
            terminal.serve()
        if found is not None and found.si_pid == child:
            return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status
        if found is not None:
            reap(found.si_pid)


def end_the_rest(child: int) -> None:
    """Kill the processes that the command left behind, and wait until they are gone, for `REST_WITHIN` seconds.

    A process in uninterruptible sleep (a hung driver, a dead NFS server) or of another user may stay: the end of the
    command is recorded all the same.
    """
    pause, deadline = 0.001, time.monotonic() + REST_WITHIN
    while time.monotonic() < deadline:
        rest = [pid for pid in children() if pid != child and not reap(pid)]
        killed = [kill(pid) for pid in rest]
        if not any(killed):
            return  # none is left, or all are beyond our rights
        time.sleep(pause)  # children of a dying process become ours: look again
        pause = min(2 * pause, 0.1)


def reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def kill(pid: int) -> bool:
    """Send SIGKILL; return False for a process of another user, which is left alone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def children() -> list[int]:
    """Return the pids of this process's children, zombies included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: search /proc
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(name))
        return found


def keep_log_small(log: int, limit: int) -> None:
    """Limit the disk use of the output to `limit` bytes from now on, by punching holes over the oldest part.

    The command keeps writing directly to the file, even after this process has ended, and readers find the rest at the
    same offsets.
    """

    libc = ctypes.CDLL(None, use_errno=True)

    def trim(_signal: int, _frame: object) -> None:
        status = os.fstat(log)
        if status.st_blocks * 512 > limit:
            keep = (status.st_size - limit * 3 // 4) // 4096 * 4096
            libc.fallocate(log, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(max(0, keep)))

    signal.signal(signal.SIGALRM, trim)
    signal.setitimer(signal.ITIMER_REAL, TRIM_EVERY, TRIM_EVERY)


if __name__ == "__main__":
    main()
