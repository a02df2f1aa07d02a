"""Host attempts run once, outlive gputui, and are distinguished from all other processes."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.container import ContainerState
from gputui.domain.errors import CauseCode
from gputui.runtime import host_processes
from gputui.runtime.process import wrapper
from gputui.runtime.process.attempt_folder import AttemptFolder, AttemptIndex
from gputui.runtime.process.runtime import ProcessRuntime
from gputui.runtime.process.wrapper import SECTOR, STATE_SIZE
from tests.runtime.contract import PATIENCE, SLEEP, STORE, Harness, output, record, seen, shell
from tests.runtime.test_process import process_harness
from tests.waiting import until

GPUTUI = """
import sys, time
from pathlib import Path
from tests.runtime.contract import shell
from tests.runtime.test_process import process_harness
harness = process_harness(Path(sys.argv[1]))
runtime = harness.open(sys.argv[3])
container_id = runtime.create(harness.launch(shell(sys.argv[2]), store_id=sys.argv[3])).id
runtime.start(container_id)
print(container_id, flush=True)
time.sleep(600)
"""
STARTER = """
import sys
from pathlib import Path
from tests.runtime.test_process import process_harness
runtime = process_harness(Path(sys.argv[1])).open(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
runtime.start(sys.argv[2])
"""

OWN_GROUP = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else os.setpgid(0, 0); time.sleep(600)"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def harness(state: Path) -> Iterator[Harness]:
    harness = process_harness(state)
    yield harness
    harness.clean()


@pytest.fixture
def runtime(harness: Harness) -> ProcessRuntime:
    runtime = harness.open()
    assert isinstance(runtime, ProcessRuntime)
    return runtime


def begin(harness: Harness, runtime: ProcessRuntime, script: str) -> str:
    container_id = runtime.create(harness.launch(shell(script))).id
    runtime.start(container_id)
    return container_id


def leader(runtime: ProcessRuntime, container_id: str) -> int:
    pid = record(runtime, container_id).pid
    assert pid is not None
    return pid


def runner(runtime: ProcessRuntime, state: Path, container_id: str) -> int:
    """Return the pid of the process that waits for the command."""
    until(lambda: AttemptFolder(state / "attempts" / container_id).records().runner is not None, "there is a runner")
    found = AttemptFolder(state / "attempts" / container_id).records().runner
    assert found is not None
    return found.pid


def kill_wrapper(runtime: ProcessRuntime, state: Path, container_id: str) -> None:
    """Kill both wrapper processes of the command."""
    pids = (leader(runtime, container_id), runner(runtime, state, container_id))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(host_processes.read_stat(pid) is None for pid in pids), "the wrapper is gone")


def members(state: Path, container_id: str) -> tuple[int, ...]:
    """Return the pids of an attempt's processes, as a new process finds them."""
    return AttemptIndex(STORE, state / "attempts").reach(container_id)[0]


def number_printed(runtime: ProcessRuntime, container_id: str) -> int:
    """Return the pid in the first line of its output."""
    stream = runtime.logs(container_id, follow=True)
    pid = int(next(iter(stream)))
    stream.close()
    return pid


def rewrite_start(state: Path, container_id: str, place: int, word: bytes) -> None:
    """Change one word of the wrapper's record."""
    path = state / "attempts" / container_id / "state"
    content = path.read_bytes()
    words = wrapper.unsealed(content[:SECTOR]).split()
    words[place] = word
    path.write_bytes(wrapper.sealed(b" ".join(words)) + content[SECTOR:])


def test_a_killed_gputui_leaves_its_jobs_running(harness: Harness, state: Path) -> None:
    go_on = state.parent / "go-on"
    script = f"while [ ! -e {go_on} ]; do sleep 0.02; done; echo through; exit 9"
    command = [sys.executable, "-c", GPUTUI, str(state), script, STORE]
    gputui = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT)
    with gputui:
        assert gputui.stdout is not None
        container_id = gputui.stdout.readline().strip()
        os.killpg(gputui.pid, signal.SIGKILL)
    runtime = harness.open()
    found = record(runtime, container_id)
    assert found.state is ContainerState.RUNNING
    assert found.pid is not None
    assert os.getsid(found.pid) == found.pid != gputui.pid
    go_on.touch()
    assert harness.ended(runtime, container_id).exit_code == 9
    assert output(runtime, container_id, state.parent / "log") == b"through\n"


def test_an_attempt_started_by_many_processes_runs_once(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    container_id = runtime.create(harness.launch(shell("echo ran; sleep 0.3"))).id
    command = [sys.executable, "-c", STARTER, str(state), container_id, STORE]
    starters = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("\n")
        starter.stdin.flush()
    for starter in starters:
        with starter:
            assert starter.wait(PATIENCE) == 0
    assert harness.ended(runtime, container_id).exit_code == 0
    assert output(runtime, container_id, state.parent / "log") == b"ran\n"


def test_a_start_waits_for_a_concurrent_start(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    """A wrapper that died before it wrote anything gave its lock back: the next start runs the command."""
    container_id = runtime.create(harness.launch(shell("echo ran"))).id
    with (state / "attempts" / container_id / "claim").open("r+b") as claim:
        fcntl.flock(claim, fcntl.LOCK_SH)  # enough to show that a wrapper wants it alone
        starting = threading.Thread(target=runtime.start, args=(container_id,))
        starting.start()
        starting.join(0.1)
        assert starting.is_alive()
        assert record(runtime, container_id).state is ContainerState.CREATED
    starting.join(PATIENCE)
    assert harness.ended(runtime, container_id).exit_code == 0
    assert output(runtime, container_id, state.parent / "log") == b"ran\n"


def test_an_attempt_that_may_have_begun_is_never_begun_again(
    harness: Harness, runtime: ProcessRuntime, state: Path
) -> None:
    """Killed between the record and the command: lost, which is tried again as another attempt."""
    container_id = runtime.create(harness.launch(shell("echo ran"))).id
    path = state / "attempts" / container_id / "state"
    begun = wrapper.sealed(b"999999 1 " + host_processes.boot_id().encode() + b" 1000000000")
    path.write_bytes(begun + path.read_bytes()[SECTOR:])
    runtime.start(container_id)
    found = record(runtime, container_id)
    assert found.state is ContainerState.EXITED
    assert found.cause is not None
    assert found.cause.code is CauseCode.CONTAINER_LOST
    assert output(runtime, container_id, state.parent / "log") == b""


def test_a_late_wrapper_exits(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    """A wrapper started before the other wrote its record gets the lock after the other's end."""
    container_id = begin(harness, runtime, "echo ran; exit 4")
    harness.ended(runtime, container_id)
    folder = state / "attempts" / container_id
    late = [sys.executable, "-I", "-S", wrapper.__file__, str(folder)]
    until(lambda: subprocess.run(late, stdout=subprocess.PIPE, check=True).stdout == b"already", "it has the lock")
    assert output(runtime, container_id, state.parent / "log") == b"ran\n"
    assert record(harness.open(), container_id).exit_code == 4


@pytest.mark.parametrize(("command", "code"), [(shell("echo ran; exit 4"), 4), (("/nowhere/to/be/found",), 127)])
def test_an_attempt_survives_a_starter_killed_before_the_answer(
    harness: Harness, runtime: ProcessRuntime, state: Path, command: tuple[str, ...], code: int
) -> None:
    """A started command is still awaited: else its end would be unknown and it would run again."""
    container_id = runtime.create(harness.launch(command)).id
    reader, writer = os.pipe()
    os.close(reader)
    folder = str(state / "attempts" / container_id)
    subprocess.run([sys.executable, "-I", "-S", wrapper.__file__, folder], stdout=writer, stderr=writer, check=True)
    os.close(writer)
    until(lambda: record(harness.open(), container_id).state is ContainerState.EXITED, "it ended")
    assert record(harness.open(), container_id).exit_code == code
    assert output(runtime, container_id, state.parent / "log") == (b"ran\n" if code == 4 else b"")


def test_a_wrapper_of_a_replaced_attempt_exits(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    """The wrapper opened the directory before another one replaced it."""
    container_id = runtime.create(harness.launch(shell("echo ran"))).id
    folder = state / "attempts" / container_id
    old = folder.rename(folder.with_name("old"))
    shutil.copytree(old, folder)
    place = os.open(old, os.O_RDONLY)
    code = "import sys; sys.path.insert(0, sys.argv[2]); import wrapper; print(wrapper.claim(int(sys.argv[3])))"
    runtime_folder = str(Path(wrapper.__file__).parent)
    command = [sys.executable, "-I", "-S", "-c", code, str(folder), runtime_folder, str(place)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, pass_fds=[place]).stdout
    os.close(place)
    assert said == b"b'moved'\n"
    shutil.rmtree(old)


def test_an_attempt_runs_on_without_its_wrapper(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    woken = threading.Event()
    container_id = begin(harness, runtime, "echo $$; exec sleep 600")
    pid = number_printed(runtime, container_id)
    runtime.watch(woken.set)
    kill_wrapper(runtime, state, container_id)
    assert woken.wait(PATIENCE)
    (found,) = runtime.containers()
    assert found.state is ContainerState.RUNNING
    woken.clear()
    os.kill(pid, signal.SIGKILL)
    assert woken.wait(PATIENCE)
    ended = harness.ended(runtime, container_id)
    assert ended.exit_code is None
    assert ended.cause is not None
    assert ended.cause.code is CauseCode.END_UNKNOWN
    assert "wrapper was killed" in ended.cause.text


@pytest.mark.parametrize("which", ["keeper", "runner"])
def test_either_wrapper_process_records_the_end(
    harness: Harness, runtime: ProcessRuntime, state: Path, which: str
) -> None:
    script = "setsid sh -c 'exec env -i sleep 600' & read line < pipe; exit 7"
    os.mkfifo(state.parent / "pipe")
    container_id = runtime.create(harness.launch(shell(script), workdir=str(state.parent))).id
    runtime.start(container_id)
    until(lambda: len(members(state, container_id)) == 2, "the daemon is there")
    pid = leader(runtime, container_id) if which == "keeper" else runner(runtime, state, container_id)
    os.kill(pid, signal.SIGKILL)
    until(lambda: host_processes.read_stat(pid) is None, "it is gone")
    left = members(state, container_id)
    assert len(left) == 2
    (state.parent / "pipe").write_text("go\n")
    assert harness.ended(runtime, container_id).exit_code == 7
    assert all(host_processes.read_stat(member) is None for member in left)


def test_an_end_before_its_record_is_found_by_the_keeper(harness: Harness, state: Path) -> None:
    """The runner is killed after the command has ended: the kernel keeps the status until it is written down."""
    runtime = harness.open()
    assert isinstance(runtime, ProcessRuntime)
    container_id = begin(harness, runtime, "read line < /dev/zero; exit 5")
    first = runner(runtime, state, container_id)
    (command,) = members(state, container_id)
    os.kill(first, signal.SIGSTOP)
    os.kill(command, signal.SIGTERM)
    until(lambda: host_processes.read_stat(command) is None, "the command has ended")
    assert record(runtime, container_id).state is ContainerState.RUNNING
    os.kill(first, signal.SIGKILL)
    assert harness.ended(runtime, container_id).exit_code == 143


def test_a_record_read_while_it_is_written_is_read_again(
    harness: Harness, runtime: ProcessRuntime, state: Path
) -> None:
    container_id = begin(harness, runtime, "sleep 600")
    path = state / "attempts" / container_id / "state"
    content, whole = path.read_bytes(), wrapper.sealed(b"3 1000000000 0")
    for torn in (
        whole[:9].ljust(SECTOR),
        whole[:14].ljust(SECTOR),
        whole[:20].ljust(SECTOR),
        whole[:-1].ljust(SECTOR)[4:],
    ):
        path.write_bytes(content[:SECTOR] + torn + content[2 * SECTOR :])
        assert record(harness.open(), container_id).state is ContainerState.RUNNING
    path.write_bytes(content[:SECTOR] + whole + content[2 * SECTOR :])
    assert record(harness.open(), container_id).exit_code == 3
    path.write_bytes(content)  # or its processes, taken for ended, would stay


def test_a_wrapper_of_version_0_1_is_understood(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    """Two sectors without checksums: a job may have been started before gputui was upgraded."""
    container_id = runtime.create(harness.launch(SLEEP)).id
    path = state / "attempts" / container_id / "state"
    boot = host_processes.boot_id().encode()
    own = host_processes.read_stat(os.getpid())
    assert own is not None
    begun = (b"%d %d %s 1000000000" % (os.getpid(), own.ticks, boot)).ljust(SECTOR - 1) + b"\n"
    path.write_bytes(begun.ljust(2 * SECTOR))
    with (path.parent / "claim").open("r+b") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        assert record(runtime, container_id).state is ContainerState.RUNNING
    path.write_bytes(begun + b"4 2000000000 0 ".ljust(SECTOR))
    assert record(runtime, container_id).exit_code == 4


def test_an_attempt_without_its_wrapper_can_be_ended(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    container_id = begin(harness, runtime, 'trap "" TERM; setsid sleep 600 & echo ready; while :; do sleep 0.1; done')
    seen(runtime, container_id, b"ready")
    kill_wrapper(runtime, state, container_id)
    runtime.terminate(container_id)
    assert record(runtime, container_id).state is ContainerState.RUNNING
    runtime.kill(container_id)
    assert harness.ended(runtime, container_id).cause is not None


def test_another_process_with_the_same_pid_is_distinguished(
    harness: Harness, runtime: ProcessRuntime, state: Path
) -> None:
    container_id = begin(harness, runtime, "sleep 600")
    runtime.kill(container_id)
    harness.ended(runtime, container_id)
    path = state / "attempts" / container_id / "state"
    until(lambda: AttemptFolder(path.parent).is_watched() is False, "the wrapper is gone")
    path.write_bytes(path.read_bytes()[:SECTOR].ljust(STATE_SIZE))  # as if the wrapper had been killed
    rewrite_start(state, container_id, 1, b"12345")  # ticks: both may have started within one
    stranger = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        rewrite_start(state, container_id, 0, b"%d" % stranger.pid)
        later = harness.open()
        found = record(later, container_id)
        assert (found.state, found.pid) == (ContainerState.EXITED, stranger.pid)
        later.kill(container_id)
        later.terminate(container_id)
        assert (
            host_processes.attempt_members(
                host_processes.ProcessIdentity(stranger.pid, 12345, host_processes.boot_id()), None, ""
            )
            == ()
        )
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_reboot_loses_the_attempt(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    container_id = begin(harness, runtime, "sleep 600")
    kill_wrapper(runtime, state, container_id)
    runtime.kill(container_id)
    rewrite_start(state, container_id, 2, b"00000000-0000-0000-0000-000000000000")
    found = record(harness.open(), container_id)
    assert found.state is ContainerState.EXITED
    assert found.cause is not None
    assert found.cause.code is CauseCode.CONTAINER_LOST
    assert "restarted" in found.cause.text


@pytest.mark.parametrize(
    "script",
    [
        "sleep 600 & echo $!; wait",
        f"exec {shlex.quote(sys.executable)} -c '{OWN_GROUP}'",
        "(sleep 600 & echo $!); sleep 600",
        "setsid sh -c 'echo $$; exec sleep 600' & sleep 600",
        "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 600\" &' ; sleep 600",
    ],
    ids=["child", "own group", "orphan", "own session", "daemon"],
)
@pytest.mark.parametrize("polite", [True, False], ids=["terminate", "kill"])
def test_all_processes_of_an_attempt_are_ended(
    harness: Harness, runtime: ProcessRuntime, script: str, polite: bool
) -> None:
    container_id = begin(harness, runtime, script)
    pid = number_printed(runtime, container_id)
    assert host_processes.read_stat(pid) is not None
    end = runtime.terminate if polite else runtime.kill
    end(container_id)
    assert harness.ended(runtime, container_id).exit_code in {143, 137}
    assert host_processes.read_stat(pid) is None


def test_leftover_children_end_with_the_job(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    ready = state.parent / "ready"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP; echo $$; : > {ready}; sleep 600' &"
    container_id = begin(harness, runtime, f"{daemon} until [ -e {ready} ]; do sleep 0.01; done; exit 6")
    pid = number_printed(runtime, container_id)
    assert harness.ended(runtime, container_id).exit_code == 6
    assert host_processes.read_stat(pid) is None


def test_a_job_that_kills_its_group_does_not_hit_the_wrapper(harness: Harness, runtime: ProcessRuntime) -> None:
    container_id = begin(harness, runtime, "kill -9 0")
    assert harness.ended(runtime, container_id).exit_code == 137


def test_signal_handlers_are_those_of_a_shell(harness: Harness, runtime: ProcessRuntime) -> None:
    """Signals are neither ignored nor blocked: python and nohup ignore some, and that would be inherited."""
    container_id = begin(harness, runtime, "grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2; cat; ls /proc/self/fd")
    harness.ended(runtime, container_id)
    lines = list(runtime.logs(container_id))
    of_libc = 0b11 << 31  # signals 32 and 33, which posix_spawn ignores in a child, and nobody can reset
    assert [int(each, 16) & ~of_libc for each in lines[:2]] == [0, 0]
    assert lines[2:] == [b"0", b"1", b"2", b"3"]  # 3 is the folder that ls reads


def test_a_wrapper_whose_attempt_was_removed_ends(harness: Harness, runtime: ProcessRuntime, state: Path) -> None:
    container_id = begin(harness, runtime, "echo $$; exec sleep 600")
    wrapper_pid, command_pid = leader(runtime, container_id), number_printed(runtime, container_id)
    shutil.rmtree(state / "attempts" / container_id)
    os.kill(command_pid, signal.SIGKILL)
    until(lambda: host_processes.read_stat(wrapper_pid) is None, "the wrapper is gone")


def test_an_unkillable_process_delays_the_end_of_its_job_only_briefly() -> None:
    code = """if True:
        import os, subprocess, sys, time
        sys.path.insert(0, sys.argv[1])
        import wrapper
        wrapper.REST_WITHIN = 0.3
        child = subprocess.Popen(["sleep", "60"])
        kill, told = os.kill, []
        os.kill = lambda pid, number: told.append(pid)
        begun = time.monotonic()
        wrapper.end_the_rest(0)
        print(0.3 <= time.monotonic() - begun < 30, set(told) == {child.pid})
        os.kill = kill
        wrapper.end_the_rest(0)
        print(child.poll() is not None)
    """
    words = [sys.executable, "-I", "-S", "-c", code, str(Path(wrapper.__file__).parent)]
    assert subprocess.run(words, capture_output=True, check=True, timeout=60).stdout == b"True True\nTrue\n"


@pytest.mark.needs("root")
def test_a_child_of_another_user_does_not_delay_the_end_of_its_job() -> None:
    """A process like that of `sudo sleep 60 &` continues, and the end of the job is recorded."""
    code = """if True:
        import os, subprocess, sys, time
        sys.path.insert(0, sys.argv[1])
        import wrapper
        child = subprocess.Popen(["sleep", "60"])
        os.setresuid(54321, 54321, 0)
        begun = time.monotonic()
        wrapper.end_the_rest(0)
        print(time.monotonic() - begun < 30, child.poll())
        os.setresuid(0, 0, 0)
        child.kill()
    """
    words = [sys.executable, "-I", "-S", "-c", code, str(Path(wrapper.__file__).parent)]
    assert subprocess.run(words, capture_output=True, check=True, timeout=60).stdout == b"True None\n"
