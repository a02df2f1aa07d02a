"""A browser tab: runs a console in its own process, which ends with the tab."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from gputui.domain.text import plain

COLUMNS, LINES = 500, 300
"""Maximum size of a console in a browser."""
_PRELUDE = b"__GANGLION__\n"
_QUIT_WITHIN = 4.0
"""Seconds for a console to end by itself when its tab has closed."""
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
            "",
            write_bytes=socket.send_bytes,
            write_str=socket.send_str,
            close=self._close,
            download_manager=downloads,
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
        process = await self._open_console(width, height)
        self._output = asyncio.create_task(self._serve(process))

    async def _close(self) -> None:
        await self._socket.close()

    async def _open_console(self, width: int, height: int) -> Process:
        """Start the console in a session of its own: Ctrl-C in our terminal is ours to pass on."""
        self._console = process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(os.environ, width, height),
            start_new_session=True,
        )
        self._input = process.stdin
        return process

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Send the window's size to the console."""
        await super().set_terminal_size(*bounded(width, height))

    async def _serve(self, process: Process) -> None:
        """Pass the console's output on until it ends, then close the tab. `stop` may be called at any time."""
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(self._read_errors(process.stderr))
        try:
            await self._pass_on(process.stdout)
        finally:
            await self._close()
            await errors

    async def _pass_on(self, stdout: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await stdout.readline() not in (_PRELUDE, b""):
                pass
            while True:
                head = await stdout.readexactly(5)
                payload = await stdout.readexactly(int.from_bytes(head[1:], "big"))
                with contextlib.suppress(ConnectionError):  # a console that ends is read to its end, tab or no tab
                    await self._take(head[:1], payload)

    async def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"D":
            await self.on_data(payload)
        elif kind == b"M":
            await self.on_meta(payload)
        elif kind == b"P":
            await self.on_packed(payload)

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
    """Return the size limited to valid values."""
    return min(max(width, 1), COLUMNS), min(max(height, 1), LINES)


def environment(environ: Mapping[str, str], width: int, height: int) -> dict[str, str]:
    """Return the environment of a console in a browser."""
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
        content = _size(content)
    return kind, content


def _size(content: object) -> tuple[int, int]:
    width, height = (content.get("width"), content.get("height")) if isinstance(content, dict) else (None, None)
    if type(width) is not int or type(height) is not int:
        raise BadFrameError("expected a width and a height")
    return width, height


async def obey(kind: str, content: Any, viewer: Viewer) -> None:
    """Send a frame to the console."""
    if kind == "stdin":
        await viewer.send_bytes(content.encode("utf-8", "replace"))
    elif kind == "resize":
        await viewer.set_terminal_size(*content)
    elif kind == "blur":
        await viewer.blur()
    elif kind == "focus":
        await viewer.focus()
