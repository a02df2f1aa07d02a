"""Thin commands: the owner of the queue runs them, and says the same as the commands in a process of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from gputui import __version__, bootstrap, thin
from gputui.cli.main import owned_commands
from gputui.config import Options, resolve
from gputui.domain.access import Caller, Role
from gputui.domain.errors import AccessError, ParseLocallyError
from gputui.ports.backend import CommandLine, CommandResult
from tests.api.scripted_owner import ScriptedOwner, answer_of, fixed
from tests.cases import cases
from tests.cli.conftest import KeptStore, put
from tests.factories import job

ASK, FAT = ("-m", "gputui"), ("-c", "from gputui.cli.main import main; main()")
"""Words after `python`: the command as it is installed, and one that asks no owner to run it."""
WITHIN = 20.0


class Served:
    """Queue with an owner: a process of its own on simulated GPUs."""

    def __init__(self, home: Path) -> None:
        self.state = home / "state"
        usual = {name: value for name, value in os.environ.items() if not name.startswith("GPUTUI_")}
        kept = {name: value for name, value in usual.items() if name != "PYTHONUNBUFFERED"}
        ours = {"GPUTUI_STATE": str(self.state), "GPUTUI_PROBE": "sim:2", "GPUTUI_RUNTIME": "process"}
        self.environ = kept | ours | {"XDG_CONFIG_HOME": str(home / "config"), "HOME": str(home)}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gputui", "serve"], env=self.environ, stderr=subprocess.DEVNULL, cwd="/"
        )
        end = time.monotonic() + WITHIN
        while self.asked("gpus", "--json") is None:
            assert process.poll() is None
            assert time.monotonic() < end, "no owner answers"
            time.sleep(0.05)
        return process

    def asked(self, *words: str) -> int | None:
        """Return the exit code of a command by the owner; None if it does not run it."""
        script = "import sys; from gputui import thin, __version__ as v; r = thin.run(sys.argv[1:], v); print(r)"
        run = [sys.executable, "-c", script, *words]
        last = subprocess.run(run, env=self.environ, capture_output=True, check=True).stdout.decode().splitlines()[-1]
        return None if last == "None" else int(last)

    def run(self, way: Sequence[str], *words: str, **more: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, *way, *words]
        done = subprocess.run(command, env=self.environ | more, capture_output=True, check=False, cwd="/")
        return done.returncode, done.stdout, done.stderr

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("served"))) as served:
        for words in (["--name", "nai\u0308ve \u6df1"], ["--array", "1-30%2"], ["--gpus", "2", "--priority", "60"]):
            assert served.asked("submit", "--host", "--hold", *words, "--", "true") == 0
        assert served.asked("submit", "--host", "--", "sh", "-c", "exit 3") == 0
        assert served.run(ASK, "wait", "33")[0] == 3
        yield served


ALIKE = (
    *(["queue"], ["queue", "-f", "name~na"], ["explain", "32", "--json"], ["hold", "1"], ["show", "999"]),
    *(["submit", "--dry-run", "busybox"], ["submit", "--host", "--env-file", "/nowhere", "--", "true"]),
    ["submit", "-v", "./x:/y", "--gpus", "nine", "busybox"],
)
"""Lines in real processes; `test_both_ways` tries each command within this one."""


@cases("words", ALIKE)
def test_the_owner_says_what_the_command_itself_says(served: Served, words: list[str]) -> None:
    assert served.run(ASK, *words) == served.run(FAT, *words)


@cases(("command", "columns"), [("queue", ""), ("submit", "70"), ("cron", "200")])
def test_the_help_is_the_same_and_as_wide(served: Served, command: str, columns: str) -> None:
    helped = served.run(ASK, command, "--help", COLUMNS=columns)
    assert helped == served.run(FAT, command, "--help", COLUMNS=columns)
    assert (helped[0], helped[1].startswith(b"Usage: gputui")) == (0, True)


def on_a_terminal(served: Served, way: Sequence[str], words: Sequence[str], columns: int) -> tuple[int, bytes]:
    """Return exit code and output of a command on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, *way, *words]
    process = subprocess.Popen(command, env=served.environ, stdin=theirs, stdout=theirs, stderr=theirs, cwd="/")
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # the last end of the terminal is closed
        pass
    os.close(ours)
    return process.wait(), said


def test_a_terminal_shows_the_same(served: Served) -> None:
    shown = (["queue"], ["show", "1"], ["queue"], ["history"], ["hold", "1"], ["show", "999"])
    for words, columns in zip(shown, cycle((40, 79, 200)), strict=False):
        assert on_a_terminal(served, ASK, words, columns) == on_a_terminal(served, FAT, words, columns)


def test_a_submission_on_a_terminal_tells_when_it_starts(served: Served) -> None:
    code, said = on_a_terminal(served, ASK, ["submit", "--host", "--hold", "--time-limit", "1h", "--", "true"], 80)
    lines = said.decode().split("\r\n")
    assert (code, lines[0].isdigit()) == (0, True)
    assert lines[1] == f"job {lines[0]}: time limit 1h"
    assert lines[2].startswith(f"job {lines[0]}: waits")


def test_a_host_job_gets_its_clients_surroundings(served: Served, tmp_path: Path) -> None:
    command = (
        "import os, resource, sys; os.umask(0o027); os.chdir(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (123, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); "
        "os.execv(sys.executable, [sys.executable, '-m', 'gputui', *sys.argv[2:]])"
    )
    words = ["submit", "--host", "--hold", "--json", "-e", "MINE", "-eOTHER", "--env=THIRD", "--", "true"]
    extra = {"MINE": 'a"b\\\n', "OTHER": "\u6df1", "THIRD": "3", "FOURTH": "4", "CONDA_PREFIX": "/c", "LC_TIME": "C"}
    run = [sys.executable, "-c", command, str(tmp_path), *words]
    found = subprocess.run(run, env=served.environ | extra, capture_output=True, check=True)
    with closing(bootstrap.open_store(resolve(state=str(served.state)))) as store:
        spec = store.get(int(found.stdout.split(b":")[1].strip(b" }\n"))).spec
    env = dict(spec.options.env)
    assert {name: env.get(name) for name in extra} == extra | {"FOURTH": None}
    assert (spec.options.workdir, spec.inherited and spec.inherited.umask) == (str(tmp_path), 0o027)
    assert spec.inherited is not None
    assert dict(spec.inherited.limits)["nofile"] == 123


def test_what_reads_files_matches_patterns_or_has_other_settings_is_for_the_client(served: Served) -> None:
    for words in (["queue", "-f", "name~x"], ["submit", "-f", "x"], ["submit", "-v", "./a:/b", "busybox"]):
        assert served.asked(*words) is None
    assert served.asked("submit", "--security-opt", "seccomp=/nowhere", "busybox") is None
    for words in (["wait", "1"], ["logs", "1"], ["edit", "1"], ["--on", "gpu1", "queue"], ["--config", "x", "queue"]):
        assert served.asked(*words) is None
    usual = served.environ
    for more in ({"GPUTUI_POLICY_PREDICT": "no"}, {"TZ": "Asia/Tokyo"}, {"GPUTUI_CONFIG": "/x"}, {"GPUTUI_DEBUG": "1"}):
        served.environ = usual | more
        assert served.asked("queue") is None
    served.environ = usual
    config = Path(usual["XDG_CONFIG_HOME"]) / "gputui/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[policy]\npredict = false\n")
    assert served.asked("queue") is None
    config.unlink()
    assert served.asked("queue") == 0


# standard output that cannot be written to


def test_output_that_cannot_be_printed_is_told_as_by_the_command_itself(served: Served) -> None:
    def run(way: Sequence[str], redirect: str, *words: str) -> tuple[int, bytes]:
        command = [sys.executable, *way, *words]
        shell = ["sh", "-c", f'"$@" {redirect}', "sh", *command]
        done = subprocess.run(shell, env=served.environ, stderr=subprocess.PIPE, check=False, cwd="/")
        return done.returncode, done.stderr

    for redirect, *words in ((">/dev/full", "queue"), (">&-", "show", "999"), (">&-", "hold", "1")):
        assert run(ASK, redirect, *words) == run(FAT, redirect, *words)
    for redirect in (">/dev/full", ">&-"):
        code, said = run(ASK, redirect, "submit", "--host", "--hold", "--", "true")
        assert (code, b"is in the queue; this could not be printed on standard output" in said) == (0, True)
    assert run(ASK, "| true", "queue", "--json")[1] == b""


# owners that do not answer


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state directory of this test, which all commands use."""
    for name in [name for name in os.environ if name.startswith("GPUTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GPUTUI_STATE", str(state := tmp_path / "state"))
    monkeypatch.setenv("GPUTUI_RUNTIME", "process")
    state.mkdir(mode=0o700)
    return state


def command(*words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "gputui", *words]
    return subprocess.run(run, capture_output=True, text=True, check=False)


SUBMIT = ("submit", "--host", "--hold", "--", "true")


def key_of(request: bytes) -> bytes:
    return request.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0]


def test_a_request_whose_owner_ends_is_asked_again_with_its_key(alone: Path) -> None:
    requests: list[bytes] = []
    said = CommandResult(7, ((1, b"12\n"), (2, b"told\n"))).encoded()
    answer = fixed(answer_of(said), requests)
    with closing(ScriptedOwner(alone / "api.sock", lambda link: requests.append(link.recv(65536)), answer)):
        done = command(*SUBMIT)
    assert (done.returncode, done.stdout, done.stderr) == (7, "12\n", "told\n")
    first, second = requests
    assert key_of(first) == key_of(second) != b""
    assert first.partition(b"\r\n\r\n")[2] == second.partition(b"\r\n\r\n")[2]


def test_where_no_owner_follows_the_command_does_it_once_with_the_key(alone: Path) -> None:
    requests: list[bytes] = []
    path = alone / "api.sock"

    def end(link: socket.socket) -> None:
        requests.append(link.recv(65536))
        owner.close()

    owner = ScriptedOwner(path, end)
    done = command(*SUBMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    with closing(bootstrap.open_store(Options(alone))) as store:
        [stored] = store.jobs().values()
    assert stored.key.startswith(f"{key_of(requests[0]).decode()}.")


def test_an_owner_who_ends_before_a_command_of_this_process_asks_it_is_no_obstacle(alone: Path) -> None:
    def end(link: socket.socket) -> None:
        link.recv(65536)
        owner.close()

    owner = ScriptedOwner(alone / "api.sock", lambda link: None, end)
    run = [sys.executable, *FAT, *SUBMIT]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@cases("status", ["400 Bad Request", "404 Not Found", "421 Misdirected Request", "422 Unprocessable"])
def test_a_request_that_is_refused_is_for_the_command_itself(alone: Path, status: str) -> None:
    with closing(ScriptedOwner(alone / "api.sock", fixed(answer_of(b"{}", status)))):
        assert thin_code("queue") is None


@cases("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n0\n1 2\n"])
def test_a_command_that_only_looks_looks_itself_after_half_an_answer(alone: Path, answer: bytes) -> None:
    def answers(link: socket.socket) -> None:
        link.recv(65536)
        link.sendall(answer)

    with closing(ScriptedOwner(alone / "api.sock", answers)):
        assert thin_code("queue") is None


def thin_code(*words: str) -> object:
    return thin.run(list(words), __version__)


def test_a_hung_owner_is_waited_for_two_seconds_by_a_command_that_only_looks(alone: Path) -> None:
    end = threading.Event()
    with closing(ScriptedOwner(alone / "api.sock", lambda link: end.wait(WITHIN))):
        begun = time.monotonic()
        assert thin_code("queue") is None
        assert thin.PATIENCE <= time.monotonic() - begun < thin.PATIENCE + 2
        end.set()


def test_no_owner_and_strange_files_in_its_place_are_no_obstacle(alone: Path) -> None:
    assert thin_code("queue") is None
    (alone / "api.sock").write_text("")
    assert thin_code("queue") is None


def test_bytes_are_passed_on_to_the_owner(served: Served) -> None:
    script = "import sys; from gputui import thin; r = thin.run(sys.argv[1:], ''); print(r, 're' in sys.modules)"
    request = b"GET /v1/about HTTP/1.1\r\nHost: x\r\n\r\n"
    for words in (["api-stdio"], ["--state", str(served.state), "api-stdio"]):
        run = [sys.executable, "-c", script, *words]
        done = subprocess.run(run, env=served.environ, input=2 * request, capture_output=True, check=True, timeout=20)
        assert done.stdout.count(b"HTTP/1.1 200") == 2
        assert done.stdout.endswith(b"0 False\n")


# two callers at a time

ALICE, BOB = (Caller(uid, uid, (), name, Role.USER) for uid, name in ((1001, "alice"), (1002, "bob")))
READING: tuple[tuple[str, ...], ...] = (
    *(("queue",), ("queue", "--json"), ("show", "1"), ("gpus", "--help"), ("explain", "1"), ("history",)),
    *(("tenant", "list"), ("reserve", "list"), ("cron", "list"), ("show", "99"), ("queue", "--help"), ("hold", "x")),
)


def line(words: Sequence[str], caller: Caller, **more: object) -> CommandLine:
    is_alice = caller is ALICE
    environ = {"COLUMNS": "60"} if is_alice else {"COLUMNS": "150", "PATH": "/bob"}
    plain = CommandLine(__version__, tuple(words), f"/home/{caller.user}", 80, 7 if is_alice else 0, environ=environ)
    return replace(plain, **more)


def test_commands_of_two_callers_at_a_time_do_not_mix(store: KeptStore, tmp_path: Path) -> None:
    put(store, *(job(name=f"train-{number}-" + "x" * 60) for number in range(3)))
    found = Options(tmp_path)
    run = owned_commands(found, lambda caller: bootstrap.open_backend(found), lambda *refusal: None)
    expected = {(words, caller.uid): run(caller, line(words, caller)) for words in READING for caller in (ALICE, BOB)}
    assert expected[("queue",), ALICE.uid] != expected[("queue",), BOB.uid]

    def all_of(caller: Caller) -> list[tuple[tuple[str, ...], CommandResult]]:
        return [(words, run(caller, line(words, caller))) for _ in range(15) for words in READING]

    with ThreadPoolExecutor(4) as pool:
        for caller, said in zip((ALICE, BOB) * 2, pool.map(all_of, (ALICE, BOB) * 2), strict=True):
            assert [each for each in said if expected[each[0], caller.uid] != each[1]] == []


def test_submissions_of_two_callers_at_a_time_are_theirs(store: KeptStore, tmp_path: Path) -> None:
    found = Options(tmp_path, runtime="process")
    run = owned_commands(found, lambda caller: bootstrap.open_backend(found), lambda *refusal: None)

    def submit(caller: Caller) -> list[CommandResult]:
        words = ("submit", "--host", "--name", caller.user, "-e", "PATH", "--", "true")
        return [
            run(caller, line(words, caller, umask=caller.uid % 8, limits={"nofile": caller.uid})) for _ in range(20)
        ]

    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(submit, (ALICE, BOB)):
            assert {result.code for result in results} == {0}
    stored = store.jobs().values()
    assert len(stored) == 40
    for each in stored:
        spec, uid = each.spec, 1001 if each.name == "alice" else 1002
        assert (spec.tenant, spec.options.workdir) == (each.name, f"/home/{each.name}")
        assert dict(spec.options.env) == ({} if uid == 1001 else {"PATH": "/bob"})
        assert spec.inherited is not None
        assert (spec.inherited.umask, spec.inherited.limits) == (uid % 8, (("nofile", uid),))


def test_a_refusal_is_told_to_the_caller_and_to_the_audit_log(tmp_path: Path) -> None:
    refusals: list[tuple[str, str, str]] = []

    def refuse(caller: Caller) -> NoReturn:
        raise AccessError("job 7 is a job of bob", rule="own-jobs")

    run = owned_commands(
        Options(tmp_path), refuse, lambda caller, rule, asked: refusals.append((caller.user, rule, asked))
    )
    result = run(ALICE, line(("cancel", "7", "-q"), ALICE))
    assert (result.code, result.said) == (1, ((2, b"gputui: error: job 7 is a job of bob\n"),))
    assert refusals == [("alice", "own-jobs", "cancel 7 -q")]


def test_a_command_that_says_too_much_is_for_its_client(
    store: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *(job(name="x" * 200, comment="y" * 900) for _ in range(30)))
    monkeypatch.setattr("gputui.cli.owned.MOST_SAID", 20_000)
    found = Options(tmp_path)
    run = owned_commands(found, lambda caller: bootstrap.open_backend(found), lambda *refusal: None)
    with pytest.raises(ParseLocallyError):
        run(ALICE, line(("queue", "--json"), ALICE))
    assert run(ALICE, line(("queue",), ALICE)).code == 0


# what it costs


def test_a_thin_command_costs_little_more_than_a_bare_start(served: Served) -> None:
    wrapper = "import re, sys; from gputui.__main__ import main; sys.exit(main())"
    runs = {
        "bare": [sys.executable, "-c", "pass"],
        "queue": [sys.executable, "-c", wrapper, "queue"],
        "submit": [sys.executable, "-c", wrapper, *SUBMIT],
    }

    def cost(words: Sequence[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, env=served.environ, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    least = {name: min(cost(words) for _ in range(15)) for name, words in runs.items()}
    assert least["queue"] < 3.5 * least["bare"], least
    assert least["submit"] < 3.5 * least["bare"], least
    code = "import sys; from gputui import thin, __main__; print(sorted(set(sys.modules) & {'json', 're', 'click'}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
