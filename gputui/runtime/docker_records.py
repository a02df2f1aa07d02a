"""What the engine says of a container, as a ContainerRecord."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gputui.domain.cause import Cause, of_exit
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.job import PublishedPort
from gputui.runtime.docker_create import ATTEMPT, GPUS, JOB
from gputui.runtime.docker_faults import cause_of

Json = Mapping[str, Any]

_STATES = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "paused": ContainerState.RUNNING,
    "restarting": ContainerState.RUNNING,
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


def state_of(status: str) -> ContainerState:
    """`exited`, `dead` and `removing` have ended."""
    return _STATES.get(status, ContainerState.EXITED)


def record_of(inspected: Json, *, cause: Cause | None = None) -> ContainerRecord | None:
    """The record of an inspected container; None when it has not our labels. `cause` overrides the exit code's."""
    labels = inspected["Config"].get("Labels") or {}
    try:
        job_id, attempt = int(labels[JOB]), int(labels[ATTEMPT])
    except (KeyError, ValueError):
        return None
    state = inspected["State"]
    stands = state_of(state["Status"])
    is_over = stands is ContainerState.EXITED
    return ContainerRecord(
        id=inspected["Id"],
        job_id=job_id,
        attempt=attempt,
        state=stands,
        gpus=gpus_of(labels),
        started_at=None if stands is ContainerState.CREATED else parse_time(state.get("StartedAt")),
        ended_at=parse_time(state.get("FinishedAt")) if is_over else None,
        exit_code=int(state["ExitCode"]) if is_over else None,
        cause=(cause or _why(state)) if is_over else None,
        pid=state.get("Pid") or None,
        ports=tuple(_ports((inspected.get("NetworkSettings") or {}).get("Ports") or {})),
    )


def _ports(listed: Json) -> Iterator[PublishedPort]:
    """Yield the ports of `{"8888/tcp": [{"HostIp": "0.0.0.0", "HostPort": "49153"}]}`, one for both kinds of IP."""
    for key, bindings in sorted(listed.items()):
        port, _, protocol = key.partition("/")
        told = {(each.get("HostIp"), each.get("HostPort")) for each in bindings or ()}
        for ip, host_port in sorted(told, key=str):
            if host_port and not (ip == "::" and ("0.0.0.0", host_port) in told):
                yield PublishedPort(int(port), int(host_port), protocol or "tcp", ip or "0.0.0.0")


def gpus_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """UUIDs a container of ours was created with."""
    return tuple(filter(None, labels.get(GPUS, "").split(",")))


def _why(state: Json) -> Cause | None:
    """Why it ended: the engine's own error where it has one, else its exit code."""
    exit_code = int(state["ExitCode"])
    if state.get("Error") and exit_code:
        return cause_of(state["Error"], status=400, exit_code=exit_code)
    return of_exit(exit_code, oom_killed=bool(state.get("OOMKilled")))


def parse_time(text: str | None) -> datetime | None:
    """The engine's RFC 3339 with nanoseconds, in UTC; its year 1 stands for never."""
    found = _TIME.fullmatch(text or "")
    if not found or found[1].startswith("0001-"):
        return None
    zone = "+00:00" if found[3] == "Z" else found[3]
    micro = (found[2] or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{found[1]}.{micro}{zone}").astimezone(UTC)
