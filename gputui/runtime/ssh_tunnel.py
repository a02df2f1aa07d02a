"""ssh tunnels to remote engines: one connection per engine, forwarding a local UNIX socket to the engine's.

The user's ssh command is run, so ~/.ssh/config, agents, jump hosts and known hosts apply. It never prompts: it runs in
batch mode, in its own session, without a terminal. Its messages are translated into errors with advice.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from gputui.domain.errors import RuntimeUnavailableError

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .*has changed",
        "the host key of {host} has changed: another machine answers, or it was reinstalled",
        "if that is expected: `{forget}`, then `{command}` once, and compare the new key",
    ),
    (
        r"Host key verification failed|host key is known",
        "{host} is not a known host: its key was never accepted",
        "`{command}` once, and compare its key",
    ),
    (
        r"Permission denied",
        "{host} refused the login: {line}",
        "`{command}` must work without a password: `ssh-copy-id`, or `ssh-add` for a key with a passphrase",
    ),
    (
        r"Too many authentication failures",
        "{host} refused the login: {line}",
        "name the key: IdentityFile and IdentitiesOnly in ~/.ssh/config",
    ),
    (r"Could not resolve hostname", "{line}", "check the name in the address, and Host and HostName in ~/.ssh/config"),
    (
        r"Connection refused",
        "nothing answers there: {line}",
        "is sshd running on {host}, and is the Port in ~/.ssh/config right?",
    ),
    (
        r"timed out|took too long|No route to host|unreachable|not responding",
        "{host} does not answer: {line}",
        "is it up, and is the network? Try `{command}`",
    ),
    (
        r"Broken pipe|Connection (closed|reset)|kex_exchange_identification",
        "the connection to {host} was cut: {line}",
        "gputui reconnects by itself; check the network, and sshd on {host}",
    ),
    (
        r"administratively prohibited|forwarding (is )?(disabled|request failed)",
        "sshd on {host} forbids forwarding to a socket",
        "set AllowStreamLocalForwarding yes in its sshd_config",
    ),
    (
        r"open failed",
        "the Docker socket {socket} on {host} cannot be opened: it is not there, or the login may not use it",
        "`{command} docker ps` must work; name another socket in the address: ssh://{host}/run/user/UID/docker.sock",
    ),
)
_FORGET = re.compile(r"ssh-keygen -f .* -R .*")
REMOTE_SOCKET = "/var/run/docker.sock"
LOGIN_WITHIN = 20.0
"""Seconds that ssh may take to log in."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Shortest and longest pause in seconds before a login after one that failed or did not last."""
_LASTS = 10.0
"""Seconds after which a connection counts as established."""
_KEPT_LINES = 40
_PREFIX = "gputui-ssh-"
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "3",  # after two misses a silent line is given up: within 10 s
    "ServerAliveCountMax": "2",
    "TCPKeepAlive": "yes",
    "ExitOnForwardFailure": "no",  # forwards of the user's configuration may be taken by another ssh
    "StreamLocalBindMask": "0177",
    "StreamLocalBindUnlink": "yes",
    "ControlMaster": "yes",
    "ControlPersist": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "INFO",
}


def explain(target: SshTarget, lines: Sequence[str]) -> RuntimeUnavailableError:
    """Return the error for the messages of an ssh process, with a command that fixes the problem."""
    told = [line.strip() for line in lines if line.strip()]
    forget = next((found[0] for line in told if (found := _FORGET.search(line))), f"ssh-keygen -R {target.host}")
    for pattern, sentence, hint in _KNOWN:
        line = next((line for line in reversed(told) if re.search(pattern, line)), None)
        if line is not None:
            facts = {"host": target.host, "socket": target.socket, "command": target.command}
            facts |= {"line": line, "forget": forget.strip()}
            return RuntimeUnavailableError(f"ssh: {sentence.format(**facts)}", hint=hint.format(**facts))
    last = told[-1] if told else "it ended without a message"
    return RuntimeUnavailableError(f"ssh to {target.host} failed: {last}", hint=f"try `{target.command}`")


class SshTarget(Struct, frozen=True):
    """Parts of an ssh:// URL, as written."""

    host: str
    user: str | None = None
    port: str | None = None
    socket: str = REMOTE_SOCKET

    @classmethod
    def from_url(cls, url: str) -> SshTarget:
        """Return the parts of `ssh://[user@]host[:port][/path/of/docker.sock]`. Raises RuntimeUnavailableError."""
        place, slash, path = url.removeprefix("ssh://").partition("/")
        user, at, rest = place.rpartition("@")
        if rest.startswith("["):
            host, _, tail = rest[1:].partition("]")
            port = tail.removeprefix(":")
        else:
            host, _, port = rest.partition(":")
        is_sound = host and not host.startswith("-") and not user.startswith("-") and ":" not in user
        if not is_sound or (port and not port.isdigit()):
            raise RuntimeUnavailableError(f"{url!r} is not an ssh address", hint="use ssh://user@host")
        socket = slash + path if path.strip("/") else REMOTE_SOCKET
        return cls(host, unquote(user) if at else None, port or None, unquote(socket))

    @property
    def words(self) -> tuple[str, ...]:
        """ssh arguments for the target. Without a port in the URL, the user's configuration decides."""
        user = ("-l", self.user) if self.user else ()
        port = ("-p", self.port) if self.port else ()
        return (*user, *port, "--", self.host)

    @property
    def command(self) -> str:
        """ssh command with which a user can try the connection."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}{self.user + '@' if self.user else ''}{self.host}"


class _Login:
    """ssh process, run and reaped by its own thread."""

    def __init__(self, words: list[str], environ: dict[str, str]) -> None:
        self._words = words
        self._environ = environ
        self.begun_at = time.monotonic()
        self.is_over = threading.Event()
        self.lines: deque[tuple[float, str]] = deque(maxlen=_KEPT_LINES)
        """Lines that ssh printed, each with its monotonic time."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_unwanted = False
        self._thread = threading.Thread(target=self._run, name="ssh-tunnel", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # setpriv's parent-death signal follows this thread, so the same thread must wait for ssh
        try:
            with self._lock:
                if self._is_unwanted:
                    return
                self._process = subprocess.Popen(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=self._environ,
                    start_new_session=True,
                )
            with self._process as process:
                for line in process.stderr or ():
                    self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))
        except OSError as error:
            self.lines.append((time.monotonic(), f"cannot run ssh: {error}"))
        finally:
            self.is_over.set()

    def end(self) -> None:
        """End the process and wait for it."""
        with self._lock:
            self._is_unwanted = True
            if self._process and self._process.poll() is None:
                self._process.terminate()
        if not self.is_over.wait(2) and self._process:
            self._process.kill()
            self.is_over.wait(2)


class Tunnel:
    """ssh connection to one host, which reconnects after a loss."""

    def __init__(self, url: str) -> None:
        self.target = SshTarget.from_url(url)
        self._lock = threading.Lock()
        self._login: _Login | None = None
        self._directory: Path | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._last_error: RuntimeUnavailableError | None = None

    def socket_path(self) -> str:
        """Return the path of the forwarded socket, connecting if necessary. Raises RuntimeFault.

        After a failed login further ones wait for a pause, because servers lock out clients that retry too often.
        """
        with self._lock:
            if self._login and not self._login.is_over.is_set() and self._socket.exists():
                return str(self._socket)
            self._note_loss()
            if self._last_error and time.monotonic() < self._not_before:
                raise RuntimeUnavailableError(self._last_error.what, hint=self._last_error.hint)
            self._connect()
            return str(self._socket)

    def run(self, *words: str, within: float = 10.0) -> str | None:
        """Return the output of a command on the host, over the same connection; None if it failed."""
        if self._directory is None:
            return None
        ssh = [*self._ssh(), "-n", "-T", *self._options(ControlMaster="no"), *self.target.words, *words]
        try:
            done = subprocess.run(
                ssh, capture_output=True, stdin=subprocess.DEVNULL, timeout=within, start_new_session=True, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode(errors="replace") if done.returncode == 0 else None

    def fault(self, since: float) -> RuntimeUnavailableError | None:
        """Return ssh's messages since that monotonic time as an error; None without messages."""
        login = self._login
        if login is None:
            return None
        login.is_over.wait(0.2)  # ssh prints the reason after the connection has ended
        lines = [line for at, line in tuple(login.lines) if at >= since]
        return explain(self.target, lines) if lines else None

    def close(self) -> None:
        """End the connection and remove its sockets."""
        with self._lock:
            if self._login:
                self._login.end()
            self._login = None
            if self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def _socket(self) -> Path:
        return (self._directory or Path()) / "d"

    def _connect(self) -> None:
        """Log in and wait for the socket."""
        self._directory = self._directory or _private_directory()
        for name in ("d", "c"):
            (self._directory / name).unlink(missing_ok=True)
        forward = f"{self._socket}:{self.target.socket}"
        options = self._options(ControlMaster="yes")
        words = [*_bound_to_us(), *self._ssh(), "-nNT", *options, "-L", forward, *self.target.words]
        login = self._login = _Login(words, {**os.environ, "SSH_ASKPASS_REQUIRE": "never"})
        deadline = time.monotonic() + LOGIN_WITHIN
        while not self._socket.exists():
            if login.is_over.wait(0.02) or time.monotonic() > deadline:
                is_late = not login.is_over.is_set()
                login.end()
                lines = [line for _, line in login.lines] or ["the login took too long" if is_late else "ssh ended"]
                raise self._failed(explain(self.target, lines))
        self._last_error = None

    def _failed(self, error: RuntimeUnavailableError) -> RuntimeUnavailableError:
        self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause
        self._last_error = error
        return error

    def _note_loss(self) -> None:
        """Handle the end of the connection; after a lasting one, reconnect at once."""
        login, self._login = self._login, None
        if login is None or self._last_error:
            return
        login.end()
        if time.monotonic() - login.begun_at > _LASTS:
            self._pause = 0.0
            return
        lines = [line for _, line in login.lines] or ["the connection was lost"]
        self._failed(explain(self.target, lines))

    def _options(self, **changed: str) -> list[str]:
        settings = {**_OPTIONS, "ControlPath": str((self._directory or Path()) / "c"), **changed}
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def _ssh(self) -> list[str]:
        found = shutil.which("ssh")
        if found is None:
            raise RuntimeUnavailableError(
                f"the ssh command is not installed, and {self.target.host} is reached by it",
                hint="install the package openssh-client",
            )
        return [found]


def _bound_to_us() -> list[str]:
    """Return a command prefix that ends ssh together with this process; empty without setpriv."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "TERM", "--"] if found and _knows_pdeathsig(found) else []


@functools.cache
def _knows_pdeathsig(setpriv: str) -> bool:
    """Return whether setpriv has the option: util-linux before 2.33 and busybox do not."""
    try:
        told = subprocess.run(
            [setpriv, "--help"], capture_output=True, stdin=subprocess.DEVNULL, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--pdeathsig" in told.stdout + told.stderr


def _private_directory() -> Path:
    """Create a directory for sockets with a short path: socket paths are limited to 107 bytes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (runtime, tempfile.gettempdir(), "/tmp"):
        if parent and len(parent) <= 60:
            with contextlib.suppress(OSError):
                _remove_stale(Path(parent))
                made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
                (made / "pid").write_text(str(os.getpid()))
                return made
    raise RuntimeUnavailableError("there is no directory for the socket of an ssh connection", hint="set TMPDIR=/tmp")


def _remove_stale(parent: Path) -> None:
    """Remove directories left by this user's killed processes."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            is_mine = directory.lstat().st_uid == os.geteuid() and not directory.is_symlink()
            if is_mine and not Path("/proc", str(int((directory / "pid").read_text()))).exists():
                shutil.rmtree(directory)


class Tunnels:
    """Tunnels of this process: one per address, shared and counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[Tunnel, int]] = {}

    def acquire(self, url: str) -> Tunnel:
        """Return the tunnel to that address; every call needs a `release`."""
        with self._lock:
            tunnel, count = self._used.get(url) or (Tunnel(url), 0)
            self._used[url] = (tunnel, count + 1)
            return tunnel

    def release(self, url: str) -> None:
        """Close the tunnel after its last release."""
        with self._lock:
            tunnel, count = self._used.pop(url)
            if count > 1:
                self._used[url] = (tunnel, count - 1)
                return
        tunnel.close()

    def close(self) -> None:
        """Close all tunnels, at the end of the process."""
        with self._lock:
            tunnels, self._used = [tunnel for tunnel, _ in self._used.values()], {}
        for tunnel in tunnels:
            tunnel.close()


TUNNELS = Tunnels()


atexit.register(TUNNELS.close)
