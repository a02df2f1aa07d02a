"""Commands on a login node, over one ssh connection that all commands share.

The user's ssh command is run, so ~/.ssh/config, agents, jump hosts and known hosts apply. It never prompts: it runs in
batch mode, and its first command opens the connection that the next ones use.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FAILED = 255
"""Exit code by which ssh says that it did not run the command."""
_LOGIN_WITHIN = 15
_LONGEST_RUNTIME = 30
"""Characters of a runtime directory: with the socket's own name a path may have about 100."""
_CHANGED = re.compile(r"[\\'!\n]")
_DECODE = """sh -c 'eval "$(printf %b "$1")"' sh"""
_LASTS = 120
"""Seconds that the connection stays open without a command."""


class SshConnection:
    """A multiplexed connection; made by its first command.

    All processes of the user share it by a socket in her runtime directory, and it ends when it is idle; where the
    system has no such directory, it is this process's own and ends with it.
    """

    def __init__(
        self,
        host: str,
        port: int | None = None,
        runtime: Path | None = None,
        name: str = "",
        *,
        is_compressed: bool = False,
    ) -> None:
        """`name` tells this connection from others to the same host; commands share the one without a name."""
        self.host = host
        self._port = port
        self._name = name
        self._is_compressed = is_compressed
        self._shared = runtime / "gputui" if runtime is not None else None
        self._directory: Path | None = None

    def argv(self, script: str, *, is_tty: bool = False) -> list[str]:
        """Return the command that runs lines of sh there; the user's login shell there may be any.

        What csh or fish would change within quotes is written as numbers.

        With `is_tty` it gets a terminal, of which ssh takes no key for itself.
        """
        terminal = ["-tt", "-oEscapeChar=none", "-oLogLevel=ERROR"] if is_tty else ["-T"]
        coded = _CHANGED.sub(lambda match: f"\\0{ord(match[0]):03o}", script)
        return [*self._ssh(), *terminal, "--", self.host, f"{_DECODE} '{coded}'"]

    def fault(self, words: str, code: int) -> str:
        """Return why ssh did not run the command; empty if it did."""
        if code != _FAILED:
            return ""
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        told = lines[-1] if lines else "the connection was cut"
        return f"{told}; `ssh {self.host}` must work without a password"

    def opened(self) -> str:
        """Open the connection unless it is open, so that commands started at once share it; return why it is not."""
        if self._run("-O", "check").returncode == 0:
            return ""
        done = self._run("-n", command=["true"])
        return self.fault(done.stderr.decode(errors="replace"), done.returncode)

    def _run(self, *options: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
        words = [*self._ssh(), "-T", *options, "--", self.host, *command]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(words, capture_output=True, timeout=_LOGIN_WITHIN + 5, check=False)
        return subprocess.CompletedProcess(words, _FAILED, b"", b"it does not answer")

    def close(self) -> None:
        """End the connection, unless others may use it."""
        if self._directory is None or self._shared is not None:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*self._ssh(), "-O", "exit", "--", self.host], capture_output=True, timeout=5, check=False)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def _ssh(self) -> list[str]:
        self._directory = self._directory or self._made_directory()
        options = {
            "BatchMode": "yes",
            "ControlMaster": "auto",
            "ControlPath": f"{self._directory}/%C{self._name}",
            "ControlPersist": str(_LASTS),
            "ConnectTimeout": str(_LOGIN_WITHIN),
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            **({"Compression": "yes"} if self._is_compressed else {}),
        }
        named = [f"-o{name}={value}" for name, value in options.items()]
        port = ["-p", str(self._port)] if self._port else []
        return ["ssh", *named, *port]

    def _made_directory(self) -> Path:
        """Return the directory of the socket, whose path has to be short."""
        if self._shared is not None:
            self._shared.mkdir(mode=0o700, exist_ok=True)
            return self._shared
        atexit.register(self.close)
        return Path(tempfile.mkdtemp(prefix="gputui-ssh-"))


def runtime_directory(environ: Mapping[str, str]) -> Path | None:
    """Return the user's runtime directory if it is there, hers and short enough for sockets."""
    path = Path(environ.get("XDG_RUNTIME_DIR", "").strip() or "/nonexistent")
    with contextlib.suppress(OSError):
        if path.is_absolute() and len(str(path)) <= _LONGEST_RUNTIME and path.stat().st_uid == os.getuid():
            return path
    return None
