"""Connections to the engine: a pool of clients for many threads, with back-off and time limits."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from gputui.domain.container import service_at
from gputui.domain.errors import Cause, CauseCode, RuntimeAccessError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.endpoint import RECORDED, Endpoint, find_endpoint, tunnel_to

if TYPE_CHECKING:
    from docker import APIClient

    from gputui.runtime.docker.transport import EngineClient, EngineSocket


_NO_GPUS = (
    r"could not select device driver|nvidia-container|nvidia-ctk|nvml error|cdi device injection|unresolvable cdi"
    r"|error running (prestart |createruntime )?hook|/dev/nvidia"
)
_NO_IMAGE = (
    r"no such image|manifest unknown|manifest for .* not found|no matching manifest|name unknown"
    r"|repository does not exist|pull access denied|unauthorized|requested access to the resource is denied"
    r"|invalid reference format|cannot contain a scheme|invalid index name"
)
_CAUSES: tuple[tuple[CauseCode, str], ...] = (
    (CauseCode.DISK_FULL, r"no space left on device|disk quota exceeded"),
    (CauseCode.GPU_SETUP_FAILED, _NO_GPUS),
    (CauseCode.IMAGE_NOT_FOUND, _NO_IMAGE),
    (CauseCode.COMMAND_NOT_FOUND, r"executable file not found|exec: .*: no such file or directory"),
    (CauseCode.COMMAND_NOT_EXECUTABLE, r"exec: .*: permission denied|exec: .*: is a directory|exec format error"),
)
"""Causes by patterns in the engine's errors; the first that matches counts."""

_OPTIONS: tuple[tuple[str, str], ...] = (
    (
        r"bind source path|invalid (mount|volume)|mount (path|config|point)|volume name|are you trying to mount",
        "--volume or --mount",
    ),
    (r"not a shared (or slave )?mount", "--volume or --mount"),
    # a place for a mount, or to work in, that the engine would have to make below a mount that is read-only
    (r"during container init: .*read-only file system", "--volume or --mount"),
    (r"does not match the (specified|detected host) platform|unknown operating system or arch", "--platform"),
    (r"runtime name|unknown runtime|runtime .* not (found|installed)", "--runtime"),
    (r"unable to find user|no matching entries in (passwd|group)|linux spec user|uids and gids must be", "--user"),
    (r"memory limit|memoryswap|memory swap", "--memory"),
    (r"range of cpus|cpus available|nanocpus|cpu cfs|cpu\.cfs_quota|cpu\.max", "--cpus"),
    (r"cpu.?shares", "--cpu-shares"),
    (r"\bshm\b|shmsize|shm size", "--shm-size"),
    (r"ulimit|rlimit", "--ulimit"),
    (r"\bipc\b", "--ipc"),
    (r"network .*not found|network mode|no such network|could not find a network", "--network"),
    (r"working directory|chdir to cwd", "--workdir"),
    (r"no command specified", "COMMAND"),
)

_HINTS = {
    CauseCode.IMAGE_NOT_FOUND: "check the image's name, or `docker login`",
    CauseCode.GPU_SETUP_FAILED: "run `gputui doctor`: the NVIDIA driver or container toolkit failed",
    CauseCode.DISK_FULL: "make room on the engine's disk: `docker system df`",
}

_OWN_FILES = "DOCKER_CERT_PATH must name the directory with cert.pem and key.pem, signed by the engine's authority"
_TLS: tuple[tuple[str, str, str], ...] = (
    (
        "http request to an https server",
        "speaks only TLS",
        "export DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH=DIR    # with ca.pem, cert.pem and key.pem",
    ),
    ("wrong.version.number|record layer failure", "speaks no TLS", "unset DOCKER_TLS_VERIFY and DOCKER_TLS"),
    (
        "certificate.has.expired|certificate.is.not.yet.valid",
        "has a certificate that has expired, or is not valid yet",
        "renew it on the engine's machine, and see that `date` is right here",
    ),
    (
        "certificate.verify.failed",
        "has a certificate that is not trusted",
        "DOCKER_CERT_PATH must name the directory with the ca.pem of its authority, and the address a name it contains",
    ),
    (
        "certificate.required|bad.certificate|alert.certificate.expired|unknown.ca|handshake.failure",
        "does not accept the certificate of this user",
        _OWN_FILES,
    ),
    (
        "eof.occurred.in.violation",
        "ended the connection, as one does that does not accept the certificate of this user",
        _OWN_FILES,
    ),
)
"""Patterns in errors of TLS, what is wrong, and advice."""

_INNERMOST = re.compile(r"\[Errno -?\d+\] ([^'\")]+)|\w\((?:\d+, )?'([^'\"()\[]+)'\)\)$")
_TINI = re.compile(rb"\[FATAL tini \(\d+\)\] exec (.+?) failed: (.+)")


_CUT_SHORT = (
    r"rpc error|transport is closing|ttrpc: closed|error reading from server|connection (error|refused|reset)"
    r"|broken pipe|context (canceled|deadline exceeded)|\beof\b|\btask \w+: already exists"
)
"""Errors after which dockerd does not know how far containerd or its shim got, or got before dockerd was killed."""


def was_cut_short(error: str) -> bool:
    """Return whether that error of a start leaves it open whether the command ran."""
    return re.search(_CUT_SHORT, error.lower()) is not None


def cause_of(text: str, *, status: int | None = None, exit_code: int | None = None) -> Cause:
    words = _tidy(text)
    lower = words.lower()
    if code := next((code for code, pattern in _CAUSES if re.search(pattern, lower)), None):
        return Cause(code, words)
    if option := next((option for pattern, option in _OPTIONS if re.search(pattern, lower)), None):
        return Cause(CauseCode.BAD_SPEC, f"{option}: {words}")
    by_exit = {126: CauseCode.COMMAND_NOT_EXECUTABLE, 127: CauseCode.COMMAND_NOT_FOUND}
    if status == 400 and exit_code in by_exit:
        return Cause(by_exit[exit_code], words)
    return Cause(CauseCode.BAD_SPEC if status == 400 and not was_cut_short(words) else CauseCode.RUNTIME_ERROR, words)


def cause_of_init(log_tail: bytes) -> Cause | None:
    """Return the cause that the engine's init logged when it could not run the command; None without one.

    With `--init` it is tini that finds the command missing: the container runs for a moment, exits with 127 or 126,
    and only its output distinguishes that from an exit of the job's own shell.
    """
    found = _TINI.search(log_tail)
    if not found:
        return None
    command, why = (part.decode(errors="replace").strip() for part in found.groups())
    missing = "no such file" in why.lower()
    code = CauseCode.COMMAND_NOT_FOUND if missing else CauseCode.COMMAND_NOT_EXECUTABLE
    return Cause(code, f"the image has no command {command!r}" if missing else f"cannot run {command!r}: {why}")


def fault(text: str, *, status: int | None = None, exit_code: int | None = None) -> RuntimeFault:
    cause = cause_of(text, status=status, exit_code=exit_code)
    return RuntimeFault(cause, hint=_HINTS.get(cause.code))


def bad_spec(option: str, problem: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, f"{option}: {problem}"))


class SilentError(RuntimeUnavailableError):
    """The engine did not answer in time: it may only hang."""


def unavailable(where: str, error: BaseException) -> RuntimeUnavailableError:
    """Return the error for an engine that does not answer, with advice."""
    text = str(error)
    lower = text.lower()
    service = service_at(where, os.geteuid())
    for pattern, what, hint in _TLS:
        if re.search(pattern, lower):
            return RuntimeUnavailableError(f"Docker at {where} {what}", hint=hint)
    if "permission denied" in lower:
        hint = f"`ls -l {where.partition('://')[2]}` shows whose engine it is; use one of your own: DOCKER_HOST"
        if service.settings and not service.uid:
            hint = "users in the group docker may, which equals root: `sudo usermod -aG docker USER`, then log in again"
        return RuntimeAccessError(f"no permission to speak to Docker at {where}", hint=hint)
    if "no such file" in lower or "connection refused" in lower:
        return RuntimeUnavailableError(f"Docker does not run at {where}", hint=service.start)
    if "timed out" in lower or "timeout" in lower:
        return SilentError(f"Docker at {where} did not answer in time", hint=service.status)
    if found := _INNERMOST.search(text):  # the libraries between repeat the whole request
        text = found[1] or found[2]
    return RuntimeUnavailableError(f"Docker at {where} does not answer: {_tidy(text)}", hint=service.status)


def _tidy(text: str) -> str:
    """Return one line of at most 400 characters, without the prefixes of the engine's layers."""
    line = " ".join(text.split())
    line = re.sub(
        r"^(failed to create (shim )?task( for container)?: |OCI runtime create failed: |runc create failed: )+",
        "",
        line,
    )
    line = line.removesuffix(": unknown").removesuffix(": unknown.")
    return line if len(line) <= 400 else line[:399] + "…"


def is_missing(error: RuntimeFault) -> bool:
    return "no such container" in error.what.lower()


T = TypeVar("T")
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Longest pause in seconds between attempts to reach an engine."""
MOST_IDLE = 4
IDLE_FOR = 45.0
"""Seconds for which an idle client is kept; at most MOST_IDLE are kept."""


class Deadline(Struct, eq=False):
    at: float
    """Time in monotonic seconds."""
    client: EngineClient
    """Client whose connections are shut down then."""
    has_passed: bool = False


class Deadlines(Struct, eq=False):
    """Deadlines of whole calls, watched by one thread that lives only while there are any.

    Socket timeouts limit only each single read.
    """

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _open: set[Deadline] = field(default_factory=set)
    _is_watching: bool = False

    @contextmanager
    def limit(self, seconds: float, client: EngineClient) -> Iterator[Deadline]:
        """Shut the client down unless the block ends within `seconds`."""
        deadline = Deadline(time.monotonic() + seconds, client)

        def watch() -> None:
            with self._changed:
                while self._open:
                    first = min(self._open, key=lambda each: each.at)
                    if (left := first.at - time.monotonic()) > 0:
                        self._changed.wait(left)
                        continue
                    self._open.discard(first)
                    first.has_passed = True
                    with suppress(Exception):  # the call may have ended meanwhile
                        first.client.shut_down()
                self._is_watching = False

        with self._changed:
            self._open.add(deadline)
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=watch, name="engine-deadlines", daemon=True).start()
            self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._open.discard(deadline)


DEADLINES = Deadlines()
"""Deadlines of all engines of this process."""


def _check_listening(endpoint: Endpoint) -> None:
    """Raise OSError if no process listens on the engine's socket; faster and clearer than a request."""
    if endpoint.socket_path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            with suppress(BlockingIOError):  # a full backlog: it listens
                probe.connect(endpoint.socket_path)


class Connection:
    """Pool of clients of one engine.

    A requests session serves one thread at a time, so each call borrows a client. A few idle clients are kept for a
    while. A stream keeps its client until it is closed.
    """

    def __init__(
        self, settings: RuntimeSettings, admit: Callable[[Mapping[str, Any], Endpoint], object] | None = None
    ) -> None:
        """Create the pool; `admit` gets `/info` and the address at each new connection, and may refuse the engine."""
        self._settings = settings
        self._admit = admit
        self._lock = threading.Lock()
        self._idle: list[tuple[float, EngineClient]] = []
        """Clients and when they became idle, in monotonic seconds."""
        self.endpoint: Endpoint | None = None
        """Address of the engine; None before the first call."""
        self._api_version: str | None = None
        self._era = 0
        self._pause = 0.0
        self._closed_until = 0.0
        self._last_error: RuntimeUnavailableError | None = None
        self._is_near = False

    @property
    def where(self) -> str:
        return self.endpoint.url if self.endpoint else (self._settings.docker_host or "its address")

    @property
    def longest_pause(self) -> float:
        """Longest pause in seconds between attempts; short for a local socket, whose check is cheap."""
        return 1.0 if self._is_near else LONGEST_PAUSE

    def call(self, ask: Callable[[APIClient], T], *, patient: bool = True, is_long: bool = False) -> T:
        """Call `ask` with a client and return its result. Raises RuntimeFault or RuntimeUnavailableError.

        While a remote engine does not answer, calls fail at once until the back-off is over, unless `patient` is
        False. A call that exceeds the setting docker_timeout as a whole is aborted, unless `is_long`.
        """
        within = None if is_long else self._timeout
        with self.borrowed(patient=patient) as client, self.translated():
            return _in_time(client, ask, within)

    @property
    def _timeout(self) -> float:
        return self._settings.docker_timeout.total_seconds()

    @contextmanager
    def borrowed(self, *, patient: bool = True) -> Iterator[EngineClient]:
        era = self._era
        client = self.open(patient=patient)
        try:
            yield client
        except RuntimeFault as error:  # the engine answered with an error, so the client works
            if isinstance(error, RuntimeUnavailableError):
                client.close()
            else:
                self._give_back(client, era)
            raise
        except BaseException:
            client.close()
            raise
        self._give_back(client, era)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of docker-py as RuntimeFaults; only those of the connection mean a lost engine."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import InvalidHeader, InvalidSchema, InvalidURL, MissingSchema, RequestException

        try:
            yield
        except APIError as error:
            raise fault(str(getattr(error, "explanation", None) or error), status=error.status_code) from error
        except (DockerException, InvalidHeader, InvalidSchema, InvalidURL, MissingSchema) as error:
            raise fault(str(error)) from error  # docker-py refused the request before it was sent
        except (RequestException, OSError) as error:
            raise self.lost(error) from error

    def lost(self, error: BaseException) -> RuntimeUnavailableError:
        """Record that the engine does not answer; return the error to raise, from ssh's messages if ssh failed."""
        found = error if isinstance(error, RuntimeUnavailableError) else None
        if found is None and self.endpoint and self.endpoint.is_ssh:
            found = tunnel_to(self.endpoint.url).fault()
        found = found or unavailable(self.where, error)
        if (path := RECORDED.get(self.where)) and str(path) not in str(found):
            source = f"the address is from {path}, as the environment names no engine"
            found.hint = f"{found.hint}; {source}" if found.hint else source
        with self._lock:
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self._closed_until = time.monotonic() + self._pause
            self._last_error = found
        self.forget()
        return found  # another thread may have connected meanwhile and cleared `_last_error`

    def dial(self) -> tuple[EngineSocket, str]:
        """Return a newly connected socket, owned by the caller, and the API version to use on it.

        Raises RuntimeUnavailableError.
        """
        from gputui.runtime.docker.transport import dialled

        with self.borrowed(patient=False) as client:
            version = str(client.api_version)
        with self._reached() as endpoint:
            return dialled(endpoint, self._timeout), version

    def forget(self) -> None:
        """Drop all idle clients and the negotiated version: the next call connects again."""
        with self._lock:
            dropped, self._idle = self._idle, []
            self._era += 1
            self._api_version = None
        _close(dropped)

    def close(self) -> None:
        self.forget()

    def open(self, *, patient: bool = False) -> EngineClient:
        """Return a client of the caller's own. Raises RuntimeUnavailableError."""
        from gputui.runtime.docker.transport import EngineClient

        with self._lock:
            if patient and self._last_error and not self._is_near and time.monotonic() < self._closed_until:
                raise type(self._last_error)(self._last_error.what, hint=self._last_error.hint)
            kept = self._idle.pop()[1] if self._idle else None
        if kept is not None:
            try:  # an engine that stops still answers on open connections
                if self.endpoint:
                    _check_listening(self.endpoint)
            except OSError as error:
                kept.close()
                raise self.lost(error) from error
            return kept
        with self._reached() as endpoint:
            # never pinned: engines refuse versions that are too old or too new for them; asked once, then kept
            version = self._api_version or self._negotiated(endpoint)
            client = EngineClient(endpoint, timeout=self._timeout, version=version)
            if self._admit and self._api_version is None:
                self._admit(_in_time(client, lambda _: client.info(), self._timeout), self.endpoint or endpoint)
        with self._lock:
            self._api_version = version
            self._pause, self._last_error = 0.0, None
        return client

    def _negotiated(self, endpoint: Endpoint) -> str:
        """Return the engine's API version, one that docker-py speaks. Raises RuntimeUnavailableError."""
        from docker.constants import MINIMUM_DOCKER_API_VERSION

        from gputui.runtime.docker.transport import EngineClient

        asking = EngineClient(endpoint, timeout=self._timeout)
        try:
            version = _in_time(asking, lambda _: asking.server_version(), self._timeout)
        finally:
            asking.close()
        found, least = (re.fullmatch(r"(\d+)\.(\d+)", text) for text in (version, MINIMUM_DOCKER_API_VERSION))
        if found is None or least is None:
            what = f"{endpoint.url} is no Docker engine: it names no API version"
            raise RuntimeUnavailableError(what, hint="see `docker info`")
        if tuple(map(int, found.groups())) < tuple(map(int, least.groups())):
            what = f"Docker at {endpoint.url} is too old: its API is {version}"
            raise RuntimeUnavailableError(what, hint="upgrade to Docker 20.10 (API 1.41) or newer")
        return version

    def check_accepting(self) -> None:
        """Raise RuntimeUnavailableError if the engine takes no new connection, wherever it is, as one that stops."""
        with self._reached() as endpoint:
            self._negotiated(endpoint)

    @contextmanager
    def _reached(self) -> Iterator[Endpoint]:
        """Yield the address to connect to; any failure inside means that the engine does not answer."""
        try:
            # never changed: after `docker context use` all containers would appear to be lost
            self.endpoint = self.endpoint or find_endpoint(self._settings)
            self._is_near = self.endpoint.socket_path is not None
            _check_listening(self.endpoint)
            url = self.endpoint.url
            yield Endpoint(f"unix://{tunnel_to(url).socket_path()}") if self.endpoint.is_ssh else self.endpoint
        # docker-py raises bare Exceptions of many kinds for a bad TLS file or address
        except Exception as error:
            raise self.lost(error) from error

    def _give_back(self, client: EngineClient, era: int) -> None:
        now = time.monotonic()
        with self._lock:
            known = [*self._idle, (now, client)]
            young = [each for each in known if now - each[0] < IDLE_FOR]
            self._idle = young[-MOST_IDLE:] if era == self._era else self._idle
            dropped = [each for each in known if each not in self._idle]
        _close(dropped)


def _in_time(client: EngineClient, ask: Callable[[APIClient], T], within: float | None) -> T:
    """Call `ask` and return its result; raises TimeoutError when the whole call takes too long."""
    if within is None:
        return ask(client)
    with DEADLINES.limit(within, client) as deadline:
        try:
            return ask(client)
        except Exception as error:
            if deadline.has_passed:
                raise TimeoutError(f"timed out after {within:g} s") from error
            raise


def _close(dropped: list[tuple[float, EngineClient]]) -> None:
    for _, client in dropped:
        with suppress(Exception):  # closing a broken session may raise anything
            client.close()
