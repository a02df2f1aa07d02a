"""Commands on a login node, over one ssh connection that all commands share.

The user's ssh command is run, so ~/.ssh/config, agents, jump hosts and known hosts apply. It never prompts: it runs in
batch mode, and its first command opens the connection that the next ones use.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

_FAILED = 255
"""Exit code by which ssh says that it did not run the command."""
_LOGIN_WITHIN = 15
_LASTS = 120
"""Seconds that the connection stays open without a command."""


class SshConnection:
    """A multiplexed connection; made by its first command."""

    def __init__(self, host: str, port: int | None = None, options: tuple[str, ...] = ()) -> None:
        self.host = host
        self._port = port
        self._options = options
        self._directory: Path | None = None

    def argv(self, script: str) -> list[str]:
        """Return the command that runs lines of sh there; the user's login shell there may be any."""
        return [*self._ssh(), "--", self.host, "sh -c " + shlex.quote(script)]

    def fault(self, words: str, code: int) -> str:
        """Return why ssh did not run the command; empty if it did."""
        if code != _FAILED:
            return ""
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        told = lines[-1] if lines else "the connection was cut"
        return f"{told}; `ssh {self.host}` must work without a password"

    def close(self) -> None:
        """End the connection."""
        if self._directory is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*self._ssh(), "-O", "exit", "--", self.host], capture_output=True, timeout=5, check=False)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def _ssh(self) -> list[str]:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gputui-ssh-"))  # short: paths of sockets are
        options = {
            "BatchMode": "yes",
            "ControlMaster": "auto",
            "ControlPath": f"{self._directory}/%C",
            "ControlPersist": str(_LASTS),
            "ConnectTimeout": str(_LOGIN_WITHIN),
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
        }
        named = [f"-o{name}={value}" for name, value in options.items()]
        port = ["-p", str(self._port)] if self._port else []
        return ["ssh", "-T", *named, *port, *self._options]
