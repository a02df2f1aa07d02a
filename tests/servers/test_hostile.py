"""Servers that are older, newer, missing or hostile: told in words, and never a harm to the console or to others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.domain.action import Cancel, Hold
from gputui.domain.settings import ServerSettings
from gputui.servers import connection
from gputui.tui.present.status import scheduler_words
from tests.process_list import children
from tests.servers.connections import Connections

_SSH = """import os, sys, time
host = sys.argv[sys.argv.index("--") + 1]
def say(text):
    sys.stdout.write(text + "\\n"); sys.stdout.flush()
def end(code, text):
    sys.stderr.write(text + "\\n"); sys.exit(code)
HELLO = '{{"hello": {{"gputui": "%s", "protocol": %d, "oldest": %d, "calls": ["act", "hold"]}}}}'
if host == "garbled":
    for number in range(1000):
        say("\\x1b[2Jnothing" if number % 2 else '{{"update": {{"jobs": 7}}}}')
elif host == "old":
    end(2, "gputui: error: no such command 'remote' (did you mean requeue?)")
elif host == "slowly":
    os.close(1); os.dup2(2, 1); time.sleep(0.3); end(127, "sh: 1: gputui: not found")
elif host == "missing":
    end(127, "sh: 1: gputui: not found")
elif host == "refused":
    end(255, "ssh: connect to host refused port 22: Connection refused")
elif host == "ancient":
    say(HELLO % ("0.1", 1, 1)); time.sleep(600)
elif host == "future":
    say(HELLO % ("9.9", 99, 98)); time.sleep(600)
elif host == "control":
    end(1, "\\x1b]0;owned\\x07gputui: error: \\x1b[31mred")
elif host == "partial":
    say(HELLO % ("1.0", 2, 2))
    say('{{"update": {{"fields": {{"nodes": 3, "fragmentation": 2}}, "jobs": [{{"id": 5, "state": "X"}}, 8, "y"]}}}}')
    long = '"' + "x" * 100000 + '"'
    for line in ('{{"answer": {{"id": 12345}}}}', "{{}}", '{{"update": null}}', "[1]", "nonsense", long):
        say(line)
    for line in sys.stdin:
        say('{{"answer": {{"id": %s, "result": {{"ids": "none"}}}}}}' % line.split('"id":')[1].split(",")[0])
else:
    print("Welcome to " + host)
    print("Last login: never")
    sys.stdout.flush()
    os.execv("{python}", ["{python}", "-P", "-m", "gputui", "--state", "{state}", "--runtime", "process", "remote"])
"""


class Lab(Connections):
    """A console's connections to servers that a script plays."""

    def __init__(self, *hosts: str) -> None:
        super().__init__([ServerSettings(host, f"ssh://{host}") for host in hosts], 60.0)
        self.start()

    def problem(self) -> str:
        """Return why the first server does not answer, once that is known."""
        found = self.until(lambda s: s.servers and s.servers[0].problem not in {"", "connecting"})
        return found.servers[0].problem


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lab]]:
    command = tmp_path / "bin" / "ssh"
    command.parent.mkdir()
    script = tmp_path / "ssh.py"
    script.write_text(_SSH.format(python=sys.executable, state=tmp_path / "state"))
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {script} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.2)
    made: list[Lab] = []

    def make(*hosts: str) -> Lab:
        made.append(Lab(*hosts))
        return made[-1]

    yield make
    for each in made:
        each.there.close(10)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("garbled", "sends lines that are not gputui's"),
        ("old", "too old for this console"),
        ("missing", "gputui is not found there; set the server's `command`"),
        ("slowly", "gputui is not found there; set the server's `command`"),
        ("refused", "Connection refused (`ssh refused` must work without a question)"),
        ("ancient", "gputui 0.1 there is too old"),
        ("future", "gputui 9.9 there is too new for this console"),
        ("control", "red"),
    ],
)
def test_why_a_server_does_not_answer_is_told(lab: Callable[..., Lab], host: str, words: str) -> None:
    problem = lab(host).problem()
    assert words in problem
    assert problem.isprintable()


def test_messages_that_mean_nothing_are_left_out(lab: Callable[..., Lab]) -> None:
    there = lab("partial")
    seen = there.until(lambda s: s.servers and not s.servers[0].problem)
    assert seen.servers[0].snapshot.fragmentation == 2
    assert (seen.jobs, seen.gpus) == ((), ())
    mapper = there.there.servers[0].mapper
    with pytest.raises(Exception, match="its answer to hold cannot be read"):
        there.there.act(Hold((mapper.shared(5),)))
    with pytest.raises(Exception, match=r"its gputui 1.0 knows no cancel .update gputui there"):
        there.there.act(Cancel((mapper.shared(5),)))


def test_what_a_login_shell_prints_is_skipped(lab: Callable[..., Lab]) -> None:
    seen = lab("good").until(lambda s: s.servers and not s.servers[0].problem)
    assert seen.servers[0].snapshot.controls is not None


def test_one_bad_server_does_not_delay_others(lab: Callable[..., Lab]) -> None:
    there = lab("garbled", "good", "refused")
    seen = there.until(
        lambda s: s.servers and not s.servers[1].problem and "connecting" not in {x.problem for x in s.servers}
    )
    assert [bool(server.problem) for server in seen.servers] == [True, False, True]
    assert "".join(text for text, _ in scheduler_words(seen)) == "○ 1 of 3 servers"


def test_nothing_is_left_running(lab: Callable[..., Lab]) -> None:
    before = {*children("self")}  # those of the run's engine, for instance
    there = lab("good", "future", "ancient")
    there.until(lambda s: s.servers and not s.servers[0].problem)
    there.there.close(20)
    deadline = time.monotonic() + 60
    while added := {*children("self")} - before:
        assert time.monotonic() < deadline, [_command(pid) for pid in added]
        time.sleep(0.05)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
