"""Evidence in the engine's own data about starts and ends during which the engine itself was interrupted.

dockerd records a start only once the command runs, and an end only if it sees it. One that is killed in between later
lists the container as `created` although it ran, or as ended with 255, which is containerd's word for unknown.
docs/decisions/0011-unknown-ends.md lists what proves something, and what does not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerRecord
from gputui.runtime.docker.engine import EngineJson, is_podman
from gputui.runtime.docker.records import parse_time

if TYPE_CHECKING:
    from docker import APIClient

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
_CUT_SHORT = re.compile(
    r"rpc error|transport is closing|ttrpc: closed|error reading from server|connection (error|refused|reset)"
    r"|broken pipe|context (canceled|deadline exceeded)|\beof\b",
    re.IGNORECASE,
)
"""Errors after which dockerd does not know how far containerd or its shim got."""
_MOST_EVENTS = 256
"""Number of events that dockerd remembers."""
_LATE = timedelta(seconds=3)
"""Time after an end within which the engine writes its event: it waits for the output first."""
_EARLIEST, _LATEST = timedelta(seconds=2), timedelta(minutes=1)
"""Times before and after a creation or an end at which a slow engine may write its event."""


def was_cut_short(error: str) -> bool:
    """Return whether that error of a start leaves it open whether the command ran."""
    return bool(_CUT_SHORT.search(error))


def never_ran(client: APIClient, inspected: EngineJson) -> bool:
    """Return whether it is proven that the command of a container that is listed as `created` never ran."""
    if not was_cut_short(inspected["State"].get("Error") or "") and _is_remembered(client, inspected):
        return True
    return _lacks_mount_points(client, inspected) or is_podman(client.version())  # Podman asks the runtime itself


def saw_end(client: APIClient, record: ContainerRecord) -> bool:
    """Return whether the engine remembers an event of the end, with which the exit code is the command's own."""
    return record.ended_at is not None and bool(_around(client, record.ended_at, container=[record.id], event=["die"]))


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
    """Return whether the engine remembers the event of that time; a restarted engine does not."""
    at = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    return any(event.get("timeNano") == nanoseconds for event in _around(client, at))


def _is_remembered(client: APIClient, inspected: EngineJson) -> bool:
    """Return whether the engine remembers its creation: then it is the same process, and knows all its starts."""
    created = parse_time(inspected.get("Created"))
    return created is not None and bool(_around(client, created, container=[inspected["Id"]], event=["create"]))


def _lacks_mount_points(client: APIClient, inspected: EngineJson) -> bool:
    """Return whether the mount point of its init is missing, which the runtime creates before it runs anything."""
    host = inspected.get("HostConfig") or {}
    if not host.get("Init") or not _MAKES_MOUNT_POINTS.match(host.get("Runtime") or ""):
        return False
    url = f"{client.base_url}/v{client.api_version}/containers/{inspected['Id']}/archive"
    return client.head(url, params={"path": _INIT}, timeout=client.timeout).status_code == 404


def _around(client: APIClient, at: datetime, **filters: list[str]) -> list[EngineJson]:
    """Return the events of containers from shortly before until a while after that time, as far as it has passed."""
    return _events(client, at - _EARLIEST, min(at + _LATEST, _now(client.info())), type=["container"], **filters)


def _events(client: APIClient, since: datetime, until: datetime, **filters: list[str]) -> list[EngineJson]:
    """Return the remembered events; `until` must have passed on the engine's clock, or they are waited for."""
    span = {"since": f"{since.timestamp():.6f}", "until": f"{until.timestamp():.6f}"}  # the engine reads fractions
    return list(client.events(**span, filters=filters or None, decode=True))  # type: ignore[call-overload]


def _now(info: EngineJson) -> datetime:
    """Return the time by the engine's clock."""
    return parse_time(info.get("SystemTime")) or datetime.now(UTC)
