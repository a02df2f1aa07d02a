"""Runs one host attempt and keeps its exit code: `python -I -S wrapper.py DIRECTORY`, once per start().

Standard library only and few imports, because every start of a host job waits for this file to load. It does not
import gputui: it outlives every gputui process, and may outlive the version of gputui that started it.

It forks away from its caller into a session of its own, takes the attempt's lock for as long as it lives, writes
durably who it is before the command runs, and how the command ended afterwards. So the command never runs twice:
without the lock, or once the first record is written, a wrapper goes away. Both records are overwritten in place,
in a file whose blocks exist since create(): that works on a full disk, and one sector is written whole or not at all.

It is the subreaper of what it runs: daemons that left the session still become its children, and when the command
has ended whatever it left behind is killed, as the rest of a container is when its first process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys
import time

SECTOR = 512
STARTED_AT = 0
EXITED_AT = SECTOR
"""Offsets of the two records in the state file."""
TRIM_EVERY = 5.0
"""Seconds between looks at how large the output has grown."""
REST_WITHIN = 60.0
"""Seconds for which the end of processes that the command left behind is waited for."""
_PR_SET_CHILD_SUBREAPER = 36
_PUNCH_HOLE_KEEP_SIZE = 3

Plan = dict[bytes, list[bytes]]


def main() -> None:
    """Become independent of the caller, then run the attempt if it is ours to run."""
    place = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
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
    run(place, report)


def claim(place: int) -> bytes:
    """Take the lock, held until this process ends; else say who stands in the way."""
    lock = os.open("claim", os.O_RDWR, dir_fd=place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return b"busy"
    try:
        moved = not os.path.samestat(os.stat(sys.argv[1]), os.fstat(place))  # noqa: PTH116
    except OSError:
        moved = True
    if moved:  # replaced or removed while we came up
        return b"moved"
    return b"already" if read_state(place).strip() else b""


def run(place: int, report: int) -> None:
    """Run the command to its end, and write down both."""
    plan = read_plan(place)
    log = os.open("output.log", os.O_RDWR | os.O_APPEND, dir_fd=place)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    write_state(place, STARTED_AT, identity())
    child, refusal = spawn(plan, log)
    if refusal:
        os.waitpid(child, 0)
        write_exit(place, 127, plan, refusal)
        tell(report, b"refused " + refusal)
        return
    tell(report, b"started")
    os.close(report)
    keep_log_small(libc, log, int(plan[b"log_limit"][0]))
    code = wait(child)
    end_the_rest()
    write_exit(place, code, plan, b"")


def tell(report: int, answer: bytes) -> None:
    """Answer who asked for the start. They may have been killed meanwhile: what was begun goes on all the same."""
    try:  # noqa: SIM105 - contextlib is slow to import
        os.write(report, answer)
    except BrokenPipeError:
        pass


def identity() -> bytes:
    """Which process this is: pid, start in ticks since boot, the boot, and the time."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        ticks = file.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
        boot = file.read().strip()
    return b"%d %s %s %d" % (os.getpid(), ticks, boot, time.time_ns())


def read_plan(place: int) -> Plan:
    """What to run: `key=value` records with NUL after each, keys may repeat."""
    descriptor = os.open("plan", os.O_RDONLY, dir_fd=place)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        records = file.read().split(b"\0")[:-1]
    plan: Plan = {}
    for record in records:
        key, _, value = record.partition(b"=")
        plan.setdefault(key, []).append(value)
    return plan


def read_state(place: int) -> bytes:
    """The two records."""
    descriptor = os.open("state", os.O_RDONLY, dir_fd=place)
    try:
        return os.read(descriptor, 2 * SECTOR)
    finally:
        os.close(descriptor)


def write_state(place: int, offset: int, record: bytes) -> None:
    """Write a record durably; it fills one sector."""
    descriptor = os.open("state", os.O_WRONLY, dir_fd=place)
    try:
        os.pwrite(descriptor, record.ljust(SECTOR - 1) + b"\n", offset)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_exit(place: int, code: int, plan: Plan, refusal: bytes) -> None:
    """Write how it ended, as often as it takes: file systems that copy on write may be full just now.

    Where the attempt was removed meanwhile there is nobody left to tell.
    """
    record = b"%d %d %d %s" % (code, time.time_ns(), oom_kills(plan), refusal)
    while True:
        try:
            return write_state(place, EXITED_AT, record)
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.5)


def oom_kills(plan: Plan) -> int:
    """How often the kernel killed something of this attempt for its memory limit."""
    for path in plan.get(b"oom_events", []):
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        return int(counts.get(b"oom_kill", b"0"))
    return 0


def spawn(plan: Plan, log: int) -> tuple[int, bytes]:
    """Start the command; its pid, and `STEP ERRNO` when that failed."""
    failed, failure = os.pipe()
    child = os.fork()
    if not child:
        step = [b"start"]
        try:
            become(plan, log, step)
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


def become(plan: Plan, log: int, step: list[bytes]) -> None:
    """Turn into the command; `step` names what was being done when it fails."""
    os.setpgid(0, 0)  # `kill 0` in a job's clean-up must not reach the wrapper
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    step[0] = b"cgroup"
    for path in plan.get(b"cgroup", []):
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"0")
    step[0] = b"ulimit"
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
    execute(plan[b"arg"], dict(entry.split(b"=", 1) for entry in plan[b"env"]))


def execute(command: list[bytes], env: dict[bytes, bytes]) -> None:
    """Exec as execvp(3) does: the PATH is the job's, and what may not be executed is told before what is missing."""
    if b"/" in command[0]:
        os.execve(command[0], command, env)
    worst: OSError = FileNotFoundError(2, "not found")
    for folder in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve((folder or b".") + b"/" + command[0], command, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            worst = error
    raise worst


def wait(child: int) -> int:
    """The child's exit code, 128 + n for a signal; orphans that were left to us are reaped on the way."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_the_rest() -> None:
    """Kill the processes that the command left behind, and wait until they are gone, for `REST_WITHIN` seconds.

    A process in uninterruptible sleep (a hung driver, a dead NFS server) or of another user may stay: the end of the
    command is recorded all the same.
    """
    pause, deadline = 0.001, time.monotonic() + REST_WITHIN
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        for orphan in children():
            kill(orphan)
        time.sleep(pause)  # the children of a process that dies become ours: look again
        pause = min(2 * pause, 0.1)


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone or belongs to another user is left alone."""
    try:  # noqa: SIM105 - contextlib is slow to import
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def children() -> list[int]:
    """Pids of this process's children."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


def keep_log_small(libc: ctypes.CDLL, log: int, limit: int) -> None:
    """From now on give the oldest output back to the disk when there is more than `limit`.

    A hole is punched at the head of the file: the command writes on undisturbed, straight to the file, even when
    this process is gone, and readers see the rest at the same offsets.
    """

    def trim(_signal: int, _frame: object) -> None:
        status = os.fstat(log)
        if status.st_blocks * 512 > limit:
            keep = (status.st_size - limit * 3 // 4) // 4096 * 4096
            libc.fallocate(log, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(max(0, keep)))

    signal.signal(signal.SIGALRM, trim)
    signal.setitimer(signal.ITIMER_REAL, TRIM_EVERY, TRIM_EVERY)


if __name__ == "__main__":
    main()
