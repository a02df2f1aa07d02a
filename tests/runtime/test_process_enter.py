"""Refusals of the process that becomes a command inside a host job: whoever starts it, and however."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.runtime.process import enter
from tests.cases import cases

CODE = "import os, sys; from gputui.runtime.process import enter; os.seteuid(int(sys.argv.pop(1))); enter.main()"


def entered(place: Path | None, *words: str, uid: int | None = None) -> tuple[int, str, str]:
    """Start it with an open directory in place of `{}` as that user; its exit code, output and errors."""
    descriptor = os.open(place or "/", os.O_RDONLY | os.O_DIRECTORY)
    given = [word.replace("{}", str(descriptor)) for word in words]
    user = str(os.geteuid() if uid is None else uid)
    try:
        command = [sys.executable, "-I", "-c", CODE, user, *given]
        done = subprocess.run(command, pass_fds=(descriptor,), capture_output=True, check=False, timeout=60)
    finally:
        os.close(descriptor)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of an attempt whose command prints its working directory."""
    found = tmp_path / "attempt"
    found.mkdir(mode=0o700)
    (found / "plan").write_bytes(b"cwd=/\0env=PATH=/usr/bin:/bin\0env=MARK=inside\0")
    return found


@cases(
    "words",
    [
        (),
        ("{}",),
        ("{}", "pipes"),
        ("{}", "pipes", "xterm"),
        ("{}", "neither", "xterm", "id"),
        ("x", "tty", "xterm", "id"),
        ("999", "pipes", "xterm", "id"),  # no such descriptor
        ("-1", "pipes", "xterm", "id"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(place: Path, words: tuple[str, ...]) -> None:
    code, out, err = entered(place, *words)
    assert (code, out) == (enter.NOT_RUN, "")
    assert err.startswith("gputui exec: wrong arguments: ")
    assert err.count("\n") == 1, err


def test_the_command_gets_environment_and_directory_of_the_plan(place: Path) -> None:
    assert entered(place, "{}", "pipes", "xterm", "sh", "-c", "echo $MARK $PWD; exit 3") == (3, "inside /\n", "")
    code, _, err = entered(place, "{}", "pipes", "xterm", "no-such-command")
    assert (code, err) == (enter.NOT_FOUND, "gputui exec: no-such-command: command not found\n")
    code, _, err = entered(place, "{}", "pipes", "xterm", "/etc/passwd")
    assert (code, err) == (enter.NOT_RUN, "gputui exec: /etc/passwd: Permission denied\n")


def test_a_directory_without_a_plan_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    code, out, err = entered(tmp_path, "{}", "pipes", "xterm", "id")
    assert (code, out) == (enter.NOT_RUN, "")
    assert err == "gputui exec: the plan of this job cannot be read: No such file or directory\n"


@cases("mode", [0o770, 0o707, 0o722])
def test_a_plan_that_others_may_write_is_refused(place: Path, mode: int) -> None:
    place.chmod(mode)
    code, out, err = entered(place, "{}", "pipes", "xterm", "id")
    assert (code, out) == (enter.NOT_RUN, "")
    assert "another user could have written the plan of this job" in err


@pytest.mark.needs("root")
def test_a_user_who_may_not_enter_is_refused(place: Path) -> None:
    """Also where the kernel would let them read the plan, by a descriptor that they were given."""
    (place / "plan").chmod(0o644)
    code, out, err = entered(place, "{}", "pipes", "xterm", "id", uid=54321)
    assert (code, out) == (enter.NOT_RUN, "")
    assert "another user could have written the plan of this job" in err
