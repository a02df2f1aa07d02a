"""Interactive host attempts: a terminal or pipes, and the socket through which only their submitter attaches."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.container import ExecRequest, Launch
from gputui.domain.errors import GputuiError, RuntimeFault
from gputui.domain.job_spec import Interactive
from gputui.ports import Channel
from gputui.ports.runtime import FrameChannel
from gputui.runtime.process.attempt_folder import AttemptFolder
from gputui.runtime.process.job_exec import ProcessExec, kept_log
from gputui.runtime.process.runtime import ProcessRuntime
from gputui.runtime.process.terminal import SOCKET, Terminal
from tests.runtime.contract import PATIENCE, STORE, Harness, output, shell
from tests.runtime.dockerd import is_alive
from tests.runtime.test_process import process_harness
from tests.waiting import until

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""
TTY, PIPES = Interactive(stdin=True, tty=True), Interactive(stdin=True)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ("deep" * 30) / "state"  # longer than the path of a socket may be


@pytest.fixture
def harness(state: Path) -> Iterator[Harness]:
    state.parent.mkdir(parents=True)
    harness = process_harness(state)
    yield harness
    harness.clean()


@pytest.fixture
def runtime(harness: Harness) -> ProcessRuntime:
    runtime = harness.open()
    assert isinstance(runtime, ProcessRuntime)
    return runtime


@pytest.fixture
def inside(state: Path) -> ProcessExec:
    return ProcessExec(STORE, state)


def launch(harness: Harness, script: str, interactive: Interactive) -> Launch:
    found = harness.launch(shell(script))
    return replace(found, spec=replace(found.spec, interactive=interactive), submitter=os.geteuid())


def begin(
    harness: Harness, runtime: ProcessRuntime, script: str, interactive: Interactive, *, workdir: Path | None = None
) -> str:
    found = launch(harness, script, interactive)
    if workdir is not None:
        options = replace(found.spec.options, workdir=str(workdir))
        found = replace(found, spec=replace(found.spec, options=options))
    container_id = runtime.create(found).id
    runtime.start(container_id)
    return container_id


def anybody(submitter: int | None) -> None:
    assert submitter == os.geteuid()


class Reader:
    """Reader of a channel's output."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.out = self.err = b""

    def step(self) -> bool:
        if not self.channel.has_pending:
            assert select.select([self.channel], [], [], PATIENCE)[0], (self.out, self.err)
        parts = self.channel.receive()
        for is_error, piece in parts or ():
            self.out, self.err = (self.out, self.err + piece) if is_error else (self.out + piece, self.err)
        return parts is not None

    def until(self, wanted: bytes) -> None:
        while wanted not in self.out:
            assert self.step(), self.out
        self.out = self.out.partition(wanted)[2]

    def to_end(self) -> int | None:
        while self.step():
            pass
        code = self.channel.exit_code()
        self.channel.close()
        return code


def test_a_job_gets_a_terminal(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, tmp_path: Path) -> None:
    container_id = begin(harness, runtime, "tty; stty size; exec sh", TTY)
    until(lambda: b"/dev/pts/" in output(runtime, container_id, tmp_path / "log"), "it runs")
    first = Reader(inside.attach(container_id, TTY, anybody))
    first.until(b"0 0\r\n")  # written before anybody was attached
    first.channel.resize(33, 101)
    first.channel.send(b"stty size\n")
    first.until(b"33 101")
    first.channel.send(b"sh -c 'echo in$((20+2)); exec sleep 600'\n")
    first.until(b"in22")
    first.channel.send(b"\x03")
    first.until(b"^C")
    first.channel.send(b"echo $((40+2))\n")
    first.until(b"42\r\n")
    first.channel.close()
    second, third = (Reader(inside.attach(container_id, TTY, anybody)) for _ in range(2))
    second.channel.send(b"exit 7\n")
    assert (second.to_end(), third.to_end()) == (7, 7)
    assert harness.ended(runtime, container_id).exit_code == 7
    assert b"33 101" in output(runtime, container_id, tmp_path / "log2"), "the log has what the terminal showed"


def test_pipes_keep_both_streams_apart(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, tmp_path: Path
) -> None:
    script = "echo early; echo oops >&2; cat; echo late >&2; exit 3"
    container_id = begin(harness, runtime, script, PIPES)
    until(lambda: b"oops" in output(runtime, container_id, tmp_path / "log"), "it has begun")
    reader = Reader(inside.attach(container_id, PIPES, anybody))
    sent = os.urandom(700_000)
    for at in range(0, len(sent), 50_000):
        reader.channel.send(sent[at : at + 50_000])
    reader.channel.end_input()
    assert reader.to_end() == 3
    assert (reader.out, reader.err) == (b"early\n" + sent, b"oops\nlate\n")
    harness.ended(runtime, container_id)
    after = Reader(inside.attach(container_id, PIPES, anybody))
    assert after.to_end() == 3
    assert (after.out, after.err) == (reader.out, reader.err), "the log keeps them apart"
    runtime.save_log(container_id, tmp_path / "kept.log")
    kept = kept_log(tmp_path / "kept.log")
    parts = list(kept.rest())
    kept.close()
    assert b"".join(piece for is_error, piece in parts if is_error) == b"oops\nlate\n"


def kill_wrapper(state: Path, container_id: str) -> None:
    """Kill both processes that watch over the job, and wait until they are gone."""
    records = AttemptFolder(state / "attempts" / container_id).records()
    assert records.start is not None
    assert records.runner is not None
    pids = (records.start.leader.pid, records.runner.pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(is_alive(Path(f"/proc/{pid}")) for pid in pids), "they are gone")


@pytest.mark.parametrize("interactive", [TTY, PIPES])
def test_the_exit_code_is_known_as_soon_as_it_is_recorded(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path, interactive: Interactive
) -> None:
    """The wrapper ends before it can tell: the scheduler, which is slow on a busy machine, is not waited for."""
    container_id = begin(harness, runtime, "read line; exit 5", interactive)
    reader = Reader(inside.attach(container_id, interactive, anybody))
    records = AttemptFolder(state / "attempts" / container_id).records()
    assert records.start is not None
    os.kill(records.start.leader.pid, signal.SIGSTOP)  # the keeper would take over
    reader.channel.send(b"go\n")
    until(lambda: AttemptFolder(state / "attempts" / container_id).records().end is not None, "the end is recorded")
    os.kill(records.start.leader.pid, signal.SIGKILL)
    assert reader.to_end() == 5
    if not interactive.tty:
        late = Reader(inside.attach(container_id, interactive, anybody))
        assert late.to_end() == 5


def test_a_terminal_that_is_attached_to_at_the_last_moment_gets_output_and_exit_code(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT, 0o600)
    terminal = Terminal(place, log, is_tty=True, has_input=True, owner=os.geteuid())
    pid = os.fork()
    if not pid:
        terminal.enter()
        os.write(1, b"its only words\n")
        os._exit(6)
    terminal.close_theirs()
    os.waitpid(pid, 0)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        terminal.drain()
        connection.connect(str(tmp_path / SOCKET))  # not accepted yet when the end is told
        terminal.tell_end(6)
        reader = Reader(FrameChannel(connection, is_tty=True))
        assert reader.to_end() == 6
        assert b"its only words" in reader.out
    os.close(place)
    os.close(log)


def test_without_its_wrapper_a_terminal_is_out_of_reach_and_pipes_are_read_from_the_log(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path
) -> None:
    script = "trap '' HUP; echo said; while [ ! -e go ]; do sleep 0.05; done"
    for interactive in (TTY, PIPES):
        found = launch(harness, script, interactive)
        options = replace(found.spec.options, workdir=str(state))
        container_id = runtime.create(replace(found, spec=replace(found.spec, options=options))).id
        runtime.start(container_id)
        reader = Reader(inside.attach(container_id, interactive, anybody))
        reader.until(b"said")
        kill_wrapper(state, container_id)
        assert reader.to_end() is None, "its exit code is unknown"
        if interactive.tty:
            with pytest.raises(RuntimeFault, match="the processes that hold its terminal are gone") as caught:
                inside.attach(container_id, interactive, anybody)
            assert caught.value.may_pass
        else:
            again = Reader(inside.attach(container_id, interactive, anybody))
            assert (again.to_end(), again.out) == (None, b"said\n")
            with pytest.raises(BrokenPipeError):
                inside.attach(container_id, interactive, anybody).send(b"x")
        reader = Reader(inside.execute(container_id, ExecRequest(shell("echo inside")), anybody))
        assert (reader.to_end(), reader.out) == (0, b"inside\n"), "a command can be run in it all the same"
        runtime.kill(container_id)


def test_a_job_without_input_reads_end_of_file(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "cat; echo done", Interactive())
    reader = Reader(inside.attach(container_id, Interactive(), anybody))
    reader.to_end()
    assert reader.out == b"done\n"


def test_input_ends_with_its_client(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "cat; exit 4", PIPES)
    reader = Reader(inside.attach(container_id, PIPES, anybody))
    reader.channel.send(b"half")
    reader.until(b"half")
    reader.channel.close()
    assert harness.ended(runtime, container_id).exit_code == 4


@pytest.mark.parametrize("interactive", [TTY, PIPES])
def test_the_streams_outlive_the_runner(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path, interactive: Interactive
) -> None:
    script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo after; exit 5"
    container_id = begin(harness, runtime, script, interactive, workdir=state)
    first = Reader(inside.attach(container_id, interactive, anybody))
    first.until(b"ready")
    runner = AttemptFolder(state / "attempts" / container_id).records().runner
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    if interactive.tty:
        first.to_end()
    second = Reader(inside.attach(container_id, interactive, anybody)) if interactive.tty else first
    (state / "go").touch()
    second.until(b"after")
    assert second.to_end() == 5
    assert harness.ended(runtime, container_id).exit_code == 5


def test_a_client_that_reads_nothing_does_not_block_the_job(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec
) -> None:
    container_id = begin(harness, runtime, "head -c 9000000 /dev/zero; exit 6", Interactive())
    reader = Reader(inside.attach(container_id, Interactive(), anybody))
    assert harness.ended(runtime, container_id).exit_code == 6
    reader.to_end()
    assert len(reader.out) == 9_000_000, "what was not sent is read from the log"


def test_a_slow_client_that_sends_input_loses_no_output(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path
) -> None:
    container_id = begin(harness, runtime, "read line; head -c 9000000 /dev/zero; cat", PIPES)
    reader = Reader(inside.attach(container_id, PIPES, anybody))
    reader.channel.send(b"go\n")
    log = state / "attempts" / container_id / "output.log"
    until(lambda: log.stat().st_size > 262_144, "it writes")
    while len(reader.out) < 9_000_000:
        assert reader.step()
    reader.channel.send(b"more")
    reader.channel.end_input()
    assert reader.to_end() == 0
    assert reader.out[9_000_000:] == b"more"


@pytest.mark.parametrize("typed", [b"late", b""])
def test_a_client_that_was_too_slow_before_its_first_input_loses_none(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path, typed: bytes
) -> None:
    script = "until [ -e go ]; do sleep 0.02; done; head -c 9000000 /dev/zero; touch written; cat"
    container_id = begin(harness, runtime, script, PIPES, workdir=state)
    reader = Reader(inside.attach(container_id, PIPES, anybody))
    (state / "go").touch()
    until(lambda: (state / "written").exists(), "all is written, although nobody reads")
    if typed:
        reader.channel.send(typed)
    reader.channel.end_input()
    assert reader.to_end() == 0
    assert reader.out[9_000_000:] == typed


def test_the_number_of_clients_is_limited(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "sleep 600", TTY)
    channels = [inside.attach(container_id, TTY, anybody) for _ in range(17)]
    with pytest.raises(GputuiError, match="16 terminals are attached"):
        channels[-1].receive()
    for channel in channels:
        channel.close()


@pytest.mark.needs("root")
def test_another_user_is_refused_by_the_wrapper_itself(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path
) -> None:
    container_id = begin(harness, runtime, "sleep 600", TTY)
    place = state / "attempts" / container_id
    assert (place / SOCKET).stat().st_mode & 0o777 == 0o600
    (place / SOCKET).chmod(0o666)  # as though the modes had let it through
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    os.seteuid(54321)
    try:
        with pytest.raises(PermissionError):
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
    finally:
        os.seteuid(0)
    place.chmod(0o755)
    for above in (state, state / "attempts", *state.parents):
        above.chmod(above.stat().st_mode | 0o055)
    before = Path.cwd()
    os.seteuid(54321)
    try:
        os.chdir(place)
        connection.connect(SOCKET)
    finally:
        os.seteuid(0)
        os.chdir(before)
        os.close(folder)
    with pytest.raises(GputuiError, match="another user's"):
        FrameChannel(connection, is_tty=True).receive()
    connection.close()


def test_unauthorised_users_cannot_enter(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "sleep 600", TTY)

    def nobody(submitter: int | None) -> None:
        raise GputuiError(f"a job of {submitter}")

    with pytest.raises(GputuiError, match=f"a job of {os.geteuid()}"):
        inside.attach(container_id, TTY, nobody)
    with pytest.raises(GputuiError, match=f"a job of {os.geteuid()}"):
        inside.execute(container_id, ExecRequest(("true",)), nobody)


def test_commands_run_inside_a_job(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path) -> None:
    found = harness.launch(shell("export LATER=1; sleep 600"))
    options = replace(found.spec.options, workdir=str(state), env=(("MARK", "inside"),), ulimits=("nofile=99",))
    launched = replace(found, spec=replace(found.spec, options=options), submitter=os.geteuid())
    container_id = runtime.create(launched).id
    runtime.start(container_id)
    script = "echo $MARK $GPUTUI_JOB_ID $LATER; pwd; ulimit -n; cat; echo no >&2; exit 9"
    reader = Reader(inside.execute(container_id, ExecRequest(shell(script), stdin=True), anybody))
    reader.channel.send(b"typed\n")
    reader.channel.end_input()
    assert reader.to_end() == 9
    assert reader.out.decode().split() == ["inside", str(found.job_id), str(state), "99", "typed"]
    assert reader.err == b"no\n"
    terminal = ExecRequest(shell("stty size; tty; kill -9 $$"), stdin=True, tty=True, rows=31, columns=99, term="vt100")
    reader = Reader(inside.execute(container_id, terminal, anybody))
    assert reader.to_end() == 137
    assert reader.out.startswith(b"31 99\r\n/dev/pts/")
    reader = Reader(inside.execute(container_id, ExecRequest(("no-such-command",)), anybody))
    assert (reader.to_end(), reader.err) == (127, b"gputui exec: no-such-command: command not found\n")


def test_commands_inside_end_with_the_job(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "sleep 600", Interactive())
    reader = Reader(inside.execute(container_id, ExecRequest(shell("echo in; trap '' HUP TERM; sleep 600")), anybody))
    reader.until(b"in\n")
    runtime.kill(container_id)
    harness.ended(runtime, container_id)
    assert reader.to_end() in {129, 137}


def test_a_job_that_has_ended_takes_no_commands(harness: Harness, runtime: ProcessRuntime, inside: ProcessExec) -> None:
    container_id = begin(harness, runtime, "true", Interactive())
    harness.ended(runtime, container_id)
    with pytest.raises(RuntimeFault, match="have ended"):
        inside.execute(container_id, ExecRequest(("true",)), anybody)


def test_commands_inside_inherit_neither_terminal_nor_files(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec
) -> None:
    container_id = begin(harness, runtime, "sleep 600", Interactive())
    keyboard, screen = os.openpty()
    pid = os.fork()
    if not pid:  # an operator's shell, into whose terminal another user's job must not type
        try:
            os.setsid()
            fcntl.ioctl(screen, termios.TIOCSCTTY, 0)
            script = "exec 3>&-; ls -l /proc/self/fd | grep -c attempts; : < /dev/tty && echo mine"
            reader = Reader(inside.execute(container_id, ExecRequest(shell(script)), anybody))
            reader.to_end()
            os.write(screen, b"found:" + reader.out + b"\n")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(keyboard, 4096)
    os.close(keyboard)
    os.close(screen)
    assert told.split() == [b"found:0"]


def exchange(first: Path, second: Path) -> None:
    """Exchange two paths at once: without its directory an attempt has ended, and commands in it are hung up."""
    renamed = ctypes.CDLL(None, use_errno=True).renameat2(_HERE, bytes(first), _HERE, bytes(second), _EXCHANGE)
    assert renamed == 0, os.strerror(ctypes.get_errno())


def test_a_command_enters_the_attempt_that_was_checked(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path
) -> None:
    script = "echo {}; sleep 600"  # it outlives the first reader
    first, second = (begin(harness, runtime, script.format(word), PIPES) for word in ("own", "another"))

    def swap(_submitter: int | None = None) -> None:
        exchange(state / "attempts" / first, state / "attempts" / second)

    reader = Reader(inside.attach(first, PIPES, swap))
    swap()
    reader.until(b"own")
    reader.channel.close()
    reader = Reader(inside.execute(first, ExecRequest(shell("echo $GPUTUI_JOB_ID")), swap))
    swap()
    assert (reader.to_end(), reader.out) == (0, first.split("-")[-2].encode() + b"\n")


def test_a_plan_writable_by_others_is_not_run(
    harness: Harness, runtime: ProcessRuntime, inside: ProcessExec, state: Path
) -> None:
    container_id = begin(harness, runtime, "sleep 600", Interactive())
    place = state / "attempts" / container_id

    def opened(_submitter: int | None) -> None:
        place.chmod(0o777)

    with pytest.raises(RuntimeFault, match="alone can start commands"):
        inside.execute(container_id, ExecRequest(("id",)), opened)
    place.chmod(0o700)
