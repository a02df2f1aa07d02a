"""One ssh connection per remote engine, whose UNIX socket on this machine leads to the engine's.

The user's ssh command makes it, so ~/.ssh/config, agents, jump hosts and known hosts count. It can never ask anything:
it runs in batch mode in a session of its own, without a terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from gputui.domain.errors import RuntimeUnavailableError
from gputui.runtime.ssh_target import Target
from gputui.runtime.ssh_words import explain

LOGIN_WITHIN = 20.0
"""Seconds that ssh may take to log in."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two logins after one that failed or did not last."""
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


class _Login:
    """An ssh process, run and reaped by a thread of its own."""

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
        # the kernel tells ssh of the end of this very thread, so it must be the one that waits
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
    """Keeps one ssh connection to a host, and connects again when it was lost."""

    def __init__(self, url: str) -> None:
        self.target = Target.of(url)
        self._lock = threading.Lock()
        self._login: _Login | None = None
        self._directory: Path | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._last_error: RuntimeUnavailableError | None = None

    def socket_path(self) -> str:
        """Return the path of the socket that leads to the engine, connecting if need be. Raises RuntimeFault.

        After a login that failed others wait for the end of a pause: servers lock out who knocks too often.
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
        """Return what a command prints there, over the same connection; None when it cannot be run."""
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
        """Return what ssh said since that monotonic time, as an error; None when it said nothing."""
        login = self._login
        if login is None:
            return None
        login.is_over.wait(0.2)  # ssh says why after the connection has gone
        lines = [line for at, line in tuple(login.lines) if at >= since]
        return explain(self.target, lines) if lines else None

    def close(self) -> None:
        """End the connection."""
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
        """Judge the connection that ended: after one that lasted the next is made at once."""
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
    """Return the words before a command that end it with this process, however that ends; none where there are none."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "TERM", "--"] if found and _knows_pdeathsig(found) else []


@functools.cache
def _knows_pdeathsig(setpriv: str) -> bool:
    """Return whether it has the option: util-linux before 2.33 and busybox have not."""
    try:
        told = subprocess.run(
            [setpriv, "--help"], capture_output=True, stdin=subprocess.DEVNULL, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--pdeathsig" in told.stdout + told.stderr


def _private_directory() -> Path:
    """Make a directory for sockets: its path is short, since a socket's may have 107 bytes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (runtime, tempfile.gettempdir(), "/tmp"):
        if parent and len(parent) <= 60:
            with contextlib.suppress(OSError):
                _sweep(Path(parent))
                made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
                (made / "pid").write_text(str(os.getpid()))
                return made
    raise RuntimeUnavailableError("there is no directory for the socket of an ssh connection", hint="set TMPDIR=/tmp")


def _sweep(parent: Path) -> None:
    """Remove directories of this user's processes that were killed before they could."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            is_mine = directory.lstat().st_uid == os.geteuid() and not directory.is_symlink()
            if is_mine and not Path("/proc", str(int((directory / "pid").read_text()))).exists():
                shutil.rmtree(directory)


class Tunnels:
    """The tunnels of this process: one per address, shared by all who use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[Tunnel, int]] = {}

    def take(self, url: str) -> Tunnel:
        """Return the tunnel to that address; give it back."""
        with self._lock:
            tunnel, count = self._used.get(url) or (Tunnel(url), 0)
            self._used[url] = (tunnel, count + 1)
            return tunnel

    def give_back(self, url: str) -> None:
        """Close the tunnel when nobody uses it any more."""
        with self._lock:
            tunnel, count = self._used.pop(url)
            if count > 1:
                self._used[url] = (tunnel, count - 1)
                return
        tunnel.close()

    def close(self) -> None:
        """Close all of them: the process ends."""
        with self._lock:
            tunnels, self._used = [tunnel for tunnel, _ in self._used.values()], {}
        for tunnel in tunnels:
            tunnel.close()


TUNNELS = Tunnels()
atexit.register(TUNNELS.close)
