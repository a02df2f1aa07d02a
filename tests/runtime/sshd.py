"""Private sshd on loopback or another machine, and an `ssh` command that knows it only by its configuration file."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.process_list import children

_SSHD = "/usr/sbin/sshd"
_PORT_ELSEWHERE = 2222
_SERVER = """Port {port}
ListenAddress {address}
HostKey {here}/host
AuthorizedKeysFile {here}/user.pub
PidFile {here}/pid
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv {environ}
"""
_CLIENT = """Host lab
    HostName {address}
    Port {port}
    User {user}
    IdentityFile {here}/user
    IdentitiesOnly yes
    UserKnownHostsFile {here}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ClearAllForwardings yes
Host moved
    HostName 127.0.0.1
    Port 1
Host nowhere
    HostName no-such-host.invalid
"""


class Sshd:
    """OpenSSH server on loopback; the host `lab` of the ssh command on `path`."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        shell: str = "",
        into: Sequence[str] = (),
        address: str = "127.0.0.1",
        within: Path = Path("/tmp"),
    ) -> None:
        """Start the server.

        Args:
            into: Words before a command that run it on another machine, in a child of its own, and
            address: what that machine has.
            within: Directory for its files, which both sides see.
            environ: Further environment of the commands that it runs. Their HOME is an empty directory: bash reads the
                start-up files of a user for each command over ssh, and those may start dozens of processes.
            shell: Program that runs each command by `-c`, as the user's login shell; without one it is hers.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="gputui-sshd-", dir=within))
        self._into, self._address = into, address
        self.port = _PORT_ELSEWHERE if into else _free_port()
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)]
            subprocess.run(words, check=True)
        words = [f"{name}={value}" for name, value in {"HOME": f"{self.directory}/home", **(environ or {})}.items()]
        facts = {
            "port": self.port,
            "address": address,
            "here": self.directory,
            "user": getpass.getuser(),
            "environ": " ".join(words),
        }
        (self.directory / "home").mkdir()
        forced = f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"\n' if shell else ""
        (self.directory / "sshd_config").write_text(_SERVER.format(**facts) + forced)
        (self.directory / "config").write_text(_CLIENT.format(**facts))
        self.trust(self.directory / "host.pub")
        command = self.directory / "bin" / "ssh"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.directory}/config "$@"\n')
        command.chmod(0o755)
        self.start()

    @property
    def path(self) -> str:
        """PATH with the ssh command first."""
        return f"{self.directory}/bin:{os.environ['PATH']}"

    def start(self) -> None:
        """Start the server and wait until it listens."""
        if not self._into:
            Path("/run/sshd").mkdir(exist_ok=True)
        words = [*self._into, _SSHD, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        path = self.directory / "log"
        with path.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while b"Server listening on" not in path.read_bytes()[begin:]:
            assert self.process.poll() is None, path.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def trust(self, key: Path) -> None:
        """Make the client accept only that host key."""
        kind, content = key.read_text().split()[:2]
        (self.directory / "known_hosts").write_text(f"[{self._address}]:{self.port} {kind} {content}\n")

    def sessions(self) -> list[int]:
        """Return the processes of the server that serve a connection each."""
        return children(self._listener)

    @property
    def _listener(self) -> int:
        return next(iter(children(self.process.pid)), self.process.pid) if self._into else self.process.pid

    def cut(self) -> None:
        """End every connection, as a failing network does."""
        for each in self._processes():
            with suppress(ProcessLookupError):  # a client may have left meanwhile
                os.kill(each, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and every connection, as a machine does that is switched off; `start` begins again."""
        found = self._processes()
        self._end()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> list[int]:
        """Stop the processes of every connection, which stays open and silent; returns them."""
        frozen = self._processes()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def _processes(self) -> list[int]:
        """Return the processes of every connection, each server first: it must tell nobody the end of its command."""
        return [each for pid in self.sessions() for each in (pid, *children(pid))]

    def close(self) -> None:
        """End the server and its connections, and remove its files."""
        self.cut()
        self._end()
        shutil.rmtree(self.directory)

    def _end(self) -> None:
        for pid in dict.fromkeys((self._listener, self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
