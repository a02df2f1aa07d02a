"""Commands in containers, their streams, and their processes as the engine and /proc tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ExecRequest, ProcessRow
from gputui.domain.errors import RuntimeFault
from gputui.domain.job import Interactive
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Channel, Permit
from gputui.runtime.docker.channel import ContainerChannel, upgraded
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.engine import EngineJson, is_local
from gputui.runtime.docker.records import by_name, submitter_of
from gputui.runtime.host_processes import ProcessSampler

if TYPE_CHECKING:
    from docker import APIClient

_EXEC_LOOKS = 100
"""Number of times to look, ten milliseconds apart, for the exit code of a command whose stream has ended."""
_COLUMNS = "pid,user:32,pcpu,rss,etimes,args"


class DockerExec:
    """JobExec for containers of one engine."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._sampler = ProcessSampler()
        self._runs_here: bool | None = None

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return its processes, sampled from /proc for a local engine, else from the engine's ps."""
        told = self._connection.call(lambda client: _top(client, container_id))
        if not self._is_here():
            return told
        seen = {row.pid: row for row in self._sampler.sample(row.pid for row in told)}
        return tuple(seen.get(row.pid, row) for row in told)

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to a container by its name. What it wrote before, unless it has a terminal, comes first."""
        inspected = self._inspected(name)
        permit(submitter_of(inspected))
        container = str(inspected["Id"])
        query = {"stream": "1", "stdout": "1", "stderr": "1", "stdin": str(int(interactive.stdin))}
        query["logs"] = str(int(inspected["State"]["Status"] != "created" and not interactive.tty))
        if detach_keys:
            query["detachKeys"] = detach_keys
        made, rest = upgraded(self._connection, f"/containers/{container}/attach", query)
        return ContainerChannel(
            made,
            rest,
            is_tty=interactive.tty,
            resize=lambda rows, columns: self._call(lambda client: client.resize(container, rows, columns)),
            exit_code=lambda: self._call(lambda client: _exit_code(client, container)),
        )

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command in the container, as its own user."""
        inspected = self._inspected(name)
        permit(submitter_of(inspected))
        container = str(inspected["Id"])
        made = self._call(
            lambda client: client.exec_create(
                container,
                list(request.command),
                stdin=request.stdin,
                tty=request.tty,
                environment={"TERM": request.term} if request.tty else None,
                detach_keys=request.detach_keys or None,
            )
        )
        run = str(made["Id"])
        body: dict[str, object] = {"Detach": False, "Tty": request.tty}
        if request.tty:
            body["ConsoleSize"] = [request.rows, request.columns]
        stream, rest = upgraded(self._connection, f"/exec/{run}/start", body=body)
        return ContainerChannel(
            stream,
            rest,
            is_tty=request.tty,
            resize=lambda rows, columns: self._call(lambda client: client.exec_resize(run, rows, columns)),
            exit_code=lambda: self._call(lambda client: _exec_code(client, run)),
        )

    def _inspected(self, name: str) -> EngineJson:
        found: EngineJson | None = self._call(lambda client: by_name(client, name))
        if found is None:
            raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, f"there is no container {name}"))
        return found

    def _call(self, ask: Callable[[APIClient], Any]) -> Any:
        return self._connection.call(ask)

    def _is_here(self) -> bool:
        """Return whether the engine runs on this machine; determined once."""
        if self._runs_here is None:
            info = self._connection.call(lambda client: client.info())
            self._runs_here = is_local(self._connection, info)
        return self._runs_here

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _exit_code(client: APIClient, container: str) -> int | None:
    found = by_name(client, container)
    return None if found is None or found["State"].get("Running") else int(found["State"]["ExitCode"])


def _exec_code(client: APIClient, run: str) -> int | None:
    """Return the exit code of an executed command; the engine may notice its end a moment after the stream's."""
    for _ in range(_EXEC_LOOKS):
        found = client.exec_inspect(run)
        if not found.get("Running"):
            return None if found.get("ExitCode") is None else int(found["ExitCode"])
        time.sleep(0.01)
    return None


def _top(client: APIClient, container_id: str) -> tuple[ProcessRow, ...]:
    from docker.errors import APIError

    try:
        found = client.top(container_id, f"-eo {_COLUMNS}")
    except APIError as error:
        if error.status_code in (404, 409):  # gone, or not running
            raise
        found = client.top(container_id)  # a ps without column options, like busybox's
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
