"""`gputui --on SERVER COMMAND`: the command as it runs on that server, over ssh; what only reads, on several."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import click
from msgspec import Struct

from gputui.cli import terminal
from gputui.domain.errors import InputError
from gputui.domain.frames import SHELL_SAYS, CommandMarks
from gputui.domain.text import plain

if TYPE_CHECKING:
    from gputui.cli.session import Session
    from gputui.domain.settings import ServerSettings

_HERE = {
    "api-stdio": "a console over several servers starts it",
    "completions": "a shell completes what is on this machine",
    "demo": "it simulates GPUs, on any machine",
    "probe": "a console over a cluster starts it",
    "web": "it answers browsers on its own machine: log in there",
}
"""Commands that make no sense over ssh, each with the reason."""
_READING = ("queue", "gpus", "top", "history", "report")
"""Commands that may run on several servers at once."""
_PASSED = ("COLUMNS", "GPUTUI_DEBUG", "LINES", "NO_COLOR")
"""Variables that the command there gets too."""
_PIECE = 65536
_SSH_FAILED, _NOT_FOUND = 255, 127
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RemoteCommand(click.Command):
    """Command whose words are not read here: they are those of gputui on the server."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        super().__init__(name, callback=lambda: None)
        self._words = [name, *words]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read nothing: neither options nor `--` are for this process."""
        return []

    def invoke(self, ctx: click.Context) -> int:
        assert ctx.parent is not None
        return run(ctx.obj, ctx.parent.params["servers"], self._words)


def run(session: Session, wanted: Sequence[str], words: Sequence[str]) -> int:
    from gputui.bootstrap import servers

    if words[0] in _HERE:
        raise InputError(f"gputui {words[0]} runs on this machine: {_HERE[words[0]]}", where="--on")
    found = servers.chosen_servers(wanted, session.options.settings)
    if len(found) == 1:
        return _on_one(found[0], words)
    names = ", ".join(server.name for server in found)
    if words[0] not in _READING:
        hint = f"name one of {names}; on several run {', '.join(_READING)}"
        raise InputError(f"gputui {words[0]} is for one server", where="--on", hint=hint)
    if form := next((word for word in words if word.rpartition("=")[2] in {"csv", "html"}), ""):
        raise InputError(f"{form} is for one server", where="--on", hint=f"name one of {names}")
    with ThreadPoolExecutor(len(found)) as pool:
        parts = list(pool.map(lambda server: _part(server, words), found))
    pairs = zip(words, [*words[1:], ""], strict=True)
    as_json = "--json" in words or "--format=json" in words or ("--format", "json") in pairs
    if as_json:
        from gputui.cli.output import print_json

        print_json([{"server": part.name, **row} for part in parts for row in part.rows()])
    for number, part in enumerate(parts):
        if not as_json and part.out:
            terminal.echo(f"{chr(10) if number else ''}{part.name}\n{part.out.rstrip()}")
    terminal.flush()
    for part in parts:
        for complaint in part.complaints:
            terminal.echo(f"gputui: {part.name}: {complaint}", err=True)
    return max(part.code if part.code >= 0 else 128 - part.code for part in parts)


def _on_one(server: ServerSettings, words: Sequence[str]) -> int:
    """Run a command with this process's streams, in a terminal there if both ends are terminals here."""
    is_tty, marks = os.isatty(0) and os.isatty(1), CommandMarks()
    errors = CommandMarks(key=marks.key)
    with _Signals() as heard:
        argv, pipe = _argv(server, words, marks, is_tty=is_tty), subprocess.PIPE if server.address else None
        process = heard.process = subprocess.Popen(argv, stdout=pipe, stderr=pipe)  # noqa: S603 - ssh, or this command here
        if server.address:
            beside = Thread(target=_pass_on, args=(process.stderr, 2, errors))
            beside.start()
            _pass_on(process.stdout, 1, marks)
            beside.join()
        code = process.wait()
    if marks.code is not None:
        code = marks.code
    elif heard.number and code in {_SSH_FAILED, -heard.number}:
        return 128 + heard.number
    elif errors.words or marks.words:
        terminal.echo((errors.words or marks.words).rstrip(), err=True)
    if why := _fault(server, code):
        terminal.echo(f"gputui: error: {server.name}: {why}", err=True)
    elif words[0] == "doctor" and (told := marks.told() or errors.told()):
        terminal.echo(f"gputui: {server.name}: {SHELL_SAYS.format(told)}", err=True)
    return code if code >= 0 else 128 - code


def _pass_on(stream: IO[bytes] | None, to: int, marks: CommandMarks) -> None:
    """Pass on what a command there writes, without what its login shell writes around it."""
    assert stream is not None
    with stream, suppress(BrokenPipeError):
        while data := os.read(stream.fileno(), _PIECE):
            _write(to, marks.feed(data))
        _write(to, marks.rest())


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


class _Signals(Struct, eq=False):
    """Leaves Ctrl-C to the process, which hears it too, and passes on SIGTERM and SIGHUP."""

    process: subprocess.Popen[bytes] | None = None
    number: int = 0
    """Last signal; 0: none."""
    _before: Mapping[int, Any] = {}

    def __enter__(self) -> _Signals:
        def hear(number: int, _: object) -> None:
            self.number = number
            if number != signal.SIGINT and self.process is not None:
                self.process.send_signal(number)

        self._before = {number: signal.signal(number, hear) for number in _HEARD}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _argv(server: ServerSettings, words: Sequence[str], marks: CommandMarks, *, is_tty: bool) -> list[str]:
    from gputui.bootstrap import servers

    passed = {name: value for name in _PASSED if (value := terminal.environ().get(name))}
    return servers.command_on(server, words, passed, marks, is_tty=is_tty)


def _fault(server: ServerSettings, code: int) -> str:
    """Return why the command did not run there; empty if it did."""
    if server.address and code == _SSH_FAILED:
        from gputui.domain.settings import parse_ssh_address

        return f"`{parse_ssh_address(server.address, server.name).command}` must work without a question"
    if server.address and code == _NOT_FOUND:
        return f"there is no `{server.command}`: name its path as the server's command in [[servers]]"
    return ""


class _ServerOutput:
    """Output of a command on one of several servers."""

    def __init__(self, server: ServerSettings, code: int, out: bytes, err: bytes) -> None:
        self.name = server.name
        self.code = code
        self.out = out.decode(errors="replace")
        lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
        self.complaints = [plain(line.removeprefix("gputui: ").removeprefix("error: ")) for line in lines]
        if why := _fault(server, code):
            self.complaints.append(why)

    def rows(self) -> list[dict[str, Any]]:
        """Return the objects of output in JSON; the server's command may be a script that prints lines before it."""
        for start in re.finditer(r"^[\[{]", self.out, re.MULTILINE):
            with suppress(ValueError):
                told = json.loads(self.out[start.start() :])
                rows = told if isinstance(told, list) else [told]
                if all(isinstance(row, dict) for row in rows):
                    return rows
        if not self.code or not self.complaints:
            self.complaints.append(f"its output is no JSON: {plain(self.out, 60)!r}")
        self.code = self.code or 1
        return []


def _part(server: ServerSettings, words: Sequence[str]) -> _ServerOutput:
    marks = CommandMarks()
    argv = _argv(server, words, marks, is_tty=False)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 - ssh, or this command here
    errors = CommandMarks(key=marks.key)
    errors.has_begun = marks.has_begun
    out, err = marks.whole(done.stdout), errors.whole(done.stderr)
    if marks.code is None and server.address:
        told = (errors.words + marks.words).encode() + err
        return _ServerOutput(server, done.returncode or 1, out, told or b"its login shell did not run gputui")
    return _ServerOutput(server, done.returncode if marks.code is None else marks.code, out, err)
