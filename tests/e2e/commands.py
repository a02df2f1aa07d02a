"""Commands as forks of one process that has imported gputui: a start takes milliseconds instead of half a second.

Each runs the same `main` as the `gputui` program, in a process of its own, with its own environment and streams.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

Account = tuple[int, int, list[int]]
"""User id, group id and supplementary groups."""


class Commands:
    """Starts the process when the first command is run; `into` are words before it, such as those of nsenter."""

    def __init__(self, into: Sequence[str] = ()) -> None:
        self._into = into
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        stdin: bytes,
        timeout: float,
        *,
        cwd: Path | None = None,
        account: Account | None = None,
        code: str = "",
    ) -> tuple[int, bytes, bytes]:
        """Run a gputui command, or Python code with these arguments; its exit code, stdout and stderr.

        Raises TimeoutError.
        """
        server = self._start()
        with tempfile.TemporaryDirectory(dir=server.parent) as streams, socket.socket(socket.AF_UNIX) as channel:
            (Path(streams) / "0").write_bytes(stdin)
            channel.settimeout(timeout)
            channel.connect(str(server))
            asked = {
                "words": list(words),
                "environ": dict(environ),
                "cwd": str(cwd or Path.cwd()),
                "streams": streams,
                "account": account,
                "code": code,
            }
            channel.sendall(json.dumps(asked).encode() + b"\n")
            answer = channel.makefile().readline()
            assert answer, f"gputui {' '.join(words)} ended without an exit code"
            return int(answer), (Path(streams) / "1").read_bytes(), (Path(streams) / "2").read_bytes()

    def _start(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="commands"))
            path = self._directory / "socket"
            here = ["env", "-C", str(Path(__file__).parents[2])]  # nsenter changes the directory
            self._process = subprocess.Popen(
                [*self._into, *here, sys.executable, "-m", "tests.e2e.commands", str(path)],
                stdout=subprocess.PIPE,
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n"
        return self._directory / "socket"

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._directory is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            shutil.rmtree(self._directory)
            self._process = self._directory = None


class _Handler(socketserver.StreamRequestHandler):
    """Handler that runs one command in the process forked for it."""

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT), (2, os.O_WRONLY | os.O_CREAT)):
            fd = os.open(f"{asked['streams']}/{number}", flags, 0o600)
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["cwd"])
        if asked["account"] is not None:  # only now: the directories of the interpreter may be closed to it
            _become(*asked["account"])
        sys.argv = ["gputui", *asked["words"]]
        self.wfile.write(b"%d\n" % _exit_code(asked["code"]))


def _become(uid: int, gid: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def _exit_code(source: str) -> int:
    from gputui.__main__ import main

    code = 0
    try:
        exec(source, {"__name__": "__main__"}) if source else main()  # noqa: S102 - the text of a document of ours
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _serve(path: str) -> None:
    import gputui

    for module in pkgutil.walk_packages(gputui.__path__, "gputui."):
        if module.name.split(".")[1] in _PACKAGES and module.name not in _OF_CONSOLES:
            importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)
    _Server(path, _Handler).serve_forever()


_PACKAGES = frozenset({"cli", "cluster", "config", "domain", "engine", "request", "store"})
_OF_CONSOLES = frozenset(f"gputui.cli.{name}" for name in ("console", "painted", "reopening", "web"))
"""Modules of the console, which no command here opens."""
_LATE = (
    "apscheduler.executors.asyncio",
    "apscheduler.executors.pool",
    "apscheduler.schedulers.asyncio",
    "apscheduler.triggers.date",
    "apscheduler.triggers.interval",
    "concurrent.futures.thread",
    "docker.errors",
    "gputui.api.streams",
    "gputui.bootstrap",
    "gputui.gpus.simulated",
    "gputui.runtime.docker.job_exec",
    "gputui.runtime.docker.runtime",
    "gputui.runtime.docker.transport",
    "gputui.runtime.process.job_exec",
    "gputui.runtime.process.runtime",
    "gputui.ports.runtime",
    "json",
    "requests.exceptions",
    "shlex",
    "socket",
    "tomllib",
    "zoneinfo",
)
"""Modules that are imported as late as they are needed, when an account may no longer read them."""


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    max_children = 200

    def server_activate(self) -> None:
        super().server_activate()
        print("ready", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
