"""Commands in pods, terminals of pods, and processes in pods."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.cluster.kubernetes.api_server import ApiServer
from gputui.cluster.kubernetes.objects import KubeContainer, KubePod
from gputui.cluster.kubernetes.pod_channel import PROTOCOLS, PodChannel
from gputui.domain.container import ExecRequest, ProcessRow
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.process_table import COLUMNS, parse_ps

_PS = f"ps -eo {COLUMNS} 2>/dev/null || ps"
_WITHIN = 10.0
"""Seconds in which a pod lists its processes."""


def execute(server: ApiServer, pod: KubePod, request: ExecRequest) -> PodChannel:
    """Run a command in the container of a pod."""
    return _opened(server, pod, "exec", stdin=request.stdin, is_tty=request.tty, command=request.command)


def attach(server: ApiServer, pod: KubePod) -> PodChannel:
    """Attach to the streams that the container of a pod has."""
    container = pod.main
    if not container.tty:
        raise ClusterRefusedError("it has no terminal", where=f"pod {pod.metadata.name}")
    return _opened(server, pod, "attach", stdin=container.stdin, is_tty=True)


def processes(server: ApiServer, pod: KubePod) -> tuple[ProcessRow, ...]:
    """Return the processes in the container of a pod, but for the `ps` that lists them."""
    hint = "its image needs sh and ps"
    try:
        told = execute(server, pod, ExecRequest(("sh", "-c", _PS))).read_all(_WITHIN).decode(errors="replace")
    except ClusterRefusedError as error:
        raise ClusterRefusedError(f"its processes cannot be listed: {error.what}", hint=hint) from error
    if not (rows := parse_ps(told)):  # `ps` always lists itself
        raise ClusterRefusedError("its processes cannot be listed: ps lists none", hint=hint)
    return tuple(row for row in rows if not row.command.removeprefix("sh -c ").startswith(f"ps -eo {COLUMNS}"))


def _opened(
    server: ApiServer, pod: KubePod, what: str, *, stdin: bool, is_tty: bool, command: tuple[str, ...] = ()
) -> PodChannel:
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/{what}"
    query = [*_query(pod.main, stdin=stdin, is_tty=is_tty), *(("command", word) for word in command)]
    connection = server.socket(path, query, PROTOCOLS)
    return PodChannel(connection, is_tty=is_tty, has_input=stdin, redraws=what == "attach")


def _query(container: KubeContainer, *, stdin: bool, is_tty: bool) -> Iterator[tuple[str, str]]:
    if container.name:
        yield "container", container.name
    # a terminal has no standard error
    for name, is_on in {"stdin": stdin, "stdout": True, "stderr": not is_tty, "tty": is_tty}.items():
        yield name, str(is_on).lower()
