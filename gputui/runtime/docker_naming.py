"""Whose a container is that already has an attempt's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerState, Launch
from gputui.domain.errors import RuntimeFault
from gputui.runtime.docker_create import ATTEMPT, JOB, STORE
from gputui.runtime.docker_records import gpus_of, state_of

if TYPE_CHECKING:
    from docker import APIClient


def by_name(client: APIClient, name: str) -> Mapping[str, Any] | None:
    """What the engine says of the container with this name or id; None when there is none."""
    from docker.errors import NotFound

    try:
        inspected: Mapping[str, Any] = client.inspect_container(name)
        return inspected
    except NotFound:
        return None


def adoptable(inspected: Mapping[str, Any], launch: Launch) -> bool:
    """Whether it is this attempt's; False: it was never started and has other GPUs. Raises when it is not ours."""
    labels = inspected["Config"].get("Labels") or {}
    ours = {STORE: launch.store_id, JOB: str(launch.job_id), ATTEMPT: str(launch.attempt)}
    if any(labels.get(key) != value for key, value in ours.items()):
        cause = Cause(CauseCode.RUNTIME_ERROR, f"the name {launch.name} is taken by a container that is not gputui's")
        raise RuntimeFault(cause, hint=f"`docker rm {launch.name}`")
    never_ran = state_of(inspected["State"]["Status"]) is ContainerState.CREATED
    return not (never_ran and gpus_of(labels) != launch.gpus)
