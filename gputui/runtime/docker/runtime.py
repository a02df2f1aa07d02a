"""Runtime for Docker containers, and the thread that watches its engine's events.

docker-py is imported at the first call to the engine.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import (
    ContainerRecord,
    ContainerState,
    Created,
    ForeignContainer,
    Launch,
    RuntimeFeatures,
    RuntimeStatus,
)
from gputui.domain.errors import (
    Cause,
    CauseCode,
    NotFoundError,
    OtherEngineError,
    RuntimeFault,
    RuntimeUnavailableError,
)
from gputui.domain.gpu_processes import ContainerDetail
from gputui.domain.kept_data import EngineRecord
from gputui.domain.policy.availability import engine_refusal
from gputui.domain.settings import RuntimeSettings
from gputui.domain.telemetry import Consumption
from gputui.domain.text import format_duration
from gputui.ports import Clock, EngineBook, LogStream
from gputui.runtime.cgroups import ConsumptionReader
from gputui.runtime.docker.connection import FIRST_PAUSE, Connection, SilentError, fault, is_missing, was_cut_short
from gputui.runtime.docker.create import JOB, STORE, USER, create_request
from gputui.runtime.docker.endpoint import Endpoint, tunnel_to
from gputui.runtime.docker.engine import (
    SUPPORTED_API,
    EngineFacts,
    EngineJson,
    GpuMode,
    admitted,
    engine_began,
    engine_root,
    listed_cdi_names,
    read_facts,
    runs_here,
)
from gputui.runtime.docker.logs import DockerLog, LogQuery, save
from gputui.runtime.docker.pull_process import credential_warnings, has_image, pull_by_process
from gputui.runtime.docker.records import (
    ContainerCache,
    adoptable,
    by_name,
    consumption_of,
    parse_time,
    places_of,
    requested_devices,
)
from gputui.thin import SERVICE_SOCKET
from gputui.threads import Watcher

if TYPE_CHECKING:
    from docker import APIClient

    from gputui.runtime.docker.transport import EngineClient


log = logging.getLogger(__name__)

Lost: TypeAlias = Callable[[RuntimeFault], None]

# no `oom`: it comes by the dozen, ends nothing, and the following `die` shows whether it was one
_EVENTS = ["die", "start"]


class EventWatcher(Struct, eq=False):
    """Calls `wake` after ends of containers, starts of foreign ones, and returns of the engine.

    Events are only a reason to list containers, no complete record: the engine forgets them when it restarts, and a
    lost engine ends the stream silently. So the end of the stream only means to reconnect, and `wake` then makes the
    caller list the containers.
    """

    _connection: Connection
    _store_id: str
    _on_end: Callable[[str], None]
    _on_event: Callable[[int], None] = lambda _: None
    _closed: threading.Event = field(default_factory=threading.Event)
    _client: EngineClient | None = None
    _since: int | None = None

    def start(self, wake: Callable[[], None], lost: Lost, back: Callable[[], None]) -> None:
        """Start a daemon thread; it calls `lost` with the reason when the engine is lost, and `back` on its return."""

        def run() -> None:
            pause = FIRST_PAUSE
            while not self._closed.is_set():
                where = self._connection.where
                why: RuntimeFault = RuntimeUnavailableError(f"Docker at {where} closed the connection: reconnecting")
                try:
                    self._follow(wake, back)
                    pause = FIRST_PAUSE
                except RuntimeFault as error:
                    why = error
                if self._closed.is_set():
                    return
                lost(why)
                self._closed.wait(pause)
                pause = min(pause * 2, self._connection.longest_pause)

        Watcher("docker-events", run).start()

    def close(self) -> None:
        self._closed.set()
        if client := self._client:
            client.shut_down()

    def _follow(self, wake: Callable[[], None], back: Callable[[], None]) -> None:
        """Follow events until the stream ends; raises RuntimeFault when the engine does not answer at all."""
        client = self._client = self._connection.open()
        try:
            with self._connection.translated():
                filters = {"type": ["container"], "event": _EVENTS}
                stream = client.events(decode=True, since=self._since, filters=filters)
            if self._closed.is_set():
                return
            back()
            wake()
            for event in stream:
                if nanoseconds := event.get("timeNano"):
                    # whole seconds: repeated events only wake once more
                    self._since = int(nanoseconds) // 10**9
                    self._on_event(int(nanoseconds))
                actor = event.get("Actor") or {}
                is_ours = (actor.get("Attributes") or {}).get(STORE) == self._store_id
                if event.get("Action") == "die":
                    self._on_end(str(actor.get("ID", "")))
                    wake()
                elif not is_ours:
                    wake()
        except RuntimeFault:
            raise
        # whatever the stream or `wake` raised, the thread must live on to reconnect
        except Exception:
            log.debug("the event stream broke", exc_info=True)
        finally:
            self._client = None
            client.close()
            self._connection.forget()


T = TypeVar("T")
NAME = "docker"
_CAPABILITY = RuntimeFeatures(images=True, limits=True, foreign=True)
_GUEST = (
    "{} starts jobs on GPUs of {} too: each queue leaves the other's GPUs alone and does not know its order; "
    "{}, so that one queue has them all"
)
_CLOCK = (
    "the clock of {0} is {1} this machine's: jobs have the times of this machine, lines of their output those of {0}; "
    "set both clocks: sudo timedatectl set-ntp true"
)
_SMALLEST_DIFFERENCE = timedelta(seconds=5)
_FACTS_FOR = 60.0
"""Seconds for which an engine's facts are cached."""
_NAME_TRIES = 20
_NAME_PAUSE = 0.1
"""Seconds between attempts to inspect a container whose name is taken but that is not visible."""


class DockerRuntime:
    """Runtime for containers of one store on one engine. The constructor neither connects nor raises."""

    name = NAME

    def __init__(self, store_id: str, settings: RuntimeSettings, clock: Clock, book: EngineBook | None = None) -> None:
        """`book` has the engine of the queue: the containers of another one are neither listed nor made."""
        self._store_id = store_id
        self._settings = settings
        self._clock = clock
        self._book = book
        self._engine: EngineRecord | None = None
        """Engine of the present connection, until it stands in the book."""
        self._connection = Connection(settings, self._admit if book else None)
        self._cache = ContainerCache(
            store_id,
            self._connection.check_accepting,
            lambda: engine_began(self._connection.endpoint),
            self._check_engine,
        )
        self._consumption = ConsumptionReader()
        self._watcher: EventWatcher | None = None
        self._facts: EngineFacts | None = None
        self._facts_at = 0.0
        self._others: tuple[ForeignContainer, ...] = ()
        """Jobs with GPUs of other queues on this engine."""
        self._status = RuntimeStatus(
            NAME, False, "Docker has not been contacted yet", capability=_CAPABILITY, asked=False
        )
        self._status_lock = threading.Lock()

    # status

    def status(self) -> RuntimeStatus:
        return self._status

    def check(self) -> RuntimeStatus:
        """Ask the engine now, regardless of the back-off."""
        try:
            facts = self._connection.call(self._ask, patient=False)
        except RuntimeFault as error:
            return self._record_failure(error)
        self._facts, self._facts_at = facts, time.monotonic()
        return self._set_status(self._status_of(facts))

    def _admit(self, info: EngineJson, endpoint: Endpoint) -> None:
        if self._book is not None:
            self._engine = admitted(self._book, info, endpoint)

    def _check_engine(self, client: APIClient) -> None:
        self._connection.forget()  # its other clients are of the same engine
        if endpoint := self._connection.endpoint:
            self._admit(client.info(), endpoint)

    def _record_engine(self) -> None:
        """Write the engine into the book before it has, or because it has, a container of the queue."""
        with self._status_lock:  # starts come side by side
            if self._book is None or self._engine is None:
                return
            try:
                self._book.write(self._engine)
            except OSError as error:
                what = f"{self._book.path} cannot be written: {error.strerror}"
                raise RuntimeUnavailableError(what, hint="see `gputui doctor`") from error
            self._engine = None

    def _record_failure(self, error: RuntimeFault) -> RuntimeStatus:
        self._facts = None
        return self._set_status(
            RuntimeStatus(
                NAME,
                up=False,
                text=str(error),
                hint=error.hint or "",
                capability=_CAPABILITY,
                address=_address(self._connection),
                short="another engine" if isinstance(error, OtherEngineError) else "",
            )
        )

    def _set_status(self, status: RuntimeStatus) -> RuntimeStatus:
        with self._status_lock:
            before = self._status
            since = before.since if before.since and before.up == status.up else self._clock.now()
            self._status = replace(status, since=since)
            return self._status

    def _call(self, ask: Callable[[APIClient], T], *, is_long: bool = False) -> T:
        try:
            found = self._connection.call(ask, is_long=is_long)
        except RuntimeUnavailableError as error:
            now = self._clock.now()
            if isinstance(error, SilentError):
                self._cache.outages.silent(now)
            else:
                self._cache.lost(now)  # long before its events end, as it waits for containers
            self._record_failure(error)
            raise
        self._cache.outages.back(self._clock.now())
        return found

    def _ask(self, client: APIClient) -> EngineFacts:
        version, asked_at = client.version(), self._clock.now()
        info: EngineJson = client.info()
        engines, answered_at = parse_time(info.get("SystemTime")), self._clock.now()
        # its clock does not differ if its time may be between asking and answer
        self._cache.ahead = engines - min(max(asked_at, engines), answered_at) if engines else timedelta()
        facts = read_facts(version, info)
        is_here, machine = runs_here(info, self._connection.endpoint), str(info.get("Name") or "")
        gpus = replace(facts.gpus, is_local=is_here, address=self._connection.where, machine=machine)
        if gpus.is_local and gpus.mode == GpuMode.CDI and gpus.cdi_devices is None:
            gpus = replace(gpus, cdi_devices=listed_cdi_names(info.get("CDISpecDirs") or ()))
        return replace(facts, gpus=gpus)

    def _current_facts(self) -> EngineFacts:
        """Return the engine's facts, refreshed after a while: CDI devices may change while it runs."""
        facts = self._facts
        if facts is None or time.monotonic() - self._facts_at > _FACTS_FOR:
            facts = self._facts = self._call(self._ask)
            self._facts_at = time.monotonic()
            self._set_status(self._status_of(facts))
        return facts

    def _status_of(self, facts: EngineFacts) -> RuntimeStatus:
        gpus = facts.gpus
        if gpus.elsewhere and not self._settings.as_guest:
            gpus = replace(gpus, owner=self._owner())
            if gpus.owner and (refusal := engine_refusal(gpus, ())):
                gpus = replace(gpus, warnings=(*gpus.warnings, refusal.sentence))
        told = []
        for guest, store in sorted({each.guest_of: each.store for each in self._others if each.guest_of}.items()):
            who, advice = f"gputui on {guest}", "submit to one of them"
            if not gpus.elsewhere:
                advice = "submit from there by `gputui --on`"
            elif guest == socket.gethostname():
                who = f"queue {store} of another state directory of this machine"
                advice = "submit to one of them, by `--state` or GPUTUI_STATE"
            told.append(_GUEST.format(who, gpus.machine, advice))
        if abs(ahead := self._cache.ahead) > _SMALLEST_DIFFERENCE:
            how = f"{format_duration(abs(ahead))} {'ahead of' if ahead > timedelta() else 'behind'}"
            told.append(_CLOCK.format(gpus.machine or "the engine", how))
        return RuntimeStatus(
            NAME,
            up=True,
            text=f"{facts.name} at {endpoint.words if (endpoint := self._connection.endpoint) else 'its address'}",
            version=facts.version,
            warnings=(*facts.warnings, *credential_warnings(), *told),
            capability=_CAPABILITY,
            gpus=gpus,
            data_root=facts.data_root,
            address=_address(self._connection),
        )

    def _owner(self) -> str:
        """Return what shows that the engine's machine has a queue of its own; empty: nothing does."""
        if owner := next((each.store for each in self._others if not each.guest_of), ""):
            return f"its queue {owner} runs jobs on them"
        endpoint = self._connection.endpoint
        if endpoint and endpoint.is_ssh and tunnel_to(endpoint.url).has_service():
            return f"its service listens at {SERVICE_SOCKET}"
        return ""

    # images

    def has_image(self, image: str) -> bool:
        return self._call(lambda client: has_image(client, image))

    def images(self) -> tuple[str, ...]:
        """Return the names of all images of the engine, sorted; an image may have several names."""
        listed = self._call(lambda client: client.images())
        return tuple(sorted({name for image in listed for name in image.get("RepoTags") or () if "<none>" not in name}))

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        pull_by_process(image, self._settings, progress, cancelled)

    # one container

    def root_directory(self) -> str:
        """Return the root directory of the engine: it may have mounts, and a /tmp, of its own."""
        facts = self._current_facts()
        if not facts.gpus.is_local or self._connection.endpoint is None:
            text = f"the files of {facts.name} at {self._connection.where} cannot be looked at from here"
            raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, f"{text}, so only operators may mount them"))
        return engine_root(self._connection.endpoint.socket_path)

    def real_path(self, path: str) -> str:
        facts, endpoint = self._current_facts(), self._connection.endpoint
        if facts.gpus.is_local:
            return os.path.realpath(path)
        if endpoint is not None and endpoint.is_ssh:
            return tunnel_to(endpoint.url).real_path(path)
        raise OSError(errno.EOPNOTSUPP, f"links of {facts.gpus.elsewhere} are followed over ssh alone", path)

    def create(self, launch: Launch) -> Created:
        """Create the container, or adopt an existing one of its name."""
        facts = self._current_facts()
        request = create_request(launch, facts, self._settings)
        self._record_engine()
        wanted = (request.body, launch.name, launch.spec.options.platform)
        for _ in range(_NAME_TRIES):
            try:
                made = str(self._call(lambda client: client.create_container_from_config(*wanted))["Id"])  # type: ignore[no-untyped-call]
                self._cache.expect_start(made)
                return Created(made, notes=request.notes)
            except RuntimeFault as error:
                words = error.what.lower()
                if not ("conflict" in words and "already in use" in words):
                    raise
            inspected = self._call(lambda client: by_name(client, launch.name))
            if inspected is None:  # another call is creating or removing it
                time.sleep(_NAME_PAUSE)
            elif adoptable(inspected, launch):
                return Created(str(inspected["Id"]), adopted=True)
            else:
                self.remove(str(inspected["Id"]))
        raise fault(f"the name {launch.name} is taken by a container that is not visible")

    def start(self, container_id: str) -> None:
        """Start the container unless it was, or may have been, started earlier; remove it if it cannot be started."""
        # the engine would run an ended container a second time
        if self._must_inspect(container_id).state is not ContainerState.CREATED:
            return
        try:
            with self._cache.starting(container_id):
                self._call(lambda client: client.start(container_id))
        except RuntimeUnavailableError:
            raise
        except RuntimeFault as error:
            if was_cut_short(error.what) and self._must_inspect(container_id).state is not ContainerState.CREATED:
                return  # it runs, or nobody knows: the next listing tells
            inspected = self._call(lambda client: by_name(client, container_id))
            if inspected is None or inspected["State"]["Status"] != "created":
                raise
            self.remove(container_id)  # it never ran
            exit_code = int(inspected["State"].get("ExitCode") or 0)
            if error.cause.code in {CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR} and exit_code in {126, 127}:
                text = str(inspected["State"].get("Error") or error.what)
                raise fault(text, status=400, exit_code=exit_code) from error
            raise

    def terminate(self, container_id: str) -> None:
        """Send the image's stop signal, else SIGTERM."""

        def send(client: APIClient) -> None:
            inspected = by_name(client, container_id)
            if inspected and inspected["State"].get("Running"):
                if inspected["State"].get("Paused"):
                    client.unpause(container_id)
                client.kill(container_id, signal=inspected["Config"].get("StopSignal") or "SIGTERM")

        self._call_unless_over(send)

    def signal(self, container_id: str, number: int) -> None:
        """Send that signal to its first process, as `docker kill --signal` does."""
        self._call_unless_over(lambda client: client.kill(container_id, signal=number))

    def kill(self, container_id: str) -> None:
        try:
            self._call_unless_over(lambda client: client.kill(container_id, signal="SIGKILL"))
        except RuntimeFault as error:  # Podman does not kill paused containers
            if "paused" not in error.what:
                raise
            self.unsuspend(container_id)
            self._call_unless_over(lambda client: client.kill(container_id, signal="SIGKILL"))

    def suspend(self, container_id: str) -> None:
        self._call_unless_over(lambda client: client.pause(container_id), "already paused")

    def unsuspend(self, container_id: str) -> None:
        self._call_unless_over(lambda client: client.unpause(container_id), "is not paused")

    def remove(self, container_id: str) -> None:
        """Remove the container and its anonymous volumes."""
        try:
            self._call(lambda client: client.remove_container(container_id, v=True))
        except RuntimeFault as error:
            if not (is_missing(error) or "already in progress" in error.what):
                raise
        self._cache.forget(container_id)

    def _call_unless_over(self, ask: Callable[[APIClient], None], done: str = "is not running") -> None:
        """Make the request; ignore errors because the container has ended, or the request was already carried out."""
        try:
            self._call(ask)
        except RuntimeFault as error:
            if not (is_missing(error) or "is not running" in error.what or done in error.what):
                raise

    # listings

    def containers(self) -> tuple[ContainerRecord, ...]:
        self._current_facts()  # with the difference of the clocks
        found = self._call(self._cache.containers)
        if found:
            with suppress(RuntimeUnavailableError):  # a disk may be full: the next start needs it
                self._record_engine()
        return found

    def inspect(self, container_id: str) -> ContainerRecord | None:
        return self._call(lambda client: self._cache.inspect(client, container_id))

    def _must_inspect(self, container_id: str) -> ContainerRecord:
        if found := self.inspect(container_id):
            return found
        raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"there is no container {container_id}"))

    def foreign(self) -> tuple[ForeignContainer, ...]:
        facts = self._current_facts()
        found = self._cache.foreign(self._call, facts.default_runtime)
        others = tuple(each for each in found if each.store)
        if others != self._others:
            self._others = others
            self._set_status(self._status_of(facts))
        return found

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        return self._call(lambda client: self._cache.rivals(client, container_id))

    # output

    def save_log(self, container_id: str, path: Path) -> None:
        self._call(lambda client: save(client, container_id, path), is_long=True)

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Return its output, read over its own connection."""
        return DockerLog(self._connection, LogQuery(container_id, tail, follow, stamped))

    def activity(self, container_id: str) -> object:
        """Return the last line of its output with its time; a prompt without a line end does not count yet."""
        stream = self.logs(container_id, tail=1, stamped=True)
        try:
            return tuple(stream)
        finally:
            stream.close()

    def consumption(self, container_id: str) -> Consumption | None:
        """Return the consumption from its control group, or from the engine if that is another machine's."""
        facts, pid = self._facts, self._cache.pid_of(container_id)
        if facts is None or pid is None:
            return None
        if facts.gpus.is_local:
            return self._consumption.of_process(container_id, pid)
        if facts.api and facts.api < SUPPORTED_API:  # it would take two seconds for each
            return None
        return consumption_of(self._call(lambda client: client.stats(container_id, stream=False, one_shot=True)))

    # events

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` after ends, starts of foreign containers, and returns of the engine."""

        def lost(error: RuntimeFault) -> None:
            self._cache.lost(self._clock.now())
            self._record_failure(error)

        def back() -> None:
            self._cache.outages.back(self._clock.now())
            self._cache.forget_all()
            self.check()
            self._cache.outages.is_local = self._facts is not None and self._facts.gpus.is_local

        self._watcher = EventWatcher(self._connection, self._store_id, self._cache.forget, self._cache.see_event)
        self._watcher.start(wake, lost, back)

    def close(self) -> None:
        if self._watcher:
            self._watcher.close()
        self._connection.close()


def _address(connection: Connection) -> str:
    return connection.endpoint.url if connection.endpoint else ""


_USUAL_TIMEOUT = 10
"""Seconds that `docker stop` waits if the container specifies none."""
_PROJECTS = ("com.docker.compose.project", "io.kubernetes.pod.name", "io.podman.compose.project")


class DockerContainers:
    """ForeignContainers of one engine."""

    def __init__(self, settings: RuntimeSettings, book: EngineBook | None = None) -> None:
        self._connection = Connection(settings, partial(admitted, book) if book else None)

    def inspect(self, name: str) -> ContainerDetail:
        return self._connection.call(lambda client: _inspected(client, name))

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        def stop(client: APIClient) -> ContainerDetail:
            client.stop(container_id, timeout=patience)
            return _inspected(client, container_id)

        return self._connection.call(stop, is_long=True)

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> DockerLog:
        return DockerLog(self._connection, LogQuery(container_id, tail, follow, stamped))

    def close(self) -> None:
        self._connection.close()


def _inspected(client: APIClient, name: str) -> ContainerDetail:
    found = by_name(client, name)
    if found is None:
        raise NotFoundError(f"there is no container {name[:64]}", hint="docker ps lists those that run")
    return detail_of(found)


def detail_of(inspected: EngineJson) -> ContainerDetail:
    config, host, state = inspected["Config"], inspected.get("HostConfig") or {}, inspected["State"]
    labels = config.get("Labels") or {}
    restart = (host.get("RestartPolicy") or {}).get("Name") or ""
    timeout = config.get("StopTimeout")
    mounts, ports = [], []
    for mount in inspected.get("Mounts") or ():
        source = (mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")) or mount.get("Type")
        mounts.append(f"{source} → {mount.get('Destination')}{'' if mount.get('RW', True) else ' (read-only)'}")
    for port, bindings in sorted(((inspected.get("NetworkSettings") or {}).get("Ports") or {}).items()):
        if not bindings:
            ports.append(f"{port}, not published")
        ports += [f"{port} on {ip}:{host_port}" for ip, host_port in places_of(bindings)]
    return ContainerDetail(
        id=str(inspected["Id"]),
        name=str(inspected.get("Name", "")).lstrip("/"),
        image=str(config.get("Image") or ""),
        user=str(labels.get(USER) or config.get("User") or ""),
        command=" ".join([str(inspected.get("Path") or ""), *map(str, inspected.get("Args") or ())]).strip(),
        state=str(state.get("Status") or ""),
        started_at=parse_time(state.get("StartedAt")),
        exit_code=None if state.get("Running") else state.get("ExitCode"),
        mounts=tuple(mounts),
        ports=tuple(ports),
        devices=requested_devices(inspected),
        restart="" if restart == "no" else restart,
        stop_signal=str(config.get("StopSignal") or ""),
        stop_timeout=_USUAL_TIMEOUT if timeout is None else int(timeout),
        project=next((str(labels[key]) for key in _PROJECTS if labels.get(key)), ""),
        store=str(labels.get(STORE) or ""),
        job=str(labels.get(JOB) or ""),
    )
