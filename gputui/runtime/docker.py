"""Attempts as Docker containers. docker-py is imported only when the engine is first spoken to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import (
    Capability,
    ContainerRecord,
    ContainerState,
    Created,
    ForeignContainer,
    Launch,
    RuntimeStatus,
)
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.policy.engine_gpus import refusal
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Clock, LogStream
from gputui.runtime import cdi_specs
from gputui.runtime.docker_connection import Connection
from gputui.runtime.docker_create import request_for
from gputui.runtime.docker_engine import EngineFacts, GpuMode, Json, read_facts
from gputui.runtime.docker_events import EventWatcher
from gputui.runtime.docker_faults import SilentError, fault, is_conflict, is_missing
from gputui.runtime.docker_logs import DockerLog, LogQuery, save
from gputui.runtime.docker_machine import is_here
from gputui.runtime.docker_naming import adoptable, by_name
from gputui.runtime.docker_pull_process import PullProcess
from gputui.runtime.docker_survey import Survey

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
NAME = "docker"
_CAPABILITY = Capability(images=True, limits=True, foreign=True)
_FACTS_FOR = 60.0
"""Seconds for which an engine's facts are believed."""
_NAME_TRIES = 20
_NAME_PAUSE = 0.1
"""Seconds between two looks at a name that is taken by a container not yet, or no longer, to be seen."""


class DockerRuntime:
    """The containers of one store on one engine. Constructing it neither connects nor raises."""

    name = NAME

    def __init__(self, store_id: str, settings: RuntimeSettings, clock: Clock) -> None:
        self._store_id = store_id
        self._settings = settings
        self._clock = clock
        self._connection = Connection(settings)
        self._survey = Survey(store_id, self._connection.knock)
        self._watcher: EventWatcher | None = None
        self._facts: EngineFacts | None = None
        self._facts_at = 0.0
        self._status = RuntimeStatus(NAME, False, "Docker was not asked yet", capability=_CAPABILITY, asked=False)
        self._status_lock = threading.Lock()

    # how it stands

    def status(self) -> RuntimeStatus:
        """How it stood when last asked."""
        return self._status

    def check(self) -> RuntimeStatus:
        """Ask it now, whatever the back-off says."""
        try:
            facts = self._facts_of(*self._connection.call(_ask, patient=False))
        except RuntimeFault as error:
            return self._note(error)
        self._facts, self._facts_at = facts, time.monotonic()
        return self._stand(_status_of(facts, self._connection))

    def _note(self, error: RuntimeFault) -> RuntimeStatus:
        """Remember that it does not answer."""
        self._facts = None
        return self._stand(
            RuntimeStatus(NAME, up=False, text=str(error), hint=error.hint or "", capability=_CAPABILITY)
        )

    def _stand(self, status: RuntimeStatus) -> RuntimeStatus:
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
                self._survey.outages.silent(now)
            else:
                self._survey.lost(now)  # long before its events end, where it waits for containers
            self._note(error)
            raise
        self._survey.outages.back(self._clock.now())
        return found

    def _facts_of(self, version: Json, info: Json) -> EngineFacts:
        facts = read_facts(version, info)
        is_local = is_here(self._connection, info)
        gpus = replace(facts.gpus, is_local=is_local, address=self._connection.where)
        if not is_local and (elsewhere := refusal(gpus, ())):
            gpus = replace(gpus, warnings=(elsewhere.sentence,))
        if gpus.is_local and gpus.mode == GpuMode.CDI and gpus.cdi_devices is None:
            gpus = replace(gpus, cdi_devices=cdi_specs.listed(info.get("CDISpecDirs") or ()))
        return replace(facts, gpus=gpus)

    def _known(self) -> EngineFacts:
        """Return the engine's facts, asked for again after a while: CDI devices come and go while it runs."""
        facts = self._facts
        if facts is None or time.monotonic() - self._facts_at > _FACTS_FOR:
            facts = self._facts = self._facts_of(*self._call(_ask))
            self._facts_at = time.monotonic()
            self._stand(_status_of(facts, self._connection))
        return facts

    # images

    def has_image(self, image: str) -> bool:
        """Whether the engine has it."""
        return self._call(lambda client: _has_image(client, image))

    def images(self) -> tuple[str, ...]:
        """The names of those that it has, in order; several names of one are several."""
        listed = self._call(lambda client: client.images())
        return tuple(sorted({name for image in listed for name in image.get("RepoTags") or () if "<none>" not in name}))

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        """Fetch it, with the credentials of `docker login`."""
        PullProcess(image, self._settings).run(progress, cancelled)

    # one container

    def create(self, launch: Launch) -> Created:
        """Make the container, or adopt the one that has its name."""
        facts = self._known()
        if launch.gpus and not facts.gpus.is_local:
            text = f"{facts.name} at {self._connection.where} has the GPUs of another machine"
            raise RuntimeFault(Cause(CauseCode.GPU_SETUP_FAILED, text), hint="run `gputui doctor`")
        request = request_for(launch, facts, self._settings)
        for _ in range(_NAME_TRIES):
            try:
                made = self._call(lambda client: _create(client, request.body, launch))
                return Created(made, notes=request.notes)
            except RuntimeFault as error:
                if not is_conflict(error):
                    raise
            if found := self._adopt(launch):
                return found
        raise fault(f"the name {launch.name} stays taken by a container that cannot be seen")

    def _adopt(self, launch: Launch) -> Created | None:
        """The container that has the name, as adopted; None when it is not there any more, or was replaced."""
        inspected = self._call(lambda client: by_name(client, launch.name))
        if inspected is None:
            # another call is just making it, or removing it
            time.sleep(_NAME_PAUSE)
            return None
        if adoptable(inspected, launch):
            return Created(str(inspected["Id"]), adopted=True)
        self.remove(str(inspected["Id"]))
        return None

    def start(self, container_id: str) -> None:
        """Start it if it never was; one that cannot be started is removed."""
        # the engine would run an ended container a second time
        if self._must_inspect(container_id).state is not ContainerState.CREATED:
            return
        try:
            self._call(lambda client: client.start(container_id))
        except RuntimeUnavailableError:
            raise
        except RuntimeFault as error:
            raise self._failed_start(container_id, error) from error

    def _failed_start(self, container_id: str, error: RuntimeFault) -> RuntimeFault:
        """The error, sharpened by the exit code the engine noted; the container is removed if it never ran."""
        inspected = self._call(lambda client: by_name(client, container_id))
        if inspected is None or inspected["State"]["Status"] != "created":
            return error
        self.remove(container_id)
        exit_code = int(inspected["State"].get("ExitCode") or 0)
        if error.cause.code in {CauseCode.BAD_SPEC, CauseCode.RUNTIME_ERROR} and exit_code in {126, 127}:
            return fault(str(inspected["State"].get("Error") or error.what), status=400, exit_code=exit_code)
        return error

    def terminate(self, container_id: str) -> None:
        """Send the image's stop signal, else SIGTERM."""

        def send(client: APIClient) -> None:
            inspected = by_name(client, container_id)
            if inspected and inspected["State"].get("Running"):
                client.kill(container_id, signal=inspected["Config"].get("StopSignal") or "SIGTERM")

        self._call_unless_over(send)

    def signal(self, container_id: str, number: int) -> None:
        """Send that signal to its first process, as `docker kill --signal` does."""
        self._call_unless_over(lambda client: client.kill(container_id, signal=number))

    def kill(self, container_id: str) -> None:
        """Send SIGKILL."""
        self._call_unless_over(lambda client: client.kill(container_id, signal="SIGKILL"))

    def remove(self, container_id: str) -> None:
        """Remove it, and the anonymous volumes made with it."""
        try:
            self._call(lambda client: client.remove_container(container_id, v=True))
        except RuntimeFault as error:
            if not (is_missing(error) or "already in progress" in error.what):
                raise
        self._survey.forget(container_id)

    def _call_unless_over(self, ask: Callable[[APIClient], None]) -> None:
        try:
            self._call(ask)
        except RuntimeFault as error:
            if not (is_missing(error) or "is not running" in error.what):
                raise

    # many containers

    def containers(self) -> tuple[ContainerRecord, ...]:
        """All of this store's."""
        return self._call(self._survey.containers)

    def inspect(self, container_id: str) -> ContainerRecord | None:
        """One of them, asked for now."""
        return self._call(lambda client: self._survey.inspect(client, container_id))

    def _must_inspect(self, container_id: str) -> ContainerRecord:
        if found := self.inspect(container_id):
            return found
        raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"there is no container {container_id}"))

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """Running containers of others that asked for GPUs."""
        facts = self._known()
        if not facts.gpus.is_local:
            return ()  # they have GPUs of another machine
        default_runtime = facts.default_runtime
        return self._call(lambda client: self._survey.foreign(client, default_runtime))

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        """Other stores' containers, running or just created, that were given a GPU of this one."""
        return self._call(lambda client: self._survey.rivals(client, container_id))

    # output

    def save_log(self, container_id: str, path: Path) -> None:
        """Write all of its output to the file."""
        self._call(lambda client: save(client, container_id, path), is_long=True)

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Its output, on a connection of its own."""
        return DockerLog(self._connection, LogQuery(container_id, tail, follow, stamped))

    # over time

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` on ends, on starts of others, and when the engine came back."""
        self._watcher = EventWatcher(self._connection, self._store_id, self._survey.forget, self._survey.see_event)
        self._watcher.start(wake, self._lost, self._back)

    def _lost(self, error: RuntimeFault) -> None:
        self._survey.lost(self._clock.now())
        self._note(error)

    def _back(self) -> None:
        self._survey.outages.back(self._clock.now())
        self._survey.forget_all()
        self.check()
        if self._facts and self._facts.gpus.is_local:
            self._survey.trust_boot_time()

    def close(self) -> None:
        """Let go of connections and of the watching thread."""
        if self._watcher:
            self._watcher.close()
        self._connection.close()


def _ask(client: APIClient) -> tuple[Json, Json]:
    return client.version(), client.info()


def _create(client: APIClient, body: dict[str, Any], launch: Launch) -> str:
    platform = launch.spec.options.platform
    made: dict[str, Any] = client.create_container_from_config(body, launch.name, platform)  # type: ignore[no-untyped-call]
    return str(made["Id"])


def _has_image(client: APIClient, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.inspect_image(image)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return False
    return True


def _status_of(facts: EngineFacts, connection: Connection) -> RuntimeStatus:
    return RuntimeStatus(
        NAME,
        up=True,
        text=f"{facts.name} at {connection.where}",
        version=facts.version,
        warnings=facts.warnings,
        capability=_CAPABILITY,
        gpus=facts.gpus,
    )
