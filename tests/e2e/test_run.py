"""`gputui run`, `attach` and `exec` at a terminal, on the host and on a real engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leftovers
from tests.cases import cases
from tests.e2e.person import Person
from tests.e2e.site import COMMANDS
from tests.runtime.dockerd import IMAGE, NETWORK, Dockerd
from tests.waiting import until

Environ = dict[str, str]
GPUTUI = [sys.executable, "-m", "gputui"]
HOST = ("--host", "--", "sh")
CONTAINER = ("--network", NETWORK, IMAGE, "sh")


on_the_host = pytest.mark.xdist_group("run on the host")
"""Tests on one scheduler, in one worker."""


def served(environ: Environ) -> Iterator[Environ]:
    process = subprocess.Popen(
        [*GPUTUI, "serve"], env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    try:
        assert b"state in" in process.stderr.readline()
        yield environ
    finally:
        process.terminate()
        process.communicate()
        leftovers.end(Path(environ["GPUTUI_STATE"]))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environ]:
    """Yield a server of host jobs with one GPU."""
    state = tmp_path_factory.mktemp("run")
    own = {"GPUTUI_STATE": str(state), "GPUTUI_CONFIG": os.devnull, "GPUTUI_PROBE": "sim:1"}
    yield from served({**os.environ, **own, "GPUTUI_RUNTIME": "process", "TERM": "vt100"})


@pytest.fixture
def containers(tmp_path: Path, engine: Dockerd) -> Iterator[Environ]:
    """Yield a server of containers with one GPU."""
    own = {"GPUTUI_STATE": str(tmp_path), "GPUTUI_CONFIG": os.devnull, "GPUTUI_PROBE": "sim:1"}
    yield from served({**os.environ, **own, "DOCKER_HOST": engine.host, "TERM": "vt100"})


def gputui(environ: Environ, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    return COMMANDS.run(words, environ, stdin, timeout=60)


def end(environ: Environ, job: str) -> None:
    """Cancel a job, which would otherwise outlive its scheduler, and wait for its end."""
    gputui(environ, "cancel", job)
    assert gputui(environ, "wait", "-q", "--timeout", "60s", job)[0] != 124


@on_the_host
def test_run_attaches_to_a_host_job(host: Environ) -> None:
    at_a_terminal(host, HOST)
    in_a_script(host, HOST)


@pytest.mark.docker
def test_run_attaches_to_a_container_job(containers: Environ) -> None:
    at_a_terminal(containers, CONTAINER)
    in_a_script(containers, CONTAINER)
    commands_inside(containers)


def at_a_terminal(environ: Environ, what: tuple[str, ...]) -> None:
    person = Person(environ, "run", "-it", *what, size=(33, 101))
    person.press(b"until [ \"$(stty size)\" = '33 101' ]; do sleep 0.05; done; echo sized $TERM\n")
    person.until(b"sized vt100\r\n")
    person.resize(40, 120)
    person.press(b"until [ \"$(stty size)\" = '40 120' ]; do sleep 0.05; done; echo again-''sized\n")
    person.until(b"again-sized\r\n")
    person.press(b"sh -c 'echo in$((20+2)); exec sleep 600'\n")
    person.until(b"in22")
    person.press(b"\x03")
    person.until(b"^C")
    person.press(b"kept=yes; echo $((40+2))\n")
    person.until(b"42\r\n")
    person.press(b"\x10")
    person.press(b"\x11")
    assert person.ended() == 0
    told = re.search(rb"job (\d+) keeps running; `gputui attach \1` attaches again", person.shown)
    assert told is not None
    job = told[1].decode()

    again = Person(environ, "attach", job, size=(20, 70))
    again.press(b"until [ \"$(stty size)\" = '20 70' ]; do sleep 0.05; done; echo kept-$kept\n")
    again.until(b"kept-yes\r\n")
    assert again.hang_up() == 128 + signal.SIGHUP
    again = Person(environ, "attach", "--detach-keys", "ctrl-x", job)
    again.press(b"echo still-$kept\n")
    again.until(b"still-yes\r\n")
    until(lambda: b"still-yes" in gputui(environ, "logs", job)[1])
    again.press(b"exit 7\n")
    assert again.ended() == 7
    assert f"Job {job} ".encode() in again.shown


def in_a_script(environ: Environ, what: tuple[str, ...]) -> None:
    code, out, err = gputui(environ, "run", "-q", *what, "-c", "echo out; echo err >&2; exit 5")
    assert (code, out, err) == (5, b"out\n", b"err\n")
    binary = os.urandom(300_000)
    assert gputui(environ, "run", "-i", *what, "-c", "cat", stdin=binary)[:2] == (0, binary)
    asked = "trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*GPUTUI, "run", *what, "-c", asked], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, b"bye\n")
    assert b"is stopping; Ctrl-C again leaves at once" in err
    assert b"cancelled" in err


def commands_inside(environ: Environ) -> None:
    job = (
        gputui(environ, "submit", "--network", NETWORK, "-e", "MARK=inside", IMAGE, "sleep", "600")[1].decode().strip()
    )
    until(lambda: b'"RUNNING"' in gputui(environ, "show", job, "--json")[1])
    code, out, err = gputui(environ, "exec", "-i", job, "sh", "-c", "echo $MARK; cat; echo e >&2; exit 4", stdin=b"x\n")
    assert (code, out, err) == (4, b"inside\nx\n", b"e\n")
    person = Person(environ, "exec", "-it", job, "sh", size=(31, 99))
    person.press(b"stty size\n")
    person.until(b"31 99\r\n")
    person.press(b"exit 6\n")
    assert person.ended() == 6
    end(environ, job)


@on_the_host
def test_a_job_that_waits_says_why_and_is_cancelled_by_ctrl_c(host: Environ) -> None:
    blocker = gputui(host, "submit", "--gpus", "1", "--time-limit", "1h", "--host", "--", "sleep", "600")[1].decode()
    person = Person(host, "run", "--gpus", "1", "--host", "--", "true", size=(24, 200))
    told = person.until(b"held by jobs")
    job = re.search(rb"job (\d+) waits: needs 1 GPU", told)
    assert job is not None
    person.press(b"\x03")
    assert person.ended() == 130
    assert b"is cancelled" in person.shown
    assert gputui(host, "wait", job[1].decode())[0] == 1
    lost = Person(host, "run", "--gpus", "1", "--host", "--", "true", size=(24, 200))
    job = re.search(rb"job (\d+) waits", lost.until(b"held by jobs"))
    assert job is not None
    lost.hang_up()
    assert gputui(host, "wait", job[1].decode())[0] == 1
    end(host, blocker.strip())


@on_the_host
def test_a_command_that_writes_before_it_reads(host: Environ) -> None:
    script = "head -c 5000000 /dev/zero; cat | wc -c"
    typed = bytes(1_000_000)
    job = gputui(host, "submit", "--host", "--", "sleep", "600")[1].decode().split()[-1]
    until(lambda: b'"RUNNING"' in gputui(host, "show", job, "--json")[1])
    for words in (("exec", "-i", job), ("run", "-iq", "--host", "--")):
        code, out, _ = gputui(host, *words, "sh", "-c", script, stdin=typed)
        assert (code, len(out), out[5_000_000:]) == (0, 5_000_008, b"1000000\n")
    end(host, job)


@on_the_host
def test_a_reader_that_goes_away_leaves_the_job_running(host: Environ) -> None:
    words = [*GPUTUI, "run", "--host", "--", "sh", "-c", "while :; do echo line; sleep 0.01; done"]
    with subprocess.Popen(words, env=host, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        told = re.search(rb"job (\d+) keeps running", process.stderr.read())
    assert told is not None
    assert process.returncode == 128 + signal.SIGPIPE
    end(host, told[1].decode())


@on_the_host
def test_a_terminal_lost_during_output_leaves_the_job_running(host: Environ) -> None:
    person = Person(host, "run", "-it", *HOST)
    person.press(b"echo job-$GPUTUI_JOB_ID-; exec yes\n")
    person.until(b"\njob-")
    job = person.until(b"-\r\n").decode()
    person.until(b"y\r\ny\r\n")
    assert person.hang_up() == 128 + signal.SIGHUP
    again = Person(host, "attach", job)
    again.until(b"y\r\ny\r\n")
    again.press(b"\x03")
    assert again.ended() == 128 + signal.SIGINT


@on_the_host
def test_a_resumed_client_gives_the_terminal_back_to_the_job(host: Environ) -> None:
    person = Person(host, "run", "-it", *HOST, size=(24, 80))
    person.press(b"echo $((40+2))-ready\n")
    person.until(b"42-ready\r\n")
    person.stop()
    person.be_a_shell()
    person.resize(30, 100)
    os.kill(person.pid, signal.SIGCONT)
    until(lambda: person.is_raw)
    person.press(b"stty size; exit 3\n")
    person.until(b"30 100\r\n")
    assert person.ended() == 3


@on_the_host
def test_impossible_runs_are_refused(host: Environ) -> None:
    assert gputui(host, "run", "-it", "--host", "--", "true")[0] == 2
    assert gputui(host, "run", "-d", "busybox")[0] == 2
    assert gputui(host, "run", "--array", "0-3", "--host", "--", "true")[0] == 2
    assert gputui(host, "run", "--detach-keys", "ctrl-1", "--host", "--", "true")[0] == 2
    code, out, err = gputui(host, "run", "--host", "--", "no-such-command")
    assert (code, out) == (127, b"")
    assert b"no-such-command was not found" in err


@cases("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_command_that_a_signal_ends_while_a_job_waits_has_its_exit_code(tmp_path: Path, number: int) -> None:
    own = {"GPUTUI_STATE": str(tmp_path), "GPUTUI_CONFIG": os.devnull, "GPUTUI_RUNTIME": "process"}
    environ = {**os.environ, **own, "GPUTUI_PROBE": "sim:1", "TERM": "vt100"}
    owner = Person(environ, "run", "--host", "--", "true", size=(24, 200))
    owner.until(b"no scheduler is running")
    for words, shown in {
        ("attach", "1"): b"no scheduler is running",
        ("wait", "1"): b"no scheduler is running",
        ("logs", "-f", "1"): b"has not started yet",
    }.items():
        person = Person(environ, *words, size=(24, 200))
        person.until(shown)
        os.kill(person.pid, number)
        assert person.ended() in {128 + number, -number}, f"{words}: a shell reports both as {128 + number}"
    os.kill(owner.pid, number)
    assert owner.ended() == 128 + number
    assert b"is cancelled" in owner.shown


@on_the_host
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_command_inside_a_job_that_a_signal_leaves_has_its_exit_code(host: Environ, number: int) -> None:
    job = gputui(host, "submit", "--host", "--", "sleep", "600")[1].decode().split()[-1]
    until(lambda: b'"RUNNING"' in gputui(host, "show", job, "--json")[1])
    person = Person(host, "exec", job, "sh", "-c", "echo begun; exec sleep 600")
    person.until(b"begun")
    os.kill(person.pid, number)
    assert person.ended() == 128 + number
    end(host, job)
