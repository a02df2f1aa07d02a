"""Machine of an engine, as the probe that reads its GPUs needs it: which one it is, and ways to run a command there."""

from __future__ import annotations

import secrets
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.policy.availability import CDI_KIND
from gputui.domain.settings import RuntimeSettings
from gputui.domain.text import last_line, plain
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.create import PROBE
from gputui.runtime.docker.endpoint import Endpoint, tunnel_to
from gputui.runtime.docker.engine import EngineJson, GpuMode, read_facts, runs_here
from gputui.runtime.docker.job_exec import ContainerChannel, upgraded
from gputui.runtime.docker.pull_process import has_image, pull_by_process
from gputui.runtime.docker.records import READING, USERS, parse_time

NAME = "gputui-probe-"
_NO_ANSWER = 10.0
"""Seconds for which a send or an unfinished record of TLS is waited for."""
_GONE_WITHIN = 1.0
"""Seconds for which the end of a container is waited for."""
_UNSTARTED = 60.0
"""Seconds for which a container may be created and not started before it counts as left behind."""
_OF_PULL = {CauseCode.PULL_FAILED, CauseCode.IMAGE_NOT_FOUND}
_OF_IMAGE = {CauseCode.COMMAND_NOT_FOUND, CauseCode.COMMAND_NOT_EXECUTABLE}
_WANTED = (
    "give {machine} python3, 3.8 or newer, for ssh, or an image with it: `docker pull {image}` there, or one that it "
    "has: GPUTUI_RUNTIME_PROBE_IMAGE=IMAGE"
)
_TOOLKIT = "on {}: sudo apt install nvidia-container-toolkit && sudo systemctl restart docker"
_COMPLAINT = 500
_UNSENT = 100
"""Most commands that wait for the connection."""
_PIECES = 16
"""Most pieces of output, of 64 KiB, that are taken at once: what never pauses must not hold the reader."""


class EngineMachine:
    """Machine of the engine at an address. Methods block; they raise RuntimeFault and RuntimeUnavailableError."""

    def __init__(self, endpoint: Endpoint, settings: RuntimeSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._connection = Connection(settings)
        self.name = urlsplit(endpoint.url).hostname or "the engine"

    def is_here(self) -> bool:
        if self._endpoint.is_ssh:
            tunnel = tunnel_to(self._endpoint.url)
            tunnel.socket_path()
            self.name = tunnel.machine()
            return tunnel.is_here()
        info = self._connection.call(lambda client: client.info())
        self.name = plain(str(info.get("Name") or ""), 60) or self.name
        return runs_here(info, self._endpoint)

    def shell(self, command: str) -> Sequence[str] | None:
        return tunnel_to(self._endpoint.url).shell(command) if self._endpoint.is_ssh else None

    def container(
        self, command: Sequence[str], tell: Callable[[str], None], closed: threading.Event
    ) -> tuple[ContainerStream, tuple[str, ...]]:
        version, info = self._connection.call(lambda client: (client.version(), client.info()))
        facts = read_facts(version, info)
        if facts.gpu_mode is GpuMode.NONE:
            raise RuntimeFault(Cause(CauseCode.GPU_SETUP_FAILED, f"{facts.name} silently ignores requests for GPUs"))
        image = self._settings.probe_image
        wanted = _WANTED.format(machine=self.name, image=image)
        if not self._connection.call(lambda client: has_image(client, image)):
            what = f"{self.name} gets the image {image}, in which its GPUs are read"
            tell(what)
            try:
                pull_by_process(image, self._settings, lambda words: tell(f"{what}: {words}"), closed)
            except RuntimeFault as error:
                if error.cause.code in _OF_PULL:
                    raise RuntimeFault(error.cause, hint=wanted) from error
                raise
        last: RuntimeFault | None = None
        for host, lacks in hosts(facts.gpu_mode, self.name):
            try:
                stream = self._run({"Image": image, "Cmd": list(command), "HostConfig": host})
            except RuntimeFault as error:  # not all engines allow all of it
                if error.cause.code in _OF_IMAGE:
                    raise RuntimeFault(Cause(error.cause.code, f"{image}: {error.what}"), hint=wanted) from error
                if error.cause.code is CauseCode.GPU_SETUP_FAILED:
                    raise RuntimeFault(error.cause, hint=_TOOLKIT.format(self.name)) from error
                if error.cause.code not in {CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR}:
                    raise
                last = error
                continue
            with suppress(RuntimeFault):  # while its Python starts
                self._remove_left(info)
            return stream, (f"the GPUs of {self.name} are read in a container of {image}", *lacks)
        assert last is not None
        raise last

    def _run(self, body: dict[str, Any]) -> ContainerStream:
        """Create, attach and start the container; nothing of it is left if that fails."""
        ends = {f"Attach{name}": True for name in ("Stdin", "Stdout", "Stderr")}
        body = {**body, **ends, "OpenStdin": True, "StdinOnce": True, "Entrypoint": [], "Labels": {PROBE: "1"}}
        name = f"{NAME}{secrets.token_hex(4)}"
        made = str(self._connection.call(lambda client: client.create_container_from_config(body, name))["Id"])  # type: ignore[no-untyped-call]
        with ExitStack() as undo:
            undo.callback(self._remove, made)
            query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
            socket, rest = upgraded(self._connection, f"/containers/{made}/attach", query)
            undo.callback(socket.close)
            socket.settimeout(_NO_ANSWER)
            self._connection.call(lambda client: client.start(made))
            undo.pop_all()
        channel = ContainerChannel(
            socket, rest, is_tty=False, resize=lambda rows, columns: None, exit_code=lambda: None
        )
        return ContainerStream(channel, lambda: self._remove(made))

    def _remove(self, container_id: str) -> None:
        with suppress(RuntimeFault):  # it removes itself, and a later console what has never run
            self._connection.call(lambda client: client.remove_container(container_id, v=True, force=True))

    def _remove_left(self, info: EngineJson) -> None:
        """Remove what a console left behind that was killed; what runs ends by itself."""
        now = parse_time(info.get("SystemTime"))
        wanted = {"label": PROBE, "name": f"^/?{NAME}"}
        listed = self._connection.call(lambda client: client.containers(all=True, filters=wanted))
        for each in listed:
            age = now.timestamp() - float(each.get("Created") or 0) if now else 0.0
            if each.get("State") in {"exited", "dead"} or (each.get("State") == "created" and age > _UNSTARTED):
                self._remove(str(each["Id"]))


def hosts(mode: GpuMode, machine: str) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield HostConfig with what it lacks, in sentences: first the one that sees most."""
    request: dict[str, Any] = {"Count": -1, "Capabilities": READING}
    if mode is GpuMode.CDI:
        request = {"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}=all"]}
    least: dict[str, Any] = {
        "AutoRemove": True,
        "CapDrop": ["ALL"],
        "DeviceRequests": [request],
        "LogConfig": {"Type": "none"},
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "SecurityOpt": ["no-new-privileges"],
    }
    users = {"Mounts": [{"Type": "bind", "Source": USERS, "Target": USERS, "ReadOnly": True}]}
    pids = {"PidMode": "host", "UsernsMode": "host"}  # an engine that remaps users shares no pids with them
    nameless = f"users of {machine} have numbers instead of names: its engine does not let a container see their names"
    blind = f"GPU processes of {machine} cannot be told apart: its engine allows no --pid=host"
    yield {**least, **users, **pids}, ()
    yield {**least, **pids}, (nameless,)
    yield least, (blind,)


class ContainerStream:
    """Input and output of a container, which ends with them."""

    def __init__(self, channel: ContainerChannel, remove: Callable[[], None]) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # a connection with TLS serves one thread at a time
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT)
        self._is_closed = False
        self._complaints = b""
        self._removal = threading.Thread(target=remove, name="gpu-probe-undertaker", daemon=True)

    @property
    def ends(self) -> tuple[int, ...]:
        return (self._channel.fileno(),)

    @property
    def is_over(self) -> bool:
        return self._is_closed and not self._removal.is_alive()

    def take(self) -> bytes | None:
        data = b""
        with self._lock:
            for _ in range(_PIECES):
                if not (self._channel.has_pending or select.select(self.ends, [], [], 0)[0]):
                    break
                try:
                    pieces = self._channel.receive()
                except OSError:
                    pieces = None
                if pieces is None:
                    return data or None
                data += b"".join(piece for is_error, piece in pieces if not is_error)
                errors = b"".join(piece for is_error, piece in pieces if is_error)
                self._complaints = (self._complaints + errors)[-_COMPLAINT:]
        self._send_on()
        return data

    def send(self, data: bytes) -> None:
        """Send the data, if the connection is busy or full with the next `take`: who draws waits for no network."""
        self._unsent.append(data)
        self._send_on()

    def _send_on(self) -> None:
        while self._unsent and self._lock.acquire(blocking=False):
            try:
                if self._is_closed or not select.select([], self.ends, [], 0)[1]:
                    return
                with suppress(OSError, IndexError):  # another thread may have sent it
                    self._channel.send(self._unsent.popleft())
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the stream, at which the probe ends, and remove the container."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._channel.close()
        self._removal.start()

    def kill(self) -> None:
        self.close()
        self._removal.join(_GONE_WITHIN)

    def end_words(self) -> str:
        return last_line(self._complaints) or "the connection to its container was closed"
