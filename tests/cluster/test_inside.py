"""Script that runs commands in jobs of Slurm, marks in their output, and channels of commands that never begin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.cluster.slurm.batch_script import shell_text
from gputui.cluster.slurm.site import SlurmSite, caps_of
from gputui.cluster.ssh import CommandChannel
from gputui.domain.cluster import Capability
from gputui.domain.container import parse_ps
from gputui.domain.errors import ClusterRefusedError, GputuiError
from gputui.domain.frames import CommandMarks
from tests.cases import cases
from tests.cluster.talk import Talk

_DOCKER = """#!/bin/sh
case $1 in
  inspect) echo "$STATE"; [ "$STATE" = running ] ;;
  *) echo "docker $*" ;;
esac
"""


def inside(folder: Path, state: str, *words: str) -> tuple[str, str]:
    """Run the script of a node whose engine says that the container has this state; return its output."""
    (folder / "docker").write_text(_DOCKER)
    (folder / "docker").chmod(0o755)
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "STATE": state, "SLURM_JOB_ID": "7", "HOME": "/"}
    script = ["bash", "-c", shell_text("inside.sh"), "gputui", "KEY", *words]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


@cases(
    ("state", "words"),
    [
        ("Error: No such container: gputui-7", "its container does not run yet\n"),
        ("created", "its container does not run yet\n"),
        ("exited", "its container has ended\n"),
        ("paused", "its container is paused\n"),
        ("permission denied while trying to connect", "permission denied while trying to connect\n"),
    ],
)
def test_a_container_that_no_command_can_run_in(tmp_path: Path, state: str, words: str) -> None:
    assert inside(tmp_path, state, "container", "", "", "", "true") == ("", words)


def test_entering_a_container(tmp_path: Path) -> None:
    # the words for Docker
    plain = inside(tmp_path, "running", "container", "", "", "", "ls", "-l")
    assert plain == ("docker exec gputui-7 ls -l\n", "\x1b_gputui:KEY:begin\x1b\\\n\x1b_gputui:KEY:0\x1b\\\n")
    out, err = inside(tmp_path, "running", "container", "xterm", "1", "ctrl-a", "sh")
    assert "docker exec --tty --env=TERM=xterm --interactive --detach-keys=ctrl-a gputui-7 sh\n" in out
    assert err == ""
    # a job of another machine is entered in its container if it has one
    assert inside(tmp_path, "running", "either", "", "", "", "ls")[0] == "docker exec gputui-7 ls\n"
    assert inside(tmp_path, "Error: No such object", "either", "", "", "", "echo", "on the node")[0] == "on the node\n"
    # a command on the node is no assignment of env
    out, err = inside(tmp_path, "", "node", "", "", "", "A=1", "true")
    assert (out, "not found" in err, ":127\x1b\\" in err) == ("", True, True)


@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=8), st.integers(0, 255))
def test_marks_are_found_however_the_output_is_cut(text: bytes, cuts: list[int], code: int) -> None:
    marks = CommandMarks(ends_line=False)
    key = marks.key.encode()
    told = b"srun: hello \x1b_gputui:%b:begin\x1b\\%b\x1b_gputui:%b:%d\x1b\\ srun: bye" % (key, text, key, code)
    found, start = b"", 0
    for end in (*sorted(cuts), len(told)):
        found += marks.feed(told[start:end])
        start = max(start, min(end, len(told)))
    assert (found + marks.rest(), marks.code, marks.words) == (text, code, "srun: hello ")


def test_what_is_left_of_a_channel() -> None:
    # output that only begins as a mark is shown
    marks = CommandMarks(ends_line=False)
    begin = b"\x1b_gputui:%b:begin\x1b\\" % marks.key.encode()
    assert marks.feed(begin + b"a\x1b_gputui:") == b"a"
    assert marks.feed(b"other:5\x1b\\") == b"\x1b_gputui:other:5\x1b\\"
    assert marks.feed(b"\x1b[0m") == b"\x1b[0m"
    assert (marks.feed(b"\x1b"), marks.rest(), marks.code) == (b"", b"\x1b", None)
    # a lost connection whose mark did not come shows the messages
    talk = Talk(channel("echo out; echo ssh: connection lost >&2; exit 255"))
    assert (talk.end(), talk.out, talk.err) == (None, b"out\n", b"ssh: connection lost\n")


def channel(script: str, *, is_tty: bool = False) -> CommandChannel:
    def refused(words: str, code: int) -> GputuiError:
        return ClusterRefusedError(f"{words.strip()} {code}")

    marks = CommandMarks(ends_line=not is_tty)
    argv = ["sh", "-c", script, "sh", marks.key]
    return CommandChannel(argv, os.environ, marks, is_tty=is_tty, has_input=True, refused=refused)


@cases("is_tty", [False, True])
def test_a_command_that_never_begins_is_an_error_with_the_words_of_what_ran(is_tty: bool) -> None:
    with pytest.raises(ClusterRefusedError, match=r"^srun: error: no 3$"):
        Talk(channel("echo srun: error: no >&2; exit 3", is_tty=is_tty)).end()


@cases(("end", "code"), [("exit 255", None), ("exit 1", None), ("exit 137", 137)])
def test_the_exit_code_of_a_command_whose_end_was_not_told(end: str, code: int | None) -> None:
    assert Talk(channel(f'printf "\\033_gputui:$1:begin\\033\\\\\n" >&2; {end}')).end() == code


@cases(("told", "shown"), [("", b"srun: error: lost\r\n"), ("0", b"")])
def test_messages_beside_a_terminal_are_shown_only_without_an_end(told: str, shown: bytes) -> None:
    mark = r"printf '\033_gputui:%s:%s\033\\' $1"
    end = f"; {mark} {told}" if told else ""
    talk = Talk(channel(f"{mark} begin; echo out{end}; echo srun: error: lost >&2; exit 1", is_tty=True))
    assert (talk.end(), talk.out, talk.err) == (int(told) if told else None, b"out\r\n", shown)


def test_a_channel_that_is_closed_ends_its_process() -> None:
    talk = Talk(channel('printf "\\033_gputui:$1:begin\\033\\\\\n" >&2; echo $$; exec sleep 600'))
    talk.until(b"\n")
    talk.channel.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(talk.out), 0)


def test_releases_without_overlapping_steps_have_no_shells() -> None:
    old, new = (caps_of(SlurmSite(version=version)) for version in ("20.02.7", "20.11.0"))
    words = "Slurm runs commands in running jobs from release 20.11 on, and this is 20.02.7"
    assert {old.why_not(each) for each in (Capability.INSIDE, Capability.STREAMS)} == {words}
    assert new.has(Capability.INSIDE)
    assert caps_of(SlurmSite(version="?")).has(Capability.STREAMS)


def test_processes_as_ps_lists_them() -> None:
    told = "  PID USER  %CPU   RSS ELAPSED COMMAND\n   17 ann   99.5  2048      61 python train.py  --x\n"
    odd = "   18 bob    0.0     1       1 sh\u20289 root 0 0 0 init\n"
    row, other = parse_ps(told + odd + "\nnoise\n")
    assert (row.pid, row.user, row.cpu, row.memory, row.command) == (17, "ann", 0.995, 2 << 20, "python train.py  --x")
    assert (other.pid, other.command) == (18, "sh\u20289 root 0 0 0 init")
    assert (row.age and row.age.total_seconds(), parse_ps("")) == (61, ())
