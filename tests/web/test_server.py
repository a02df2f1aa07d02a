"""The server for browsers over real connections, with a stand-in for the console: refusals, pages and frames."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, CookieJar, WSMsgType, WSServerHandshakeError

from gputui import web as server
from gputui.web import ConsoleServer

ECHO = """
import sys
source, sink = sys.stdin.buffer, sys.stdout.buffer
def send(kind, payload):
    sink.write(kind + len(payload).to_bytes(4, "big") + payload)
    sink.flush()
sink.write(b"noise\\n__GANGLION__\\n")
send(b"D", b"drawn")
send(b"M", b'{"type": "open_url", "url": "http://x.example/", "new_tab": true}')
while head := source.read(5):
    payload = source.read(int.from_bytes(head[1:], "big"))
    send(b"D", head[:1] + payload)
    if b"quit" in payload:
        break
"""
NO_ENTRY = "Open the link that `gputui web` printed last: each works once, in one browser.\n"
FAILS = """
import os, time
os.close(1)
time.sleep(0.3)
os.write(2, b"the queue \\x1b[31m is damaged")
os._exit(1)
"""


class Site:
    """A running server, and a browser."""

    def __init__(self, running: ConsoleServer, browser: ClientSession, links: list[str]) -> None:
        self.running = running
        self.browser = browser
        self.links = links
        """Links printed so far; the last one is valid."""

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.running.port}{path}"

    async def enter(self) -> str:
        """Open the last link; return the path of the console's page."""
        async with self.browser.get(self.links[-1]) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        return text.partition('<a href="')[2].partition('"')[0]

    async def refused(self, path: str, **headers: str) -> tuple[int, str]:
        """Return status and text of a refusal."""
        async with self.browser.get(
            self.at(path), headers={name.replace("_", "-"): v for name, v in headers.items()}
        ) as it:
            return it.status, await it.text()

    @asynccontextmanager
    async def tab(self, *, query: str = "?width=100&height=30") -> AsyncIterator[ClientWebSocketResponse]:
        """Open the console in a tab."""
        page = await self.enter()
        address = self.at(f"{page}ws{query}").replace("http", "ws", 1)
        async with self.browser.ws_connect(address, origin=self.at("")) as socket:
            yield socket


@asynccontextmanager
async def serving(program: str = ECHO) -> AsyncIterator[Site]:
    """Serve consoles of that program until SIGTERM."""
    links: list[str] = []
    printed = asyncio.Event()

    def tell(link: str) -> None:
        links.append(link)
        printed.set()

    running = ConsoleServer([sys.executable, "-c", program], "127.0.0.1", 0, "gputui on <lab>")
    task = asyncio.create_task(running.run(tell))
    await printed.wait()
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser:  # else it keeps none of an address
        try:
            yield Site(running, browser, links)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 30)


async def received(socket: ClientWebSocketResponse, wanted: bytes) -> bytes:
    """Return the bytes sent to the tab, once they have this in them."""
    found = b""
    while wanted not in found:
        message = await socket.receive(30)
        assert message.type in {WSMsgType.BINARY, WSMsgType.TEXT}, (message, found)
        found += message.data.encode() if message.type is WSMsgType.TEXT else message.data
    return found


async def test_requests_of_strangers_are_refused() -> None:
    async with serving() as site:
        assert await site.refused("/?token=guessed") == (403, NO_ENTRY)
        page = await site.enter()
        assert (await site.refused(page, Host="evil.example"))[1] == "This is not the name of this server.\n"
        assert (await site.refused(page, Origin="http://evil.example"))[1] == "Another site asked for this.\n"
        assert (await site.refused(page, Sec_Fetch_Site="cross-site"))[0] == 403
        async with ClientSession() as other, other.get(site.at(page)) as answer:
            assert (answer.status, await answer.text()) == (403, NO_ENTRY)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.running.port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answered = await reader.read()
        assert b" 400 " in answered.splitlines()[0]
        assert answered.endswith(b"The request names no host.\n")
        writer.close()


async def test_a_browser_that_reads_ahead_does_not_use_up_the_link() -> None:
    async with serving() as site:
        path = site.links[-1].partition(str(site.running.port))[2]
        assert (await site.refused(path, Sec_Purpose="prefetch;prerender"))[0] == 403
        await site.enter()
        assert len(site.links) == 2
        assert site.links[0] != site.links[1]


async def test_the_page_loads_nothing_from_elsewhere() -> None:
    async with serving() as site:
        page = await site.enter()
        async with site.browser.get(site.at(f"{page}?fontsize=500")) as answer:
            text = await answer.text()
        assert "gputui on &lt;lab&gt;" in text
        assert f"ws://127.0.0.1:{site.running.port}{page}ws" in text
        assert '"72"' in text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        async with site.browser.get(site.at(f"{page}page.js")) as script:
            assert (script.status, script.content_type) == (200, "text/javascript")


async def test_frames_of_a_tab_reach_its_console() -> None:
    async with serving() as site, site.tab() as tab:
        assert b"http://x.example/" in await received(tab, b"http://x.example/")
        await tab.send_bytes(b"not for the console")
        await tab.send_json(["ping", 5])
        assert json.loads(await received(tab, b"pong")) == ["pong", 5]
        for frame, wanted in [
            (["stdin", "q\udc80"], b"Dq?"),
            (["resize", {"width": 9999, "height": 20}], b'"width": 500'),
            (["blur"], b'M{"type": "blur"}'),
            (["focus"], b'M{"type": "focus"}'),
        ]:
            await tab.send_json(frame)
            await received(tab, wanted)


async def test_a_malformed_frame_ends_the_connection() -> None:
    async with serving() as site, site.tab(query="") as tab:
        await received(tab, b"drawn")
        await tab.send_str("{")
        while (message := await tab.receive(30)).type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            pass
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1003, "not JSON")


async def test_a_console_needs_an_origin_and_a_free_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as site:
        page = await site.enter()
        assert await site.refused(f"{page}ws") == (403, "The request has no Origin header.\n")
        monkeypatch.setattr(server, "MOST_VIEWERS", 0)
        with pytest.raises(WSServerHandshakeError) as refused:
            async with site.tab():
                pass
        assert refused.value.status == 503


async def test_the_last_words_of_a_console_that_failed_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(FAILS) as site, site.tab() as tab:
        assert (await tab.receive(30)).type is WSMsgType.CLOSE
    assert "the queue  is damaged\n" in capfd.readouterr().err
