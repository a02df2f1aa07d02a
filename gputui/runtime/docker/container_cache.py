"""Cache of containers, listed in one cheap request and inspected only if something is unknown; and engine outages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gputui.domain.cause import Cause
from gputui.domain.container import ContainerRecord, ContainerState, ForeignContainer
from gputui.runtime.docker.create import GPUS, STORE
from gputui.runtime.docker.engine import EngineJson
from gputui.runtime.docker.faults import cause_of_init
from gputui.runtime.docker.records import (
    END_NOT_SEEN,
    MAY_HAVE_RUN,
    SUCCESS_NOT_SEEN,
    UNKNOWN_EXIT,
    by_name,
    container_record,
    foreign_of,
    labelled_gpus,
    made_success_up,
    never_ran,
    remembers,
    saw_end,
    state_of,
    was_stopped_with,
)

if TYPE_CHECKING:
    from docker import APIClient
from datetime import UTC, timedelta
from pathlib import Path

from gputui.domain.cause import CauseCode

_MAYBE_INIT = {126, 127}
_ABOUT_TO_START = 60
"""Seconds within which a created container is expected to be started."""


class ContainerCache:
    """Records of the engine's containers.

    A cached record is valid while the list shows the same state: an ended container never changes, and a running one
    keeps start and pid until it ends, which the events report.
    """

    def __init__(
        self,
        store_id: str,
        check_listening: Callable[[], None] = lambda: None,
        engine_began: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """`check_listening` raises RuntimeUnavailableError when the engine is stopping."""
        self.outages = Outages()
        self._check_listening = check_listening
        self._engine_began = engine_began
        self._store_id = store_id
        self._lock = threading.Lock()
        self._records: dict[str, ContainerRecord] = {}
        self._foreign: dict[str, ForeignContainer | None] = {}
        self._to_be_started: set[str] = set()
        self._booted_at: datetime | None = None
        self._last_event: int | None = None
        self._witness: int | None = None
        """Time of the last event before the engine was lost, until the engine was asked whether it remembers it."""

    def containers(self, client: APIClient) -> tuple[ContainerRecord, ...]:
        """Return this store's containers, oldest first."""
        listed = client.containers(all=True, filters={"label": f"{STORE}={self._store_id}"})
        found = [self._record(client, summary) for summary in reversed(listed)]
        self._prune(self._records, {summary["Id"] for summary in listed})
        return tuple(record for record in found if record)

    def inspect(self, client: APIClient, container_id: str) -> ContainerRecord | None:
        """Return one container, inspected now; None if it is missing or not ours."""
        inspected = by_name(client, container_id)
        if inspected is None:
            self.forget(container_id)
            return None
        if container_id not in self._to_be_started and _may_have_run(client, inspected):
            # a start that was still in progress may have ended meanwhile
            inspected = by_name(client, container_id) or inspected
            cause: Cause | None = MAY_HAVE_RUN
        else:
            cause = _init_cause(client, inspected)
        record = container_record(inspected, cause=cause)
        if record is None:
            return None
        if cause is MAY_HAVE_RUN and record.state is ContainerState.CREATED:
            record = replace(record, state=ContainerState.EXITED, cause=cause, exit_code=None)
        record = self._judged(client, record)
        with self._lock:
            known = self._records.get(record.id)
        if may_be_the_engines(record) and not (known and known.state is record.state):
            self._check_listening()  # a stopping engine ends its containers and still answers: judge once it is back
        with self._lock:
            if known and known.state is record.state is ContainerState.EXITED:
                # keep the first judgement: the outage may be forgotten by now
                record = replace(record, cause=known.cause, exit_code=known.exit_code)
            self._records[record.id] = record
        return record

    def pid_of(self, container_id: str) -> int | None:
        """Return the last known process id of a running container."""
        with self._lock:
            record = self._records.get(container_id)
        return record.pid if record and record.state is ContainerState.RUNNING else None

    def see_event(self, nanoseconds: int) -> None:
        """Record the time of an event of the engine, in nanoseconds since 1970."""
        self._last_event = nanoseconds

    def lost(self, now: datetime) -> None:
        """Record that the engine, or the connection to it, was lost."""
        self._witness = self._last_event
        self.outages.lost(now)

    def _judged(self, client: APIClient, record: ContainerRecord) -> ContainerRecord:
        """Return the record with a corrected cause, unless only the connection was cut and the engine kept running."""
        judged = self.outages.judge(record, self._booted_at)
        if judged is record and record.exit_code == UNKNOWN_EXIT and not saw_end(client, record):
            return replace(record, cause=END_NOT_SEEN, exit_code=None)
        if record.exit_code == 0 and not record.cause and made_success_up(client, record, self._engine_began()):
            return replace(record, cause=SUCCESS_NOT_SEEN, exit_code=None)
        if judged is record and may_be_the_engines(record) and was_stopped_with(client, record):
            return ended_with_the_engine(record)
        witness, self._witness = (self._witness, None) if judged is not record else (None, self._witness)
        if witness and remembers(client, witness):
            self.outages.deny()
            return self.outages.judge(record, self._booted_at)
        return judged

    def foreign(self, client: APIClient, default_runtime: str) -> tuple[ForeignContainer, ...]:
        """Return running foreign containers that requested GPUs."""
        listed = client.containers()
        others = [each["Id"] for each in listed if (each.get("Labels") or {}).get(STORE) != self._store_id]
        found = [self._of_others(client, container_id, default_runtime) for container_id in others]
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
        """Drop one container."""
        with self._lock:
            self._records.pop(container_id, None)
            self._to_be_started.discard(container_id)

    def forget_all(self) -> None:
        """Drop containers that ran, and those that the engine may have ended when it stopped."""
        with self._lock:
            self._records = {
                key: record
                for key, record in self._records.items()
                if record.state is ContainerState.EXITED and self.outages.judge(record, self._booted_at) is record
            }

    def trust_boot_time(self) -> None:
        """Use this machine's boot time, since the engine is local: older containers were ended by the restart."""
        self._booted_at = boot_time()

    def _record(self, client: APIClient, summary: EngineJson) -> ContainerRecord | None:
        with self._lock:
            known = self._records.get(summary["Id"])
        is_paused = summary["State"] == "paused"
        if known and known.state is state_of(summary["State"]) and known.is_suspended == is_paused:
            return known
        return self.inspect(client, summary["Id"])

    def _of_others(self, client: APIClient, container_id: str, default_runtime: str) -> ForeignContainer | None:
        with self._lock:
            if container_id in self._foreign:
                return self._foreign[container_id]
        inspected = by_name(client, container_id)
        if inspected is None:
            return None
        found = foreign_of(inspected, default_runtime)
        with self._lock:
            self._foreign[container_id] = found
        return found

    def _prune(self, kept: dict[str, Any], alive: set[str]) -> None:
        with self._lock:
            for gone in kept.keys() - alive:
                del kept[gone]


def _may_have_run(client: APIClient, inspected: EngineJson) -> bool:
    return state_of(inspected["State"]["Status"]) is ContainerState.CREATED and not never_ran(client, inspected)


def _init_cause(client: APIClient, inspected: EngineJson) -> Cause | None:
    """Return the failure that the engine's init logged, if the exit code may come from it."""
    state = inspected["State"]
    if state["Status"] != "exited" or state["ExitCode"] not in _MAYBE_INIT:
        return None
    tail = client.logs(inspected["Id"], tail=3)
    return cause_of_init(bytes(tail))


_STOPPED = {137, 143}
"""Exit codes of containers that the engine stopped."""
_MARGIN = timedelta(seconds=2)
_KEPT = 32


class Outages:
    """Periods without the engine. Containers that it stopped then are CONTAINER_LOST, not failures of the job.

    An engine that does not answer in time may only hang. That becomes an outage when its events end or its socket
    closes, and is forgotten when it answers again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: list[tuple[datetime, datetime | None]] = []
        self._silent_since: datetime | None = None

    def silent(self, now: datetime) -> None:
        """Record that the engine did not answer in time."""
        with self._lock:
            self._silent_since = self._silent_since or now

    def lost(self, now: datetime) -> None:
        """Record an outage, from the time the engine fell silent."""
        with self._lock:
            if not self._windows or self._windows[-1][1] is not None:
                self._windows = [*self._windows[-_KEPT:], (self._silent_since or now, None)]

    def deny(self) -> None:
        """Forget the last outage: only the connection was cut."""
        with self._lock:
            del self._windows[-1:]

    def back(self, now: datetime) -> None:
        """Record that the engine answers again."""
        with self._lock:
            self._silent_since = None
            if self._windows and self._windows[-1][1] is None:
                self._windows[-1] = (self._windows[-1][0], now)

    def judge(self, record: ContainerRecord, booted_at: datetime | None) -> ContainerRecord:
        """Return the record, with the cause corrected if the engine or the machine ended the container."""
        if not may_be_the_engines(record):
            return record
        if booted_at and record.started_at and record.started_at < booted_at:
            words = f"ended by a restart of the machine (exit code {record.exit_code})"
            return replace(record, cause=Cause(CauseCode.CONTAINER_LOST, words))
        is_covered = record.ended_at is not None and self._covers(record.ended_at)
        return ended_with_the_engine(record) if is_covered and record.exit_code != UNKNOWN_EXIT else record

    def _covers(self, at: datetime) -> bool:
        with self._lock:
            return any(lost - _MARGIN <= at and (back is None or at <= back + _MARGIN) for lost, back in self._windows)


def ended_with_the_engine(record: ContainerRecord) -> ContainerRecord:
    """Return the record of a container that a restart of the engine ended."""
    words = f"ended by a restart of the Docker engine (exit code {record.exit_code})"
    return replace(record, cause=Cause(CauseCode.CONTAINER_LOST, words))


def may_be_the_engines(record: ContainerRecord) -> bool:
    """Return whether it ended as after a stop of engine or machine, and no other cause is known."""
    by_itself = {CauseCode.SIGNALLED, CauseCode.NON_ZERO_EXIT}
    return record.exit_code in {*_STOPPED, UNKNOWN_EXIT} and record.cause is not None and record.cause.code in by_itself


def boot_time() -> datetime | None:
    """Return the boot time of this machine; None if /proc does not show it."""
    try:
        stat = Path("/proc/stat").read_text()
        return datetime.fromtimestamp(int(stat.partition("\nbtime ")[2].split()[0]), UTC)
    except (OSError, ValueError, IndexError):
        return None
