"""Serves the console to browsers, and ends with all of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from aiohttp.typedefs import Middleware
from textual_serve.server import Server, to_int

from gputui.domain.errors import GputuiError
from gputui.web.auth import AccessControl, url_host
from gputui.web.viewer import BadFrameError, Viewer, obey, parse

MOST_VIEWERS = 16
"""Maximum number of open consoles: each is a process of about 80 MB."""
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
    """Serves consoles to browsers; all paths but the entrance need the session cookie."""

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
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await self._listen(runner)
            tell(self.link)
            await self._ended.wait()
            await asyncio.gather(*(socket.close() for socket in self._viewers.values()))
        finally:
            await asyncio.gather(*(viewer.stop() for viewer in tuple(self._viewers)))
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except OSError as error:
            where = f"{url_host(self.host)}:{self.port}"
            what = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise GputuiError(what, where=where, hint="--port 0 uses a free port") from error
        self.port = runner.addresses[0][1]

    @property
    def link(self) -> str:
        """Return the link that admits the next browser."""
        return f"http://{url_host(self.host)}:{self.port}/?token={self._door.token}"

    @property
    def _cookie(self) -> str:
        return f"gputui-{self.port}"

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard()])
        app.on_response_prepare.append(_add_headers)
        path = self._door.path
        app.router.add_get("/", self._enter)
        app.router.add_get(path, self.handle_index)
        app.router.add_get(f"{path}page.js", self._handle_script)
        app.router.add_get(f"{path}ws", self.handle_websocket)
        app.router.add_static(f"{path}static", self.statics_path)
        return app

    def _guard(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: _HANDLER) -> web.StreamResponse:
            """Refuse requests without the session cookie, by a foreign host name, or caused by another site."""
            if hdrs.HOST not in request.headers:  # aiohttp would put the name of this machine in its place
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
        values = {
            "title": self.title,
            "socket": f"ws://{request.host}{self._door.path}ws",
            "font_size": str(min(max(to_int(request.query.get("fontsize", "14"), 14), 6), 72)),
        }
        page = _PAGE.read_text(encoding="utf-8")
        for name, value in values.items():
            page = page.replace(f"{{{{ {name} }}}}", html.escape(value))
        return web.Response(text=page, content_type="text/html")

    async def _handle_script(self, request: web.Request) -> web.Response:
        del request
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
        try:
            with contextlib.suppress(ConnectionError):  # the tab may leave at any time
                await socket.prepare(request)
                width, height = (to_int(request.query.get(name, ""), usual) for name, usual in _USUAL)
                await viewer.start(width, height)
                await _take_frames(socket, viewer)
        finally:
            await asyncio.shield(self._end(viewer))
        return socket

    async def _end(self, viewer: Viewer) -> None:
        await viewer.stop()
        self._viewers.pop(viewer, None)


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
        else:
            await obey(kind, content, viewer)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers["Content-Security-Policy"] = _POLICY.format(host=request.host)
    response.headers["Server"] = "gputui"
