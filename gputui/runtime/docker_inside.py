"""The inside of containers: a shell by the docker command, their processes by the engine."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault
from gputui.domain.process import ProcessRow, Shell
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker_connection import Connection
from gputui.runtime.docker_machine import is_here
from gputui.runtime.process_rows import Rows

if TYPE_CHECKING:
    from docker import APIClient

_COLUMNS = "pid,user:32,pcpu,rss,etimes,args"
_PROBE = ["sh", "-c", "command -v bash || echo sh"]


class DockerInside:
    """Containers of one engine."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._rows = Rows()
        self._runs_here: bool | None = None

    def shell(self, container_id: str) -> Shell:
        """`docker exec -it` on the very engine, with bash where the image has it."""
        docker = shutil.which("docker")
        if docker is None:
            raise _fault("the docker command is not installed here, and a shell in a container needs it")
        shell = self._connection.call(lambda client: _shell_in(client, container_id))
        # everything else that says which engine (DOCKER_HOST, DOCKER_CONTEXT, certificates) the command reads itself
        url = self._connection.client_url or self._settings.docker_host
        host = ("--host", url) if url else ()
        arguments = (docker, *host, "exec", "-it", container_id, shell)
        return Shell(arguments, f"container {container_id[:12]}")

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """By the kernel where the engine is on this host, else as the engine's own ps tells it."""
        told = self._connection.call(lambda client: _top(client, container_id))
        if not self._is_here():
            return told
        seen = {row.pid: row for row in self._rows.of(row.pid for row in told)}
        return tuple(seen.get(row.pid, row) for row in told)

    def _is_here(self) -> bool:
        """Whether the engine runs on this machine; asked once."""
        if self._runs_here is None:
            info = self._connection.call(lambda client: client.info())
            self._runs_here = is_here(self._connection, info)
        return self._runs_here

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()


def _shell_in(client: APIClient, container_id: str) -> str:
    """Its best shell."""
    made = client.exec_create(container_id, _PROBE)
    printed: bytes = client.exec_start(made["Id"])
    if client.exec_inspect(made["Id"])["ExitCode"]:
        raise _fault("the container has no shell: its image has no sh")
    words = printed.decode(errors="replace").split()
    return words[-1] if words and words[-1].startswith("/") else "sh"


def _top(client: APIClient, container_id: str) -> tuple[ProcessRow, ...]:
    from docker.errors import APIError

    try:
        found = client.top(container_id, f"-eo {_COLUMNS}")
    except APIError as error:
        if error.status_code in (404, 409):  # gone, or not running
            raise
        found = client.top(container_id)  # a ps that knows no columns, as busybox has
    titles = [title.upper() for title in found["Titles"]]
    return tuple(_row(dict(zip(titles, row, strict=False))) for row in found["Processes"] or ())


def _row(cells: dict[str, str]) -> ProcessRow:
    memory, age, cpu = (_number(cells.get(title, "")) for title in ("RSS", "ELAPSED", "%CPU"))
    return ProcessRow(
        pid=int(cells["PID"]),
        user=cells.get("USER", cells.get("UID", "")),
        command=cells.get("COMMAND", cells.get("CMD", "")),
        cpu=None if cpu is None else cpu / 100,
        memory=None if memory is None else int(memory) * 1024,
        age=None if age is None else timedelta(seconds=age),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _fault(text: str) -> RuntimeFault:
    return RuntimeFault(Cause(CauseCode.BAD_SPEC, text))
