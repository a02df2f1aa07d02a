"""The server that commands are for which name neither a job nor a GPU, in a console over several servers."""

from __future__ import annotations

from collections.abc import Callable

from gputui.domain.action import Pause, Unpause
from gputui.domain.server_ids import server_of
from gputui.domain.snapshot import Snapshot
from gputui.tui.screens.job_screen import GpuScreen
from gputui.tui.services import Services


class ServerChoice:
    """Chooses the server under the cursor; where there is one queue, nothing is asked and its name is empty."""

    def __init__(self, screen: GpuScreen, services: Services) -> None:
        self._screen = screen
        self._services = services

    @property
    def name(self) -> str:
        """Return the server of the selected GPU or job, else the first."""
        snapshot = self._screen.snapshot
        if not snapshot.servers:
            return ""
        view, job = self._screen.gpu(), self._screen.subject()
        found = snapshot.server_of_gpu(view.gpu.uuid) if view else server_of(job.id) if job else ""
        return found or snapshot.servers[0].name

    @property
    def scope(self) -> tuple[Services, Snapshot]:
        """Return the services and the snapshot of that server."""
        return self._services.scoped(self._screen.snapshot, self.name)

    @property
    def is_paused(self) -> bool:
        """Return whether that server's scheduler is paused."""
        return self._screen.snapshot.of_server(self.name).controls.paused

    def ask(self, question: str, chosen: Callable[[Services, Snapshot], object]) -> None:
        """Ask for a server, the one under the cursor first."""
        names = [server.name for server in self._screen.snapshot.servers]
        if len(names) < 2:
            chosen(*self.scope)
            return
        from gputui.tui.screens.questions import Choose

        first = self.name
        names.sort(key=lambda name: name != first)

        def answered(place: int | None) -> None:
            if place is not None:
                chosen(*self._services.scoped(self._screen.snapshot, names[place]))

        self._screen.app.push_screen(Choose(question, names, none=""), answered)

    def pause(self) -> None:
        """Ask for a reason, then pause the scheduler."""
        from gputui.tui.screens.questions import Prompt

        server = self.name

        def answered(reason: str | None) -> None:
            if reason is not None:
                self._screen.request(Pause(reason), server=server)

        title = f"Pause {server or 'the scheduler'}"
        self._screen.app.push_screen(Prompt(title, "Reason", "Running jobs continue; no new starts."), answered)

    def unpause(self) -> None:
        """Resume the scheduler's starts."""
        self._screen.request(Unpause(), server=self.name)
