"""Foreign containers: inspected, read and stopped with the rights of this process's user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gputui.domain.errors import NotFoundError
from gputui.domain.gpu_processes import ContainerDetail
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.create import JOB, STORE, USER
from gputui.runtime.docker.engine import EngineJson
from gputui.runtime.docker.logs import DockerLog, LogQuery
from gputui.runtime.docker.records import by_name, parse_time, requested_devices

if TYPE_CHECKING:
    from docker import APIClient

_USUAL_TIMEOUT = 10
"""Seconds that `docker stop` waits if the container specifies none."""
_PROJECTS = ("com.docker.compose.project", "io.kubernetes.pod.name", "io.podman.compose.project")


class DockerContainers:
    """ForeignContainers of one engine."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._connection = Connection(settings)

    def inspect(self, name: str) -> ContainerDetail:
        return self._connection.call(lambda client: _inspected(client, name))

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container as `docker stop` does; return its final state."""

        def stop(client: APIClient) -> ContainerDetail:
            client.stop(container_id, timeout=patience)
            return _inspected(client, container_id)

        return self._connection.call(stop, is_long=True)

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> DockerLog:
        """Return the container's output, over its own connection."""
        return DockerLog(self._connection, LogQuery(container_id, tail, follow, stamped))

    def close(self) -> None:
        self._connection.close()


def _inspected(client: APIClient, name: str) -> ContainerDetail:
    found = by_name(client, name)
    if found is None:
        raise NotFoundError(f"there is no container {name[:64]}", hint="docker ps lists those that run")
    return detail_of(found)


def detail_of(inspected: EngineJson) -> ContainerDetail:
    """Return a container as described by its engine."""
    config, host, state = inspected["Config"], inspected.get("HostConfig") or {}, inspected["State"]
    labels = config.get("Labels") or {}
    restart = (host.get("RestartPolicy") or {}).get("Name") or ""
    timeout = config.get("StopTimeout")
    return ContainerDetail(
        id=str(inspected["Id"]),
        name=str(inspected.get("Name", "")).lstrip("/"),
        image=str(config.get("Image") or ""),
        user=str(labels.get(USER) or config.get("User") or ""),
        command=" ".join([str(inspected.get("Path") or ""), *map(str, inspected.get("Args") or ())]).strip(),
        state=str(state.get("Status") or ""),
        started_at=parse_time(state.get("StartedAt")),
        exit_code=None if state.get("Running") else state.get("ExitCode"),
        mounts=tuple(map(_mount, inspected.get("Mounts") or ())),
        ports=tuple(_ports((inspected.get("NetworkSettings") or {}).get("Ports") or {})),
        devices=requested_devices(inspected),
        restart="" if restart == "no" else restart,
        stop_signal=str(config.get("StopSignal") or ""),
        stop_timeout=_USUAL_TIMEOUT if timeout is None else int(timeout),
        project=next((str(labels[key]) for key in _PROJECTS if labels.get(key)), ""),
        store=str(labels.get(STORE) or ""),
        job=str(labels.get(JOB) or ""),
    )


def _mount(mount: EngineJson) -> str:
    source = mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")
    return (
        f"{source or mount.get('Type')} → {mount.get('Destination')}{'' if mount.get('RW', True) else ' (read-only)'}"
    )


def _ports(listed: EngineJson) -> Iterator[str]:
    """Yield each port with its host address; one line for both IP versions."""
    for port, bindings in sorted(listed.items()):
        if not bindings:
            yield f"{port}, not published"
        told = {(each.get("HostIp") or "0.0.0.0", each.get("HostPort")) for each in bindings or ()}
        for ip, host_port in sorted(told, key=str):
            if not (ip == "::" and ("0.0.0.0", host_port) in told):
                yield f"{port} on {ip}:{host_port}"
