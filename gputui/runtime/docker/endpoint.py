"""Address and TLS files of the engine, with the precedence of the docker command."""

from __future__ import annotations

import atexit
import errno
import json
import math
import os
import re
import resource
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import InputError, RuntimeUnavailableError
from gputui.domain.kept_data import EngineRecord
from gputui.domain.settings import RuntimeSettings, parse_ssh_address
from gputui.domain.text import last_line, plain
from gputui.thin import SERVICE_SOCKET

DEFAULT_URL = "unix:///var/run/docker.sock"
_UNIX = ("unix://", "http+unix://")
_TCP = ("tcp://", "http://", "https://")
_SSH = "ssh://"
_CONTEXT_HINT = "`docker context ls` lists the contexts"


class TlsFiles(Struct, frozen=True):
    """TLS files for a TCP connection to the engine; each path may be None."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verifies: bool = True
    """True if the engine's certificate is checked."""
    directory: Path | None = None
    """Directory in which they were looked for."""


class Endpoint(Struct, frozen=True):
    """Address of the engine."""

    url: str
    tls: TlsFiles | None = None
    context: str = ""
    """Name of the docker context that chose it; empty: none did."""

    @property
    def words(self) -> str:
        return f"{self.url} (docker context {self.context})" if self.context else self.url

    @property
    def socket_path(self) -> str | None:
        """Path of the UNIX socket; None for an engine that is reached in another way."""
        if not self.url.startswith(_UNIX):
            return None
        return "/" + self.url.partition("://")[2].lstrip("/")

    @property
    def is_ssh(self) -> bool:
        return self.url.startswith(_SSH)

    @property
    def may_be_elsewhere(self) -> bool:
        """Return whether the engine may be on another machine, as far as that can be told without asking it."""
        return not self.socket_path or forwards_elsewhere(self.socket_path)


_FORWARDERS = {"ssh", "sshd", "autossh", "socat", "kubectl"}
"""Commands that listen at a local socket for a remote engine."""


def forwards_elsewhere(socket_path: str) -> bool:
    """Return whether what listens at the socket is known to forward it, and is no engine."""
    with suppress(OSError):
        pid = listening_pid(socket_path)
        return Path(f"/proc/{pid}/comm").read_text().strip() in _FORWARDERS
    return False


def listening_pid(path: str) -> int | None:
    """Return the process that listens at the socket; None when it is not visible here."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid) or None
    return None


_recorded: dict[str, str] = {}
"""Variables that name the engine of the queue's record; not in the environment, which jobs may be given."""


def environment() -> dict[str, str]:
    """Return the environment of a process that is to reach the same engine as this one."""
    return {**os.environ, **_recorded}


RECORDED: dict[str, Path] = {}
"""Files that named this process its engine, by the engine's address."""


def find_endpoint(settings: RuntimeSettings) -> Endpoint:
    """Return the engine's address: the setting, else DOCKER_HOST, else the docker context. Raises RuntimeFault."""
    if settings.docker_host:
        return _checked(settings.docker_host, "the setting runtime.docker_host", _environment_tls)
    if host := environment().get("DOCKER_HOST"):
        return _checked(host, "DOCKER_HOST", _environment_tls)
    name = _context()
    return Endpoint(DEFAULT_URL) if name == "default" else _of_context(name)


def _context() -> str:
    chosen = environment().get("DOCKER_CONTEXT") or _read_json(config_directory() / "config.json").get("currentContext")
    return str(chosen or "default")


def keep_context() -> None:
    """Keep the present docker context for this process and its children: images are pulled where the jobs run."""
    with suppress(RuntimeUnavailableError):
        if not _recorded:
            os.environ["DOCKER_CONTEXT"] = _context()


def use_recorded(engine: EngineRecord, path: Path) -> None:
    """Use the engine of a queue in this process, unless the environment or a context names one."""
    with suppress(RuntimeUnavailableError):
        if environment().get("DOCKER_HOST") or environment().get("DOCKER_CONTEXT") or _context() != "default":
            return
        found = {}
        if engine.address != DEFAULT_URL:
            # empty ones hide those of the environment, which are for another engine
            found = {"DOCKER_HOST": engine.address, "DOCKER_TLS": "", "DOCKER_TLS_VERIFY": ""}
        if engine.certificates:
            found["DOCKER_CERT_PATH"] = engine.certificates
            found["DOCKER_TLS_VERIFY" if engine.verifies else "DOCKER_TLS"] = "1"
        if engine.context:
            with suppress(RuntimeUnavailableError):  # it may be gone, or lead elsewhere by now
                if _of_context(engine.context).url == engine.address:
                    found = {"DOCKER_CONTEXT": engine.context}
        if found:
            _recorded.update(found)
            RECORDED[engine.address] = path


def _checked(url: str, source: str, tls: Any) -> Endpoint:
    url = url.strip()
    if url == "unix://":
        url = DEFAULT_URL
    if "://" not in url:
        url = f"unix://{url}" if url.startswith("/") else f"tcp://{url}"
    if url.startswith(_TCP):
        found = tls()
        return Endpoint(url, found or (TlsFiles() if url.startswith("https://") else None))
    if not url.startswith((*_UNIX, _SSH)):
        raise RuntimeUnavailableError(
            f"{source} is {url!r}, which is not an address of an engine",
            hint="use unix:///path, tcp://host:port or ssh://user@host",
        )
    return Endpoint(url)


def config_directory() -> Path:
    given = os.environ.get("DOCKER_CONFIG")
    return Path(given) if given else Path.home() / ".docker"


MAX_SETTINGS = 16 * 1024**2
"""Maximum size in bytes of a file of the docker command; a larger one is something else."""


def read_settings(path: Path) -> bytes:
    """Return the contents of a file of the docker command; raises OSError, also for one that is too large."""
    with path.open("rb") as file:
        content = file.read(MAX_SETTINGS + 1)
    if len(content) > MAX_SETTINGS:
        raise OSError(errno.EFBIG, "it is larger than 16 MiB", str(path))
    return content


def _environment_tls() -> TlsFiles | None:
    """Return the TLS files of DOCKER_TLS, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH.

    As with the docker command, any non-empty value enables TLS, and DOCKER_CERT_PATH alone does not.
    """
    environ = environment()
    verifies = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not verifies and not environ.get("DOCKER_TLS"):
        return None
    given = environ.get("DOCKER_CERT_PATH")
    if given and not Path(given).is_dir():
        what = f"DOCKER_CERT_PATH is {given}, which is no directory"
        raise RuntimeUnavailableError(what, hint="it needs ca.pem, cert.pem and key.pem for the engine's TLS")
    return _files_in(Path(given) if given else config_directory(), verifies)


def _files_in(directory: Path, verifies: bool) -> TlsFiles:
    ca, certificate, key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    if certificate.exists() != key.exists():
        missing = key if certificate.exists() else certificate
        raise RuntimeUnavailableError(f"{missing} is missing, and TLS needs it", hint="see DOCKER_CERT_PATH")
    has_pair = certificate.exists()
    return TlsFiles(
        ca=ca if ca.exists() else None,
        certificate=certificate if has_pair else None,
        key=key if has_pair else None,
        verifies=verifies,
        directory=directory.absolute(),
    )


def _of_context(name: str) -> Endpoint:
    import hashlib  # loads OpenSSL, for which no reading of local GPUs waits

    contexts = config_directory() / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = contexts / "meta" / key / "meta.json"
    if not meta.exists():
        raise RuntimeUnavailableError(f"there is no docker context {name!r}", hint=_CONTEXT_HINT)
    docker = _table(_table(_read_json(meta).get("Endpoints")).get("docker"))
    if not docker.get("Host"):
        raise RuntimeUnavailableError(f"the docker context {name!r} names no host", hint=_CONTEXT_HINT)
    files, skips = contexts / "tls" / key / "docker", bool(docker.get("SkipTLSVerify"))

    def tls() -> TlsFiles | None:
        has_files = files.is_dir() and any(files.iterdir())
        return _files_in(files, not skips) if has_files or skips else None

    return replace(_checked(str(docker["Host"]), f"docker context {name!r}", tls), context=name)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_settings(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RuntimeUnavailableError(
            f"cannot read {path}: {error}", hint="repair it, or name the engine: DOCKER_HOST"
        ) from error
    return _table(found)


def _table(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


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
        "the Docker socket {socket} on {host} cannot be opened: it is missing, closed to the login, or not forwarded",
        (
            "`{command} docker ps` must work, and sshd_config have AllowStreamLocalForwarding yes; "
            "name another socket in the address: ssh://{host}/run/user/UID/docker.sock"
        ),
    ),
)
_FORGET = re.compile(r"ssh-keygen -f .* -R .*")
LOGIN_WITHIN = 20.0
"""Seconds that ssh may take to log in."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Shortest and longest pause in seconds before a login after one that failed or did not last."""
_AWAY_PAUSE, _AWAY_SHARE = 5.0, 12
"""Longest pause for a host behind a cut line: these seconds, and later this part of the time since it was there."""
_AWAY = r"timed out|took too long|No route to host|unreachable|not responding|Connection refused|Could not resolve"
_LASTS = 10.0
"""Seconds after which a connection counts as established."""
_RECENT = 5.0
"""Seconds for which what ssh said may be the reason of a failed call."""
_KEPT_LINES = 40
_MOST_SAID = 16 * 1024**2
"""Maximum size of a file that ssh writes; a host that says more than that in its login fills no disk with it."""
_OPTIONS = (
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=3",  # after two misses a silent line is given up: within 10 s
    "-oServerAliveCountMax=2",
    "-oExitOnForwardFailure=no",  # forwards of the user's configuration may be taken by another ssh
    "-oControlPersist=no",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
    "-oClearAllForwardings=no",
    "-oLogLevel=INFO",
)
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMED = re.compile(rb"[0-9a-f-]{36}\n(\S+)$", re.MULTILINE)
"""Boot id and name of the machine, as the command below tells them."""
_SERVICE = b"has a service\n"
_HAS_SERVICE = f"test -S {SERVICE_SOCKET} && echo {_SERVICE.decode().strip()}"
_COMMAND = f"cat {_BOOT_ID}; uname -n; {_HAS_SERVICE}; echo end; exec cat"
"""Command of the login: it names the machine, and ends with its input, so with this process, however that ends."""
TOLD_WITHIN = 10.0
"""Seconds after the login within which that is told; a forced command may never tell it."""


class Tunnel:
    """ssh connection to one host, which reconnects after a loss."""

    def __init__(self, url: str) -> None:
        """`url` is `ssh://[user@]host[:port][/path/of/docker.sock]`. Raises RuntimeUnavailableError."""
        place, slash, path = url.removeprefix("ssh://").partition("/")
        place = place.replace("@", "%40", place.count("@") - 1)  # a user may be one of a domain
        try:
            address = parse_ssh_address(f"ssh://{place}", "")
        except InputError as error:
            raise RuntimeUnavailableError(f"{url!r} is not an ssh address", hint="use ssh://user@host") from error
        self._address = replace(address, user=unquote(address.user))
        self._remote = unquote(slash + path) if path.strip("/") else "/var/run/docker.sock"
        self._lock = threading.Lock()
        self._login: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._begun_at = self._pause = self._not_before = 0.0
        self._lost_at = -math.inf
        """Second at which a connection that had lasted was found to be lost."""
        self._last_error: RuntimeUnavailableError | None = None

    def socket_path(self) -> str:
        """Return the path of the forwarded socket, connecting if necessary. Raises RuntimeUnavailableError.

        After a failed login further ones wait for a pause, because servers lock out clients that retry too often.
        """
        with self._lock:
            if self._login is not None:
                if self._login.poll() is None and self._file("d").exists():
                    return str(self._file("d"))
                self._end()
                if time.monotonic() - self._begun_at > _LASTS:
                    self._pause, self._lost_at = 0.0, time.monotonic()
                else:
                    self._failed("the connection was lost")
            if self._last_error and time.monotonic() < self._not_before:
                raise RuntimeUnavailableError(self._last_error.what, hint=self._last_error.hint)
            self._connect()
            return str(self._file("d"))

    def is_here(self) -> bool:
        """Return whether the host is this machine, by the boot id that the login told; False when uncertain."""
        with suppress(OSError):
            return Path(_BOOT_ID).read_bytes().strip() in self._told()
        return False

    def machine(self) -> str:
        """Return the name that the host has for itself; that in the address when it told none."""
        with suppress(OSError):
            if found := _NAMED.search(self._told()):
                return plain(found[1].decode(errors="replace"), 60)
        return self._address.host

    def shell(self, command: str) -> list[str]:
        """Return words that run a command on the host over this connection, or over one of their own if it is lost."""
        return ["ssh", "-T", *_OPTIONS, f"-oControlPath={self._file('c')}", *self._address.words, command]

    def real_path(self, path: str) -> str:
        """Return the path without links, as the host's own `realpath` tells whoever logs in.

        Raises OSError if it tells none, RuntimeUnavailableError if the host is not reached.
        """
        self.socket_path()
        words = self.shell(f"exec realpath {shlex.quote(path)}")  # absolute, and BusyBox takes no `--`
        try:
            done = subprocess.run(  # noqa: S603 - ssh, to the user's own address
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOGIN_WITHIN, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeUnavailableError(f"{self._address.host} does not answer: {path} cannot be looked up") from None
        found = os.fsdecode(done.stdout.removesuffix(b"\n"))
        if done.returncode == 255:  # ssh's own
            raise RuntimeUnavailableError(f"{self._address.host} is not reached: {last_line(done.stderr)}")
        if done.returncode or not found.startswith("/") or "\n" in found:  # a line more may be of a login shell
            why = last_line(done.stderr or done.stdout).rpartition(": ")[2]
            raise OSError(errno.ENOENT, why or "realpath tells nothing", path)
        return found

    def has_service(self) -> bool:
        """Return whether a service of gputui had its socket on the host at the login; False when uncertain."""
        with suppress(OSError):
            return _SERVICE in self._told()
        return False

    def _told(self) -> bytes:
        """Return what the login told, once it is complete or cannot be any more; raises OSError."""
        while not (told := self._file("told").read_bytes()).endswith(b"end\n"):
            login = self._login
            if login is None or login.poll() is not None or time.monotonic() > self._begun_at + TOLD_WITHIN:
                break
            time.sleep(0.02)
        return told

    def fault(self) -> RuntimeUnavailableError | None:
        """Return what ssh has just said as an error; None if it said nothing."""
        login = self._login
        if login is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            login.wait(0.2)  # ssh prints the reason after the connection has ended
        lines = self._said(within=_RECENT)
        return self._explained(lines[-1:]) if lines else None

    def close(self) -> None:
        with self._lock:
            self._end()
            if self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _file(self, name: str) -> Path:
        """Return the socket `d`, that of further sessions `c`, or the file of what the login `told` or ssh `said`."""
        return (self._directory or Path("/")) / name

    def _connect(self) -> None:
        ssh = shutil.which("ssh")
        if ssh is None:
            raise RuntimeUnavailableError(
                f"the ssh command is not installed, and {self._address.host} is reached by it",
                hint="install the package openssh-client",
            )
        if self._directory is None or not self._directory.exists():  # a cleaner of old files may have removed it
            self._directory = _private_directory()
        for name in ("c", "d"):
            self._file(name).unlink(missing_ok=True)
        options = [*_OPTIONS, "-oControlMaster=yes", f"-oControlPath={self._file('c')}"]
        words = [ssh, "-T", *options, f"-L{self._file('d')}:{self._remote}", *self._address.words, _COMMAND]
        self._file("said").write_bytes(b"")
        with self._file("said").open("ab") as said, self._file("told").open("wb") as told:
            environ = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
            self._login = subprocess.Popen(  # noqa: S603 - ssh, to the user's own address
                words, stdin=subprocess.PIPE, stdout=told, stderr=said, env=environ, start_new_session=True
            )
        with suppress(OSError, ValueError):
            resource.prlimit(self._login.pid, resource.RLIMIT_FSIZE, (_MOST_SAID, _MOST_SAID))
        self._begun_at = time.monotonic()
        while not self._file("d").exists():
            is_over = self._login.poll() is not None
            if is_over or time.monotonic() > self._begun_at + LOGIN_WITHIN:
                self._end()
                raise self._failed("ssh ended" if is_over else "the login took too long")
            time.sleep(0.02)
        self._last_error, self._begun_at = None, time.monotonic()
        self._file("said").write_bytes(b"")  # a banner is no reason of a later fault

    def _end(self) -> None:
        login, self._login = self._login, None
        if login is None:
            return
        assert login.stdin is not None
        login.stdin.close()
        for end in (login.terminate, login.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                login.wait(2)
                return

    def _failed(self, otherwise: str) -> RuntimeUnavailableError:
        """Return why the connection ended, and refuse to connect for a while."""
        said, now = self._said() or [otherwise], time.monotonic()
        self._pause = min(max(FIRST_PAUSE, self._pause * 2), longest_pause(said, now - self._lost_at))
        self._not_before = now + self._pause
        self._last_error = self._explained(said)
        return self._last_error

    def _said(self, within: float = math.inf) -> list[str]:
        """Return what ssh said, if its last words are no older than so many seconds."""
        with suppress(OSError):
            if time.time() - self._file("said").stat().st_mtime <= within:
                lines = self._file("said").read_text(errors="replace").splitlines()
                return [line.strip() for line in lines[-_KEPT_LINES:] if line.strip()]
        return []

    def _explained(self, said: Sequence[str]) -> RuntimeUnavailableError:
        host, command = self._address.host, self._address.command
        forget = next((found[0].strip() for line in said if (found := _FORGET.search(line))), f"ssh-keygen -R {host}")
        for pattern, sentence, hint in _KNOWN:
            line = next((line for line in reversed(said) if re.search(pattern, line)), None)
            if line is not None:
                line = line.removeprefix("ssh: ")
                facts = {"host": host, "socket": self._remote, "command": command, "line": line, "forget": forget}
                return RuntimeUnavailableError(f"ssh: {sentence.format(**facts)}", hint=hint.format(**facts))
        return RuntimeUnavailableError(f"ssh to {host} failed: {said[-1]}", hint=f"try `{command}`")


def longest_pause(said: Iterable[str], away_for: float) -> float:
    """Return the longest pause before another login, by what ssh said and the seconds since the host was there.

    A server that refuses logins locks out who tries too often; a line that was cut may be back at any moment.
    """
    is_away = any(re.search(_AWAY, line) for line in said)
    return min(LONGEST_PAUSE, max(_AWAY_PAUSE, away_for / _AWAY_SHARE)) if is_away else LONGEST_PAUSE


def _private_directory() -> Path:
    """Create a directory for sockets with a short path: 107 bytes, of which ssh needs 20 when it makes one.

    Directories that this user's killed processes left are removed.
    """
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes a private one there
        if parent and len(parent) <= 50:
            for left in Path(parent).glob("gputui-ssh-*-*"):
                with suppress(OSError):
                    is_used = Path("/proc", left.name.split("-")[2]).exists()
                    if not is_used and left.lstat().st_uid == os.geteuid():
                        shutil.rmtree(left)
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=f"gputui-ssh-{os.getpid()}-", dir=parent))
    raise RuntimeUnavailableError("there is no directory for the socket of an ssh connection", hint="set TMPDIR=/tmp")


_TUNNELS: dict[str, Tunnel] = {}


def tunnel_to(url: str) -> Tunnel:
    """Return this process's tunnel to an address, which it keeps. Raises RuntimeUnavailableError."""
    return _TUNNELS.setdefault(url, Tunnel(url))


@atexit.register
def close_tunnels() -> None:
    while _TUNNELS:
        _TUNNELS.popitem()[1].close()
