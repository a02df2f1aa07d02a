"""One browser tab: a console in a process of its own, which ends when the tab does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from gputui.domain.text import plain

COLUMNS, LINES = 500, 300
"""The most that a browser's window may ask for."""
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
"""What tells of the terminal that this server runs in, which is not the browser."""


class Viewer(AppService):
    """Speaks textual-serve's protocol with a console, which is started without a shell."""

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
        self._has_left = False

    async def start(self, width: int, height: int) -> None:
        """Start the console, unless the tab has left meanwhile."""
        if self._has_left:
            return
        process = await self._open_app_process(width, height)
        self._task = asyncio.create_task(self._serve(process))

    async def _close(self) -> None:
        await self._socket.close()

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the console in a session of its own: Ctrl-C in our terminal is ours to pass on."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(os.environ, width, height),
            start_new_session=True,
        )
        self._stdin = process.stdin
        return process

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Tell the console how large the window is."""
        await super().set_terminal_size(*bounded(width, height))

    async def _serve(self, process: Process) -> None:
        """Pass on what the console draws, until it ends; then close the tab. `stop` may come at any time."""
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
        """Repeat on our stderr what the console wrote on its, unless the tab left: it may fail when it quits early."""
        said = b""
        while more := await stderr.read(4096):
            said = (said + more)[-_MOST_ERRORS:]
        if self._has_left:
            return
        for line in said.decode(errors="replace").splitlines():
            print(plain(line, 500), file=sys.stderr, flush=True)

    async def stop(self) -> None:
        """End the console, kindly at first, and wait until it has ended."""
        self._has_left = True
        process, task = self._process, self._task
        self._process = self._task = None
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIT_WITHIN):
                await self.send_meta({"type": "quit"})
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if task is not None:
            await task


def bounded(width: int, height: int) -> tuple[int, int]:
    """A size that a screen can have."""
    return min(max(width, 1), COLUMNS), min(max(height, 1), LINES)


def environment(environ: Mapping[str, str], width: int, height: int) -> dict[str, str]:
    """What a console in a browser finds."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_MINE}
    columns, lines = bounded(width, height)
    return {**kept, **_MINE, "COLUMNS": str(columns), "ROWS": str(lines)}
