"""Serves the console to browsers: a server, and for each tab a console, all of which end together.

Each printed link admits one browser, once; a session cookie admits that browser from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server, to_int

from gputui.domain.errors import GputuiError
from gputui.domain.text import plain

_BYTES = 32
_SAME = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for requests not caused by another site."""


class AccessControl:
    """Checks tokens and sessions in constant time, and host names and origins from the browser's own headers."""

    def __init__(self, host: str) -> None:
        self.token = _secret()
        """Token of the next link; valid once."""
        self.path = f"/{secrets.token_hex(_BYTES // 2)}/"
        """Secret path prefix. Cookies are kept by path, not by port: other servers on this host must not get ours."""
        self._sessions: set[str] = set()
        self._names = {"localhost", host.lower()}
        self._is_loopback = is_loopback(host)
        if not self._is_loopback:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def admit(self, token: str) -> str | None:
        """Return the secret of a new session if the token is right, and replace the token; else None."""
        if not _same(token, self.token):
            return None
        self.token, session = _secret(), _secret()
        self._sessions.add(session)
        return session

    def knows(self, session: str) -> bool:
        return sum(_same(session, known) for known in self._sessions) > 0  # all are compared: no sooner for any

    def is_for_us(self, host: str) -> bool:
        """Return whether the Host header may name this server: a foreign name means DNS rebinding by another site."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()  # without its port, which differs behind a tunnel
        except ValueError:
            name = ""
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not self._is_loopback)

    def is_from_us(self, host: str, origin: str | None, site: str | None) -> bool:
        """Return whether the request was not caused by another site's page; `site` is the value of Sec-Fetch-Site."""
        if site is not None and site not in _SAME:
            return False
        try:
            return origin is None or urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            return not host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to the address."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def url_host(host: str) -> str:
    """Return the host in the notation of URLs: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _same(one: str, other: str) -> bool:
    return compare_digest(one.encode(errors="replace"), other.encode())


def _secret() -> str:
    return secrets.token_urlsafe(_BYTES)


COLUMNS, LINES = 500, 300
"""Maximum size of a console in a browser."""
_PRELUDE = b"__GANGLION__\n"
_QUIT_WITHIN = 4.0
"""Seconds for a console to end by itself when its tab has closed."""
_ERRORS_WITHIN = 1.0
"""Seconds for which a tab stays open until its console's errors are read; a child may hold them open."""
_MOST_ERRORS = 64 * 1024
_MINE = {
    "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
    "TEXTUAL_COLOR_SYSTEM": "truecolor",
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
}
_NOT_MINE = ("TMUX", "STY", "SSH_TTY")
"""Variables that describe the terminal of this server, not the browser."""


class Viewer(AppService):
    """Speaks textual-serve's protocol with a console process, which is started without a shell.

    Of AppService only public parts are used: packets are written to `stdin`, and `on_data`, `on_meta` and `on_packed`
    take what the console sends. The console's first line, `__GANGLION__`, is part of Textual's WebDriver protocol.
    """

    def __init__(self, command: Sequence[str], socket: web.WebSocketResponse, downloads: DownloadManager) -> None:
        super().__init__(
            "", write_bytes=socket.send_bytes, write_str=socket.send_str, close=self._close, download_manager=downloads
        )
        self._words = command
        self._socket = socket
        self._console: Process | None = None
        self._input: asyncio.StreamWriter | None = None
        self._output: asyncio.Task[None] | None = None
        self._has_left = False

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """The console's standard input, to which the frames of the tab are written."""
        assert self._input is not None
        return self._input

    async def start(self, width: int, height: int) -> None:
        """Start the console, unless the tab has left meanwhile."""
        if self._has_left:
            return
        self._console = process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(os.environ, width, height),
            start_new_session=True,  # Ctrl-C in our terminal is ours to pass on
        )
        self._input = process.stdin
        self._output = asyncio.create_task(self._serve(process))

    async def _close(self) -> None:
        await self._socket.close()

    async def set_terminal_size(self, width: int, height: int) -> None:
        await super().set_terminal_size(*bounded(width, height))

    async def _serve(self, process: Process) -> None:
        """Pass the console's output on until it ends, then close the tab. `stop` may be called at any time."""
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(self._read_errors(process.stderr))
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await process.stdout.readline() not in (_PRELUDE, b""):
                    pass
                while True:
                    head = await process.stdout.readexactly(5)
                    payload = await process.stdout.readexactly(int.from_bytes(head[1:], "big"))
                    # an ending console is read to its end, even without a tab
                    with contextlib.suppress(ConnectionError):
                        if take := {b"D": self.on_data, b"M": self.on_meta, b"P": self.on_packed}.get(head[:1]):
                            await take(payload)
        finally:
            await asyncio.wait({errors}, timeout=_ERRORS_WITHIN)  # they are not printed once the tab has left
            await self._close()
            await errors

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        """Copy the console's stderr to ours, unless the tab has left: a console that quits early may report errors."""
        said = b""
        while more := await stderr.read(4096):
            said = (said + more)[-_MOST_ERRORS:]
        if self._has_left:
            return
        for line in said.decode(errors="replace").splitlines():
            print(plain(line, 500), file=sys.stderr, flush=True)

    async def stop(self) -> None:
        """Ask the console to quit, kill it if it does not, and wait for its end."""
        self._has_left = True
        process, output = self._console, self._output
        self._console = self._output = None
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIT_WITHIN):
                await self.send_meta({"type": "quit"})
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if output is not None:
            await output


def bounded(width: int, height: int) -> tuple[int, int]:
    return min(max(width, 1), COLUMNS), min(max(height, 1), LINES)


def environment(environ: Mapping[str, str], width: int, height: int) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _NOT_MINE}
    columns, lines = bounded(width, height)
    return {**kept, **_MINE, "COLUMNS": str(columns), "ROWS": str(lines)}


class BadFrameError(Exception):
    """Raised for a malformed frame."""


def parse(text: str) -> tuple[str, Any]:
    """Return type and content of a frame; content of unknown types is not validated."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrameError("not JSON") from error
    if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
        raise BadFrameError("expected a list that begins with a type")
    kind, content = frame[0], frame[1] if len(frame) > 1 else None
    if kind == "stdin" and not isinstance(content, str):
        raise BadFrameError("expected a text")
    if kind == "resize":
        content = (content.get("width"), content.get("height")) if isinstance(content, dict) else (None, None)
        if any(type(each) is not int for each in content):
            raise BadFrameError("expected a width and a height")
    return kind, content


MOST_VIEWERS = 16
"""Maximum number of open consoles; each is a process of about 80 MB."""
_HANDLER = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PAGE, _SCRIPT = Path(__file__).with_name("page.html"), Path(__file__).with_name("page.js")
_ENTER = (
    '<!DOCTYPE html><link rel="icon" href="data:,"><meta http-equiv="refresh" content="0;url={path}">'
    '<a href="{path}">gputui</a>\n'
)
"""Entrance page. Not a redirect: after a link from another site the browser would not send SameSite=Strict cookies."""
_USUAL = (("width", 80), ("height", 24))
_NO_ENTRY = "Open the link that `gputui web` printed last: each works once, in one browser.\n"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self' ws://{host} wss://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class ConsoleServer(Server):
    """Serves consoles to browsers; all paths except the entrance need the session cookie."""

    def __init__(self, command: Sequence[str], host: str, port: int, title: str) -> None:
        super().__init__(" ".join(command), host=host, port=port, title=title)
        self._words = command
        self._door = AccessControl(host)
        self._viewers: dict[Viewer, web.WebSocketResponse] = {}
        self._ended = asyncio.Event()

    async def run(self, tell: Callable[[str], None]) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP; pass each new link to `tell`."""
        self._tell = tell
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._ended.set)
        log = logging.getLogger("gputui.web")
        # malformed requests are answered, and concern only who sends them
        about_others = HttpProcessingError | web.HTTPClientError
        log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], about_others)))
        app = web.Application(middlewares=[self._guard()])
        app.on_response_prepare.append(_add_headers)
        path = self._door.path
        app.router.add_get("/", self._enter)
        app.router.add_get(path, self.handle_index)
        app.router.add_get(f"{path}page.js", self._handle_script)
        app.router.add_get(f"{path}ws", self.handle_websocket)
        app.router.add_static(f"{path}static", self.statics_path)
        runner = web.AppRunner(app, access_log=None, logger=log, shutdown_timeout=1)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self.host, self.port).start()
            except OSError as error:
                where = f"{url_host(self.host)}:{self.port}"
                what = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
                raise GputuiError(what, where=where, hint="--port 0 uses a free port") from error
            self.port = runner.addresses[0][1]
            tell(self.link)
            await self._ended.wait()
            await asyncio.gather(*(socket.close() for socket in self._viewers.values()))
        finally:
            await asyncio.gather(*(viewer.stop() for viewer in tuple(self._viewers)))
            await runner.cleanup()

    @property
    def link(self) -> str:
        return f"http://{url_host(self.host)}:{self.port}/?token={self._door.token}"

    @property
    def _cookie(self) -> str:
        return f"gputui-{self.port}"

    def _guard(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: _HANDLER) -> web.StreamResponse:
            """Refuse requests without the session cookie, by a foreign host name, or caused by another site."""
            if hdrs.HOST not in request.headers:  # aiohttp would use the name of this machine instead
                raise web.HTTPBadRequest(text="The request names no host.\n")
            if not self._door.is_for_us(request.host):
                raise web.HTTPForbidden(text="This is not the name of this server.\n")
            if request.path == "/":
                return await handler(request)
            origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
            if not self._door.is_from_us(request.host, origin, site):
                raise web.HTTPForbidden(text="Another site asked for this.\n")
            if not self._door.knows(request.cookies.get(self._cookie, "")):
                raise web.HTTPForbidden(text=_NO_ENTRY)
            return await handler(request)

        return guard

    async def _enter(self, request: web.Request) -> web.Response:
        """Exchange the token for the session cookie; a prefetching browser gets none and does not use up the token."""
        ahead = request.method != "GET" or "prefetch" in request.headers.get("Sec-Purpose", "")
        session = None if ahead else self._door.admit(request.query.get("token", ""))
        if session is None:
            raise web.HTTPForbidden(text=_NO_ENTRY)
        path = self._door.path
        response = web.Response(text=_ENTER.format(path=path), content_type="text/html")
        response.set_cookie(self._cookie, session, path=path, httponly=True, samesite="Strict")
        self._tell(self.link)
        return response

    async def handle_index(self, request: web.Request) -> web.Response:
        """Return the page around the terminal; it loads nothing from other sites."""
        size = min(max(to_int(request.query.get("fontsize", "14"), 14), 6), 72)
        values = {"title": self.title, "socket": f"ws://{request.host}{self._door.path}ws", "font_size": str(size)}
        page = _PAGE.read_text(encoding="utf-8")
        for name, value in values.items():
            page = page.replace(f"{{{{ {name} }}}}", html.escape(value))
        return web.Response(text=page, content_type="text/html")

    async def _handle_script(self, request: web.Request) -> web.Response:
        return web.Response(text=_SCRIPT.read_text(encoding="utf-8"), content_type="text/javascript")

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a console for this tab until either ends."""
        if request.headers.get("Origin") is None:
            raise web.HTTPForbidden(text="The request has no Origin header.\n")
        if len(self._viewers) >= MOST_VIEWERS or self._ended.is_set():
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWERS} consoles are open already.\n")
        socket = web.WebSocketResponse(heartbeat=15)
        viewer = Viewer(self._words, socket, self.download_manager)
        self._viewers[viewer] = socket

        async def end() -> None:
            await viewer.stop()
            self._viewers.pop(viewer, None)

        try:
            with contextlib.suppress(ConnectionError):  # the tab may leave at any time
                await socket.prepare(request)
                width, height = (to_int(request.query.get(name, ""), usual) for name, usual in _USUAL)
                await viewer.start(width, height)
                await _take_frames(socket, viewer)
        finally:
            await asyncio.shield(end())
        return socket


async def _take_frames(socket: web.WebSocketResponse, viewer: Viewer) -> None:
    """Pass on the tab's frames until it leaves; close the connection on a malformed frame."""
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        try:
            kind, content = parse(message.data)
        except BadFrameError as error:
            await socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=str(error).encode())
            return
        if kind == "ping":
            await socket.send_json(["pong", content])
        elif kind == "stdin":
            await viewer.send_bytes(content.encode("utf-8", "replace"))
        elif kind == "resize":
            await viewer.set_terminal_size(*content)
        elif kind == "blur":
            await viewer.blur()
        elif kind == "focus":
            await viewer.focus()


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers["Content-Security-Policy"] = _POLICY.format(host=request.host)
    response.headers["Server"] = "gputui"
