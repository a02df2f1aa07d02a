"""Descriptions of containers as the engine gives them: records of ours, adoption by name, and GPUs of foreign ones.

They are listed in one cheap request, inspected only if something is unknown, and judged by the engine's outages.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, ForeignContainer, Launch
from gputui.domain.errors import PART_OUT_OF_MEMORY, Cause, CauseCode, RuntimeFault, cause_of_exit
from gputui.domain.job_spec import EVERY_ADDRESS, PublishedPort
from gputui.domain.policy.availability import CDI_KIND
from gputui.domain.telemetry import Consumption
from gputui.domain.text import plain
from gputui.runtime.docker.connection import cause_of, cause_of_init, was_cut_short
from gputui.runtime.docker.create import ATTEMPT, BOOT, GPUS, GUEST, JOB, PROBE, STORE, SUBMITTER, USER
from gputui.runtime.docker.engine import EngineJson, is_podman
from gputui.runtime.host_processes import boot_id

if TYPE_CHECKING:
    from docker import APIClient

_STATES = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "paused": ContainerState.RUNNING,
    "restarting": ContainerState.RUNNING,
}
READING = [["gpu", "utility"]]
"""Capabilities of a driver that a container has which only reads GPUs: no computing."""
USERS = "/etc/passwd"
"""The one file of its machine that such a container may see."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
_NOTHING = {"", "void", "none"}
_NODE = re.compile(r"/dev/nvidia(\d+)")
_MOUNTED = "/var/run/nvidia-container-devices/"
"""Path below which NVIDIA's runtime, if configured so, interprets mounts as device names."""


def state_of(status: str) -> ContainerState:
    return _STATES.get(status, ContainerState.EXITED)


def container_record(inspected: EngineJson, *, cause: Cause | None = None) -> ContainerRecord | None:
    """Return the record of an inspected container; None without our labels. `cause` overrides the exit code's."""
    labels = inspected["Config"].get("Labels") or {}
    try:
        job_id, attempt = int(labels[JOB]), int(labels[ATTEMPT])
    except (KeyError, ValueError):
        return None
    state = inspected["State"]
    stands = state_of(state["Status"])
    is_over = stands is ContainerState.EXITED
    exit_code = int(state["ExitCode"]) if is_over else None
    if exit_code is not None and cause is None:
        if state.get("Error") and exit_code:  # the engine's own
            cause = cause_of(state["Error"], status=400, exit_code=exit_code)
        else:
            cause = cause_of_exit(exit_code, oom_killed=bool(state.get("OOMKilled")))
    ports = []
    # {"8888/tcp": [{"HostIp": "0.0.0.0", "HostPort": "49153"}]}
    for key, bindings in sorted(((inspected.get("NetworkSettings") or {}).get("Ports") or {}).items()):
        port, _, protocol = key.partition("/")
        places = (place for place in places_of(bindings) if place[1])
        ports += [PublishedPort(int(port), int(at), protocol or "tcp", ip) for ip, at in places]
    return ContainerRecord(
        id=inspected["Id"],
        job_id=job_id,
        attempt=attempt,
        state=stands,
        gpus=labelled_gpus(labels),
        started_at=None if stands is ContainerState.CREATED else parse_time(state.get("StartedAt")),
        ended_at=parse_time(state.get("FinishedAt")) if is_over else None,
        exit_code=exit_code,
        cause=cause if is_over else None,
        pid=state.get("Pid") or None,
        is_suspended=state["Status"] == "paused",
        notes=(PART_OUT_OF_MEMORY,) if is_over and state.get("OOMKilled") and not state["ExitCode"] else (),
        ports=tuple(ports),
        boot=labels.get(BOOT, ""),
    )


def places_of(bindings: Iterable[EngineJson] | None) -> list[tuple[str, str]]:
    """Return addresses and ports of the host that a port is published on; one line for both IP versions."""
    places = {(each.get("HostIp") or EVERY_ADDRESS, each.get("HostPort") or "") for each in bindings or ()}
    return [(ip, port) for ip, port in sorted(places) if ip != "::" or (EVERY_ADDRESS, port) not in places]


def consumption_of(stats: EngineJson) -> Consumption:
    """Return the consumption in an answer to `/containers/ID/stats`; control groups of version 2 tell no peak there."""
    cpu = (stats.get("cpu_stats") or {}).get("cpu_usage") or {}
    memory = stats.get("memory_stats") or {}
    served = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive")
    by_operation: dict[str, int] = {}
    for each in served or ():  # `Read` in version 1, `read` in version 2
        name = str(each.get("op", "")).lower()
        by_operation[name] = by_operation.get(name, 0) + int(each.get("value") or 0)
    return Consumption(
        cpu=cpu["total_usage"] / 1e9 if cpu.get("total_usage") else None,
        memory=memory.get("usage"),
        memory_peak=memory.get("max_usage"),
        io_read=by_operation.get("read"),
        io_written=by_operation.get("write"),
    )


def submitter_of(inspected: EngineJson) -> int | None:
    told = (inspected["Config"].get("Labels") or {}).get(SUBMITTER, "")
    return int(told) if told.isascii() and told.isdigit() else None


def labelled_gpus(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(filter(None, labels.get(GPUS, "").split(",")))


def parse_time(text: str | None) -> datetime | None:
    """Return the engine's RFC 3339 time in UTC; None for year 1, which means never."""
    found = _TIME.fullmatch(text or "")
    if not found or found[1].startswith("0001-"):
        return None
    zone = "+00:00" if found[3] == "Z" else found[3]
    micro = (found[2] or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{found[1]}.{micro}{zone}").astimezone(UTC)


def by_name(client: APIClient, name: str) -> Mapping[str, Any] | None:
    """Return the inspection of the container with this name or id; None if there is none."""
    from docker.errors import NotFound

    try:
        inspected: Mapping[str, Any] = client.inspect_container(name)
        return inspected
    except NotFound:
        return None


def adoptable(inspected: Mapping[str, Any], launch: Launch) -> bool:
    """Return whether the container can be adopted for this attempt; False: it must be made anew before it starts.

    One that never started may have other GPUs, or mounts that an earlier scheduler held open.

    Raises RuntimeFault when it is not ours.
    """
    labels = inspected["Config"].get("Labels") or {}
    ours = {STORE: launch.store_id, JOB: str(launch.job_id), ATTEMPT: str(launch.attempt)}
    if any(labels.get(key) != value for key, value in ours.items()):
        cause = Cause(CauseCode.RUNTIME_ERROR, f"the name {launch.name} is taken by a container that is not gputui's")
        raise RuntimeFault(cause, hint=f"`docker rm {launch.name}`")
    never_ran = state_of(inspected["State"]["Status"]) is ContainerState.CREATED
    return not (never_ran and (launch.held or labelled_gpus(labels) != launch.gpus))


def requested_devices(inspected: EngineJson, default_runtime: str = "") -> tuple[str, ...]:
    """Return the GPUs that a container has requested, as written; `minor:3` for `/dev/nvidia3`, which is no index."""
    host = inspected["HostConfig"]
    devices = [token for request in host.get("DeviceRequests") or () for token in _requested(request)]
    has_request = bool(devices)
    for device in host.get("Devices") or ():
        path = str(device.get("PathOnHost", ""))
        if found := _NODE.fullmatch(path):
            devices.append(f"minor:{found[1]}")
        elif path.startswith(f"{CDI_KIND}="):
            devices.extend(_tokens([path]))
    runtime = host.get("Runtime") or default_runtime
    # with a request the engine overrides the variable
    if not has_request and runtime.startswith("nvidia"):
        # mounts of device names, else the variable
        mounted = [str(mount.get("Destination", "")) for mount in inspected.get("Mounts") or ()]
        names = [path.removeprefix(_MOUNTED) for path in mounted if path.startswith(_MOUNTED)]
        env = dict(text.partition("=")[::2] for text in inspected["Config"].get("Env") or ())
        devices.extend(_tokens(names or env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")))
    return tuple(dict.fromkeys(devices))


def is_probe(inspected: EngineJson) -> bool:
    """Return whether it can do no more than read GPUs: images and users set any label, so that alone proves nothing."""
    labels, host = inspected["Config"].get("Labels") or {}, inspected["HostConfig"]
    used = host.get("DeviceRequests") or ()
    bound = {each.get("Destination") for each in inspected.get("Mounts") or () if each.get("Type") == "bind"}
    return (
        PROBE in labels
        and STORE not in labels
        # what CDI gives knows no less than all capabilities; of processes that compute the driver tells
        and all(each.get("Driver") == "cdi" or each.get("Capabilities") == READING for each in used)
        and bool(used)
        and not host.get("Devices")
        and host.get("NetworkMode") == "none"
        and bool(host.get("ReadonlyRootfs"))
        and not host.get("Privileged")
        and bound <= {USERS}
    )


def foreign_of(inspected: EngineJson, default_runtime: str) -> ForeignContainer | None:
    devices = requested_devices(inspected, default_runtime)
    if not devices or is_probe(inspected):
        return None
    config = inspected["Config"]
    labels = config.get("Labels") or {}
    return ForeignContainer(
        id=inspected["Id"],
        name=str(inspected.get("Name", "")).lstrip("/"),
        user=labels.get(USER) or None,
        devices=devices,
        image=str(config.get("Image", "")),
        started_at=parse_time(inspected["State"].get("StartedAt")),
        # anybody may set labels
        store=plain(labels.get(STORE, ""), 60),
        guest_of=plain(labels.get(GUEST, ""), 60),
    )


def _requested(request: EngineJson) -> Iterator[str]:
    """Yield the devices of a request: its ids, else a count of the first ones; -1 means all."""
    driver = request.get("Driver") or ""
    wants_gpu = any("gpu" in one_of or "nvidia" in one_of for one_of in request.get("Capabilities") or ())
    ids = [name for text in request.get("DeviceIDs") or () for name in text.split(",")]
    if driver == "cdi":
        yield from _tokens([name for name in ids if name.startswith(f"{CDI_KIND}=")])
    elif driver == "nvidia" or wants_gpu:
        count = int(request.get("Count") or 0)
        if ids:
            yield from _tokens(ids)
        elif count < 0:
            yield "all"
        else:
            yield from map(str, range(count))


def _tokens(names: list[str]) -> Iterator[str]:
    """Yield device names without CDI prefix: `0`, `0:1` (a MIG instance), `all`, `GPU-…` or `MIG-…`."""
    for name in names:
        token = name.strip().removeprefix(f"{CDI_KIND}=")
        if token not in _NOTHING:
            yield token


UNKNOWN_EXIT = 255
"""Exit code that the engine reports if it did not see the end; a command may end with it too."""
MAY_HAVE_RUN = Cause(
    CauseCode.END_UNKNOWN,
    "its start was interrupted, and Docker does not know whether it ran, so its end is unknown: "
    "it may have done its work, or still run outside Docker's view",
)
SUCCESS_NOT_SEEN = Cause(
    CauseCode.END_UNKNOWN,
    "it ended while the Docker engine did not watch it, so its end is unknown: "
    "it may have failed (Docker reports exit code 0 for lack of a better one)",
)
END_NOT_SEEN = Cause(
    CauseCode.END_UNKNOWN,
    "it ended while the Docker engine did not watch it, so its end is unknown: "
    "it may have finished its work (Docker reports exit code 255)",
)
_INIT = "/sbin/docker-init"
"""Path at which dockerd mounts the init of a container."""
_MAKES_MOUNT_POINTS = re.compile(r"(io\.containerd\.)?(runc|crun|nvidia)\b")
"""Runtimes that create missing mount points in the container's own file system, before they run anything."""
_MOST_EVENTS = 256
"""Number of events that dockerd remembers."""
_LATE = timedelta(seconds=3)
"""Time after an end within which the engine writes its event: it waits for the output first."""
_EARLIEST, _LATEST = timedelta(seconds=2), timedelta(minutes=1)
"""Times before and after a creation or an end at which a slow engine may write its event."""


def never_ran(client: APIClient, inspected: EngineJson) -> bool:
    """Return whether it is proven that the command of a container that is listed as `created` never ran."""
    created, ident = parse_time(inspected.get("Created")), inspected["Id"]
    is_cut_short = was_cut_short(inspected["State"].get("Error") or "")
    # an engine that remembers its creation is the same process, and knows all its starts
    if not is_cut_short and created and _around(client, created, container=[ident], event=["create"]):
        return True
    host = inspected.get("HostConfig") or {}
    if host.get("Init") and _MAKES_MOUNT_POINTS.match(host.get("Runtime") or ""):
        # the runtime creates the mount point of the init before it runs anything
        url = f"{client.base_url}/v{client.api_version}/containers/{ident}/archive"
        if client.head(url, params={"path": _INIT}, timeout=client.timeout).status_code == 404:
            return True
    return is_podman(client.version())  # Podman asks the runtime itself


def made_success_up(client: APIClient, record: ContainerRecord, engine_began: datetime | None) -> bool:
    """Return whether the exit code 0 may be the engine's word for unknown.

    dockerd reports it for a container that ran when it was killed, and whose task containerd no longer knows when it is
    back; the end is then the time at which dockerd looked. Ends before `engine_began` are containerd's own.
    """
    if record.ended_at is None or (engine_began and record.ended_at < engine_began):
        return False
    if _watched(client, record, _now(client.info())) or is_podman(client.version()):
        return False
    return not _watched(client, record, record.ended_at + _LATE)


def _watched(client: APIClient, record: ContainerRecord, until: datetime) -> bool:
    """Return whether the engine remembers its start or end, or may have forgotten them."""
    events = _events(client, datetime.fromtimestamp(0, UTC), until, type=["container"])
    own = any(each.get("Action") in {"start", "die"} and each.get("id") == record.id for each in events)
    return own or len(events) >= _MOST_EVENTS


def was_stopped_with(client: APIClient, record: ContainerRecord) -> bool:
    """Return whether it is proven that the engine was restarted since the container began, and stops containers then.

    The engine keeps its latest events in memory: as long as they are few, it has forgotten none of its own.
    """
    info: EngineJson = client.info()
    if info.get("LiveRestoreEnabled"):
        return False
    events = _events(client, datetime.fromtimestamp(0, UTC), _now(info))
    began = any(each.get("Action") == "start" and each.get("id") == record.id for each in events)
    return len(events) < _MOST_EVENTS and not began


def remembers(client: APIClient, nanoseconds: int) -> bool:
    at = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    return any(event.get("timeNano") == nanoseconds for event in _around(client, at))


def _around(client: APIClient, at: datetime, **filters: list[str]) -> list[EngineJson]:
    """Return the events of containers from shortly before until a while after that time, as far as it has passed."""
    return _events(client, at - _EARLIEST, min(at + _LATEST, _now(client.info())), type=["container"], **filters)


def _events(client: APIClient, since: datetime, until: datetime, **filters: list[str]) -> list[EngineJson]:
    """Return the remembered events; `until` must have passed on the engine's clock, or they are waited for."""
    span = {"since": f"{since.timestamp():.6f}", "until": f"{until.timestamp():.6f}"}  # the engine reads fractions
    return list(client.events(**span, filters=filters or None, decode=True))  # type: ignore[call-overload]


def _now(info: EngineJson) -> datetime:
    return parse_time(info.get("SystemTime")) or datetime.now(UTC)


_STOPPED = {137, 143}
"""Exit codes of containers that the engine stopped."""
_MARGIN = timedelta(seconds=2)
_KEPT = 32


class Outages(Struct, eq=False):
    """Periods without the engine. Containers that it stopped then are CONTAINER_LOST, not failures of the job.

    An engine that does not answer in time may only hang. That becomes an outage when its events end or its socket
    closes, and is forgotten when it answers again.
    """

    is_local: bool = False
    """Whether the engine is this machine's, whose restart ends containers."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _windows: list[tuple[datetime, datetime | None]] = field(default_factory=list)
    _silent_since: datetime | None = None

    def silent(self, now: datetime) -> None:
        with self._lock:
            self._silent_since = self._silent_since or now

    def lost(self, now: datetime) -> None:
        with self._lock:
            if not self._windows or self._windows[-1][1] is not None:
                self._windows = [*self._windows[-_KEPT:], (self._silent_since or now, None)]

    def deny(self) -> None:
        """Forget the last outage: only the connection was cut."""
        with self._lock:
            del self._windows[-1:]

    def back(self, now: datetime) -> None:
        with self._lock:
            self._silent_since = None
            if self._windows and self._windows[-1][1] is None:
                self._windows[-1] = (self._windows[-1][0], now)

    def judge(self, record: ContainerRecord) -> ContainerRecord:
        """Return the record, with the cause corrected if the engine or its machine ended the container."""
        if not may_be_the_engines(record):
            return record
        if self.is_local and was_before_boot(record):
            words = f"ended by a restart of the machine (exit code {record.exit_code})"
            return replace(record, cause=Cause(CauseCode.CONTAINER_LOST, words))
        at = record.ended_at
        if at is None or record.exit_code == UNKNOWN_EXIT:
            return record
        with self._lock:
            is_covered = any(
                lost - _MARGIN <= at and (back is None or at <= back + _MARGIN) for lost, back in self._windows
            )
        return ended_with_the_engine(record) if is_covered else record


_MAYBE_INIT = {126, 127}
_ABOUT_TO_START = 60
"""Seconds within which a created container is expected to be started."""


class ContainerCache(Struct, eq=False):
    """Records of the engine's containers, with times of this machine's clock: the engine's may be another machine's.

    A cached record is valid while the list shows the same state: an ended container never changes, and a running one
    keeps start and pid until it ends, which the events report.

    `check_accepting` raises RuntimeUnavailableError when the engine is stopping, `check_engine` when it is another one.
    """

    _store_id: str
    _check_accepting: Callable[[], None] = lambda: None
    _engine_began: Callable[[], datetime | None] = lambda: None
    _check_engine: Callable[[APIClient], None] = lambda _: None
    outages: Outages = field(default_factory=Outages)
    ahead: timedelta = timedelta()
    """Time by which the engine's clock is ahead of this machine's."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _records: dict[str, ContainerRecord] = field(default_factory=dict)
    _foreign: dict[str, ForeignContainer | None] = field(default_factory=dict)
    _to_be_started: set[str] = field(default_factory=set)
    _last_event: int | None = None
    _witness: int | None = None
    """Time of the last event before the engine was lost, until the engine was asked whether it remembers it."""

    def containers(self, client: APIClient) -> tuple[ContainerRecord, ...]:
        listed = client.containers(all=True, filters={"label": f"{STORE}={self._store_id}"})
        present, found = {summary["Id"] for summary in listed}, []
        with self._lock:
            gone = self._records.keys() - present
        if gone:  # somebody removed one, or the address leads to another engine now
            self._check_engine(client)
        for summary in reversed(listed):
            with self._lock:
                known = self._records.get(summary["Id"])
            is_paused = summary["State"] == "paused"
            if known and known.state is state_of(summary["State"]) and known.is_suspended == is_paused:
                found.append(known)
            elif record := self.inspect(client, summary["Id"]):
                found.append(record)
        self._prune(self._records, present)
        return tuple(found)

    def inspect(self, client: APIClient, container_id: str) -> ContainerRecord | None:
        inspected = by_name(client, container_id)
        if inspected is None:
            self.forget(container_id)
            return None
        cause: Cause | None = None
        state = inspected["State"]
        is_created = state_of(state["Status"]) is ContainerState.CREATED
        if is_created and container_id not in self._to_be_started and not never_ran(client, inspected):
            # a start that was still in progress may have ended meanwhile
            inspected = by_name(client, container_id) or inspected
            cause = MAY_HAVE_RUN
        elif state["Status"] == "exited" and state["ExitCode"] in _MAYBE_INIT:  # the engine's init may have logged why
            cause = cause_of_init(bytes(client.logs(inspected["Id"], tail=3)))
        record = container_record(inspected, cause=cause)
        if record is None:
            return None
        if cause is MAY_HAVE_RUN and record.state is ContainerState.CREATED:
            record = replace(record, state=ContainerState.EXITED, cause=cause, exit_code=None)
        record = self._judged(client, record)
        with self._lock:
            known = self._records.get(record.id)
        if may_be_the_engines(record) and not (known and known.state is record.state):
            self._check_accepting()  # a stopping engine ends its containers and still answers: judge once it is back
        with self._lock:
            if known and known.state is record.state is ContainerState.EXITED:
                # keep the first judgement: the outage may be forgotten by now
                record = replace(record, cause=known.cause, exit_code=known.exit_code)
            self._records[record.id] = record
        return record

    def pid_of(self, container_id: str) -> int | None:
        with self._lock:
            record = self._records.get(container_id)
        return record.pid if record and record.state is ContainerState.RUNNING else None

    def see_event(self, nanoseconds: int) -> None:
        self._last_event = nanoseconds

    def lost(self, now: datetime) -> None:
        self._witness = self._last_event
        self.outages.lost(now)

    def _here(self, at: datetime | None) -> datetime | None:
        return at - self.ahead if at else None

    def _judged(self, client: APIClient, there: ContainerRecord) -> ContainerRecord:
        """Return the record on this machine's clock, with a corrected cause if the engine ended the container.

        It did not if only the connection was cut and it kept running.
        """
        record = replace(there, started_at=self._here(there.started_at), ended_at=self._here(there.ended_at))
        judged = self.outages.judge(record)
        at, own = there.ended_at, {"container": [record.id], "event": ["die"]}
        # with an event of the end, the exit code is the command's own
        if judged is record and record.exit_code == UNKNOWN_EXIT and not (at and _around(client, at, **own)):
            return replace(record, cause=END_NOT_SEEN, exit_code=None)
        if record.exit_code == 0 and not record.cause and made_success_up(client, there, self._engine_began()):
            return replace(record, cause=SUCCESS_NOT_SEEN, exit_code=None)
        if judged is record and may_be_the_engines(record) and was_stopped_with(client, record):
            return ended_with_the_engine(record)
        witness, self._witness = (self._witness, None) if judged is not record else (None, self._witness)
        if witness and remembers(client, witness):
            self.outages.deny()
            return self.outages.judge(record)
        return judged

    def foreign(
        self, call: Callable[[Callable[[APIClient], Any]], Any], default_runtime: str
    ) -> tuple[ForeignContainer, ...]:
        """Return the foreign containers; `call` makes each request alone, since hundreds take longer than one may."""
        listed = call(lambda client: client.containers())
        labelled = ((each["Id"], each.get("Labels") or {}) for each in listed)
        others = [ident for ident, labels in labelled if labels.get(STORE) != self._store_id]
        found = []
        for container_id in others:
            with self._lock:
                is_known, one = container_id in self._foreign, self._foreign.get(container_id)
            if not is_known and (inspected := call(partial(by_name, name=container_id))) is not None:
                one = foreign_of(inspected, default_runtime)
                one = one and replace(one, started_at=self._here(one.started_at))
                with self._lock:
                    self._foreign[container_id] = one
            found.append(one)
        self._prune(self._foreign, set(others))
        return tuple(each for each in found if each)

    def rivals(self, client: APIClient, container_id: str) -> tuple[ContainerRecord, ...]:
        """Return other stores' containers, running or just created, that share a GPU with this one."""
        listed = client.containers(all=True, filters={"label": GPUS, "status": ["created", "running", "paused"]})
        mine = next((each for each in listed if each["Id"] == container_id), None)
        if mine is None:
            return ()
        wanted = set(labelled_gpus(mine["Labels"]))
        return tuple(
            ContainerRecord(each["Id"], 0, 0, state_of(each["State"]), labelled_gpus(each["Labels"]))
            for each in listed
            if each["Labels"].get(STORE) != self._store_id
            and wanted.intersection(labelled_gpus(each["Labels"]))
            # a killed scheduler may have left a container that will never be started
            and (each["State"] != "created" or each["Created"] > mine["Created"] - _ABOUT_TO_START)
        )

    @contextmanager
    def starting(self, container_id: str) -> Iterator[None]:
        """While the block starts the container, do not ask whether it ran; afterwards, ask again."""
        self.expect_start(container_id)
        try:
            yield
        finally:
            self.forget(container_id)

    def expect_start(self, container_id: str) -> None:
        """Record that only this process can have started the container, and has not done so."""
        with self._lock:
            self._to_be_started.add(container_id)

    def forget(self, container_id: str) -> None:
        with self._lock:
            self._records.pop(container_id, None)
            self._to_be_started.discard(container_id)

    def forget_all(self) -> None:
        """Drop containers that ran, and those that the engine may have ended when it stopped."""
        with self._lock:
            self._records = {
                key: record
                for key, record in self._records.items()
                if record.state is ContainerState.EXITED and self.outages.judge(record) is record
            }

    def _prune(self, kept: dict[str, Any], alive: set[str]) -> None:
        with self._lock:
            for gone in kept.keys() - alive:
                del kept[gone]


def ended_with_the_engine(record: ContainerRecord) -> ContainerRecord:
    words = f"ended by a restart of the Docker engine (exit code {record.exit_code})"
    return replace(record, cause=Cause(CauseCode.CONTAINER_LOST, words))


def may_be_the_engines(record: ContainerRecord) -> bool:
    """Return whether it ended as after a stop of engine or machine, and no other cause is known."""
    by_itself = {CauseCode.SIGNALLED, CauseCode.NON_ZERO_EXIT}
    return record.exit_code in {*_STOPPED, UNKNOWN_EXIT} and record.cause is not None and record.cause.code in by_itself


def was_before_boot(record: ContainerRecord) -> bool:
    """Return whether this machine was restarted since: by its boot, or by times for a container of an older gputui."""
    if record.boot:
        return record.boot != boot_id()
    up = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
    return record.started_at is not None and record.started_at < datetime.now(UTC) - up
