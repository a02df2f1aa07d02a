"""Commands on a login node whose login shell prints lines of its own: they are left out, and told once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.cluster.slurm import site
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.inside import RemoteLog
from gputui.cluster.ssh import SshConnection
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError, LostAnswerError
from gputui.domain.frames import CommandMarks
from tests.cases import cases
from tests.cluster.talk import Talk
from tests.login_shells import SHELLS, talkative
from tests.needs import need
from tests.process_list import command_lines
from tests.runtime.sshd import Sshd
from tests.waiting import until

pytestmark = pytest.mark.ssh
PATIENCE = 60.0
_CONFIG = """#!/bin/sh
echo 'ClusterName             = lab'
echo 'SLURM_VERSION           = 22.05.8'
echo 'GresTypes               = gpu'
"""
_KILLED = """
import os, signal, sys
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.inside import RemoteLog
from gputui.cluster.ssh import SshConnection
for line in RemoteLog(SlurmCommands(SshConnection("lab"), 60.0), sys.argv[1], None, lambda: False):
    print(line.decode(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=SHELLS)
def login(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sshd]:
    need(request.param)
    for name in site.PROGRAMS:
        (tmp_path / name).write_text(_CONFIG)
        (tmp_path / name).chmod(0o755)
    with talkative(request.param, {"PATH": f"{tmp_path}:/usr/bin:/bin"}) as sshd:
        yield sshd


@pytest.fixture
def commands(login: Sshd) -> Iterator[SlurmCommands]:
    with closing(SlurmCommands(SshConnection("lab"), PATIENCE, os.environ | {"PATH": login.path})) as commands:
        yield commands


def test_a_login_shell_that_prints_lines(commands: SlurmCommands, login: Sshd) -> None:
    # output errors and exit code are the commands own
    script = "cat; echo \"it's\" 'a!b'  \\\\ %s; echo wrong >&2; exit 7"
    assert commands.script(script, "sh", stdin="in\n") == ("in\nit's a!b \\ %s\n", "wrong\n", 7)
    assert commands.run("printf", "%s\n", "", "!!", "'\"\n\t$HOME").out == "\n!!\n'\"\n\t$HOME\n"
    with pytest.raises(ClusterUnavailableError, match="sinfoo is not installed there"):
        commands.ask("sinfoo")
    # nothing of it is taken for the users name or home
    known = site.ask(commands)
    assert (known.user, known.uid, known.home) == ("root", 0, f"{login.directory}/home")
    assert (known.cluster, known.version) == ("lab", "22.05.8")
    # it is a warning of the check and stops nothing
    [told] = [fault for fault in site.faults(commands, "docker") if fault.name == "login shell"]
    assert told.text.startswith("lab: its login shell prints lines around each command, which are left out: '")
    assert not told.stops_jobs


@pytest.mark.parametrize("login", ["bash"], indirect=True)
def test_a_log_has_only_the_lines_of_its_file(commands: SlurmCommands, tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_bytes(b"first\n\r\nlast without an end")
    assert list(RemoteLog(commands, str(path), None, None)) == [b"first", b"\r", b"last without an end"]
    with path.open("ab") as file:
        file.write(b"\n")
        file.flush()
        followed = iter(RemoteLog(commands, str(path), 1, lambda: path.stat().st_size > 80))
        assert next(followed) == b"last without an end"
        file.write(b"more\n" + b"x" * 80)
    assert list(followed) == [b"more", b"x" * 80]


@pytest.mark.parametrize("login", ["bash"], indirect=True)
def test_nothing_follows_a_log_there_for_a_command_that_was_killed(login: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_bytes(b"first\n")
    environ = os.environ | {"PATH": login.path, "TMPDIR": str(login.directory)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"first\n"), done.stderr
    name = os.fsencode(path)
    until(lambda: not any(name in words for words in command_lines().values()), "its tail runs on")


@cases("has_input", [False, True])
def test_the_streams_of_a_command_in_a_job_are_its_own(commands: SlurmCommands, has_input: bool) -> None:
    mark = r"printf '\033_gputui:%s:%s\033\134\n' $0"
    script = f"{mark} begin >&2; {'cat' if has_input else 'echo typed'}; echo wrong >&2; {mark} 5 >&2; exit 5"
    marks = CommandMarks()
    channel = commands.channel(
        ["sh", "-c", script, marks.key], marks, is_tty=False, has_input=has_input, term="", refused=ClusterRefusedError
    )
    talk = Talk(channel)
    if has_input:
        channel.send(b"typed\n")
        talk.until(b"typed\n")
        channel.end_input()
    assert (talk.end(), talk.out, talk.err) == (5, b"typed\n", b"wrong\n")


def test_a_shell_that_runs_nothing_is_told_in_its_words(tmp_path: Path) -> None:
    refusing = tmp_path / "nologin"
    refusing.write_text("#!/bin/sh\necho This account is currently not available.\nexit 1\n")
    refusing.chmod(0o755)
    with closing(Sshd(shell=str(refusing))) as sshd:
        commands = SlurmCommands(SshConnection("lab"), PATIENCE, os.environ | {"PATH": sshd.path})
        with closing(commands), pytest.raises(LostAnswerError) as caught:
            commands.ask("squeue")
    assert str(caught.value) == "lab: its login shell did not run squeue: This account is currently not available."


def test_a_terminal_on_the_way_changes_nothing(tmp_path: Path) -> None:
    need("script")
    wrapped = tmp_path / "wrapped"
    wrapped.write_text('#!/bin/sh\necho banner\nexec script -qec "$2" /dev/null\n')
    wrapped.chmod(0o755)
    with closing(Sshd(shell=str(wrapped))) as sshd:
        commands = SlurmCommands(SshConnection("lab"), PATIENCE, os.environ | {"PATH": sshd.path})
        with closing(commands):
            result = commands.script("echo one; echo two; exit 3", "sh")
    assert (result.out, result.code) == ("one\ntwo\n", 3)
