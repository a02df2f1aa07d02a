"""Backend of a console under test: actions on its store, and what a test gives it to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

from gputui.domain.action import Action
from gputui.domain.cluster import Caps
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import Done
from gputui.domain.telemetry_series import Measured
from gputui.ports import LogStream
from gputui.ports.backend import WHOLE_LOG, About, Entry, LogRequest, Performer, Progress
from gputui.tui.widgets.log_follower import LogOpener


class Inside(Protocol):
    """Shells and processes of running jobs."""

    def shell(self, job_id: JobId) -> Shell: ...

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]: ...


class FakeBackend:
    """Backend with what a console uses of it."""

    def __init__(
        self,
        actions: Performer,
        logs: LogOpener,
        host: str = "node1",
        *,
        inside: Inside | None = None,
        past: Callable[[datetime | None], Iterable[Job]] = lambda since: (),
        measured: Callable[[JobId], Mapping[int, Measured]] = lambda job_id: {},
        images: Callable[[], Iterable[str]] = tuple,
        about: About | None = None,
    ) -> None:
        self._actions = actions
        self._logs = logs
        self.of_servers: dict[str, About] = {}
        """Descriptions of servers that differ from that of the whole."""
        self._about = about or About(host, "alice", "", Caps("gputui"))
        self._inside = inside
        self._past = past
        self._measured = measured
        self._images = images

    def about(self, server: str = "") -> About:
        return self.of_servers.get(server, self._about)

    def act(self, action: Action, /, *, server: str = "", on_progress: Progress | None = None) -> Done:
        return self._actions.act(action, server=server, on_progress=on_progress)

    def foresee(self, action: Action, /) -> Done:
        return self._actions.foresee(action)

    def undo(self, changes: Iterable[Any], on_progress: Progress | None = None) -> Sequence[tuple[Any, str]]:
        return self._actions.undo(changes, on_progress)

    def log(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        return self._logs.log(job_id, request)

    def shell(self, job_id: JobId) -> Shell:
        if self._inside is None:
            raise GputuiError(f"job {job_id} cannot be reached from here")
        return self._inside.shell(job_id)

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        if self._inside is None:
            raise GputuiError(f"job {job_id} cannot be reached from here")
        return self._inside.processes(job_id)

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        return self._past(since)

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        return self._measured(job_id)

    def why_unread(self, job: Job) -> Mapping[int, str]:
        return {}

    def images(self, server: str = "") -> Iterable[str]:
        return self._images()

    def snapshots(self) -> FakeBackend:
        return self

    def version(self) -> object:
        return 0

    def read(self) -> Snapshot:
        return Snapshot()

    def job(self, job_id: JobId) -> Job:
        raise NotFoundError(f"there is no job {job_id}")

    def enter(self, job_id: JobId, request: Entry) -> NoReturn:
        raise GputuiError(f"job {job_id} cannot be entered from here")

    def close(self) -> None:
        pass
