"""Servers that are older, newer, missing or hostile: told in words, and never a harm to the console or to others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.domain.action import Cancel, Hold
from gputui.domain.errors import GputuiError
from gputui.domain.settings import ServerSettings
from gputui.tui.present.status import scheduler_words
from tests.cases import cases
from tests.process_list import children
from tests.servers.connections import Connections
from tests.waiting import until

_SSH = """import json, os, re, sys, time
host = sys.argv[sys.argv.index("--") + 1]
mark = re.search("_gputui:([0-9a-f]+):begin", sys.argv[-1])
def say(text):
    sys.stdout.write(text); sys.stdout.flush()
def end(code, text):
    sys.stderr.write(text + "\\n"); sys.exit(code)
def event(name, value):
    return f"event: {{name}}\\ndata: {{value if isinstance(value, str) else json.dumps(value)}}\\n\\n"
def answer(status, value):
    body = json.dumps(value)
    say(f"HTTP/1.1 {{status}}\\r\\nContent-Length: {{len(body)}}\\r\\n\\r\\n{{body}}")
ABOUT = dict(gputui="9.9", api="1.0", oldest="1.0", host="x", store="s", owner=dict(pid=7, kind="serve", user="u"),
             caller=dict(uid=0, user="root", role="operator"))
def requests():
    while line := sys.stdin.buffer.readline():
        words, length = line.split(), 0
        while (header := sys.stdin.buffer.readline().strip()):
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        yield words[1].decode(), sys.stdin.buffer.read(length)
if host == "mute":
    say("Welcome\\nThis account is not available.\\n"); end(0, "")
if host not in ("good", "old", "slowly", "missing", "refused", "control"):
    say("Welcome\\nHTTP/1.1 200 OK\\r\\n" + "x" * 3000000)
    say(f"\\n\\x1b_gputui:{{mark[1]}}:begin\\x1b\\\\\\n")
if host == "garbled":
    for number in range(1000):
        say("\\x1b[2Jnothing\\n" if number % 2 else "event: hello\\n")
elif host == "old":
    end(2, "gputui: error: no such command 'api-stdio' (gputui --help lists the commands)")
elif host == "slowly":
    os.close(0); os.close(1); time.sleep(0.3); end(127, "sh: 1: gputui: not found")
elif host == "missing":
    end(127, "sh: 1: gputui: not found")
elif host == "refused":
    end(255, "ssh: connect to host refused port 22: Connection refused")
elif host == "future":
    for _ in requests():
        what = "the client speaks version 1.0 of the interface, the owner of the queue 9.0"
        answer("400 Bad Request", dict(type="urn:gputui:bad-request", title=what, status=400,
                                       detail="update the older one", instance="Gputui-Api"))
elif host == "control":
    end(1, "\\x1b]0;owned\\x07gputui: error: \\x1b[31mred")
elif host == "endless":
    say("HTTP/1.1 200 OK\\r\\n")
    while True:
        say("x: y\\r\\n")
elif host in ("partial", "wrong"):
    for path, body in requests():
        if path == "/v1/about":
            answer("200 OK", ABOUT)
        elif b"cancel" in body:
            answer("422 Unprocessable Content", dict(type="urn:gputui:x", title="Invalid value 'cancel'", status=422,
                                                     instance="body", kind="HttpError"))
        elif path != "/v1/events":
            answer("200 OK", dict(ids="none"))
        else:
            say("HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n")
            say(event("hello", dict(stream="a", about=ABOUT)) + ": comment\\n\\n" + event("launch", "[1]"))
            if host == "wrong":
                say(event("snapshot", dict(jobs=7)))
            say(event("snapshot", dict(fields=dict(nodes=3, fragmentation=2),
                                       jobs=[dict(id=5, state="X"), 8, "y"])))
            time.sleep(600)
else:
    print("Welcome to " + host)
    print("Last login: never")
    print(f"\\x1b_gputui:{{mark[1]}}:begin\\x1b\\\\")
    sys.stdout.flush()
    words = ["--state", "{state}", "--runtime", "process", "api-stdio"]
    os.execv("{python}", ["{python}", "-P", "-m", "gputui", *words])
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
    made: list[Lab] = []

    def make(*hosts: str) -> Lab:
        made.append(Lab(*hosts))
        return made[-1]

    yield make
    for each in made:
        each.there.close(10)


@cases(
    ("host", "words"),
    [
        ("garbled", "sends lines that are not gputui's"),
        ("mute", "its login shell did not run gputui: This account is not available."),
        ("old", "too old for this console"),
        ("missing", "gputui is not found there; set the server's `command`"),
        ("slowly", "gputui is not found there; set the server's `command`"),
        ("refused", "Connection refused (`ssh refused` must work without a question)"),
        ("future", "the client speaks version 1.0 of the interface, the owner of the queue 9.0 (update the older one)"),
        ("control", "red"),
        ("endless", "what answers is no owner of a queue"),
        ("wrong", "Expected `array`, got `int`"),
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
    with pytest.raises(GputuiError, match="partial: the answer to POST /v1/actions cannot be read"):
        there.there.act(Hold((mapper.shared(5),)))
    with pytest.raises(GputuiError, match=r"partial: its gputui 9.9 does not know this: .*update gputui there"):
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
    there = lab("good", "future", "partial")
    there.until(lambda s: s.servers and not s.servers[0].problem)
    there.there.close(20)
    until(lambda: not {*children("self")} - before, lambda: [_command(pid) for pid in {*children("self")} - before])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
