"""Access to the console in a browser, and the arguments of its process."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from textual_serve.app_service import AppService
from textual_serve.server import Server

from gputui.cli import serve
from gputui.config import Options
from gputui.web import (
    AccessControl,
    BadFrameError,
    ConsoleServer,
    Viewer,
    bounded,
    environment,
    is_loopback,
    parse,
    url_host,
)
from tests.cases import cases
from tests.cli.conftest import Run


@cases(("ours", "theirs"), [(Viewer, AppService), (ConsoleServer, Server)])
def test_no_private_part_of_textual_serve_is_used(ours: type, theirs: type) -> None:
    private = re.compile(r"(?:self\.|def )(_[a-z]\w*)")
    assert set(private.findall(inspect.getsource(theirs)))
    assert not set(private.findall(inspect.getsource(ours))) & set(private.findall(inspect.getsource(theirs)))


def test_a_token_works_once_and_is_replaced() -> None:
    door = AccessControl("127.0.0.1")
    first = door.token
    assert len(first) >= 43  # 256 bits
    session = door.admit(first)
    assert session is not None
    assert door.knows(session)
    assert door.admit(first) is None
    second = door.admit(door.token)
    assert second not in (None, session)
    assert door.knows(session)


@cases("wrong", ["", "x", "é", "\udcff"])
def test_wrong_tokens_give_no_access(wrong: str) -> None:
    door = AccessControl("127.0.0.1")
    token = door.token
    for tried in (wrong, token[:-1], token + "x", token.swapcase()):
        assert door.admit(tried) is None
    assert door.token == token  # who guesses does not use it up
    assert not door.knows(wrong)
    assert not door.knows(token)


@cases(
    ("listens", "host", "ours"),
    [
        ("127.0.0.1", "127.0.0.1:8642", True),
        ("127.0.0.1", "localhost:9000", True),  # an SSH tunnel
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "[::1]:8642", True),
        ("127.0.0.1", "evil.example:8642", False),  # DNS rebinding
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "10.0.0.5:8642", False),
        ("127.0.0.1", "[::1", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "10.0.0.5:8642", True),  # an address cannot be rebound
        ("0.0.0.0", f"{socket.gethostname()}:8642", True),
        ("0.0.0.0", "evil.example:8642", False),
        ("gpu7.example", "gpu7.example:8642", True),
    ],
)
def test_only_own_host_names_are_answered(listens: str, host: str, ours: bool) -> None:
    assert AccessControl(listens).is_for_us(host) is ours


@cases(
    ("origin", "site", "ours"),
    [
        (None, None, True), (None, "none", True), ("http://localhost:8642", "same-origin", True),
        ("https://localhost:8642", None, True), ("http://localhost:8643", "same-site", False),
        ("http://localhost:8643", None, False), ("http://evil.example", "cross-site", False), ("null", None, False),
        ("http://[::1", None, False), (None, "cross-site", False),
    ],
)  # fmt: skip
def test_pages_of_other_sites_are_refused(origin: str | None, site: str | None, ours: bool) -> None:
    assert AccessControl("127.0.0.1").is_from_us("localhost:8642", origin, site) is ours


def test_addresses_and_frames_are_read() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.1.2.3", "gpu7", "localhost.example")))
    assert (url_host("::1"), url_host("127.0.0.1")) == ("[::1]", "127.0.0.1")
    assert parse('["stdin", "x"]') == ("stdin", "x")
    assert parse('["resize", {"width": 3, "height": 4}]') == ("resize", (3, 4))
    assert parse('["focus"]') == ("focus", None)
    assert parse('["new", {"a": 1}]') == ("new", {"a": 1})


def test_the_console_of_a_tab_never_schedules(tmp_path: Path) -> None:
    words = serve.viewer_command(Options(tmp_path), read_only=False)
    assert "--view-only" in words
    assert "--read-only" not in words
    assert "--read-only" in serve.viewer_command(Options(tmp_path), read_only=True)


def test_a_browser_is_not_the_terminal_of_the_server() -> None:
    environ = environment({"TMUX": "x", "NO_COLOR": "1", "HOME": "/h", "TERM": "dumb"}, 10**9, 0)
    assert environ["HOME"] == "/h"
    assert environ["TERM"] == "xterm-256color"
    assert "TMUX" not in environ
    assert environ["NO_COLOR"] == "1"  # a taste of the person, wherever they look
    assert (int(environ["COLUMNS"]), int(environ["ROWS"])) == bounded(10**9, 0) == (500, 1)


def test_a_missing_extra_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: name if name == "pip" else None)
    done = run("web")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("gputui: error: textual-serve is not installed (pip install 'aiohttp")
    assert "'textual-serve" in done.err
    assert "gputui[web]" not in done.err, "an index may hold another version than the clone at hand"


MALFORMED = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"GET " + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nA: \x00\r\n\r\n", b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\n\r\n\x00\xff", b"CONNECT a:b HTTP/1.1\r\n\r\n",
)  # fmt: skip


async def test_malformed_requests_leave_no_trace(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    links: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(ConsoleServer(["true"], "127.0.0.1", 0, "test").run(links.put_nowait))
    port = urlsplit(await links.get()).port
    for request in MALFORMED:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        await reader.read()
        writer.close()
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert caplog.text == ""
    assert capfd.readouterr().err == ""


def test_a_public_address_raises_a_warning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.web.ConsoleServer.run", _at_once)
    assert run("web").err == ""
    done = run("web", "--host", "0.0.0.0")
    assert done.code == 0
    assert "warning: other machines can connect to 0.0.0.0, and the connection is not encrypted" in done.err


async def _at_once(server: object, tell: object) -> None:
    del server, tell


def test_view_only_is_of_the_console_and_a_port_in_use_is_reported(run: Run) -> None:
    done = run("--view-only", "queue")
    assert done.code == 2
    assert "--view-only is for the console alone" in done.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("web", "--port", str(port))
    assert done.code == 1
    assert f"127.0.0.1:{port}: Address already in use (--port 0" in done.err


STRANGE = ("", "no", "3", "{}", "[]", "[3]", '["stdin"]', '["stdin", 3]', "[" * 100_000)
SIZES = ("3", '{"width": 3}', '{"width": true, "height": 3}', '{"width": 1e999, "height": 3}')


@cases("text", [*STRANGE, *(f'["resize", {size}]' for size in SIZES)])
def test_invalid_frames_are_refused(text: str) -> None:
    with pytest.raises(BadFrameError):
        parse(text)
