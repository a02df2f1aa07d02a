"""`gputui web` with real clients: access, the content of tabs, and that no process remains."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from gputui.engine.leadership import current_leader
from tests.e2e.browser import browser
from tests.e2e.site import submit_directly
from tests.factories import spec
from tests.process_list import command_lines

_SECONDS = 60


class Served:
    """Running `gputui web`, with its output."""

    def __init__(self, state: Path, *flags: str) -> None:
        self.state = state
        words = ["--state", str(state), "--probe", "sim:8", "--runtime", "process", "web", "--port", "0", *flags]
        with (state.parent / "web.err").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gputui", *words],
                env={**os.environ, "GPUTUI_CONFIG": "/dev/null", "XDG_STATE_HOME": str(state.parent)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.link = self.next_link()
        self.base = self.link.partition("/?")[0]

    def next_link(self) -> str:
        """Return the next printed link."""
        assert self.process.stdout is not None
        match = re.match(r"(http://127\.0\.0\.1:\d+/\?token=\S+) ", self.process.stdout.readline())
        assert match, self.errors
        return match[1]

    @property
    def errors(self) -> str:
        return (self.state.parent / "web.err").read_text()

    def consoles(self) -> set[int]:
        """Return the pids of the consoles behind tabs."""
        marks = {os.fsencode(self.state), b"--view-only"}
        return {pid for pid, words in command_lines().items() if marks <= set(words)}

    async def until_consoles(self, count: int) -> None:
        """Wait until that many consoles run."""
        deadline = time.monotonic() + _SECONDS
        while len(self.consoles()) != count:
            assert time.monotonic() < deadline, self.consoles()
            await asyncio.sleep(0.05)

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        with self.process:
            return self.process.wait(_SECONDS)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with two jobs that wait."""
    submit_directly(tmp_path / "state", [spec(1, name=name) for name in ("first-job", "other-job")])
    return tmp_path / "state"


@pytest.fixture
def served(state: Path) -> Iterator[Served]:
    found = Served(state)
    yield found
    if found.process.poll() is None:
        found.end(signal.SIGKILL)


class Visitor:
    """Client that keeps cookies as a browser does."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self.base = served.base
        self.session = session
        self.place = ""

    async def enter(self, link: str) -> aiohttp.ClientResponse:
        """Open a link; return the answer."""
        async with self.session.get(link) as response:
            text = await response.text()
            if found := re.search(r'href="(/[0-9a-f]{32}/)"', text):
                self.place = self.base + found[1]
            return response

    async def status(self, url: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.get(url, headers=named) as response:
            return response.status

    @asynccontextmanager
    async def tab(self, **headers: str) -> AsyncIterator[Tab]:
        sent = {"Origin": self.base, **headers}
        address = f"{self.place}ws?width=100&height=30".replace("http:", "ws:")
        async with self.session.ws_connect(address, headers=sent, max_msg_size=0) as socket:
            yield Tab(socket)


class Tab:
    """A console over its websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def until(self, *words: str) -> str:
        """Return the drawn text, once it contains all of this."""
        drawn = ""
        async with asyncio.timeout(_SECONDS):
            while not all(word in drawn for word in words):
                message = await self.socket.receive()
                assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), (message, drawn)
                drawn += message.data.decode(errors="replace") if isinstance(message.data, bytes) else message.data
        return drawn

    async def press(self, keys: str) -> None:
        await self.socket.send_json(["stdin", keys])


@asynccontextmanager
async def visitor(served: Served) -> AsyncIterator[Visitor]:
    jar = aiohttp.CookieJar(unsafe=True)  # aiohttp keeps no cookies of addresses otherwise; browsers do
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Visitor(served, session)


async def test_the_link_gives_access_exactly_once(served: Served) -> None:
    async with visitor(served) as guest, visitor(served) as stranger:
        for path in ("/", "/?token=wrong", "/ws", "/static/js/textual.js", "/nowhere"):
            assert await stranger.status(served.base + path) == 403
        async with guest.session.head(served.link) as looked_ahead:
            assert looked_ahead.status == 403
        assert await guest.status(served.link, Sec_Purpose="prefetch") == 403
        entered = await guest.enter(served.link)
        assert entered.status == 200
        [cookie] = entered.headers.getall("Set-Cookie")
        path = urlsplit(guest.place).path
        assert cookie.endswith(f"; HttpOnly; Path={path}; SameSite=Strict")
        assert await guest.status(guest.place) == 200
        assert await guest.status(f"{guest.place}static/js/textual.js") == 200
        for path in ("", "ws", "static/js/textual.js", "page.js", "static/", "nowhere"):
            assert await stranger.status(guest.place + path) == 403
        assert (await stranger.enter(served.link)).status == 403
        assert (await stranger.enter(served.next_link())).status == 200
        assert await guest.status(guest.place) == 200


async def test_foreign_hosts_and_origins_are_refused(served: Served) -> None:
    async with visitor(served) as guest:
        assert await guest.status(served.link, Host="evil.example") == 403
        await guest.enter(served.link)
        cookie = {"Cookie": "; ".join(f"{each.key}={each.value}" for each in guest.session.cookie_jar)}
        assert await guest.status(guest.place, Host="evil.example", **cookie) == 403
        assert await guest.status(guest.place, Origin="http://evil.example") == 403
        assert await guest.status(guest.place, Sec_Fetch_Site="cross-site") == 403
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example", **cookie}):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                async with guest.tab(**headers):
                    pass
        assert await guest.status(f"{guest.place}ws") == 403  # without an origin
        assert served.consoles() == set()


async def test_several_tabs_show_the_console_send_actions_and_never_schedule(served: Served) -> None:
    async with visitor(served) as guest:
        await guest.enter(served.link)
        async with guest.tab() as one:
            await one.until("first-job", "other-job", "○ no")
            async with guest.tab() as other:
                await other.until("first-job")
                await served.until_consoles(2)
                await one.press("h")
                await one.until("commit")
                await one.press("\r")
                await other.until("held")
            await served.until_consoles(1)
            assert current_leader(served.state) is None
            await one.press("q")
            async with asyncio.timeout(_SECONDS):
                while not one.socket.closed:
                    await one.socket.receive()
        await served.until_consoles(0)
    assert served.errors == ""


async def test_no_request_makes_the_server_send_a_traceback(served: Served) -> None:
    host, port = urlsplit(served.base).hostname, urlsplit(served.base).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.0 400 ")
    writer.close()
    async with visitor(served) as guest:
        await guest.enter(served.link)
        assert await guest.status(guest.place, Origin="http://[::1") == 403
        for text in ("no json", '["resize", {"width": 1e999, "height": 2}]'):  # others: tests/web
            async with guest.tab() as tab:
                await tab.socket.send_str(text)
                async with asyncio.timeout(_SECONDS):
                    while not tab.socket.closed:
                        await tab.socket.receive()
                assert tab.socket.close_code == aiohttp.WSCloseCode.UNSUPPORTED_DATA
        for _ in range(3):
            async with guest.tab():
                pass  # it leaves before its console has begun
        await served.until_consoles(0)
    await asyncio.to_thread(served.end)
    assert served.errors == ""


async def test_the_end_of_the_server_leaves_no_process(served: Served) -> None:
    async with visitor(served) as guest:
        await guest.enter(served.link)
        async with guest.tab() as one, guest.tab() as other:
            await one.until("first-job")
            await other.until("first-job")
            assert len(served.consoles()) == 2
            assert await asyncio.to_thread(served.end) == 0
            assert served.consoles() == set()


async def test_a_server_that_is_killed_takes_its_consoles_along(served: Served) -> None:
    async with visitor(served) as guest:
        await guest.enter(served.link)
        async with guest.tab() as one:
            await one.until("first-job")
            await asyncio.to_thread(served.end, signal.SIGKILL)
            await served.until_consoles(0)


async def test_read_only_browsers_change_nothing(state: Path) -> None:
    served = Served(state, "--read-only")
    async with visitor(served) as guest:
        await guest.enter(served.link)
        async with guest.tab() as tab:
            drawn = await tab.until("first-job", "read-only")
            assert "hold" not in drawn
    assert served.end(signal.SIGTERM) == 0


@pytest.mark.chromium
async def test_a_real_browser_shows_it_and_its_keys_work(served: Served) -> None:
    async with browser() as tab:
        await tab.ask("Page.navigate", url=served.link)
        await tab.until_received("first-job", "other-job")
        at_first = await tab.picture()
        await tab.press("?")
        await tab.until_received("has the focus")
        assert await tab.value("document.cookie") == ""
        assert "token" not in await tab.value("location.href")
        await tab.until_picture_differs(at_first)
        assert tab.complaints == []
        await tab.ask("Page.navigate", url="about:blank")
        await served.until_consoles(0)
