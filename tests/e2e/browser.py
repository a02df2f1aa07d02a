"""Real browser: headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-3d-apis",  # the terminal would be drawn by WebGL in software, which takes twice as long
    "--disable-component-update",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def find() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """Tab of the browser, with all data received over its websockets."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.received = ""
        self.complaints: list[str] = []
        """Errors in the page's own console: a blocked script, a refused connection."""
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                self._answers.pop(content["id"]).set_result(content)
                continue
            params = content["params"]
            if content["method"] == "Network.webSocketFrameReceived":
                payload = params["response"]["payloadData"]
                binary = params["response"]["opcode"] == 2
                self.received += base64.b64decode(payload).decode(errors="replace") if binary else payload
            elif content["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])
            self._news.set()

    async def ask(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        number = next(self._ids)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        content = await asyncio.wait_for(answer, 60)
        assert "error" not in content, content
        found: dict[str, Any] = content["result"]
        return found

    async def begin(self, columns: int, lines: int) -> None:
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self.ask(f"{domain}.enable")
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=columns, height=lines, deviceScaleFactor=1, mobile=False
        )

    async def until_received(self, *words: str, seconds: float = 60) -> None:
        """Wait until the console has drawn all of these texts."""
        async with asyncio.timeout(seconds):
            while not all(word in self.received for word in words):
                self._news.clear()
                await self._news.wait()

    async def press(self, key: str, code: int = 0) -> None:
        """Type a character, or the key of that name."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    async def value(self, expression: str) -> Any:
        """Return the value of a script in the page."""
        return (await self.ask("Runtime.evaluate", expression=expression))["result"].get("value")

    async def picture(self) -> bytes:
        """Return the page as PNG."""
        return base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"])

    async def until_picture_differs(self, before: bytes, seconds: float = 60) -> None:
        """Wait until the page, which draws some time after it has received a text, does not look like that any more."""
        async with asyncio.timeout(seconds):
            while await self.picture() == before:
                pass

    async def close(self) -> None:
        await self._socket.close()
        await self._reader


@asynccontextmanager
async def browser(width: int = 1280, height: int = 800) -> AsyncIterator[Tab]:
    """Open a tab of a fresh browser, which keeps nothing."""
    path = find()
    assert path is not None
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = await asyncio.create_subprocess_exec(
        path, *_FLAGS, f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"DevTools listening on" not in (line := await process.stderr.readline()):
                assert line, "Chromium ended"
        address = line.decode().split()[-1].split("/")[2]
        drain = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as response:
                tabs = await response.json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.begin(width, height)
                yield tab
                await tab.close()
    finally:
        process.kill()
        await process.wait()
        await drain
        shutil.rmtree(profile, ignore_errors=True)
